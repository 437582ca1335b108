/* linear.c: y = x Wᵀ for every weight type, and the packed layout of Q8_0.
 *
 * Two paths. A packed weight meets activations quantised to int8, 16 outputs at a time. Any other type is expanded to
 * float32, a few rows at a time into scratch that stays in cache, and meets the activations as they are. Both work on
 * tiles of 16 output rows, which threads take from one counter; a tile's arithmetic depends on nothing else.
 *
 * The unit is the slot: one input row times one matrix of the weight. `linear` is the case of one matrix and all rows.
 *
 * Packed layout of one matrix: groups of 16 rows, the last one padded with zeros. A group: for each block of 32 columns
 * 8 x 64 bytes (4 consecutive columns of each of the 16 rows, stored as w + 128), then for each block 16 F16 scales; the
 * group's size is rounded up to 64 bytes.
 */
#include "core.h"

#include <string.h>

#define INLINE_WORK 32768          /* multiplications below which waking another thread does not pay */

/* ---- packing ---- */

static int64_t group_bytes(int64_t cols)
{
    return (cols / LMK_BLOCK * (LMK_BLOCK + 2) * LMK_GROUP + 63) / 64 * 64;
}

static int64_t n_groups(int64_t rows)
{
    return (rows + LMK_GROUP - 1) / LMK_GROUP;
}

int64_t lmk_packed_bytes(int32_t type, int64_t rows, int64_t cols, int64_t n_expert)
{
    if (type != LMK_Q8_0 || cols % LMK_BLOCK || rows < 1 || cols < 1 || n_expert < 1) return 0;
    return n_expert * n_groups(rows) * group_bytes(cols);
}

typedef struct pack_job {
    const lmk_weight *w;
    uint8_t *dst;
} pack_job;

static void pack_groups(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const pack_job *job = arg;
    const lmk_weight *w = job->w;
    const int64_t groups = n_groups(w->rows), n_blocks = w->cols / LMK_BLOCK, size = group_bytes(w->cols);
    for (int64_t g = begin; g < end; g++) {
        uint8_t *dst = job->dst + g * size;
        uint16_t *scales = (uint16_t *)(dst + n_blocks * LMK_BLOCK * LMK_GROUP);
        const int64_t first = g % groups * LMK_GROUP, count = lmk_min(LMK_GROUP, w->rows - first);
        const uint8_t *src = (const uint8_t *)w->data + (g / groups * w->rows + first) * n_blocks * (LMK_BLOCK + 2);
        if (count < LMK_GROUP) {
            memset(dst, 0x80, (size_t)(n_blocks * LMK_BLOCK * LMK_GROUP));
            memset(scales, 0, (size_t)(n_blocks * LMK_GROUP) * 2);
        }
        for (int64_t i = 0; i < count; i++)
            for (int64_t b = 0; b < n_blocks; b++, src += LMK_BLOCK + 2) {
                memcpy(&scales[b * LMK_GROUP + i], src, 2);
                for (int t = 0; t < LMK_BLOCK / 4; t++) {
                    uint32_t w4;
                    memcpy(&w4, src + 2 + t * 4, 4);
                    w4 ^= 0x80808080u;
                    memcpy(dst + (b * LMK_BLOCK + t * 4) * LMK_GROUP + i * 4, &w4, 4);
                }
            }
    }
}

int lmk_pack(const lmk_weight *w, void *dst)
{
    if (!lmk_packed_bytes(w->type, w->rows, w->cols, w->n_expert))
        return lmk_fail("Weights of type %d and %lld columns have no packed layout; use them as they are.", w->type,
                        (long long)w->cols);
    pack_job job = { w, dst };
    lmk_parallel(lmk_threads(), w->n_expert * n_groups(w->rows), 4, pack_groups, &job);
    return 0;
}

/* ---- rows of a weight ---- */

typedef struct gather_job {
    const lmk_kernels *kernels;
    float *y;
    const lmk_weight *w;
    const int32_t *ids;
    int64_t row_bytes;
} gather_job;

