/* halves.c: who multiplies what of packed F16 and BF16 weights. halves.h has the arithmetic.
 *
 * A task is one part of a segment times one group of 16 outputs, or two where rows are many. A segment is cut into parts
 * whose rows stay in the second-level cache while weights pass by.
 */
#include "packed.h"
#include "store.h"

#include <string.h>

#define PART_BYTES ((int64_t)6 << 18)      /* of prepared rows that a task reads again and again */
#define PART_ROWS 48               /* parts have multiples of so many rows: whole strips, and whole blocks of registers */

/* ---- rows of x ---- */

typedef struct part {              /* of a segment */
    lmk_segment s;
    const uint16_t *strips;        /* with tiles */
} part;

struct lmk_halves {
    const lmk_kernels *kernels;
    int32_t type;
    int64_t cols, n_parts, most;   /* rows of the largest part */
    part *parts;
    const float **rows;            /* (n_slots): what dot_halves takes; NULL with tiles */
    float *units;                  /* (n_slots), BF16 only */
    int per_task;                  /* groups */
};

/* Cuts segments into parts of about the same size, at most `limit` rows. Returns how many strips these have. */
static int64_t cut(lmk_halves *h, const lmk_segment *segments, int64_t n_segments, int64_t limit)
{
    int64_t n_strips = 0;
    for (int64_t i = 0; i < n_segments; i++) {
        const int64_t n_parts = (segments[i].count + limit - 1) / limit, even = (segments[i].count + n_parts - 1) / n_parts;
        const int64_t rows = (even + PART_ROWS - 1) / PART_ROWS * PART_ROWS;
        for (int64_t done = 0, n; done < segments[i].count; done += n) {
            n = lmk_min(rows, segments[i].count - done);
            h->parts[h->n_parts++] = (part){ .s = { segments[i].expert, segments[i].first + done, n } };
            n_strips += (n + LMK_HALF_ROWS - 1) / LMK_HALF_ROWS;
            h->most = lmk_max(h->most, n);
        }
    }
    return n_strips;
}

typedef struct rows_job {
    const lmk_halves *h;
    const float *x;
    const int32_t *x_index;
    float *rows, *units;           /* (n_x, row_floats), (n_x): without tiles */
    int64_t row_floats;
} rows_job;

static void copy_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const rows_job *job = arg;
    const int64_t cols = job->h->cols;
    for (int64_t i = begin; i < end; i++) {
        const float *x = job->x + i * cols;
        float *row = job->rows + i * job->row_floats;
        if (job->h->type == LMK_BF16) {
            job->units[i] = job->h->kernels->split(row, x, cols);
        } else {
            memcpy(row, x, (size_t)cols * sizeof *x);
            memset(row + cols, 0, (size_t)(job->row_floats - cols) * sizeof *x);
        }
    }
}

/* One range of parts' strips; a row of a strip is a row of its tiles. */
static void fill_strips(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const rows_job *job = arg;
    const lmk_halves *h = job->h;
    const int64_t strip_halves = lmk_half_blocks(h->cols) * LMK_HALF_TILES;
    const part *p = h->parts;
    for (int64_t slot = begin; slot < end; slot++) {
        while (slot >= p->s.first + p->s.count) p++;
        const int64_t j = slot - p->s.first, row = job->x_index ? job->x_index[slot] : slot;
        uint16_t *strip = (uint16_t *)(uintptr_t)p->strips + j / LMK_HALF_ROWS * strip_halves;
        h->units[slot] = h->kernels->split_tiles(strip + j % LMK_HALF_ROWS * LMK_BLOCK, job->x + row * h->cols, h->cols);
    }
}

static int lay_out(lmk_ctx *c, lmk_halves *h, rows_job *job, int64_t n_slots, int64_t n_strips)
{
    const int64_t strip_halves = lmk_half_blocks(h->cols) * LMK_HALF_TILES;
    const uint16_t *strips = lmk_alloc(c, (size_t)(n_strips * strip_halves) * sizeof *strips);
    h->units = lmk_alloc(c, (size_t)n_slots * sizeof *h->units);
    if (!strips || !h->units) return -1;
    for (int64_t i = 0; i < h->n_parts; i++) {
        h->parts[i].strips = strips;
        strips += (h->parts[i].s.count + LMK_HALF_ROWS - 1) / LMK_HALF_ROWS * strip_halves;
    }
    lmk_parallel(lmk_threads(), n_slots, 8, fill_strips, job);
    return 0;
}

static int copy(lmk_ctx *c, lmk_halves *h, rows_job *job, int64_t n_x, int64_t n_slots)
{
    const int64_t padded = lmk_half_blocks(h->cols) * LMK_BLOCK;
    const int as_they_are = h->type == LMK_F16 && padded == h->cols;
    h->rows = lmk_alloc(c, (size_t)n_slots * sizeof *h->rows);
    h->units = lmk_alloc(c, (size_t)n_slots * sizeof *h->units);
    job->units = lmk_alloc(c, (size_t)n_x * sizeof *job->units);
    job->row_floats = h->type == LMK_BF16 ? 2 * padded : padded;
    if (!as_they_are) job->rows = lmk_alloc(c, (size_t)(n_x * job->row_floats) * sizeof *job->rows);
    if (!h->rows || !h->units || !job->units || (!as_they_are && !job->rows)) return -1;
    if (!as_they_are) lmk_parallel(lmk_threads(), n_x, 8, copy_rows, job);
    for (int64_t i = 0; i < n_slots; i++) {
        const int64_t row = job->x_index ? job->x_index[i] : i;
        h->rows[i] = (as_they_are ? job->x : job->rows) + row * job->row_floats;
        if (h->type == LMK_BF16) h->units[i] = job->units[row];
    }
    return 0;
}

