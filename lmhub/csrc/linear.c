/* linear.c: y = x Wᵀ for every weight type.
 *
 * Two paths. A weight of a type with a packed layout meets activations quantised to int8 (or, where it is F16 or BF16, as
 * halves.c has it), 16 outputs at a time; where it is not packed, each 16 rows are, into scratch, whenever they are used. Any
 * other type is expanded to float32, a few rows at a time into scratch that stays in cache, and meets the activations as they
 * are. Both work on tiles of 16 output rows, which threads share (pool.c); a tile's arithmetic depends on nothing else.
 *
 * The unit is the slot: one input row times one matrix of the weight. `linear` is the case of one matrix and all rows.
 */
#include "packed.h"
#include "store.h"

#include <string.h>

#define INLINE_WORK 32768          /* multiplications below which waking another thread does not pay, */
#define PIECE_WORK 8192            /* and the least that a thread takes at once */
#define JOIN_WORK 4096             /* the same of outputs that are joined */

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
    lmk_store to;
    const lmk_q8_block **xq;       /* (n_slots), each (cols / 32): packed path */
    const float **x;               /* (n_slots), generic path */
    float *scratch;                /* (threads, LMK_GROUP, cols), generic path, unless the type is F32 */
    uint8_t *panels;               /* (threads, cols / 32, LMK_PANEL_BLOCK), packed path, when rows are many; not Q8_0 */
    uint8_t *fresh;                /* (threads, group), packed path, for a weight that is not packed */
    int64_t row_bytes;
} slots_job;

static void packed_tiles(void *arg, int64_t begin, int64_t end, int thread)
{
    const slots_job *job = arg;
    const lmk_form form = lmk_form_of(job->w->type);
    const int64_t cols = job->w->cols, size = lmk_group_bytes(form, cols);
    uint8_t *panel = job->panels ? job->panels + thread * (cols / LMK_BLOCK * LMK_PANEL_BLOCK) : NULL;
    uint8_t *fresh = job->fresh ? job->fresh + thread * size : NULL;
    for (int64_t t = begin; t < end; t++) {
        const lmk_segment *s = &job->segments[t / job->tiles];
        const int64_t tile = t % job->tiles, row = tile * LMK_GROUP;
        const uint8_t *group = lmk_take_groups(job->w, s->expert * job->tiles + tile, 1, fresh);
        const lmk_q8_block *const *x = (const lmk_q8_block *const *)job->xq + s->first;
        const int n_out = (int)lmk_min(LMK_GROUP, job->w->rows - row);
        const lmk_ending ending = lmk_ending_of(&job->to, job->kernels, s->first, row, n_out, thread);
        lmk_dot_group(job->kernels, job->w->type, ending.to.row, ending.to.at, n_out, group, x, s->count, cols, panel);
        lmk_end(&ending, 0, s->count);
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
        const lmk_ending ending = lmk_ending_of(&job->to, k, s->first, first, (int)(last - first), thread);
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
                for (int64_t q = 0; q < m; q++) y[q] = ending.to.row[j + q] + ending.to.at + i - first;
                k->dot_f32(y, rows, w->cols, n, job->x + s->first + j, m, w->cols);
            }
        }
        lmk_end(&ending, 0, s->count);
    }
}

typedef struct quantise_job {
    const lmk_kernels *kernels;
    const float *x;
    lmk_q8_block *q;
    int64_t cols;
    int share;                     /* blocks with one scale */
} quantise_job;

static void quantise_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const quantise_job *j = arg;
    for (int64_t i = begin; i < end; i++)
        j->kernels->quantise_q8(j->q + i * (j->cols / LMK_BLOCK), j->x + i * j->cols, j->cols, j->share);
}

/* x (n_x, cols) quantised: for every slot its row, or NULL without memory. */
static const lmk_q8_block **quantised(lmk_ctx *c, const float *x, int64_t n_x, int64_t cols, int share, const lmk_slots *slots)
{
    const int64_t n_blocks = cols / LMK_BLOCK;
    quantise_job q = { .kernels = c->kernels, .x = x, .cols = cols, .share = share };
    q.q = lmk_alloc(c, (size_t)(n_x * n_blocks) * sizeof *q.q);
    const lmk_q8_block **rows = lmk_alloc(c, (size_t)slots->n * sizeof *rows);
    if (!q.q || !rows) return NULL;
    lmk_parallel(lmk_threads(), n_x, 1 + INLINE_WORK / cols, quantise_rows, &q);
    for (int64_t i = 0; i < slots->n; i++) rows[i] = q.q + (slots->x_index ? slots->x_index[i] : i) * n_blocks;
    return rows;
}