static void gather(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const gather_job *job = arg;
    const int64_t cols = job->w->cols;
    for (int64_t i = begin; i < end; i++) {
        const char *row = (const char *)job->w->data + job->ids[i] * job->row_bytes;
        job->kernels->dequant(job->w->type, row, job->y + i * cols, cols);
    }
}

/* Bytes of one row, or -1 with a sentence. */
static int64_t row_bytes(const lmk_weight *w)
{
    const int64_t block = lmk_type_block(w->type);
    if (block < 1) return lmk_fail("There is no kernel for weights of GGML type %d; convert the model again.", w->type);
    if (w->cols < 1 || w->cols % block)
        return lmk_fail("A weight of GGML type %d has rows of %lld, not a multiple of its block of %lld.", w->type,
                        (long long)w->cols, (long long)block);
    return w->cols / block * lmk_type_bytes(w->type);
}

int lmk_get_rows(lmk_ctx *c, float *y, const lmk_weight *w, const int32_t *ids, int64_t n)
{
    const int64_t bytes = row_bytes(w);
    if (bytes < 0) return -1;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= w->rows)
            return lmk_fail("Token id %d is outside the vocabulary of %lld.", ids[i], (long long)w->rows);
    gather_job job = { c->kernels, y, w, ids, bytes };
    lmk_parallel(lmk_threads(), n, 1 + INLINE_WORK / w->cols, gather, &job);
    return 0;
}

/* ---- slots ---- */

typedef struct slots_job {
    const lmk_kernels *kernels;
    const lmk_weight *w;
    const lmk_segment *segments;
    int64_t tiles;                 /* per matrix */
    float **y;                     /* (n_slots) */
    const lmk_q8_block **xq;       /* (n_slots), each (cols / 32): packed path */
    const float **x;               /* (n_slots), generic path */
    float *scratch;                /* (threads, LMK_GROUP, cols), generic path, unless the type is F32 */
    int64_t row_bytes;
} slots_job;

static void packed_tiles(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const slots_job *job = arg;
    const int64_t cols = job->w->cols, size = group_bytes(cols), weights = cols * LMK_GROUP;
    for (int64_t t = begin; t < end; t++) {
        const lmk_segment *s = &job->segments[t / job->tiles];
        const int64_t tile = t % job->tiles, row = tile * LMK_GROUP;
        const uint8_t *group = (const uint8_t *)job->w->packed + (s->expert * job->tiles + tile) * size;
        const lmk_q8_block *const *x = (const lmk_q8_block *const *)job->xq + s->first;
        job->kernels->dot_q8(job->y + s->first, row, (int)lmk_min(LMK_GROUP, job->w->rows - row), group,
                             (const uint16_t *)(group + weights), x, s->count, cols);
    }
}

static void generic_tiles(void *arg, int64_t begin, int64_t end, int thread)
{
    const slots_job *job = arg;
    const lmk_weight *w = job->w;
    const lmk_kernels *k = job->kernels;
    float *scratch = job->scratch + (int64_t)thread * LMK_GROUP * w->cols;
    for (int64_t t = begin; t < end; t++) {
        const lmk_segment *s = &job->segments[t / job->tiles];
        const int64_t first = t % job->tiles * LMK_GROUP, last = lmk_min(first + LMK_GROUP, w->rows);
        /* Many slots share an expanded row, so a whole tile is expanded; for few, what is expanded must stay in L1. */
        const int64_t step = s->count > 4 ? LMK_GROUP : 4;
        for (int64_t i = first; i < last; i += step) {
            const int64_t n = lmk_min(step, last - i);
            const char *src = (const char *)w->data + (s->expert * w->rows + i) * job->row_bytes;
            const float *rows = (const float *)(const void *)src;
            if (w->type != LMK_F32) {
                /* Expanding and multiplying alternate; memory must not idle while the products run. */
                for (int64_t b = 0; s->count <= 4 && b < n * job->row_bytes; b += 64)
                    __builtin_prefetch(src + n * job->row_bytes + b);
                k->dequant(w->type, src, scratch, n * w->cols);
                rows = scratch;
            }
            float *y[64];
            for (int64_t j = 0; j < s->count; j += 64) {
                const int64_t m = lmk_min(64, s->count - j);
                for (int64_t q = 0; q < m; q++) y[q] = job->y[s->first + j + q] + i;
                k->dot_f32(y, rows, w->cols, n, job->x + s->first + j, m, w->cols);
            }
        }
    }
}