lmk_halves *lmk_prepare_halves(lmk_ctx *c, int32_t type, const float *x, int64_t n_x, int64_t cols, const lmk_slots *slots)
{
    const int64_t limit = lmk_max(1, PART_BYTES / (PART_ROWS * cols * (int64_t)sizeof *x)) * PART_ROWS;
    lmk_halves *h = lmk_alloc(c, sizeof *h);
    if (!h) return NULL;
    *h = (lmk_halves){ .kernels = c->kernels, .type = type, .cols = cols };
    h->parts = lmk_alloc(c, (size_t)(slots->n_segments + slots->n / PART_ROWS) * sizeof *h->parts);
    if (!h->parts) return NULL;
    const int64_t n_strips = cut(h, slots->segments, slots->n_segments, limit);
    const int tiles = type == LMK_BF16 && c->kernels->dot_tiles && slots->n > slots->n_segments;
    h->per_task = tiles || slots->n >= LMK_PANEL_ROWS * slots->n_segments ? 2 : 1;
    rows_job job = { .h = h, .x = x, .x_index = slots->x_index };
    return (tiles ? lay_out(c, h, &job, slots->n, n_strips) : copy(c, h, &job, n_x, slots->n)) ? NULL : h;
}

/* ---- products ---- */

typedef struct halves_job {
    const lmk_halves *h;
    const lmk_weight *w;
    lmk_store to;
    float *scratch;                /* (threads, scratch_floats) */
    uint8_t *fresh;                /* (threads, per_task groups), for a weight that is not packed */
    int64_t scratch_floats;
    int64_t groups, runs;          /* per matrix: of 16 outputs, and tasks */
    int64_t n_tasks;
} halves_job;

/* The first of a task's groups, counted over all matrices */
static int64_t group_of(const halves_job *job, int64_t task)
{
    return job->h->parts[task / job->runs].s.expert * job->groups + task % job->runs * job->h->per_task;
}

/* Where the two groups of a later task lie, for them to be fetched; NULL where they are not two, or not packed */
static const uint16_t *ahead_of(const halves_job *job, int64_t task)
{
    if (task >= job->n_tasks || task % job->runs * 2 + 1 >= job->groups || !job->w->packed) return NULL;
    return (const uint16_t *)job->w->packed + group_of(job, task) * lmk_half_group(job->w->cols);
}

static void multiply(void *arg, int64_t begin, int64_t end, int thread)
{
    const halves_job *job = arg;
    const lmk_halves *h = job->h;
    const int64_t cols = job->w->cols, group_halves = lmk_half_group(cols), step = h->per_task * LMK_GROUP;
    float *scratch = job->scratch + thread * job->scratch_floats;
    uint8_t *fresh = job->fresh ? job->fresh + thread * h->per_task * group_halves * 2 : NULL;
    for (int64_t t = begin; t < end; t++) {
        const part *p = &h->parts[t / job->runs];
        const int64_t i0 = t % job->runs * step;
        const int n_out = (int)lmk_min(step, job->w->rows - i0);
        const float *units = h->units + p->s.first;
        const int64_t n_groups = lmk_min(h->per_task, job->groups - t % job->runs * h->per_task);
        const uint16_t *w = (const uint16_t *)(const void *)lmk_take_groups(job->w, group_of(job, t), n_groups, fresh);
        const lmk_ending ending = lmk_ending_of(&job->to, h->kernels, p->s.first, i0, n_out, thread);
        float *const *y = ending.to.row;
        const int64_t at = ending.to.at;
        if (p->strips)
            h->kernels->dot_tiles(y, at, n_out, w, group_halves, p->strips, units, p->s.count, cols, ahead_of(job, t + 1), scratch);
        else
            h->kernels->dot_halves(h->type, y, at, n_out, w, group_halves, h->rows + p->s.first, units, p->s.count, cols, scratch);
        lmk_end(&ending, 0, p->s.count);
    }
}

int lmk_halves_work(lmk_ctx *c, lmk_work *work, const lmk_halves *h, const lmk_weight *w, const lmk_store *to)
{
    const int width = lmk_threads();
    halves_job *job = lmk_alloc(c, sizeof *job);
    if (!job) return -1;
    *job = (halves_job){ .h = h, .w = w, .to = *to, .scratch_floats = lmk_half_scratch(h->most) };
    job->groups = lmk_groups(w->rows);
    job->runs = (job->groups + h->per_task - 1) / h->per_task;
    job->n_tasks = h->n_parts * job->runs;
    job->scratch = lmk_alloc(c, (size_t)(width * job->scratch_floats) * sizeof *job->scratch);
    *work = (lmk_work){ multiply, job, job->n_tasks };
    if (w->packed) return job->scratch ? 0 : -1;
    job->fresh = lmk_alloc(c, (size_t)(width * h->per_task * lmk_half_group(w->cols)) * 2);
    return job->scratch && job->fresh ? 0 : -1;
}
