/* shelf.c: experts that stay in the file, of which no more than a budget is kept in memory.
 *
 * A shelf covers banks: the experts of one weight, one behind the other in a mapping of the file. Kernels read them where they
 * lie; the shelf says which of them the system shall have in memory. Before a product its experts are asked for, all at once, so
 * that the disk reads them side by side, and those of the layer's other banks too, where there is room. Beyond the budget those
 * that were used longest ago are given back. What is read through the mapping is the same either way: only time depends on it.
 */
#define _GNU_SOURCE
#include "core.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct entry {             /* one expert of a bank */
    struct bank *bank;
    struct entry *newer, *older;   /* in the order of use, while it is held */
    int64_t used;                  /* the call that used it last */
    int32_t held, ahead;           /* whether it is; whether it was only asked for so far */
} entry;

typedef struct bank {
    struct bank *next;             /* of the process */
    lmk_shelf *shelf;
    const char *base;
    int64_t bytes;                 /* of an expert */
    int32_t n_expert, layer;       /* banks of one layer have as many experts, and are used one after the other */
    int fd;
    int64_t offset;                /* of the first expert in that file */
    entry entries[];
} bank;

struct lmk_shelf {
    int64_t budget, held, call;
    int64_t used, hits, read;      /* experts, experts that were held, bytes that were asked for */
    entry *newest, *oldest;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bank *banks;

static bank *bank_of(const void *base)
{
    bank *b = banks;
    while (b && b->base != base) b = b->next;
    return b;
}

static void take_out(lmk_shelf *s, entry *e)
{
    *(e->newer ? &e->newer->older : &s->newest) = e->older;
    *(e->older ? &e->older->newer : &s->oldest) = e->newer;
}

static void put_first(lmk_shelf *s, entry *e)
{
    e->newer = NULL;
    e->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = e;
    s->newest = e;
}

/* The whole pages within an expert, or, for `around`, all that it touches */
static void pages_of(const bank *b, int64_t expert, int around, char **begin, size_t *n)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)b->base + (uintptr_t)(expert * b->bytes);
    const uintptr_t end = first + (uintptr_t)b->bytes, up = page - 1;
    const uintptr_t from = (around ? first : first + up) & ~up, to = (around ? end + up : end) & ~up;
    *begin = (char *)from;
    *n = to > from ? to - from : 0;
}

static void ask_for(const bank *b, int64_t expert)
{
    char *begin;
    size_t n;
    pages_of(b, expert, 1, &begin, &n);
    madvise(begin, n, MADV_WILLNEED);
}

static void give_back(const bank *b, int64_t expert)
{
    char *begin;
    size_t n;
    pages_of(b, expert, 0, &begin, &n);
    if (n) madvise(begin, n, MADV_DONTNEED);
#ifdef POSIX_FADV_DONTNEED
    posix_fadvise(b->fd, b->offset + (begin - b->base), (off_t)n, POSIX_FADV_DONTNEED);
#endif
}

static void hold(bank *b, int64_t expert, int ahead)
{
    entry *e = &b->entries[expert];
    lmk_shelf *s = b->shelf;
    if (e->held) {
        take_out(s, e);
    } else {
        ask_for(b, expert);
        s->held += b->bytes;
        s->read += b->bytes;
        e->held = 1;
        e->ahead = ahead;
    }
    e->used = s->call;
    put_first(s, e);
}

/* Gives back what was used longest ago, but nothing that this call uses, until the budget holds. */
static void keep_budget(lmk_shelf *s)
{
    while (s->held > s->budget && s->oldest && s->oldest->used < s->call) {
        entry *e = s->oldest;
        give_back(e->bank, e - e->bank->entries);
        take_out(s, e);
        e->held = 0;
        s->held -= e->bank->bytes;
    }
}

