/* recurrent.c: ops of layers that remember: short convolutions and the gated delta rule. Their memory is the spans'. */
#include "core.h"

#include <string.h>

#define MAX_TAPS 16
#define CONV_COLUMNS 256           /* that a task takes of every row */

static const lmk_memory *memory_of(const lmk_span *span)
{
    return (const lmk_memory *)span->kv - 1;
}

typedef struct conv_job {
    const lmk_kernels *kernels;
    float *y;
    const float *x, *w;
    int64_t ld, dim, offset;
    int32_t taps, silu;
    const lmk_span *spans;
    int32_t n_spans;
} conv_job;

/* Row `at` of the span, from -(taps - 1) on, in columns from `column` on */
static const float *conv_input(const conv_job *j, const lmk_span *span, int64_t at, int64_t column)
{
    static const float zeros[CONV_COLUMNS];
    if (at >= 0) return j->x + (span->row + at) * j->ld + column;
    return span->n_past ? memory_of(span)->past + j->offset + (j->taps - 1 + at) * j->dim + column : zeros;
}

static void conv_columns(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const conv_job *j = arg;
    for (int64_t block = begin; block < end; block++) {
        const int64_t column = block * CONV_COLUMNS, n = lmk_min(CONV_COLUMNS, j->dim - column);
        for (int32_t s = 0; s < j->n_spans; s++) {
            const lmk_span *span = &j->spans[s];
            for (int32_t i = 0; i < span->n; i++) {
                const float *x[MAX_TAPS];
                for (int32_t t = 0; t < j->taps; t++) x[t] = conv_input(j, span, i - j->taps + 1 + t, column);
                j->kernels->short_conv(j->y + (span->row + i) * j->dim + column, x, j->w + column, j->dim, j->taps, n, j->silu);
            }
            float *next = memory_of(span)->next + j->offset + column;
            for (int32_t t = 0; t < j->taps - 1; t++)
                memcpy(next + t * j->dim, conv_input(j, span, span->n - j->taps + 1 + t, column), (size_t)n * sizeof(float));
        }
    }
}

void lmk_short_conv(lmk_ctx *c, float *y, const float *x, int64_t ld, const float *w, int32_t taps, int64_t dim, int32_t silu,
                    int64_t offset, const lmk_span *spans, int32_t n_spans)
{
    conv_job job = { c->kernels, y, x, w, ld, dim, offset, taps, silu, spans, n_spans };
    lmk_parallel(lmk_threads(), (dim + CONV_COLUMNS - 1) / CONV_COLUMNS, 1, conv_columns, &job);
}

typedef struct delta_job {
    const lmk_kernels *kernels;
    float *o;
    const lmk_delta *d;
    int64_t offset, n_parts;       /* parts of a head */
    const lmk_span *spans;
} delta_job;

static void delta_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const delta_job *j = arg;
    const lmk_delta *d = j->d;
    for (int64_t task = begin; task < end; task++) {
        const int64_t part = task % j->n_parts, h = task / j->n_parts % d->n_v;
        const lmk_span *span = &j->spans[task / (j->n_parts * d->n_v)];
        const int64_t first = part * LMK_DELTA_BLOCKS, column = h * d->v_dim + first * LMK_LANES, row = span->row;
        const int64_t key = (d->grouped ? h / (d->n_v / d->n_k) : h % d->n_k) * d->k_dim, at = j->offset + column * d->k_dim;
        const lmk_memory *memory = memory_of(span);
        const lmk_delta_task t = {
            .past = span->n_past ? memory->past + at : NULL, .next = memory->next + at,
            .q = d->q + row * d->ld_qk + key, .k = d->k + row * d->ld_qk + key, .v = d->v + row * d->ld_v + column,
            .decay = d->decay + row * d->n_v + h, .beta = d->beta + row * d->n_v + h,
            .o = j->o + row * d->n_v * d->v_dim + column,
            .n_rows = span->n, .ld_qk = d->ld_qk, .ld_v = d->ld_v, .ld_gates = d->n_v, .ld_o = (int64_t)d->n_v * d->v_dim,
            .k_dim = d->k_dim, .n_blocks = (int)lmk_min(LMK_DELTA_BLOCKS, d->v_dim / LMK_LANES - first), .scale = d->scale,
        };
        j->kernels->delta(&t);
    }
}

void lmk_delta_rule(lmk_ctx *c, float *o, const lmk_delta *d, int64_t offset, const lmk_span *spans, int32_t n_spans)
{
    const int64_t blocks = d->v_dim / LMK_LANES;
    delta_job job = { c->kernels, o, d, offset, (blocks + LMK_DELTA_BLOCKS - 1) / LMK_DELTA_BLOCKS, spans };
    lmk_parallel(lmk_threads(), n_spans * d->n_v * job.n_parts, 1, delta_tasks, &job);
}
