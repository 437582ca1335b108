/* cache.c: the rows of a KV cache: where they are, how a step appends them, how they move to another cache or to a file.
 *
 * A cache is a set of segments, one for each layer, keys or values, and kv head: `capacity` vectors, one after the other.
 * A vector is F32, F16, or Q8_0 blocks as in a file (F16 scale, 32 int8). Moving rows never changes their bytes.
 */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "core.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__linux__) && !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25           /* Linux 6.1; older ones refuse it */
#endif

#define COPY_GRAIN (1 << 18)       /* bytes below which another thread does not pay */

typedef struct segment {           /* of one layer and one kv head */
    char *rows;                    /* (capacity) vectors */
    int64_t bytes;                 /* of one vector */
} segment;

static int64_t vector_bytes(const lmk_kv *kv, int64_t dim)
{
    return dim / lmk_type_block(kv->dtype) * lmk_type_bytes(kv->dtype);
}

static segment segment_of(void *base, const lmk_kv *kv, int32_t il, int32_t head, int32_t dim)
{
    const int64_t bytes = vector_bytes(kv, dim);
    return (segment){ (char *)base + ((int64_t)il * kv->n_kv + head) * kv->capacity * bytes, bytes };
}

/* Segment i of all: layer by layer, all heads' keys, then their values. */
static segment nth_segment(const lmk_kv *kv, int64_t i)
{
    const int32_t il = (int32_t)(i / (2 * kv->n_kv)), rest = (int32_t)(i % (2 * kv->n_kv)), head = rest % kv->n_kv;
    return rest < kv->n_kv ? segment_of(kv->k, kv, il, head, kv->k_dim) : segment_of(kv->v, kv, il, head, kv->v_dim);
}

static int64_t n_segments(const lmk_kv *kv)
{
    return 2 * (int64_t)kv->n_layer * kv->n_kv;
}

const char *lmk_keys(const lmk_kv *kv, int32_t il, int32_t head, int64_t position)
{
    const segment s = segment_of(kv->k, kv, il, head, kv->k_dim);
    return s.rows + position * s.bytes;
}

const char *lmk_values(const lmk_kv *kv, int32_t il, int32_t head, int64_t position)
{
    const segment s = segment_of(kv->v, kv, il, head, kv->v_dim);
    return s.rows + position * s.bytes;
}

/* ---- huge pages ---- */

#define HUGE_PAGE ((int64_t)1 << 21)

#ifdef MADV_COLLAPSE
/* Bytes of [from, from + HUGE_PAGE), offsets into one layer's keys or values, that n positions of each head take up */
static int64_t taken(int64_t from, int64_t per_head, int64_t used, int32_t n_kv)
{
    int64_t sum = 0;
    for (int64_t h = from / per_head; h < n_kv && h * per_head < from + HUGE_PAGE; h++)
        sum += lmk_max(0, lmk_min(h * per_head + used, from + HUGE_PAGE) - lmk_max(h * per_head, from));
    return sum;
}

static void gather(void *base, const lmk_kv *kv, int32_t il, int32_t dim, int64_t n_past, int64_t n)
{
    const int64_t bytes = vector_bytes(kv, dim), per_head = kv->capacity * bytes;
    char *layer = segment_of(base, kv, il, 0, dim).rows;
    const int64_t least = HUGE_PAGE / 2 + HUGE_PAGE / 4 * il / kv->n_layer;
    int64_t from = (HUGE_PAGE - (int64_t)((uintptr_t)layer % HUGE_PAGE)) % HUGE_PAGE;
    for (; from + HUGE_PAGE <= per_head * kv->n_kv; from += HUGE_PAGE) {
        const int64_t before = taken(from, per_head, n_past * bytes, kv->n_kv);
        const int64_t now = taken(from, per_head, (n_past + n) * bytes, kv->n_kv);
        if (before < least && now >= least) (void)madvise(layer + from, HUGE_PAGE, MADV_COLLAPSE);
    }
}
#endif

/* Rows n_past .. n_past + n - 1 of a layer have been written. Where they fill a huge page's memory by more than half, it
 * becomes one: a long cache is read at the speed of memory only if it does not wait for the tables of small pages. A short
 * one never takes memory that it does not need. Layers differ in when, so that no step has to wait for all of them. */
static void gather_layer(const lmk_kv *kv, int32_t il, int64_t n_past, int64_t n)
{
#ifdef MADV_COLLAPSE
    gather(kv->k, kv, il, kv->k_dim, n_past, n);
    gather(kv->v, kv, il, kv->v_dim, n_past, n);
#else
    (void)kv, (void)il, (void)n_past, (void)n;
#endif
}

/* ---- a step's rows ---- */

typedef struct append_job {
    const lmk_kernels *kernels;
    const lmk_span *span;
    const float *k, *v;            /* of the span's first row */
    int32_t il;
} append_job;