static const float **plain(lmk_ctx *c, const float *x, int64_t cols, const lmk_slots *slots)
{
    const float **rows = lmk_alloc(c, (size_t)slots->n * sizeof *rows);
    for (int64_t i = 0; rows && i < slots->n; i++) rows[i] = x + (slots->x_index ? slots->x_index[i] : i) * cols;
    return rows;
}

/* ---- several weights at once ---- */

typedef struct product {           /* what the weights of one call share */
    lmk_ctx *c;
    int width;
    const float *x;
    int64_t n_x;
    const lmk_slots *slots;
    lmk_join join;                 /* NULL, or with what y has, or of a pair; */
    const float *bias;             /* having been added this, unless it is NULL */
    const float **rows;            /* these are made when the first weight needs them */
    const lmk_q8_block **xq[2];    /* for a scale of x per block, and per LMK_QUAD blocks */
    lmk_strips *strips[2];
    lmk_halves *halves[2];         /* for F16 and for BF16 */
} product;

static int plan_packed(product *p, slots_job *job, lmk_work *work)
{
    const lmk_weight *w = job->w;
    const int64_t n_blocks = w->cols / LMK_BLOCK;
    const int share = lmk_share(lmk_form_of(w->type)), wide = share > 1;
    if (p->c->kernels->dot_strips && p->slots->n >= LMK_MANY * p->slots->n_segments) {
        if (!p->rows) p->rows = plain(p->c, p->x, w->cols, p->slots);
        if (!p->rows) return -1;
        lmk_strips **s = &p->strips[wide];
        if (!*s) *s = lmk_lay_out(p->c, p->rows, w->cols, share, p->slots->segments, p->slots->n_segments, p->slots->n);
        return *s ? lmk_strips_work(p->c, work, *s, w, &job->to) : -1;
    }
    if (!p->xq[wide]) p->xq[wide] = quantised(p->c, p->x, p->n_x, w->cols, share, p->slots);
    if (!p->xq[wide]) return -1;
    job->xq = p->xq[wide];
    if (w->type != LMK_Q8_0 && p->slots->n >= LMK_PANEL_ROWS) {
        job->panels = lmk_alloc(p->c, (size_t)(p->width * n_blocks) * LMK_PANEL_BLOCK);
        if (!job->panels) return -1;
    }
    if (!w->packed) {
        job->fresh = lmk_alloc(p->c, (size_t)(p->width * lmk_group_bytes(lmk_form_of(w->type), w->cols)));
        if (!job->fresh) return -1;
    }
    *work = (lmk_work){ packed_tiles, job, p->slots->n_segments * job->tiles };
    return 0;
}

static int plan_halves(product *p, slots_job *job, lmk_work *work)
{
    const lmk_weight *w = job->w;
    lmk_halves **h = &p->halves[w->type == LMK_BF16];
    if (!*h) *h = lmk_prepare_halves(p->c, w->type, p->x, p->n_x, w->cols, p->slots);
    return *h ? lmk_halves_work(p->c, work, *h, w, &job->to) : -1;
}

static int plan_generic(product *p, slots_job *job, lmk_work *work)
{
    const int64_t cols = job->w->cols;
    if (!p->rows) p->rows = plain(p->c, p->x, cols, p->slots);
    job->x = p->rows;
    job->scratch = lmk_alloc(p->c, job->w->type == LMK_F32 ? 1 : (size_t)(p->width * LMK_GROUP * cols) * sizeof(float));
    *work = (lmk_work){ generic_tiles, job, p->slots->n_segments * job->tiles };
    return job->x && job->scratch ? 0 : -1;
}

/* Scratch for tiles, each thread's own */
static int plan_tile(const product *p, lmk_store *to)
{
    for (int64_t i = 0; i < p->slots->n_segments; i++) to->most = lmk_max(to->most, p->slots->segments[i].count);
    const int64_t n = p->width * to->most;
    float *tiles = lmk_alloc(p->c, (size_t)(n * LMK_TILE_COLS) * sizeof *tiles);
    to->tile = lmk_alloc(p->c, (size_t)n * sizeof *to->tile);
    if (!tiles || !to->tile) return -1;
    for (int64_t i = 0; i < n; i++) to->tile[i] = tiles + i * LMK_TILE_COLS;
    return 0;
}

