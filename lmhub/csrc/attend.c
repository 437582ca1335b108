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
#include "blocks.h"

#include <math.h>
#include <string.h>

#define MAX_PAIRS 64               /* (row, head) pairs per task, as far as one row has no more heads than that: floats */
#define MOST_PAIRS 512             /* the same of integers, where keys and values come from further away, ... */
#define LEAST_PAIRS 64             /* ... and what tasks are cut down to so that all threads have some */
#define SPREAD 4                   /* tasks per thread that are enough */

/* A task: query rows [row, row + n_rows) of a span with the query heads of kv head `head`, over all that they see; or over
 * some parts of it, whose sums are joined later */
typedef struct attend_piece {
    const lmk_span *span;
    int32_t head, row, n_rows;
    int64_t first_part, end_part;
    float *parts;                  /* NULL: all */
} attend_piece;

typedef struct attend_job {
    const lmk_kernels *kernels;
    float *y;
    const float *q;
    const attend_piece *pieces;
    int32_t il, n_head;
    float scale;
    int64_t window;
    const float *bias;             /* (rows, n_head, extent), or NULL */
    int64_t extent;
    char *scratch;
    size_t scratch_bytes;          /* per thread */
    int32_t max_pairs, v_dim;
    int32_t most_pairs;            /* per task, of integers */
    int64_t most_parts;            /* per task of few rows */
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

/* See lay_out of attend_float.h. */
static size_t integer_scratch_size(int64_t pairs, int64_t k_dim, int64_t v_dim)
{
    const int64_t kp = (k_dim + 63) / 64 * 64, vp = lmk_value_pairs(v_dim), most = LMK_ATTEND_PAIRS;
    const int64_t blocks = lmk_block_bytes(LMK_F16, k_dim, 1) + lmk_block_bytes(LMK_F16, v_dim, 0);
    const int64_t fixed = 1024 + most * (kp + 4 * LMK_STRETCH + 2 * LMK_LANES + 4) + LMK_TILE * lmk_max(kp, vp) + 3 * LMK_STRETCH;
    return (size_t)(fixed + pairs * (kp + 3) + 2 * lmk_sums_size(pairs, v_dim)) * sizeof(float) + (size_t)(2 * blocks) + 64;
}

static int32_t rows_per_task(const attend_job *job, const lmk_kv *kv)
{
    return (int32_t)lmk_max(1, (kv->dtype == LMK_F32 ? MAX_PAIRS : job->most_pairs) / (job->n_head / kv->n_kv));
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

/* The bias of row `at / n_head` and head `at % n_head`, at `position`, to its scores of the n positions from `tile` on. It is
 * divided by the scale that they are multiplied by later. */
static void lean(const attend_job *job, int64_t at, int64_t position, int64_t tile, int64_t n, float *score)
{
    const int64_t first = position + 1 - job->extent;
    const float *bias = job->bias + at * job->extent - first, by = 1.0f / job->scale;
    for (int64_t j = lmk_max(first, tile); j < lmk_min(position + 1, tile + n); j++) score[j - tile] += bias[j] * by;
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
        for (int32_t p = 0; job->bias && p < pairs; p++) {
            const int64_t at = (int64_t)(span->row + row + p / heads) * job->n_head + head * heads + p % heads;
            lean(job, at, span->n_past + row + p / heads, tile, n, t.score_row[p]);
        }
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
static lmk_attend_task integers_of(const attend_job *job, const attend_piece *p, char *memory)
{
    const lmk_span *span = p->span;
    const lmk_kv *kv = span->kv;
    const int32_t heads = job->n_head / kv->n_kv;
    const int64_t at = (int64_t)(span->row + p->row) * job->n_head + p->head * heads;
    return (lmk_attend_task){
        .k = lmk_keys(kv, job->il, p->head, 0),
        .v = lmk_values(kv, job->il, p->head, 0),
        .k_step = lmk_keys_step(kv), .v_step = lmk_values_step(kv),
        .dtype = kv->dtype, .k_dim = kv->k_dim, .v_dim = kv->v_dim, .heads = heads, .n_rows = p->n_rows,
        .q = job->q + at * kv->k_dim, .y = job->y + at * kv->v_dim,
        .q_step = (int64_t)job->n_head * kv->k_dim, .y_step = (int64_t)job->n_head * kv->v_dim,
        .position = span->n_past + p->row, .window = job->window, .scale = job->scale,
        .bias = job->bias ? job->bias + at * job->extent : NULL, .extent = job->extent, .bias_step = job->n_head * job->extent,
        .first_part = p->first_part, .end_part = p->end_part, .parts = p->parts, .scratch = memory,
    };
}

static void attend_pieces(void *arg, int64_t begin, int64_t end, int thread)
{
    const attend_job *job = arg;
    char *memory = job->scratch + (size_t)thread * job->scratch_bytes;
    for (const attend_piece *p = job->pieces + begin; p < job->pieces + end; p++) {
        if (p->span->kv->dtype == LMK_F32) {
            attend_block(job, p->span, p->head, p->row, p->n_rows, memory);
        } else {
            const lmk_attend_task task = integers_of(job, p, memory);
            job->kernels->attend(&task);
        }
    }
}

static void join_pieces(void *arg, int64_t begin, int64_t end, int thread)
{
    const attend_job *job = arg;
    for (const attend_piece *p = job->pieces + begin; p < job->pieces + end; p++) {
        const lmk_attend_task task = integers_of(job, p, job->scratch + (size_t)thread * job->scratch_bytes);
        job->kernels->attend_join(&task);
    }
}

/* ---- who does what ---- */

/* The piece's parts in as many pieces as job->most_parts wants, at `out` unless that is NULL. How many they are */
static int64_t cut(const attend_job *job, const attend_piece *whole, attend_piece *out)
{
    const lmk_kv *kv = whole->span->kv;
    const int64_t pairs = (int64_t)whole->n_rows * (job->n_head / kv->n_kv), parts = whole->end_part - whole->first_part;
    if (kv->dtype == LMK_F32 || pairs > LEAST_PAIRS || parts <= job->most_parts) {
        if (out) *out = *whole;
        return 1;
    }
    const int64_t n = (parts + job->most_parts - 1) / job->most_parts, size = lmk_sums_size(pairs, kv->v_dim);
    for (int64_t i = 0; out && i < n; i++) {
        out[i] = *whole;
        out[i].first_part = whole->first_part + parts * i / n;
        out[i].end_part = whole->first_part + parts * (i + 1) / n;
        if (whole->parts) out[i].parts = whole->parts + (out[i].first_part - whole->first_part) * size;
    }
    return n;
}

/* All whole pieces of the span, at `out` unless that is NULL, the last rows, which see the most, first. How many they are */
static int64_t pieces_of(const attend_job *job, const lmk_span *span, attend_piece *out)
{
    const int32_t block = rows_per_task(job, span->kv), n_blocks = (span->n + block - 1) / block, n_kv = span->kv->n_kv;
    for (int64_t i = 0; out && i < (int64_t)n_blocks * n_kv; i++) {
        attend_piece *p = &out[i];
        *p = (attend_piece){ .span = span, .head = (int32_t)(i % n_kv), .row = (n_blocks - 1 - (int32_t)(i / n_kv)) * block };
        p->n_rows = (int32_t)lmk_min(block, span->n - p->row);
        p->first_part = first_seen(span->n_past + p->row, job->window) / LMK_PART;
        p->end_part = (span->n_past + p->row + p->n_rows - 1) / LMK_PART + 1;
    }
    return (int64_t)n_blocks * n_kv;
}

/* Long sequences first: a short task at the end keeps nobody waiting. */
static void sort_spans(const lmk_span **order, const lmk_span *spans, int32_t n_spans)
{
    for (int32_t s = 0, at; s < n_spans; s++) {
        const int64_t work = (spans[s].n_past + spans[s].n) * spans[s].n;
        for (at = s; at > 0 && (order[at - 1]->n_past + order[at - 1]->n) * order[at - 1]->n < work; at--)
            order[at] = order[at - 1];
        order[at] = &spans[s];
    }
}

static int64_t count_pieces(const attend_job *job, const lmk_span *spans, int32_t n_spans)
{
    int64_t n = 0;
    for (int32_t s = 0; s < n_spans; s++) n += pieces_of(job, &spans[s], NULL);
    return n;
}

/* Chooses the size of tasks for `width` threads: of many rows by rows, of few by parts of the sequence. */
static void size_tasks(attend_job *job, const attend_piece *whole, int64_t n_whole, int width)
{
    int64_t parts = 0;
    for (int64_t i = 0; i < n_whole; i++) parts += whole[i].end_part - whole[i].first_part;
    job->most_parts = width > 1 ? lmk_max(1, parts / (SPREAD * width)) : parts;
}

/* Scratch for each thread, for the largest of the pieces */
static void size_scratch(attend_job *job, const attend_piece *pieces, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const lmk_kv *kv = pieces[i].span->kv;
        const int64_t pairs = (int64_t)pieces[i].n_rows * (job->n_head / kv->n_kv);
        job->max_pairs = (int32_t)lmk_max(job->max_pairs, pairs);
        job->v_dim = (int32_t)lmk_max(job->v_dim, kv->v_dim);
        const size_t bytes = kv->dtype == LMK_F32 ? 0 : integer_scratch_size(pairs, kv->k_dim, kv->v_dim);
        if (bytes > job->scratch_bytes) job->scratch_bytes = bytes;
    }
    const size_t floats = scratch_size(job->max_pairs, job->v_dim);
    job->scratch_bytes = ((floats > job->scratch_bytes ? floats : job->scratch_bytes) + 63) / 64 * 64;
}

/* The pieces that have to be joined, to the front of `whole`, with memory for their sums. How many they are, or -1 */
static int64_t find_joins(lmk_ctx *c, const attend_job *job, attend_piece *whole, int64_t n_whole)
{
    int64_t n = 0;
    for (int64_t i = 0; i < n_whole; i++) {
        if (cut(job, &whole[i], NULL) == 1) continue;
        const lmk_kv *kv = whole[i].span->kv;
        const int64_t size = lmk_sums_size((int64_t)whole[i].n_rows * (job->n_head / kv->n_kv), kv->v_dim);
        whole[i].parts = lmk_alloc(c, (size_t)((whole[i].end_part - whole[i].first_part) * size) * sizeof(float));
        if (!whole[i].parts) return -1;
        n++;
    }
    return n;
}

static int run(lmk_ctx *c, attend_job *job, const lmk_span *spans, int32_t n_spans)
{
    const int width = lmk_threads();
    while (count_pieces(job, spans, n_spans) < SPREAD * width && job->most_pairs > LEAST_PAIRS) job->most_pairs /= 2;
    const int64_t n_whole = count_pieces(job, spans, n_spans);
    const lmk_span **order = lmk_alloc(c, (size_t)n_spans * sizeof *order);
    attend_piece *whole = lmk_alloc(c, (size_t)n_whole * sizeof *whole);
    if (!order || !whole) return -1;
    sort_spans(order, spans, n_spans);
    int64_t n = 0, work = 0;
    for (int32_t s = 0; s < n_spans; s++) {
        n += pieces_of(job, order[s], whole + n);
        work += (spans[s].n_past + spans[s].n) * spans[s].n * job->n_head * spans[s].kv->k_dim;
    }
    size_tasks(job, whole, n_whole, width);
    size_scratch(job, whole, n_whole);
    job->scratch = lmk_alloc(c, (size_t)width * job->scratch_bytes);
    const int64_t n_joins = find_joins(c, job, whole, n_whole);
    if (!job->scratch || n_joins < 0) return -1;
    n = 0;
    for (int64_t i = 0; i < n_whole; i++) n += cut(job, &whole[i], NULL);
    attend_piece *pieces = lmk_alloc(c, (size_t)(n + n_joins) * sizeof *pieces), *joins = pieces + n;
    if (!pieces) return -1;
    n = 0;
    for (int64_t i = 0, j = 0; i < n_whole; i++) {
        n += cut(job, &whole[i], pieces + n);
        if (whole[i].parts) joins[j++] = whole[i];
    }
    job->pieces = pieces;
    lmk_parallel(width, n, work < 16384 ? n : 1, attend_pieces, job);
    job->pieces = joins;
    if (n_joins) lmk_parallel(width, n_joins, 1, join_pieces, job);
    return 0;
}

void lmk_attend(lmk_ctx *c, float *y, const float *q, int32_t il, const lmk_span *spans, int32_t n_spans, int32_t n_head,
                float scale, int64_t window)
{
    lmk_attend_biased(c, y, q, il, spans, n_spans, n_head, scale, window, NULL, 0);
}

void lmk_attend_biased(lmk_ctx *c, float *y, const float *q, int32_t il, const lmk_span *spans, int32_t n_spans,
                       int32_t n_head, float scale, int64_t window, const float *bias, int32_t extent)
{
    const size_t mark = lmk_mark(c);
    attend_job job = { .kernels = c->kernels, .y = y, .q = q, .il = il, .n_head = n_head, .scale = scale, .window = window,
                       .bias = bias, .extent = extent, .most_pairs = MOST_PAIRS };
    if (n_spans > 0 && run(c, &job, spans, n_spans))
        for (int32_t s = 0; s < n_spans; s++)
            for (int64_t i = 0; i < (int64_t)spans[s].n * n_head * spans[s].kv->v_dim; i++)
                y[(int64_t)spans[s].row * n_head * spans[s].kv->v_dim + i] = NAN;
    lmk_release(c, mark);
}
