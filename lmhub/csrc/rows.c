/* rows.c: ops that treat each row, or each element, by itself: norms, activations, sums, rotations. */
#include "core.h"

#include <math.h>

#define GRAIN 16384                /* floats per chunk: below that another thread does not pay */

typedef struct rows_job {
    lmk_ctx *c;
    float *y;
    const float *x, *w;
    int64_t dim, ld;
    float eps;
    void (*gated)(float *y, const float *gate, const float *up, int64_t dim);
} rows_job;

static int64_t grain(int64_t dim)
{
    return 1 + GRAIN / lmk_max(dim, 1);
}

static void norm_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const rows_job *j = arg;
    for (int64_t i = begin; i < end; i++)
        j->c->kernels->rms_norm(j->y + i * j->dim, j->x + i * j->dim, j->w, j->dim, j->eps);
}

void lmk_rms_norm(lmk_ctx *c, float *y, const float *x, const float *w, int64_t n, int64_t dim, float eps)
{
    rows_job job = { .c = c, .y = y, .x = x, .w = w, .dim = dim, .eps = eps };
    lmk_parallel(lmk_threads(), n, grain(dim), norm_rows, &job);
}

static void gated_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const rows_job *j = arg;
    for (int64_t i = begin; i < end; i++) j->gated(j->y + i * j->dim, j->x + i * j->ld, j->w + i * j->ld, j->dim);
}

void lmk_silu_mul(lmk_ctx *c, float *y, const float *gate, const float *up, int64_t n, int64_t dim, int64_t ld)
{
    rows_job job = { .y = y, .x = gate, .w = up, .dim = dim, .ld = ld, .gated = c->kernels->silu_mul };
    lmk_parallel(lmk_threads(), n, grain(4 * dim), gated_rows, &job);
}

void lmk_gelu_mul(lmk_ctx *c, float *y, const float *gate, const float *up, int64_t n, int64_t dim, int64_t ld)
{
    rows_job job = { .y = y, .x = gate, .w = up, .dim = dim, .ld = ld, .gated = c->kernels->gelu_mul };
    lmk_parallel(lmk_threads(), n, grain(4 * dim), gated_rows, &job);
}

static void sigmoid_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const rows_job *j = arg;
    for (int64_t i = begin; i < end; i++) {
        float *y = j->y + i * j->dim;
        j->c->kernels->sigmoid_mul(y, j->x + i * j->ld, y, j->dim);
    }
}

void lmk_sigmoid_mul(lmk_ctx *c, float *y, const float *gate, int64_t n, int64_t dim, int64_t ld)
{
    rows_job job = { .c = c, .y = y, .x = gate, .dim = dim, .ld = ld };
    lmk_parallel(lmk_threads(), n, grain(4 * dim), sigmoid_rows, &job);
}

typedef struct cap_job {
    const lmk_kernels *kernels;
    float *x;
    float cap;
} cap_job;

static void cap_range(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const cap_job *j = arg;
    j->kernels->softcap(j->x + begin, end - begin, j->cap);
}

void lmk_softcap(lmk_ctx *c, float *x, int64_t count, float cap)
{
    cap_job job = { c->kernels, x, cap };
    lmk_parallel(lmk_threads(), count, GRAIN, cap_range, &job);
}

static void add_range(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const rows_job *j = arg;
    j->c->kernels->add(j->y + begin, j->y + begin, j->x + begin, end - begin);
}

void lmk_add(lmk_ctx *c, float *y, const float *x, int64_t count)
{
    rows_job job = { .c = c, .y = y, .x = x };
    lmk_parallel(lmk_threads(), count, 4 * GRAIN, add_range, &job);
}

static void bias_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const rows_job *j = arg;
    for (float *y = j->y + begin * j->dim; y < j->y + end * j->dim; y += j->dim) j->c->kernels->add(y, y, j->w, j->dim);
}