static int plan(product *p, slots_job *job, lmk_work *work, float *y, const int32_t *y_index)
{
    const lmk_weight *w = job->w;
    job->kernels = p->c->kernels;
    job->segments = p->slots->segments;
    job->tiles = lmk_groups(w->rows);
    job->row_bytes = row_bytes(w);
    job->to.y = lmk_alloc(p->c, (size_t)p->slots->n * sizeof *job->to.y);
    if (job->row_bytes < 0 || !job->to.y) return -1;
    for (int64_t i = 0; i < p->slots->n; i++) job->to.y[i] = y + (y_index ? y_index[i] : i) * w->rows;
    if (!lmk_packed_bytes(w->type, w->rows, w->cols, w->n_expert)) return plan_generic(p, job, work);
    return lmk_is_half(w->type) ? plan_halves(p, job, work) : plan_packed(p, job, work);
}

typedef struct works {
    const lmk_work *work;
    int32_t n_w;
    int64_t total;
} works;

/* The part [begin, end) of all tasks, weight after weight. */
static void run_works(void *arg, int64_t begin, int64_t end, int thread)
{
    for (const lmk_work *w = ((const works *)arg)->work; begin < end; end -= w->n, begin = lmk_max(0, begin - w->n), w++)
        if (begin < w->n) w->fn(w->arg, begin, lmk_min(end, w->n), thread);
}

/* Tasks [begin, end) of every weight: each joins the tile that the one before has made. */
static void run_in_turn(void *arg, int64_t begin, int64_t end, int thread)
{
    const works *all = arg;
    for (int64_t t = begin; t < end; t++)
        for (const lmk_work *w = all->work; w < all->work + all->n_w; w++) w->fn(w->arg, t, t + 1, thread);
}

static void run(const product *p, lmk_range_fn fn, works all, int64_t cols)
{
    const int64_t per_tile = LMK_GROUP * cols * p->slots->n / p->slots->n_segments;
    const int64_t grain = per_tile * all.total <= INLINE_WORK ? all.total : 1 + PIECE_WORK / per_tile;
    lmk_parallel(p->width, all.total, grain, fn, &all);
}

static int check_columns(const lmk_weight *const *w, int32_t n_w)
{
    for (int32_t i = 1; i < n_w; i++)
        if (w[i]->cols != w[0]->cols)
            return lmk_fail("Weights with rows of %lld and of %lld cannot share an input; the model file is damaged.",
                            (long long)w[0]->cols, (long long)w[i]->cols);
    return 0;
}

static int multiply(product *p, float *const *y, const lmk_weight *const *w, int32_t n_w)
{
    slots_job *jobs = lmk_alloc(p->c, (size_t)n_w * sizeof *jobs);
    lmk_work *work = lmk_alloc(p->c, (size_t)n_w * sizeof *work);
    if (!jobs || !work || check_columns(w, n_w)) return -1;
    works all = { work, n_w, 0 };
    for (int32_t i = 0; i < n_w; i++) {
        jobs[i] = (slots_job){ .w = w[i] };
        if (p->join) {
            jobs[i].to = (lmk_store){ .join = p->join, .bias = p->bias };
            if (plan_tile(p, &jobs[i].to)) return -1;
        }
        if (plan(p, &jobs[i], &work[i], y[i], p->slots->y_index)) return -1;
        all.total += work[i].n;
    }
    run(p, run_works, all, w[0]->cols);
    return 0;
}

typedef struct join_job {
    lmk_join join;
    float *const *y, *const *with;
    int64_t cols;
} join_job;

static void join_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const join_job *j = arg;
    const lmk_place y = { j->y + begin, 0 }, with = { j->with + begin, 0 };
    j->join(y, y, with, end - begin, (int)j->cols);
}

