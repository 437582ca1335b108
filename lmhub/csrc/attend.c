/* attend.c: causal attention over the KV cache (online softmax, arXiv:1805.02867).
 *
 * Positions come in tiles of 64, anchored at position 0 of the sequence. Every (query row, head) pair walks the tiles
 * that its window touches in ascending order and sees nothing but its own positions in them, so that its arithmetic is
 * the same however the prompt was cut into steps. What is shared is the work around it: a task is one span, one kv head
 * and a block of query rows, and expands each cache tile once for all of its pairs.
 */
#include "core.h"

#include <math.h>
#include <string.h>

#define MAX_PAIRS 64               /* (row, head) pairs per task, as far as one row has no more heads than that */

typedef struct attend_job {
    const lmk_kernels *kernels;
    float *y;
    const float *q;
    const lmk_span *spans;
    const int64_t *first_task;     /* (n_spans + 1) */
    int32_t n_spans, il, n_head;
    float scale;
    int64_t window;
    char *scratch;
    size_t scratch_bytes;          /* per thread */
    int32_t max_pairs, k_dim, v_dim;
} attend_job;

typedef struct task_scratch {
    float *k, *v;                  /* (64, k_dim), (64, v_dim): the tile, expanded */
    float *score;                  /* (pairs, 64) */
    float *acc;                    /* (pairs, v_dim) */
    float *max, *sum, *factor;     /* (pairs) */
    const float **q;               /* (pairs) */
    float **score_row, **acc_row;  /* (pairs) */
} task_scratch;

static size_t scratch_size(int64_t pairs, int64_t k_dim, int64_t v_dim)
{
    const int64_t floats = LMK_TILE * (k_dim + v_dim) + pairs * (LMK_TILE + v_dim + 3);
    return ((size_t)floats * sizeof(float) + (size_t)(3 * pairs) * sizeof(void *) + 127) / 64 * 64;
}

static task_scratch lay_out(char *memory, int64_t pairs, int64_t k_dim, int64_t v_dim)
{
    task_scratch t;
    t.q = (const float **)(void *)memory;
    t.score_row = (float **)(void *)memory + pairs;
    t.acc_row = (float **)(void *)memory + 2 * pairs;
    t.k = (float *)(void *)(memory + (size_t)(3 * pairs) * sizeof(void *));
    t.v = t.k + LMK_TILE * k_dim;
    t.score = t.v + LMK_TILE * v_dim;
    t.acc = t.score + pairs * LMK_TILE;
    t.max = t.acc + pairs * v_dim;
    t.sum = t.max + pairs;
    t.factor = t.sum + pairs;
    return t;
}

static int32_t rows_per_task(int32_t heads)
{
    return (int32_t)lmk_max(1, MAX_PAIRS / heads);
}

static const float *tile_rows(const lmk_kernels *k, float *buffer, const char *src, int64_t n, int32_t dim, int32_t dtype)
{
    if (dtype == LMK_F32) return (const float *)(const void *)src;
    k->dequant(dtype, src, buffer, n * dim);
    return buffer;
}

/* The first position that a query at `position` sees. */
static int64_t first_seen(int64_t position, int64_t window)
{
    return window > 0 && position >= window ? position - window + 1 : 0;
}

/* The part [lo, hi) of the tile from position `tile` on that the span's row sees. */
static int tile_lo(const attend_job *job, const lmk_span *span, int32_t row, int64_t tile)
{
    return (int)lmk_min(LMK_TILE, lmk_max(0, first_seen(span->n_past + row, job->window) - tile));
}

static int tile_hi(const lmk_span *span, int32_t row, int64_t tile)
{
    return (int)lmk_max(0, lmk_min(LMK_TILE, span->n_past + row + 1 - tile));
}

