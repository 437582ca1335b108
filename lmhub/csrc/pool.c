/* pool.c: the process's one thread pool.
 *
 * A job is a range, cut into one part for each thread; the calling thread takes part as thread 0. A thread eats its part
 * from the front, in pieces that get smaller towards the end, so that it reads memory in one long run. When its part is
 * used up it takes over the back half of what another thread has left: one that is slow or asleep delays nobody.
 * `gate` holds OPEN while a job accepts workers, plus the number of workers inside it. The caller closes the gate when
 * the range is used up and waits only for workers that are inside: one that is asleep or preempted delays nobody.
 * Workers spin for a moment between jobs, because the ops of a step follow each other within microseconds, then sleep.
 *
 * Jobs of several contexts take turns. A job started from within a job runs inline. After fork() the child starts over.
 */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "core.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define OPEN 0x40000000
#define SPIN_NS 50000

typedef struct part {
    _Alignas(64) _Atomic uint64_t left;        /* the grains that nobody has taken: the first, and in the high half the end */
} part;

typedef struct job {
    lmk_range_fn fn;
    void *arg;
    int64_t n, grain;
    int width;
    part part[LMK_MAX_THREADS];
} job;

static struct {
    pthread_mutex_t turn;          /* held by the thread whose job runs, and while the pool changes size */
    pthread_mutex_t sleep;
    pthread_cond_t posted, drained;
    atomic_int gate;
    atomic_uint epoch;             /* counts jobs; workers wait for it to move */
    atomic_int sleepers, waiting;
    atomic_int width;              /* threads wanted, the caller included; 0 = not chosen yet */
    int n_workers;                 /* threads that exist */
    int pinned;                    /* whether they are bound to CPUs */
    atomic_int quit;
    pthread_t worker[LMK_MAX_THREADS];
    job job;
} pool = {
    .turn = PTHREAD_MUTEX_INITIALIZER,
    .sleep = PTHREAD_MUTEX_INITIALIZER,
    .posted = PTHREAD_COND_INITIALIZER,
    .drained = PTHREAD_COND_INITIALIZER,
};

static _Thread_local int inside = -1;      /* this thread's index while it runs a job, or -1 */

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static uint64_t grains(uint64_t begin, uint64_t end) { return end << 32 | begin; }

/* Cuts `share` of what is left off a part, from its back for somebody else; false when nothing is left. */
static bool take(part *p, int share, bool back, uint64_t *begin, uint64_t *end)
{
    uint64_t left = atomic_load_explicit(&p->left, memory_order_relaxed), rest;
    do {
        *begin = left & UINT32_MAX;
        *end = left >> 32;
        if (*begin == *end) return false;
        const uint64_t n = (*end - *begin + (uint64_t)share - 1) / (uint64_t)share;
        rest = back ? grains(*begin, *end - n) : grains(*begin + n, *end);
        if (back) *begin = *end - n;
        else *end = *begin + n;
    } while (!atomic_compare_exchange_weak_explicit(&p->left, &left, rest, memory_order_relaxed, memory_order_relaxed));
    return true;
}

static bool take_over(job *j, int thread)
{
    uint64_t begin, end;
    for (int i = 1; i < j->width; i++)
        if (take(&j->part[(thread + i) % j->width], 2, true, &begin, &end)) {
            atomic_store_explicit(&j->part[thread].left, grains(begin, end), memory_order_relaxed);
            return true;
        }
    return false;
}

static void eat(job *j, int thread)
{
    inside = thread;
    do {
        uint64_t begin, end;
        while (take(&j->part[thread], 8, false, &begin, &end))
            j->fn(j->arg, (int64_t)begin * j->grain, lmk_min((int64_t)end * j->grain, j->n), thread);
    } while (take_over(j, thread));
    inside = -1;
}

static void cut(job *j)
{
    const uint64_t n = (uint64_t)((j->n + j->grain - 1) / j->grain), width = (uint64_t)j->width;
    for (uint64_t i = 0; i < width; i++)
        atomic_store_explicit(&j->part[i].left, grains(n * i / width, n * (i + 1) / width), memory_order_relaxed);
}