/* Many rows of a pair whose tasks are alike: tile by tile. Others: all of the one and all of the other, then both. */
static int multiply_pair(product *p, float *y, const lmk_weight *const *w)
{
    const int by_tiles = w[0]->type == w[1]->type && p->slots->n >= LMK_MANY * p->slots->n_segments;
    const int64_t rows = w[0]->rows, n = p->slots->n;
    slots_job jobs[2] = { { .w = w[0] }, { .w = w[1] } };
    lmk_work work[2];
    if (check_columns(w, 2)) return -1;
    float *other = by_tiles ? y : lmk_alloc(p->c, (size_t)(n * rows) * sizeof *other);
    if (!other || (by_tiles && (plan_tile(p, &jobs[0].to) || plan_tile(p, &jobs[1].to)))) return -1;
    if (by_tiles) jobs[1].to.join = p->join, jobs[1].to.with = jobs[0].to.tile;
    if (plan(p, &jobs[0], &work[0], y, p->slots->y_index)) return -1;
    if (plan(p, &jobs[1], &work[1], other, by_tiles ? p->slots->y_index : NULL)) return -1;
    if (by_tiles) {
        run(p, run_in_turn, (works){ work, 2, work->n }, w[0]->cols);
        return 0;
    }
    run(p, run_works, (works){ work, 2, work[0].n + work[1].n }, w[0]->cols);
    join_job job = { p->join, jobs[0].to.y, jobs[1].to.y, rows };
    lmk_parallel(p->width, n, 1 + JOIN_WORK / rows, join_rows, &job);
    return 0;
}

int lmk_linear_slots(lmk_ctx *c, float *const *y, const lmk_weight *const *w, int32_t n_w, const float *x, int64_t n_x,
                     const lmk_slots *slots)
{
    product p = { .c = c, .width = lmk_threads(), .x = x, .n_x = n_x, .slots = slots };
    const size_t mark = lmk_mark(c);
    const int status = slots->n > 0 && n_w > 0 ? multiply(&p, y, w, n_w) : 0;
    lmk_release(c, mark);
    return status;
}

int lmk_linear_slots_gated(lmk_ctx *c, float *y, const lmk_weight *gate, const lmk_weight *up, int32_t activation,
                           const float *x, int64_t n_x, const lmk_slots *slots)
{
    if (gate->rows != up->rows)
        return lmk_fail("A gate of %lld outputs does not fit %lld values; the model file is damaged.", (long long)gate->rows,
                        (long long)up->rows);
    const lmk_join join = activation == LMK_GELU ? c->kernels->join_gelu_mul : c->kernels->join_silu_mul;
    product p = { .c = c, .width = lmk_threads(), .x = x, .n_x = n_x, .slots = slots, .join = join };
    const size_t mark = lmk_mark(c);
    const int status = slots->n > 0 ? multiply_pair(&p, y, (const lmk_weight *const[]){ gate, up }) : 0;
    lmk_release(c, mark);
    return status;
}

/* ---- all n rows, and plain matrices ---- */

int lmk_linear_many(lmk_ctx *c, float *const *y, const lmk_weight *const *w, int32_t n_w, const float *x, int64_t n)
{
    const lmk_segment all = { .expert = 0, .first = 0, .count = n };
    return lmk_linear_slots(c, y, w, n_w, x, n, &(lmk_slots){ .n = n, .segments = &all, .n_segments = 1 });
}

int lmk_linear(lmk_ctx *c, float *y, const lmk_weight *w, const float *x, int64_t n)
{
    return lmk_linear_many(c, &y, &w, 1, x, n);
}

int lmk_linear_add(lmk_ctx *c, float *y, const lmk_weight *w, const float *bias, const float *x, int64_t n)
{
    const lmk_segment all = { .expert = 0, .first = 0, .count = n };
    const lmk_slots slots = { .n = n, .segments = &all, .n_segments = 1 };
    product p = { .c = c, .width = lmk_threads(), .x = x, .n_x = n, .slots = &slots, .join = c->kernels->join_add, .bias = bias };
    const size_t mark = lmk_mark(c);
    const int status = n > 0 ? multiply(&p, &y, &w, 1) : 0;
    lmk_release(c, mark);
    return status;
}

int lmk_linear_gated(lmk_ctx *c, float *y, const lmk_weight *gate, const lmk_weight *up, int32_t activation, const float *x,
                     int64_t n)
{
    const lmk_segment all = { .expert = 0, .first = 0, .count = n };
    return lmk_linear_slots_gated(c, y, gate, up, activation, x, n, &(lmk_slots){ .n = n, .segments = &all, .n_segments = 1 });
}