/* One task: query rows [row, row + n_rows) of a span and the `heads` query heads of kv head `head`. */
static void attend_block(const attend_job *job, const lmk_span *span, int32_t head, int32_t row, int32_t n_rows, char *memory)
{
    const lmk_kernels *kernels = job->kernels;
    const lmk_kv *kv = span->kv;
    const int32_t heads = job->n_head / kv->n_kv, pairs = n_rows * heads;
    const int64_t v_dim = kv->v_dim;
    task_scratch t = lay_out(memory, job->max_pairs, job->k_dim, job->v_dim);
    for (int32_t p = 0; p < pairs; p++) {          /* pair p: row p / heads, head p % heads */
        const int64_t at = (int64_t)(span->row + row + p / heads) * job->n_head + head * heads + p % heads;
        t.q[p] = job->q + at * kv->k_dim;
        t.score_row[p] = t.score + p * LMK_TILE;
        t.acc_row[p] = t.acc + p * v_dim;
        t.max[p] = -INFINITY;
        t.sum[p] = 0.0f;
    }
    memset(t.acc, 0, (size_t)(pairs * v_dim) * sizeof(float));

    const int64_t last = span->n_past + row + n_rows - 1;
    int64_t tile = first_seen(span->n_past + row, job->window) / LMK_TILE * LMK_TILE;
    for (; tile <= last; tile += LMK_TILE) {
        const int64_t n = lmk_min(LMK_TILE, last + 1 - tile);
        const float *k = tile_rows(kernels, t.k, lmk_keys(kv, job->il, head, tile), n, kv->k_dim, kv->dtype);
        const float *v = tile_rows(kernels, t.v, lmk_values(kv, job->il, head, tile), n, kv->v_dim, kv->dtype);
        kernels->dot_f32(t.score_row, k, kv->k_dim, n, t.q, pairs, kv->k_dim);
        for (int32_t r = 0, same; r < n_rows; r += same) {
            const int lo = tile_lo(job, span, row + r, tile), hi = tile_hi(span, row + r, tile);
            /* Rows that see the same part of the tile, most often all of it, are mixed together. */
            for (same = 1; r + same < n_rows; same++)
                if (tile_lo(job, span, row + r + same, tile) != lo || tile_hi(span, row + r + same, tile) != hi) break;
            if (lo >= hi) continue;
            const int32_t first = r * heads, end = (r + same) * heads;
            for (int32_t p = first; p < end; p++)
                t.factor[p] = kernels->softmax_tile(t.score_row[p], lo, hi, job->scale, &t.max[p], &t.sum[p]);
            kernels->mix(t.acc_row + first, t.factor + first, (const float *const *)t.score_row + first, end - first, v, v_dim,
                         lo, hi, v_dim);
        }
    }
    for (int32_t p = 0; p < pairs; p++) {
        const int64_t at = (int64_t)(span->row + row + p / heads) * job->n_head + head * heads + p % heads;
        const float inverse = 1.0f / t.sum[p];
        for (int64_t d = 0; d < v_dim; d++) job->y[at * v_dim + d] = t.acc_row[p][d] * inverse;
    }
}

static void attend_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
    const attend_job *job = arg;
    int32_t s = 0;
    for (int64_t task = begin; task < end; task++) {
        while (task >= job->first_task[s + 1]) s++;
        const lmk_span *span = &job->spans[s];
        const int64_t i = task - job->first_task[s];
        const int32_t block = rows_per_task(job->n_head / span->kv->n_kv);
        const int32_t head = (int32_t)(i % span->kv->n_kv), row = (int32_t)(i / span->kv->n_kv) * block;
        const int32_t n_rows = (int32_t)lmk_min(block, span->n - row);
        attend_block(job, span, head, row, n_rows, job->scratch + (size_t)thread * job->scratch_bytes);
    }
}

void lmk_attend(lmk_ctx *c, float *y, const float *q, int32_t il, const lmk_span *spans, int32_t n_spans, int32_t n_head,
                float scale, int64_t window)
{
    const int width = lmk_threads();
    const size_t mark = lmk_mark(c);
    int64_t *first_task = lmk_alloc(c, (size_t)(n_spans + 1) * sizeof *first_task);
    attend_job job = { .kernels = c->kernels, .y = y, .q = q, .spans = spans, .first_task = first_task, .n_spans = n_spans,
                       .il = il, .n_head = n_head, .scale = scale, .window = window };
    if (!first_task) goto no_memory;
    first_task[0] = 0;
    int64_t work = 0;
    for (int32_t s = 0; s < n_spans; s++) {
        const lmk_kv *kv = spans[s].kv;
        const int32_t heads = n_head / kv->n_kv, block = rows_per_task(heads);
        first_task[s + 1] = first_task[s] + (int64_t)((spans[s].n + block - 1) / block) * kv->n_kv;
        job.max_pairs = (int32_t)lmk_max(job.max_pairs, (int64_t)heads * block);
        job.k_dim = (int32_t)lmk_max(job.k_dim, kv->k_dim);
        job.v_dim = (int32_t)lmk_max(job.v_dim, kv->v_dim);
        work += (spans[s].n_past + spans[s].n) * spans[s].n * n_head * kv->k_dim;
    }
    job.scratch_bytes = scratch_size(job.max_pairs, job.k_dim, job.v_dim);
    job.scratch = lmk_alloc(c, (size_t)width * job.scratch_bytes);
    if (!job.scratch) goto no_memory;
    lmk_parallel(width, first_task[n_spans], work < 16384 ? first_task[n_spans] : 1, attend_tasks, &job);
    lmk_release(c, mark);
    return;
no_memory:
    for (int32_t s = 0; s < n_spans; s++)
        for (int64_t i = 0; i < (int64_t)spans[s].n * n_head * spans[s].kv->v_dim; i++)
            y[(int64_t)spans[s].row * n_head * spans[s].kv->v_dim + i] = NAN;
    lmk_release(c, mark);
}
