/* attend.c: causal attention over the KV cache (online softmax, arXiv:1805.02867).
 *
 * Positions come in tiles of 64, anchored at position 0 of the sequence. Every (query row, head) pair walks the tiles
 * that its window touches in ascending order and sees nothing but its own positions in them, so that its arithmetic is
 * the same however the prompt was cut into steps. What is shared is the work around it: a task is one span, one kv head
 * and a block of query rows, and prepares each cache tile once for all of its pairs. The last rows, which see the most,
 * are handed out first.
 *
 * An f32 cache, which is for exactness, is multiplied in floats here; f16 and q8_0 caches in integers (attend.h).
 */
#include "core.h"

#include <math.h>
#include <string.h>

#define MAX_PAIRS 64               /* (row, head) pairs per task, as far as one row has no more heads than that: floats */
#define MOST_PAIRS 512             /* the same of integers, where preparing a tile costs more, ... */
#define LEAST_PAIRS 64             /* ... and what tasks are cut down to so that all threads have some */

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
    int32_t max_pairs, v_dim;
    int32_t most_pairs;            /* per task, of integers */
} attend_job;

typedef struct task_scratch {
    float *score;                  /* (pairs, 64) */
    float *acc;                    /* (pairs, v_dim) */
    float *max, *sum, *factor;     /* (pairs) */
    const float **q;               /* (pairs) */
    float **score_row, **acc_row;  /* (pairs) */
} task_scratch;

static size_t scratch_size(int64_t pairs, int64_t v_dim)
{
    const int64_t floats = pairs * (LMK_TILE + v_dim + 3);
    return ((size_t)floats * sizeof(float) + (size_t)(3 * pairs) * sizeof(void *) + 127) / 64 * 64;
}

static task_scratch lay_out(char *memory, int64_t pairs, int64_t v_dim)
{
    task_scratch t;
    t.q = (const float **)(void *)memory;
    t.score_row = (float **)(void *)memory + pairs;
    t.acc_row = (float **)(void *)memory + 2 * pairs;
    t.score = (float *)(void *)(memory + (size_t)(3 * pairs) * sizeof(void *));
    t.acc = t.score + pairs * LMK_TILE;
    t.max = t.acc + pairs * v_dim;
    t.sum = t.max + pairs;
    t.factor = t.sum + pairs;
    return t;
}

static size_t integer_scratch_size(int64_t pairs, int64_t k_dim, int64_t v_dim)
{
    const int64_t kp = (k_dim + 63) / 64 * 64, vp = (v_dim + 31) / 32 * 32, sub = LMK_ATTEND_SUB;
    const int64_t tile = LMK_TILE * (kp + vp + 8) + (LMK_TILE + 1) * lmk_max(kp, vp), block = sub * (2 * LMK_TILE + kp);
    const int64_t batch = LMK_ATTEND_BATCH * (LMK_TILE + LMK_LANES + 3);
    return (size_t)(tile + block + batch + pairs * (kp + vp + LMK_LANES + 2)) * sizeof(float) + 64;
}

static int32_t rows_per_task(const attend_job *job, const lmk_kv *kv)
{
    return (int32_t)lmk_max(1, (kv->dtype == LMK_F32 ? MAX_PAIRS : job->most_pairs) / (job->n_head / kv->n_kv));
}