void lmk_add_bias(lmk_ctx *c, float *y, const float *b, int64_t n, int64_t dim)
{
    rows_job job = { .c = c, .y = y, .w = b, .dim = dim };
    lmk_parallel(lmk_threads(), n, grain(dim), bias_rows, &job);
}

/* ---- rotary positions (arXiv:2104.09864) ---- */

typedef struct rope_job {
    const lmk_kernels *kernels;
    float *x;
    const float *cs;
    const float *norm;             /* (head_dim): heads are normed before; or NULL */
    float eps;
    int64_t n_past;
    const double *inv_freq;
    double magnitude;
    int32_t n_head, head_dim, n_pairs, pairing;
} rope_job;

static void angle_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const rope_job *j = arg;
    for (int64_t i = begin; i < end; i++)
        for (int32_t p = 0; p < j->n_pairs; p++) {
            const double angle = (double)(j->n_past + i) * j->inv_freq[p];
            float *cs = j->x + (i * j->n_pairs + p) * 2;
            cs[0] = (float)(cos(angle) * j->magnitude);
            cs[1] = (float)(sin(angle) * j->magnitude);
        }
}

void lmk_rope_angles(lmk_ctx *c, float *cs, const lmk_span *spans, int32_t n_spans, const double *inv_freq, int32_t n_pairs,
                     double magnitude)
{
    (void)c;
    for (int32_t s = 0; s < n_spans; s++) {
        rope_job job = { .x = cs + (int64_t)spans[s].row * n_pairs * 2, .n_past = spans[s].n_past, .inv_freq = inv_freq,
                         .n_pairs = n_pairs, .magnitude = magnitude };
        lmk_parallel(lmk_threads(), spans[s].n, 1 + 512 / lmk_max(n_pairs, 1), angle_rows, &job);
    }
}

#define PAIRS 64                   /* angles unzipped at a time, for all heads */

static void rope_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const rope_job *j = arg;
    float cosine[PAIRS], sine[PAIRS];
    for (int64_t i = begin; i < end; i++) {
        float *heads = j->x + i * j->n_head * j->head_dim;
        for (int32_t h = 0; h < j->n_head && j->norm; h++) {
            float *x = heads + (int64_t)h * j->head_dim;
            j->kernels->rms_norm(x, x, j->norm, j->head_dim, j->eps);
        }
        for (int32_t first = 0; first < j->n_pairs; first += PAIRS) {
            const int32_t n = (int32_t)lmk_min(PAIRS, j->n_pairs - first);
            const float *cs = j->cs + (i * j->n_pairs + first) * 2;
            for (int32_t p = 0; p < n; p++) {
                cosine[p] = cs[2 * p];
                sine[p] = cs[2 * p + 1];
            }
            for (int32_t h = 0; h < j->n_head; h++) {
                float *x = heads + (int64_t)h * j->head_dim;
                if (j->pairing == LMK_ROPE_HALVES)
                    j->kernels->rotate_halves(x + first, x + first + j->n_pairs, cosine, sine, n);
                else
                    j->kernels->rotate_pairs(x + 2 * first, cosine, sine, n);
            }
        }
    }
}

void lmk_rope(lmk_ctx *c, float *x, const float *cs, int64_t n, int32_t n_head, int32_t head_dim, int32_t n_pairs,
              int32_t pairing)
{
    lmk_norm_rope(c, x, NULL, 0.0f, cs, n, n_head, head_dim, n_pairs, pairing);
}

void lmk_norm_rope(lmk_ctx *c, float *x, const float *w, float eps, const float *cs, int64_t n, int32_t n_head, int32_t head_dim,
                   int32_t n_pairs, int32_t pairing)
{
    rope_job job = { .kernels = c->kernels, .x = x, .cs = cs, .norm = w, .eps = eps, .n_head = n_head, .head_dim = head_dim,
                     .n_pairs = n_pairs, .pairing = pairing };
    lmk_parallel(lmk_threads(), n, grain((int64_t)n_head * head_dim), rope_rows, &job);
}
