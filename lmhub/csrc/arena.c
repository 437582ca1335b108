/* arena.c: contexts and their step memory.
 *
 * An arena is a stack of chunks. When it empties with more than one chunk, they are given back and the next allocation
 * makes a single chunk as large as the peak: after the first step of its kind a step allocates nothing. Only the thread
 * that runs the step may call alloc, mark and release; workers get slices of what it allocated.
 */
#include "core.h"

#include <stdlib.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#define ALIGN 64
#define HUGE_PAGE ((size_t)1 << 21)
#define LEAST ((size_t)1 << 20)
#define MOST ((size_t)1 << 46)     /* more than any machine can address */

struct lmk_chunk {
    lmk_chunk *below;
    size_t base;                   /* bytes in use in the chunks below */
    size_t size, used;
};

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

/* Large memory in huge pages: a step's rows are far apart, and a task that writes a column of them touches them all. */
static void *pages(size_t bytes)
{
    if (bytes < HUGE_PAGE) return aligned_alloc(ALIGN, bytes);
    bytes = (bytes + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    void *p = aligned_alloc(HUGE_PAGE, bytes);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (p) madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return p;
}

static lmk_chunk *push(lmk_arena *a, size_t size)
{
    lmk_chunk *chunk = pages(ALIGN + aligned(size));
    if (!chunk) {
        lmk_fail("The step needs %zu more bytes of memory than the system has; use a smaller batch or context.", size);
        return NULL;
    }
    *chunk = (lmk_chunk){ .below = a->top, .base = a->top ? a->top->base + a->top->used : 0, .size = aligned(size) };
    a->top = chunk;
    a->n_malloc++;
    a->reserved += (int64_t)chunk->size;
    return chunk;
}

static void pop(lmk_arena *a)
{
    lmk_chunk *chunk = a->top;
    a->top = chunk->below;
    a->reserved -= (int64_t)chunk->size;
    free(chunk);
}

void *lmk_alloc(lmk_ctx *c, size_t bytes)
{
    lmk_arena *a = &c->arena;
    lmk_chunk *top = a->top;
    if (bytes > MOST) {
        lmk_fail("The step asks for %zu bytes at once, which no machine has; the model's sizes are damaged.", bytes);
        return NULL;
    }
    size_t need = aligned(bytes ? bytes : 1);
    if (!top || top->size - top->used < need) {
        size_t size = top ? 2 * top->size : a->peak;
        top = push(a, size > need ? (size > LEAST ? size : LEAST) : (need > LEAST ? need : LEAST));
        if (!top) return NULL;
    }
    char *memory = (char *)top + ALIGN + top->used;
    top->used += need;
    if (top->base + top->used > a->peak) a->peak = top->base + top->used;
    return memory;
}

size_t lmk_mark(lmk_ctx *c)
{
    const lmk_chunk *top = c->arena.top;
    return top ? top->base + top->used : 0;
}

void lmk_release(lmk_ctx *c, size_t mark)
{
    lmk_arena *a = &c->arena;
    while (a->top && a->top->below && a->top->base >= mark) pop(a);
    lmk_chunk *top = a->top;
    if (!top) return;
    if (mark < top->base + top->used) top->used = mark - top->base;
    if (top->used == 0 && top->base == 0 && top->size < a->peak) pop(a);
}

lmk_ctx *lmk_ctx_new(const char *level)
{
    const lmk_kernels *kernels = lmk_kernels_for(level);
    if (!kernels) return NULL;
    lmk_ctx *c = calloc(1, sizeof *c);
    if (!c) {
        lmk_fail("There is no memory left for a model's context; free some and try again.");
        return NULL;
    }
    c->kernels = kernels;
    return c;
}

void lmk_ctx_free(lmk_ctx *c)
{
    if (!c) return;
    while (c->arena.top) pop(&c->arena);
    free(c);
}

void lmk_ctx_reset(lmk_ctx *c)
{
    lmk_release(c, 0);
}

void lmk_ctx_stats(const lmk_ctx *c, int64_t *n_malloc, int64_t *reserved)
{
    *n_malloc = c->arena.n_malloc;
    *reserved = c->arena.reserved;
}

void lmk_abort(lmk_ctx *c)
{
    atomic_store(&c->abort, 1);
}