static void enter(int thread)
{
    int g = atomic_load(&pool.gate);
    while (g & OPEN) {
        if (!atomic_compare_exchange_weak(&pool.gate, &g, g + 1)) continue;
        if (thread < pool.job.width) eat(&pool.job, thread);
        if (atomic_fetch_sub(&pool.gate, 1) == 1 && atomic_load(&pool.waiting)) {
            pthread_mutex_lock(&pool.sleep);
            pthread_cond_signal(&pool.drained);
            pthread_mutex_unlock(&pool.sleep);
        }
        return;
    }
}

/* Returns when *word differs from `value`, or after the spin time. */
static void spin_while(atomic_uint *word, unsigned value)
{
    int64_t until = 0;
    for (int i = 1; atomic_load_explicit(word, memory_order_acquire) == value; i++) {
        relax();
        if (i % 64) continue;
        int64_t now = now_ns();
        if (!until) until = now + SPIN_NS;
        if (now > until) return;
    }
}

static void *work(void *arg)
{
    int thread = (int)(intptr_t)arg;
    unsigned seen = atomic_load(&pool.epoch);
    enter(thread);                 /* a job may have been posted before this thread began to watch */
    while (!atomic_load(&pool.quit)) {
        spin_while(&pool.epoch, seen);
        if (atomic_load(&pool.epoch) == seen) {
            pthread_mutex_lock(&pool.sleep);
            atomic_fetch_add(&pool.sleepers, 1);
            while (atomic_load(&pool.epoch) == seen) pthread_cond_wait(&pool.posted, &pool.sleep);
            atomic_fetch_sub(&pool.sleepers, 1);
            pthread_mutex_unlock(&pool.sleep);
        }
        seen = atomic_load(&pool.epoch);
        enter(thread);
    }
    return NULL;
}

static void announce(void)
{
    atomic_fetch_add(&pool.epoch, 1);
    if (atomic_load(&pool.sleepers)) {
        pthread_mutex_lock(&pool.sleep);
        pthread_cond_broadcast(&pool.posted);
        pthread_mutex_unlock(&pool.sleep);
    }
}

static void wait_until_drained(void)
{
    int64_t until = 0;
    for (int i = 1; atomic_load(&pool.gate); i++) {
        relax();
        if (i % 64) continue;
        int64_t now = now_ns();
        if (!until) until = now + SPIN_NS;
        if (now <= until) continue;
        pthread_mutex_lock(&pool.sleep);
        atomic_store(&pool.waiting, 1);
        while (atomic_load(&pool.gate)) pthread_cond_wait(&pool.drained, &pool.sleep);
        atomic_store(&pool.waiting, 0);
        pthread_mutex_unlock(&pool.sleep);
    }
}

/* With `turn` held. */
static void stop_workers(void)
{
    if (!pool.n_workers) return;
    atomic_store(&pool.quit, 1);
    announce();
    for (int i = 0; i < pool.n_workers; i++) pthread_join(pool.worker[i], NULL);
    pool.n_workers = 0;
    atomic_store(&pool.quit, 0);
}

/* After fork(): only the calling thread exists in the child. */
static void forget_workers(void)
{
    pthread_mutex_init(&pool.turn, NULL);
    pthread_mutex_init(&pool.sleep, NULL);
    pthread_cond_init(&pool.posted, NULL);
    pthread_cond_init(&pool.drained, NULL);
    pool.n_workers = 0;
    atomic_store(&pool.gate, 0);
    atomic_store(&pool.sleepers, 0);
    atomic_store(&pool.waiting, 0);
    atomic_store(&pool.quit, 0);
    inside = -1;
}

static void register_fork_handler(void)
{
    pthread_atfork(NULL, NULL, forget_workers);
}

#if defined(__linux__)
/* Binds worker i to the (i + 1)-th of the CPUs that the process may use; the first is for the caller, which stays free. A
 * CPU that was taken away meanwhile is not an error: the worker runs where the others do. */