static void use(bank *b, int64_t expert)
{
    entry *e = &b->entries[expert];
    lmk_shelf *s = b->shelf;
    s->used++;
    s->hits += e->held && !e->ahead;
    hold(b, expert, 0);
    e->ahead = 0;
}

/* The layer's other banks are multiplied next, with the same experts: asked for now, if the budget holds all of them. */
static void use_ahead(const bank *used, const lmk_segment *segments, int64_t n)
{
    lmk_shelf *s = used->shelf;
    int64_t bytes = 0;
    for (const bank *b = banks; b; b = b->next) bytes += b->shelf == s && b->layer == used->layer ? n * b->bytes : 0;
    if (bytes > s->budget) return;
    for (bank *b = banks; b; b = b->next) {
        if (b->shelf != s || b->layer != used->layer) continue;
        for (int64_t i = 0; i < n; i++)
            if (b->entries[segments[i].expert].used < s->call) hold(b, segments[i].expert, 1);
    }
    keep_budget(s);
}

/* How many of the segments may be multiplied now, one at least: as many as half of the budget holds, so that what comes next
 * has the other half. All of them where nothing is on a shelf. */
static int64_t fitting(const lmk_weight *const *w, int32_t n_w, int64_t n)
{
    int64_t bytes = 0, budget = 0;
    for (int32_t i = 0; i < n_w; i++) {
        const bank *b = w[i]->packed ? NULL : bank_of(w[i]->data);
        if (b) bytes += b->bytes, budget = b->shelf->budget;
    }
    return bytes ? lmk_max(1, lmk_min(n, n * bytes <= budget ? n : budget / 2 / bytes)) : n;
}

int64_t lmk_shelf_fetch(const lmk_weight *const *w, int32_t n_w, const lmk_segment *segments, int64_t n)
{
    pthread_mutex_lock(&lock);
    const int64_t count = banks ? fitting(w, n_w, n) : n;
    const bank *last = NULL;
    for (int32_t i = 0; i < n_w && banks; i++) {
        bank *b = w[i]->packed ? NULL : bank_of(w[i]->data);
        if (!b) continue;
        if (!last) b->shelf->call++;
        for (int64_t j = 0; j < count; j++) use(b, segments[j].expert);
        last = b;
    }
    if (last) keep_budget(last->shelf);
    if (last && count == n) use_ahead(last, segments, n);
    pthread_mutex_unlock(&lock);
    return count;
}

lmk_shelf *lmk_shelf_new(int64_t budget)
{
    lmk_shelf *s = calloc(1, sizeof *s);
    if (s) s->budget = budget;
    return s;
}

int lmk_shelf_add(lmk_shelf *s, const void *base, int32_t n_expert, int64_t bytes, int32_t layer, int fd, int64_t offset)
{
    bank *b = calloc(1, sizeof *b + (size_t)n_expert * sizeof *b->entries);
    if (!b) return lmk_fail("There is no memory left to keep track of %d experts.", n_expert);
    *b = (bank){ .shelf = s, .base = base, .bytes = bytes, .n_expert = n_expert, .layer = layer, .fd = fd, .offset = offset };
    for (int32_t e = 0; e < n_expert; e++) b->entries[e].bank = b;
    pthread_mutex_lock(&lock);
    b->next = banks;
    banks = b;
    pthread_mutex_unlock(&lock);
    return 0;
}

void lmk_shelf_stats(const lmk_shelf *s, lmk_shelf_numbers *out)
{
    pthread_mutex_lock(&lock);
    *out = (lmk_shelf_numbers){ .budget = s->budget, .held = s->held, .used = s->used, .hits = s->hits, .read = s->read };
    pthread_mutex_unlock(&lock);
}

void lmk_shelf_free(lmk_shelf *s)
{
    pthread_mutex_lock(&lock);
    for (bank **at = &banks; *at;) {
        bank *b = *at;
        if (b->shelf != s) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        free(b);
    }
    pthread_mutex_unlock(&lock);
    free(s);
}
