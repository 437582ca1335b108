/* cache.c: the rows of a KV cache: where they are, how a step appends them, how they move to another cache or to a file.
 *
 * blocks.h has the layout: tiles of 64 positions, one behind the other, so that a sequence takes up memory from one end, and
 * huge pages hold little else. Moving rows never changes what they mean.
 */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "blocks.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALONE 1024                 /* elements below which another thread does not pay: each is a line that no cache has */
#define COPY_GRAIN (1 << 18)       /* bytes below which another thread does not pay */

/* The keys, or the values, of all layers */
typedef struct side {
    char *base;
    int64_t block, step;           /* bytes of a block and of a tile */
    int32_t dim;
    int keys;
} side;

static side side_of(const lmk_kv *kv, int keys)
{
    const int32_t dim = keys ? kv->k_dim : kv->v_dim;
    const int64_t block = lmk_block_bytes(kv->dtype, dim, keys);
    return (side){ keys ? kv->k : kv->v, block, block * kv->n_layer * kv->n_kv, dim, keys };
}

static char *block_at(const lmk_kv *kv, const side *s, int32_t il, int32_t head, int64_t position)
{
    return s->base + position / LMK_TILE * s->step + ((int64_t)il * kv->n_kv + head) * s->block;
}

const char *lmk_keys(const lmk_kv *kv, int32_t il, int32_t head, int64_t position)
{
    const side s = side_of(kv, 1);
    return block_at(kv, &s, il, head, position);
}

const char *lmk_values(const lmk_kv *kv, int32_t il, int32_t head, int64_t position)
{
    const side s = side_of(kv, 0);
    return block_at(kv, &s, il, head, position);
}

int64_t lmk_keys_step(const lmk_kv *kv)
{
    return side_of(kv, 1).step;
}

int64_t lmk_values_step(const lmk_kv *kv)
{
    return side_of(kv, 0).step;
}

int64_t lmk_kv_bytes(int32_t dtype, int64_t dim, int keys, int64_t capacity)
{
    return (capacity + LMK_TILE - 1) / LMK_TILE * lmk_block_bytes(dtype, dim, keys);
}

int64_t lmk_kv_row_bytes(int32_t dtype, int64_t dim)
{
    return lmk_vector_bytes(dtype, dim);
}

/* ---- a step's rows ---- */

typedef struct append_job {
    const lmk_kernels *kernels;
    const lmk_span *spans;
    const float *k, *v;
    int32_t il;
} append_job;

/* Positions [first, end) of an F16 cache's block */
static void lay(const lmk_kernels *kernels, char *block, int first, int end, const float *x, int64_t ldx, int64_t dim, int keys)
{
    if (!keys && end - first >= LMK_LANES) {
        kernels->lay_values(block, first, end, x, ldx, dim);
        return;
    }
    for (int slot = first; slot < end;) {
        const float *row = x + (slot - first) * ldx;
        if (keys && slot % LMK_LANES == 0 && end - slot >= LMK_LANES) {
            kernels->lay_keys(block, slot, row, ldx, dim);
            slot += LMK_LANES;
        } else (keys ? kernels->lay_key : kernels->lay_value)(block, slot++, row, dim);
    }
}

/* Positions [first, end) of a block; x: of the span's first row, `width` floats per row */
static void append_block(const append_job *j, const lmk_span *span, const side *s, int32_t head, int64_t first, int64_t end,
                         const float *x)
{
    const lmk_kv *kv = span->kv;
    const int64_t width = (int64_t)kv->n_kv * s->dim, bytes = lmk_vector_bytes(kv->dtype, s->dim);
    char *block = block_at(kv, s, j->il, head, first);
    const int slot = (int)(first % LMK_TILE), n = (int)(end - first);
    x += (span->row + first - span->n_past) * width + (int64_t)head * s->dim;
    if (kv->dtype == LMK_F16) {
        lay(j->kernels, block, slot, slot + n, x, width, s->dim, s->keys);
        return;
    }
    char *vector = block + slot * bytes;
    for (int i = 0; i < n; i++, vector += bytes, x += width)
        if (kv->dtype == LMK_Q8_0) j->kernels->to_q8_0((uint8_t *)vector, x, s->dim);
        else memcpy(vector, x, (size_t)bytes);
}

/* Asks for the lines of an F16 cache's block that one position shares with others: many, and stores alone wait for few of
 * them at a time. */
static void fetch_slot(const lmk_kv *kv, const side *s, int32_t il, int32_t head, int64_t position)
{
    const char *block = block_at(kv, s, il, head, position);
    const int slot = (int)(position % LMK_TILE);
    __builtin_prefetch(block, 1);
    for (int64_t i = 0; i < s->dim; i += s->keys ? 4 : LMK_LANES) {
        const char *line = block + (s->keys ? lmk_key_at(s->dim, slot, i / 4) : lmk_value_at(slot, i));
        __builtin_prefetch(line, 1);
        __builtin_prefetch(line + LMK_LINE, 1);
    }
}

/* A task is a kv head's keys and values in one tile: no two write to the same line. */
static int64_t tasks_of(const lmk_span *span)
{
    if (span->n < 1) return 0;
    return ((span->n_past + span->n - 1) / LMK_TILE - span->n_past / LMK_TILE + 1) * span->kv->n_kv;
}