static void bind(int i)
{
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all)) return;
    CPU_ZERO(&one);
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && seen++ == i + 1) CPU_SET(cpu, &one);
    if (CPU_COUNT(&one)) pthread_setaffinity_np(pool.worker[i], sizeof one, &one);
}
#else
static void bind(int i) { (void)i; }
#endif

/* With `turn` held. Fewer threads than wanted is not an error: the job still gets done. */
static void start_workers(int width)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_fork_handler);
    while (pool.n_workers < width - 1) {
        int i = pool.n_workers;
        if (pthread_create(&pool.worker[i], NULL, work, (void *)(intptr_t)(i + 1))) return;
        if (pool.pinned) bind(i);
        pool.n_workers++;
    }
}

/* CPUs of a cgroup v2 quota ("max 100000" or "200000 100000"), or 0 when there is none. */
static int quota(void)
{
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (!f) return 0;
    long long limit = 0, period = 0;
    int n = fscanf(f, "%lld %lld", &limit, &period);
    fclose(f);
    if (n != 2 || limit <= 0 || period <= 0) return 0;
    return (int)lmk_max(1, lmk_min(limit / period, LMK_MAX_THREADS));
}

static int usable_cpus(void)
{
    int n = 0;
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) n = CPU_COUNT(&set);
#endif
    if (n < 1) n = (int)sysconf(_SC_NPROCESSORS_ONLN);
    int limit = quota();
    if (limit && limit < n) n = limit;
    return (int)lmk_max(1, lmk_min(n, LMK_MAX_THREADS));
}

int lmk_threads(void)
{
    int width = atomic_load(&pool.width);
    if (width) return width;
    int chosen = usable_cpus();
    return atomic_compare_exchange_strong(&pool.width, &width, chosen) ? chosen : width;
}

int lmk_set_threads(int n)
{
    if (n < 0 || n > LMK_MAX_THREADS)
        return lmk_fail("%d threads were asked for; lmhub runs 1 to %d (0 = as many as the process may use).", n,
                        LMK_MAX_THREADS);
    if (inside >= 0) return lmk_fail("The number of threads cannot change while a kernel runs; set it between steps.");
    int width = n ? n : usable_cpus();
    pthread_mutex_lock(&pool.turn);
    if (pool.n_workers > width - 1) stop_workers();
    atomic_store(&pool.width, width);
    pthread_mutex_unlock(&pool.turn);
    return 0;
}

int lmk_pin(int on)
{
#if !defined(__linux__)
    if (on) return lmk_fail("Threads can be bound to CPUs on Linux only; start without --pin.");
#endif
    if (inside >= 0) return lmk_fail("Threads cannot be bound to CPUs while a kernel runs; do it between steps.");
    if (on && lmk_threads() > usable_cpus())
        return lmk_fail("%d threads cannot have a CPU each of the %d that the process may use; ask for fewer.", lmk_threads(),
                        usable_cpus());
    pthread_mutex_lock(&pool.turn);
    if (pool.pinned != on) stop_workers();         /* the next ones begin where they belong */
    pool.pinned = on;
    pthread_mutex_unlock(&pool.turn);
    return 0;
}

void lmk_parallel(int width, int64_t n, int64_t grain, lmk_range_fn fn, void *arg)
{
    if (n <= 0) return;
    grain = lmk_max(lmk_max(grain, 1), n / INT32_MAX + 1);
    if (width > LMK_MAX_THREADS) width = LMK_MAX_THREADS;
    if (n <= grain || width <= 1 || inside >= 0) {
        fn(arg, 0, n, inside >= 0 ? inside : 0);
        return;
    }
    pthread_mutex_lock(&pool.turn);
    start_workers(width);
    job *j = &pool.job;
    j->fn = fn;
    j->arg = arg;
    j->n = n;
    j->grain = grain;
    j->width = width;
    cut(j);
    atomic_store(&pool.gate, OPEN);
    announce();
    eat(j, 0);
    atomic_fetch_and(&pool.gate, ~OPEN);
    wait_until_drained();
    pthread_mutex_unlock(&pool.turn);
}
