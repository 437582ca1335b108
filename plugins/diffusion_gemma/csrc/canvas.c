/* canvas.c: from the logits of a canvas to tokens, entropies and expected embeddings. Knows no architecture.
 *
 * Each row is one task: its bits depend on nothing but its own logits. Sums over the vocabulary are in double.
 */
#include <math.h>

#include "lmk.h"
#include "canvas.h"

enum {
    TABLE_ROWS = 64,                            /* that are expanded at a time */
    STRETCH = 256,                              /* columns that are added up at a time */
};

typedef struct reading {
    const canvas_wish *w;
    float *z;
    int64_t V;
    const double *u;
    int32_t *best, *drawn;
    double *entropy;
} reading;

static int32_t argmax(const float *z, int64_t V)
{
    int32_t best = 0;
    for (int32_t i = 1; i < V; i++)
        if (z[i] > z[best]) best = i;
    return best;
}

/* The first token at which the running sum of weights passes `target`; the last one that has any if none does */
static int32_t pick(const float *p, int64_t V, double target)
{
    double sum = 0.0;
    int32_t last = 0;
    for (int32_t i = 0; i < V; i++) {
        if (p[i] <= 0.0f) continue;
        sum += p[i];
        last = i;
        if (sum > target) break;
    }
    return last;
}

static void read_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const reading *j = arg;
    const canvas_wish *w = j->w;
    const float by = (float)(1.0 / w->temperature);
    for (int64_t row = begin; row < end; row++) {
        float *z = j->z + row * j->V;
        for (int32_t i = 0; i < w->n_bias; i++) z[w->ids[i]] += w->bias[i];
        j->best[row] = argmax(z, j->V);
        const float top = z[j->best[row]];
        double sum = 0.0, moment = 0.0;          /* of e^a and a e^a, a = (z - top) / t */
        for (int64_t i = 0; i < j->V; i++) {
            const float a = (z[i] - top) * by, e = expf(a);
            if (e > 0.0f) moment += (double)a * e;
            sum += e;
            z[i] = e;
        }
        j->entropy[row] = log(sum) - moment / sum;
        j->drawn[row] = pick(z, j->V, j->u[row] * sum);
        const float scale = (float)(1.0 / sum);
        for (int64_t i = 0; i < j->V; i++) z[i] *= scale;
    }
}

int canvas_read(lmk_ctx *c, const canvas_wish *w, float *z, int64_t n, int64_t V, const double *u, int32_t *best,
                int32_t *drawn, double *entropy)
{
    reading job = { w, z, V, u, best, drawn, entropy };
    lmk->parallel_for(c, n, 1, read_rows, &job);
    return 0;
}

typedef struct expecting {
    const float *p, *table;                     /* (n, V), (n_ids, d): the rows of `ids` */
    const int32_t *ids;
    int32_t n_ids;
    int64_t V, d;
    float least;
    float *soft;
} expecting;

/* A row's own ids in ascending order, a stretch of columns at a time: the sums are the same for any instruction set. */
static inline __attribute__((always_inline)) void expect_row(const expecting *j, int64_t row)
{
    float weight[TABLE_ROWS];
    const float *from[TABLE_ROWS];
    int32_t n = 0;
    for (int32_t i = 0; i < j->n_ids; i++) {
        weight[n] = j->p[row * j->V + j->ids[i]];
        from[n] = j->table + i * j->d;
        n += weight[n] > j->least;
    }
    for (int64_t k = 0; k < j->d; k += STRETCH) {
        const int64_t width = j->d - k < STRETCH ? j->d - k : STRETCH;
        float *restrict to = j->soft + row * j->d + k;
        int32_t i = 0;
        for (; i + 4 <= n; i += 4) {             /* as one by one, but for what stays in registers between them */
            const float *a = from[i] + k, *b = from[i + 1] + k, *e = from[i + 2] + k, *f = from[i + 3] + k;
            const float u = weight[i], v = weight[i + 1], w = weight[i + 2], x = weight[i + 3];
            for (int64_t c = 0; c < width; c++) to[c] = (((to[c] + u * a[c]) + v * b[c]) + w * e[c]) + x * f[c];
        }
        for (; i < n; i++)
            for (int64_t c = 0; c < width; c++) to[c] += weight[i] * from[i][k + c];
    }
}

static void expect_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    for (int64_t row = begin; row < end; row++) expect_row(arg, row);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void expect_rows_avx2(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    for (int64_t row = begin; row < end; row++) expect_row(arg, row);
}

static lmk_range_fn best_expect_rows(void)
{
    return strcmp(lmk->isa, "ref") && __builtin_cpu_supports("avx2") ? expect_rows_avx2 : expect_rows;
}
#else
static lmk_range_fn best_expect_rows(void)
{
    return expect_rows;
}
#endif

/* wanted[id] = 1 where any row has more than `least` of it */
static void mark_wanted(uint8_t *wanted, const float *p, int64_t n, int64_t V, float least)
{
    memset(wanted, 0, (size_t)V);
    for (int64_t row = 0; row < n; row++)
        for (int64_t id = 0; id < V; id++) wanted[id] |= p[row * V + id] > least;
}

int canvas_expect(lmk_ctx *c, const lmk_weight *table, const float *p, int64_t n, float least, float *soft)
{
    const int64_t V = table->rows, d = table->cols;
    const size_t mark = lmk->mark(c);
    float *rows = lmk_floats(c, TABLE_ROWS * d);
    uint8_t *wanted = lmk->alloc(c, (size_t)V);
    if (!rows || !wanted) return lmk_no_memory(n);
    mark_wanted(wanted, p, n, V, least);
    memset(soft, 0, (size_t)(n * d) * sizeof(float));

    int32_t ids[TABLE_ROWS];
    const lmk_range_fn add_rows = best_expect_rows();
    expecting job = { p, rows, ids, 0, V, d, least, soft };
    for (int64_t id = 0; id < V; id++) {
        if (wanted[id]) ids[job.n_ids++] = (int32_t)id;
        if (job.n_ids < TABLE_ROWS && (id + 1 < V || !job.n_ids)) continue;
        if (lmk->get_rows(c, rows, table, ids, job.n_ids)) return -1;
        lmk->parallel_for(c, n, 1, add_rows, &job);
        job.n_ids = 0;
    }
    lmk->release(c, mark);
    return 0;
}