static void append_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const append_job *j = arg;
    int64_t first = 0;             /* of the span's tasks */
    for (const lmk_span *span = j->spans; first < end; first += tasks_of(span++)) {
        const int64_t n_kv = span->kv->n_kv, behind = lmk_min(end, first + tasks_of(span));
        const int one = span->n == 1 && span->kv->dtype == LMK_F16;
        const side keys = side_of(span->kv, 1), values = side_of(span->kv, 0);
        for (int64_t task = lmk_max(begin, first); task < behind; task++) {
            const int64_t tile = span->n_past / LMK_TILE + (task - first) / n_kv;
            const int64_t from = lmk_max(span->n_past, tile * LMK_TILE);
            const int64_t to = lmk_min(span->n_past + span->n, (tile + 1) * LMK_TILE);
            const int32_t head = (int32_t)((task - first) % n_kv);
            /* The next head's lines are under way while this one's are written; not those that another thread writes. */
            for (int32_t h = task > begin && task > first; one && h < lmk_min(2, behind - task); h++) {
                fetch_slot(span->kv, &keys, j->il, head + h, from);
                fetch_slot(span->kv, &values, j->il, head + h, from);
            }
            append_block(j, span, &keys, head, from, to, j->k);
            append_block(j, span, &values, head, from, to, j->v);
        }
    }
}

void lmk_kv_append(lmk_ctx *c, int32_t il, const lmk_span *spans, int32_t n_spans, const float *k, const float *v)
{
    int64_t tasks = 0, work = 0;
    for (int32_t s = 0; s < n_spans; s++) {
        tasks += tasks_of(&spans[s]);
        work += (int64_t)spans[s].n * spans[s].kv->n_kv * (spans[s].kv->k_dim + spans[s].kv->v_dim);
    }
    append_job job = { c->kernels, spans, k, v, il };
    lmk_parallel(lmk_threads(), tasks, work < ALONE ? tasks : 1, append_tasks, &job);
}

/* ---- from cache to cache ---- */

typedef struct copy_job {
    char *to;
    const char *from;
    int64_t bytes;
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

static void copy_pieces(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const copy_job *j = arg;
    for (int64_t at = begin * COPY_GRAIN; at < end * COPY_GRAIN && at < j->bytes; at += COPY_GRAIN) {
        const int64_t n = lmk_min(COPY_GRAIN, j->bytes - at);
        touch(j->to + at, n);
        memcpy(j->to + at, j->from + at, (size_t)n);
    }
}

void lmk_kv_copy(const lmk_kv *dst, const lmk_kv *src, int64_t n)
{
    for (int keys = 1; keys >= 0; keys--) {
        const side to = side_of(dst, keys), from = side_of(src, keys);
        copy_job job = { to.base, from.base, (n + LMK_TILE - 1) / LMK_TILE * to.step };
        lmk_parallel(lmk_threads(), (job.bytes + COPY_GRAIN - 1) / COPY_GRAIN, 1, copy_pieces, &job);
    }
}

/* ---- to and from a file's order ---- */

/* Bytes of a vector exchanged with the file: of an F16 cache the exponent, high bytes, low bytes */
static void exchange_bytes(char *file, char *block, int64_t n, int save)
{
    memcpy(save ? file : block, save ? block : file, (size_t)n);
}

static void exchange_key(char *file, char *block, int slot, int64_t dim, int save)
{
    exchange_bytes(file++, block + slot, 1, save);
    char *line = block + lmk_key_at(dim, slot, 0);
    for (int64_t i = 0; i < dim; i += 4, line += 2 * LMK_LINE) {
        const int64_t n = lmk_min(4, dim - i);
        exchange_bytes(file + i, line, n, save);
        exchange_bytes(file + dim + i, line + LMK_LINE, n, save);
    }
}

static void exchange_value(char *file, char *block, int slot, int64_t dim, int save)
{
    exchange_bytes(file++, block + slot, 1, save);
    for (int64_t i = 0; i < dim; i += LMK_LANES) {
        char *line = block + lmk_value_at(slot, i);
        const int64_t n = lmk_min(LMK_LANES, dim - i);
        for (int64_t d = 0; d < n; d++)
            if (save) file[i + d] = line[4 * d], file[dim + i + d] = line[LMK_LINE + 4 * d];
            else line[4 * d] = file[i + d], line[LMK_LINE + 4 * d] = file[dim + i + d];
    }
}

/* Rows [start, start + n) exchanged with `file`: layer by layer (n, n_kv, vector) keys, then values. Runs on the calling
 * thread alone, so that a step that runs meanwhile keeps the pool. */
static void exchange(const lmk_kv *kv, int64_t start, int64_t n, char *file, int save)
{
    for (int32_t il = 0; il < kv->n_layer; il++)
        for (int keys = 1; keys >= 0; keys--) {
            const side s = side_of(kv, keys);
            const int64_t bytes = lmk_vector_bytes(kv->dtype, s.dim);
            for (int64_t at = start; at < start + n; at++)
                for (int32_t h = 0; h < kv->n_kv; h++, file += bytes) {
                    char *block = block_at(kv, &s, il, h, at);
                    const int slot = (int)(at % LMK_TILE);
                    if (kv->dtype != LMK_F16) exchange_bytes(file, block + slot * bytes, bytes, save);
                    else (keys ? exchange_key : exchange_value)(file, block, slot, s.dim, save);
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
}

/* ---- memory ---- */

void lmk_kv_trim(const lmk_kv *kv, int64_t n_tokens)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (int keys = 1; keys >= 0; keys--) {
        const side s = side_of(kv, keys);
        const char *unused = s.base + (n_tokens + LMK_TILE - 1) / LMK_TILE * s.step;
        const char *behind = s.base + (kv->capacity + LMK_TILE - 1) / LMK_TILE * s.step;
        const uintptr_t first = ((uintptr_t)unused + page - 1) / page * page, end = (uintptr_t)behind / page * page;
        if (first < end) (void)madvise((void *)first, end - first, MADV_DONTNEED);
    }
}
