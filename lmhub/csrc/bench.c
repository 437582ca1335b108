/* bench.c: how fast this machine reads memory, the floor under every decode step. */
#define _GNU_SOURCE
#include "core.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define PIECE ((int64_t)1 << 20)
#define PASSES 5

typedef struct read_job {
    const uint64_t *data;
    int64_t bytes;
    _Atomic uint64_t sum;          /* keeps the reads from being optimised away */
} read_job;

static void read_pieces(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    read_job *job = arg;
    const uint64_t *p = job->data + begin * PIECE / 8, *stop = job->data + lmk_min(end * PIECE, job->bytes) / 8;
    uint64_t s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
    for (; p + 8 <= stop; p += 8) {
        __builtin_prefetch(p + 512);
        s0 ^= p[0], s1 ^= p[1], s2 ^= p[2], s3 ^= p[3], s4 ^= p[4], s5 ^= p[5], s6 ^= p[6], s7 ^= p[7];
    }
    atomic_fetch_xor(&job->sum, s0 ^ s1 ^ s2 ^ s3 ^ s4 ^ s5 ^ s6 ^ s7);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double lmk_bench_read(int64_t bytes, int threads)
{
    bytes = lmk_max(bytes, PIECE);
    void *data = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        lmk_fail("%lld bytes to measure the memory with could not be had; ask for fewer.", (long long)bytes);
        return -1.0;
    }
#ifdef MADV_HUGEPAGE
    madvise(data, (size_t)bytes, MADV_HUGEPAGE);
#endif
    memset(data, 1, (size_t)bytes);
    read_job job = { .data = data, .bytes = bytes };
    double best = 0.0;
    for (int i = 0; i < PASSES; i++) {
        double start = seconds();
        lmk_parallel(threads > 0 ? threads : lmk_threads(), (bytes + PIECE - 1) / PIECE, 1, read_pieces, &job);
        double rate = (double)bytes / (seconds() - start) * 1e-9;
        if (rate > best) best = rate;
    }
    munmap(data, (size_t)bytes);
    return best;
}
