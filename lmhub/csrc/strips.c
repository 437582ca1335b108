/* strips.c: packed products of many rows, on levels with a kernel for strips of rows.
 *
 * The rows of every segment are quantised into strips; a task is then all strips of one segment times two groups of outputs.
 * A segment is cut where its strips would not stay in the second-level cache.
 */
#include "packed.h"
#include "store.h"

#define STRIPS_BYTES ((int64_t)5 << 18)    /* strips that a task reads again and again */

typedef struct strip {             /* slots [first, first + count) */
    int64_t first, count;
} strip;

typedef struct part {              /* of a segment */
    lmk_segment s;
    const uint8_t *strips;
} part;

struct lmk_strips {
    const lmk_kernels *kernels;
    const float *const *x;         /* (n_slots), each (cols) */
    int64_t cols, n_parts, n_strips, strip_bytes;
    int64_t most;                  /* rows of a part */
    int share;                     /* blocks of x that share a scale */
    part *parts;
    strip *strips;
    uint8_t *memory;               /* (n_strips, strip_bytes) */
};

typedef struct strips_job {
    const lmk_strips *of;
    const lmk_weight *w;
    lmk_store to;
    uint8_t *scratch;              /* (threads, scratch_bytes) */
    uint8_t *fresh;                /* (threads, 2, group_bytes), for a weight that is not packed */
    int64_t groups, pairs;         /* per matrix */
    int64_t group_bytes, scratch_bytes, n_tasks;
} strips_job;

static void lay_out(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const lmk_strips *s = arg;
    for (int64_t i = begin; i < end; i++)
        s->kernels->strip(s->memory + i * s->strip_bytes, s->x + s->strips[i].first, s->strips[i].count, s->cols, s->share);
}

/* Cuts segments into parts of about the same size, at most `most` rows, and those of many rows into strips. */
static void cut(lmk_strips *s, const lmk_segment *segments, int64_t n_segments, int64_t most)
{
    for (int64_t i = 0; i < n_segments; i++) {
        const int64_t n_parts = (segments[i].count + most - 1) / most, even = (segments[i].count + n_parts - 1) / n_parts;
        const int64_t rows = (even + LMK_STRIP_ROWS - 1) / LMK_STRIP_ROWS * LMK_STRIP_ROWS;
        for (int64_t done = 0, n; done < segments[i].count; done += n) {
            n = lmk_min(rows, segments[i].count - done);
            s->most = lmk_max(s->most, n);
            part *p = &s->parts[s->n_parts++];
            *p = (part){ .s = { .expert = segments[i].expert, .first = segments[i].first + done, .count = n } };
            p->strips = s->memory + s->n_strips * s->strip_bytes;
            for (int64_t j = 0; j < n; j += LMK_STRIP_ROWS)
                s->strips[s->n_strips++] = (strip){ p->s.first + j, lmk_min(LMK_STRIP_ROWS, n - j) };
        }
    }
}

lmk_strips *lmk_lay_out(lmk_ctx *c, const float *const *x, int64_t cols, int share, const lmk_segment *segments,
                        int64_t n_segments, int64_t n_slots)
{
    const int64_t strip_bytes = lmk_strip_bytes(cols);
    const int64_t most = lmk_max(4, STRIPS_BYTES / strip_bytes) * LMK_STRIP_ROWS;
    const int64_t max_strips = n_segments + n_slots / LMK_STRIP_ROWS, max_parts = n_segments + n_slots / most;
    lmk_strips *s = lmk_alloc(c, sizeof *s);
    if (!s) return NULL;
    *s = (lmk_strips){ .kernels = c->kernels, .x = x, .cols = cols, .share = share, .strip_bytes = strip_bytes };
    s->parts = lmk_alloc(c, (size_t)max_parts * sizeof *s->parts);
    s->strips = lmk_alloc(c, (size_t)max_strips * sizeof *s->strips);
    s->memory = lmk_alloc(c, (size_t)(max_strips * strip_bytes));
    if (!s->parts || !s->strips || !s->memory) return NULL;
    cut(s, segments, n_segments, most);
    lmk_parallel(lmk_threads(), s->n_strips, 2, lay_out, s);
    return s;
}

/* The first of a task's groups, counted over all matrices */
static int64_t group_of(const strips_job *job, int64_t task)
{
    return job->of->parts[task / job->pairs].s.expert * job->groups + task % job->pairs * 2;
}

/* Where the two groups of a later task lie, for them to be fetched; NULL where they are not two, or not packed */
static const uint8_t *ahead_of(const strips_job *job, int64_t task)
{
    if (task >= job->n_tasks || task % job->pairs * 2 + 1 >= job->groups || !job->w->packed) return NULL;
    return (const uint8_t *)job->w->packed + group_of(job, task) * job->group_bytes;
}

static void multiply(void *arg, int64_t begin, int64_t end, int thread)
{
    const strips_job *job = arg;
    const lmk_kernels *kernels = job->of->kernels;
    uint8_t *scratch = job->scratch + thread * job->scratch_bytes;
    uint8_t *fresh = job->fresh ? job->fresh + thread * 2 * job->group_bytes : NULL;
    const int64_t cols = job->w->cols, rows = job->w->rows;
    for (int64_t t = begin; t < end; t++) {
        const part *p = &job->of->parts[t / job->pairs];
        const int64_t i0 = t % job->pairs * 2 * LMK_GROUP;
        const int64_t n_groups = lmk_min(2, job->groups - t % job->pairs * 2);
        const uint8_t *w = lmk_take_groups(job->w, group_of(job, t), n_groups, fresh);
        const int n_out = (int)lmk_min(2 * LMK_GROUP, rows - i0);
        const lmk_ending ending = lmk_ending_of(&job->to, kernels, p->s.first, i0, n_out, thread);
        kernels->dot_strips(job->w->type, &ending, w, job->group_bytes, p->strips, p->s.count, cols, ahead_of(job, t + 1), scratch);
    }
}

int lmk_strips_work(lmk_ctx *c, lmk_work *work, const lmk_strips *s, const lmk_weight *w, const lmk_store *to)
{
    const int width = lmk_threads();
    strips_job *job = lmk_alloc(c, sizeof *job);
    if (!job) return -1;
    *job = (strips_job){ .of = s, .w = w, .to = *to };
    job->group_bytes = lmk_group_bytes(lmk_form_of(w->type), w->cols);
    job->scratch_bytes = lmk_strips_scratch(s->most);
    job->scratch = lmk_alloc(c, (size_t)(width * job->scratch_bytes));
    if (!job->scratch) return -1;
    if (!w->packed) {
        job->fresh = lmk_alloc(c, (size_t)(width * 2 * job->group_bytes));
        if (!job->fresh) return -1;
    }
    job->groups = lmk_groups(w->rows);
    job->pairs = (job->groups + 1) / 2;
    job->n_tasks = s->n_parts * job->pairs;
    *work = (lmk_work){ multiply, job, job->n_tasks };
    return 0;
}