static void write_vector(const lmk_kernels *kernels, segment s, int64_t position, const float *x, int32_t dim, int32_t dtype)
{
    void *dst = s.rows + position * s.bytes;
    if (dtype == LMK_F16) kernels->to_f16(dst, x, dim);
    else if (dtype == LMK_Q8_0) kernels->to_q8_0(dst, x, dim);
    else memcpy(dst, x, (size_t)s.bytes);
}

static void append_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const append_job *j = arg;
    const lmk_kv *kv = j->span->kv;
    for (int32_t h = 0; h < kv->n_kv; h++) {
        const segment keys = segment_of(kv->k, kv, j->il, h, kv->k_dim), values = segment_of(kv->v, kv, j->il, h, kv->v_dim);
        for (int64_t i = begin; i < end; i++) {
            const int64_t at = j->span->n_past + i;
            write_vector(j->kernels, keys, at, j->k + (i * kv->n_kv + h) * kv->k_dim, kv->k_dim, kv->dtype);
            write_vector(j->kernels, values, at, j->v + (i * kv->n_kv + h) * kv->v_dim, kv->v_dim, kv->dtype);
        }
    }
}

void lmk_kv_append(lmk_ctx *c, int32_t il, const lmk_span *spans, int32_t n_spans, const float *k, const float *v)
{
    for (int32_t s = 0; s < n_spans; s++) {
        const lmk_kv *kv = spans[s].kv;
        const int64_t kw = (int64_t)kv->n_kv * kv->k_dim, vw = (int64_t)kv->n_kv * kv->v_dim;
        append_job job = { c->kernels, &spans[s], k + spans[s].row * kw, v + spans[s].row * vw, il };
        lmk_parallel(lmk_threads(), spans[s].n, 1 + 16384 / (kw + vw), append_rows, &job);
        gather_layer(kv, il, spans[s].n_past, spans[s].n);
    }
}

/* ---- from cache to cache ---- */

typedef struct copy_job {
    const lmk_kv *dst, *src;
    int64_t n;
} copy_job;

/* Has the whole pages of fresh memory made in one call rather than by a fault each; where that is not possible, they come
 * by faults. */
static void touch(char *memory, int64_t bytes)
{
#ifdef MADV_POPULATE_WRITE
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = ((uintptr_t)memory + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)memory + (uintptr_t)bytes) / page * page;
    if (end > first + page) (void)madvise((void *)first, end - first, MADV_POPULATE_WRITE);
#else
    (void)memory;
    (void)bytes;
#endif
}

static void copy_segments(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const copy_job *j = arg;
    for (int64_t i = begin; i < end; i++) {
        const segment to = nth_segment(j->dst, i), from = nth_segment(j->src, i);
        touch(to.rows, j->n * to.bytes);
        memcpy(to.rows, from.rows, (size_t)(j->n * to.bytes));
    }
}

void lmk_kv_copy(const lmk_kv *dst, const lmk_kv *src, int64_t n)
{
    copy_job job = { dst, src, n };
    const int64_t bytes = n * (vector_bytes(dst, dst->k_dim) + vector_bytes(dst, dst->v_dim)) / 2;
    lmk_parallel(lmk_threads(), n_segments(dst), 1 + COPY_GRAIN / lmk_max(bytes, 1), copy_segments, &job);
    for (int32_t il = 0; il < dst->n_layer; il++) gather_layer(dst, il, 0, n);
}

/* ---- to and from a file's order ---- */

/* Rows [start, start + n) exchanged with `file`: layer by layer (n, n_kv, vector) keys, then values. Runs on the calling
 * thread alone, so that a step that runs meanwhile keeps the pool. */
static void exchange(const lmk_kv *kv, int64_t start, int64_t n, char *file, int save)
{
    for (int64_t first = 0; first < n_segments(kv); first += kv->n_kv) {
        const segment block = nth_segment(kv, first);
        const int64_t distance = kv->capacity * block.bytes;
        for (int64_t i = 0; i < n; i++)
            for (int32_t h = 0; h < kv->n_kv; h++, file += block.bytes) {
                char *row = block.rows + h * distance + (start + i) * block.bytes;
                memcpy(save ? file : row, save ? row : file, (size_t)block.bytes);
            }
    }
}

void lmk_kv_read(const lmk_kv *kv, int64_t start, int64_t n, void *rows)
{
    exchange(kv, start, n, rows, 1);
}

void lmk_kv_write(const lmk_kv *kv, int64_t start, int64_t n, const void *rows)
{
    exchange(kv, start, n, (char *)(uintptr_t)rows, 0);
    for (int32_t il = 0; il < kv->n_layer; il++) gather_layer(kv, il, start, n);
}

/* ---- memory ---- */

void lmk_kv_trim(const lmk_kv *kv, int64_t n_tokens)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (int64_t i = 0; i < n_segments(kv); i++) {
        const segment s = nth_segment(kv, i);
        const uintptr_t first = ((uintptr_t)(s.rows + n_tokens * s.bytes) + page - 1) / page * page;
        const uintptr_t end = (uintptr_t)(s.rows + kv->capacity * s.bytes) / page * page;
        if (first < end) (void)madvise((void *)first, end - first, MADV_DONTNEED);
    }
}