typedef struct quantise_job {
    const lmk_kernels *kernels;
    const float *x;
    lmk_q8_block *q;
    int64_t cols;
} quantise_job;

static void quantise_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const quantise_job *j = arg;
    for (int64_t i = begin; i < end; i++)
        j->kernels->quantise_q8(j->q + i * (j->cols / LMK_BLOCK), j->x + i * j->cols, j->cols);
}

/* Quantises x (n_x, cols) and points every slot at its row. */
static int prepare_packed(lmk_ctx *c, slots_job *job, const float *x, int64_t n_x, const int32_t *x_index, int64_t n_slots)
{
    const int64_t cols = job->w->cols, n_blocks = cols / LMK_BLOCK;
    quantise_job q = { .kernels = c->kernels, .x = x, .cols = cols };
    q.q = lmk_alloc(c, (size_t)(n_x * n_blocks) * sizeof *q.q);
    job->xq = lmk_alloc(c, (size_t)n_slots * sizeof *job->xq);
    if (!q.q || !job->xq) return -1;
    lmk_parallel(lmk_threads(), n_x, 1 + INLINE_WORK / cols, quantise_rows, &q);
    for (int64_t i = 0; i < n_slots; i++) job->xq[i] = q.q + (x_index ? x_index[i] : i) * n_blocks;
    return 0;
}

static int prepare_generic(lmk_ctx *c, slots_job *job, const float *x, const int32_t *x_index, int64_t n_slots, int width)
{
    const int64_t cols = job->w->cols;
    job->x = lmk_alloc(c, (size_t)n_slots * sizeof *job->x);
    job->scratch = lmk_alloc(c, job->w->type == LMK_F32 ? 1 : (size_t)(width * LMK_GROUP * cols) * sizeof(float));
    if (!job->x || !job->scratch) return -1;
    for (int64_t i = 0; i < n_slots; i++) job->x[i] = x + (x_index ? x_index[i] : i) * cols;
    return 0;
}

int lmk_linear_slots(lmk_ctx *c, float *y, const lmk_weight *w, const float *x, int64_t n_x, const lmk_segment *segments,
                     int64_t n_segments, const int32_t *x_index, const int32_t *y_index, int64_t n_slots)
{
    slots_job job = { .kernels = c->kernels, .w = w, .segments = segments, .tiles = n_groups(w->rows) };
    job.row_bytes = row_bytes(w);
    if (job.row_bytes < 0) return -1;
    if (n_slots <= 0) return 0;
    const int width = lmk_threads();
    const size_t mark = lmk_mark(c);
    int status = -1;
    job.y = lmk_alloc(c, (size_t)n_slots * sizeof *job.y);
    if (!job.y) goto done;
    for (int64_t i = 0; i < n_slots; i++) job.y[i] = y + (y_index ? y_index[i] : i) * w->rows;
    if (w->packed ? prepare_packed(c, &job, x, n_x, x_index, n_slots)
                  : prepare_generic(c, &job, x, x_index, n_slots, width)) goto done;
    /* A chunk is worth at least INLINE_WORK; beyond that, some sixteen chunks per thread even out their speeds. */
    const int64_t n_tiles = n_segments * job.tiles, per_tile = LMK_GROUP * w->cols * n_slots / n_segments;
    const int64_t grain = lmk_max(1 + INLINE_WORK / per_tile, n_tiles / (16 * width));
    lmk_parallel(width, n_tiles, grain, w->packed ? packed_tiles : generic_tiles, &job);
    status = 0;
done:
    lmk_release(c, mark);
    return status;
}

int lmk_linear(lmk_ctx *c, float *y, const lmk_weight *w, const float *x, int64_t n)
{
    const lmk_segment all = { .expert = 0, .first = 0, .count = n };
    return lmk_linear_slots(c, y, w, x, n, &all, 1, NULL, NULL, n);
}