static int64_t count_tasks(attend_job *job, int64_t *first_task)
{
    first_task[0] = 0;
    for (int32_t s = 0; s < job->n_spans; s++) {
        const int32_t block = rows_per_task(job, job->spans[s].kv);
        first_task[s + 1] = first_task[s] + (int64_t)((job->spans[s].n + block - 1) / block) * job->spans[s].kv->n_kv;
    }
    return first_task[job->n_spans];
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
    task_scratch t = lay_out(memory, job->max_pairs, job->v_dim);
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
        const float *k = (const float *)(const void *)lmk_keys(kv, job->il, head, tile);
        const float *v = (const float *)(const void *)lmk_values(kv, job->il, head, tile);
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

/* The same task in integers */
static void attend_integers(const attend_job *job, const lmk_span *span, int32_t head, int32_t row, int32_t n_rows, char *memory)
{
    const lmk_kv *kv = span->kv;
    const int32_t heads = job->n_head / kv->n_kv;
    const int64_t at = (int64_t)(span->row + row) * job->n_head + head * heads;
    const lmk_attend_task task = {
        .k = lmk_keys(kv, job->il, head, 0),
        .v = lmk_values(kv, job->il, head, 0),
        .k_bytes = lmk_keys(kv, 0, 0, 1) - lmk_keys(kv, 0, 0, 0),
        .v_bytes = lmk_values(kv, 0, 0, 1) - lmk_values(kv, 0, 0, 0),
        .dtype = kv->dtype, .k_dim = kv->k_dim, .v_dim = kv->v_dim, .heads = heads, .n_rows = n_rows,
        .q = job->q + at * kv->k_dim, .y = job->y + at * kv->v_dim,
        .q_step = (int64_t)job->n_head * kv->k_dim, .y_step = (int64_t)job->n_head * kv->v_dim,
        .position = span->n_past + row, .window = job->window, .scale = job->scale, .scratch = memory,
    };
    job->kernels->attend(&task);
}

static void attend_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
    const attend_job *job = arg;
    int32_t s = 0;
    for (int64_t task = begin; task < end; task++) {
        while (task >= job->first_task[s + 1]) s++;
        const lmk_span *span = &job->spans[s];
        const int64_t i = job->first_task[s + 1] - 1 - task;
        const int32_t block = rows_per_task(job, span->kv);
        const int32_t head = (int32_t)(i % span->kv->n_kv), row = (int32_t)(i / span->kv->n_kv) * block;
        const int32_t n_rows = (int32_t)lmk_min(block, span->n - row);
        char *memory = job->scratch + (size_t)thread * job->scratch_bytes;
        if (span->kv->dtype == LMK_F32) attend_block(job, span, head, row, n_rows, memory);
        else attend_integers(job, span, head, row, n_rows, memory);
    }
}

void lmk_attend(lmk_ctx *c, float *y, const float *q, int32_t il, const lmk_span *spans, int32_t n_spans, int32_t n_head,
                float scale, int64_t window)
{
    const int width = lmk_threads();
    const size_t mark = lmk_mark(c);
    int64_t *first_task = lmk_alloc(c, (size_t)(n_spans + 1) * sizeof *first_task);
    attend_job job = { .kernels = c->kernels, .y = y, .q = q, .spans = spans, .first_task = first_task, .n_spans = n_spans,
                       .il = il, .n_head = n_head, .scale = scale, .window = window, .most_pairs = MOST_PAIRS };
    if (!first_task) goto no_memory;
    while (count_tasks(&job, first_task) < 4 * width && job.most_pairs > LEAST_PAIRS) job.most_pairs /= 2;
    int64_t work = 0;
    for (int32_t s = 0; s < n_spans; s++) {
        const lmk_kv *kv = spans[s].kv;
        const int64_t heads = n_head / kv->n_kv, rows = lmk_min(spans[s].n, rows_per_task(&job, kv)), pairs = heads * rows;
        job.max_pairs = (int32_t)lmk_max(job.max_pairs, pairs);
        job.v_dim = (int32_t)lmk_max(job.v_dim, kv->v_dim);
        const size_t bytes = kv->dtype == LMK_F32 ? 0 : integer_scratch_size(pairs, kv->k_dim, kv->v_dim);
        if (bytes > job.scratch_bytes) job.scratch_bytes = bytes;
        work += (spans[s].n_past + spans[s].n) * spans[s].n * n_head * kv->k_dim;
    }
    if (scratch_size(job.max_pairs, job.v_dim) > job.scratch_bytes) job.scratch_bytes = scratch_size(job.max_pairs, job.v_dim);
    job.scratch_bytes = (job.scratch_bytes + 63) / 64 * 64;
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
