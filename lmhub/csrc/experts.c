/* experts.c: mixture-of-experts ops: choosing experts, their products, and the weighted sum. */
#include "core.h"

#include <math.h>
#include <string.h>

#define LEAST_SUM 0x1p-14f         /* keeps the division by the sum of the chosen weights tame */

typedef struct route_job {
    const lmk_kernels *kernels;
    const lmk_route *r;
    const float *logits;
    float *p;                      /* (n, n_expert) */
    int64_t n_expert;
} route_job;

/* The k largest of p (ties: lowest id), ascending by id. Marks the chosen ones in p by -1. */
static void pick(int32_t *expert, float *weight, float *p, int64_t n, int32_t k)
{
    for (int32_t j = 0; j < k; j++) {
        int64_t best = -1;
        for (int64_t e = 0; e < n; e++)
            if (p[e] >= 0.0f && (best < 0 || p[e] > p[best])) best = e;
        if (best < 0)              /* NaN logits: any distinct ids do, the weights carry the NaN on */
            for (best = 0; p[best] == -1.0f;) best++;
        int32_t at = j;
        for (; at > 0 && expert[at - 1] > best; at--) {
            expert[at] = expert[at - 1];
            weight[at] = weight[at - 1];
        }
        expert[at] = (int32_t)best;
        weight[at] = p[best];
        p[best] = -1.0f;
    }
}

static void route_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const route_job *job = arg;
    const int32_t k = job->r->k;
    for (int64_t i = begin; i < end; i++) {
        const float *logits = job->logits + i * job->n_expert;
        float *p = job->p + i * job->n_expert, *weight = job->r->weight + i * k;
        float sum = job->kernels->exp_sum(p, logits, job->n_expert, job->kernels->max(logits, job->n_expert), 1.0f);
        for (int64_t e = 0; e < job->n_expert; e++) p[e] /= sum;
        pick(job->r->expert + i * k, weight, p, job->n_expert, k);
        float chosen = 0.0f;
        for (int32_t j = 0; j < k; j++) chosen += weight[j];
        if (chosen < LEAST_SUM) chosen = LEAST_SUM;
        for (int32_t j = 0; j < k; j++) weight[j] /= chosen;
    }
}

int lmk_route_experts(lmk_ctx *c, lmk_route *r, const float *logits, int64_t n_expert)
{
    if (r->k < 1 || r->k > n_expert)
        return lmk_fail("%d experts per token were asked for, but the layer has %lld; the model file is damaged.", r->k,
                        (long long)n_expert);
    const size_t mark = lmk_mark(c);
    route_job job = { c->kernels, r, logits, lmk_alloc(c, (size_t)(r->n * n_expert) * sizeof(float)), n_expert };
    if (!job.p) return -1;
    lmk_parallel(lmk_threads(), r->n, 16, route_rows, &job);
    lmk_release(c, mark);
    return 0;
}

/* Slots sorted by expert: order (n * k), and one segment per expert that has any. Returns the number of segments. */
static int64_t sort_slots(const lmk_route *r, int32_t n_expert, int64_t *start, int32_t *order, lmk_segment *segments)
{
    const int64_t n_slots = r->n * r->k;
    memset(start, 0, (size_t)(n_expert + 1) * sizeof *start);
    for (int64_t s = 0; s < n_slots; s++) start[r->expert[s] + 1]++;
    int64_t n = 0;
    for (int32_t e = 0; e < n_expert; e++) {
        if (start[e + 1]) segments[n++] = (lmk_segment){ .expert = e, .first = start[e], .count = start[e + 1] };
        start[e + 1] += start[e];
    }
    for (int64_t s = 0; s < n_slots; s++) order[start[r->expert[s]]++] = (int32_t)s;
    return n;
}

static int check_experts(const lmk_route *r, const lmk_weight *w)
{
    for (int64_t s = 0; s < r->n * r->k; s++)
        if (r->expert[s] < 0 || r->expert[s] >= w->n_expert)
            return lmk_fail("Expert %d was chosen, but the layer has %d.", r->expert[s], w->n_expert);
    return 0;
}

/* The slots of `n` segments. Their places are counted from the first of them. */
static lmk_slots part_of(lmk_segment *segments, int64_t n, const int32_t *source, const int32_t *order)
{
    const int64_t first = segments[0].first;
    for (int64_t i = 0; i < n; i++) segments[i].first -= first;
    return (lmk_slots){ segments[n - 1].first + segments[n - 1].count, segments, n, source + first, order + first };
}

/* Products of n_w weights; or, where `gated` is not NULL, of a pair with that activation, into y[0] */
static int multiply(lmk_ctx *c, float *const *y, const lmk_weight *const *w, int32_t n_w, const int32_t *gated, const float *x,
                    int per_slot, const lmk_route *r)
{
    const int64_t n_slots = r->n * r->k;
    int32_t n_expert = 0;
    for (int32_t i = 0; i < n_w; i++) {
        if (check_experts(r, w[i])) return -1;
        n_expert = (int32_t)lmk_max(n_expert, w[i]->n_expert);
    }
    const size_t mark = lmk_mark(c);
    int64_t *start = lmk_alloc(c, (size_t)(n_expert + 1) * sizeof *start);
    int32_t *order = lmk_alloc(c, (size_t)n_slots * sizeof *order);
    int32_t *source = lmk_alloc(c, (size_t)n_slots * sizeof *source);
    lmk_segment *segments = lmk_alloc(c, (size_t)lmk_min(n_slots, n_expert) * sizeof *segments);
    int status = -1;
    if (start && order && source && segments) {
        const int64_t n = sort_slots(r, n_expert, start, order, segments), n_x = per_slot ? n_slots : r->n;
        for (int64_t s = 0; s < n_slots; s++) source[s] = per_slot ? order[s] : order[s] / r->k;
        status = 0;
        for (int64_t i = 0, count; i < n && !status; i += count) {
            count = lmk_shelf_fetch(w, n_w, segments + i, n - i);
            const lmk_slots slots = part_of(segments + i, count, source, order);
            status = gated ? lmk_linear_slots_gated(c, y[0], w[0], w[1], *gated, x, n_x, &slots)
                           : lmk_linear_slots(c, y, w, n_w, x, n_x, &slots);
        }
    }
    lmk_release(c, mark);
    return status;
}

int lmk_linear_experts_many(lmk_ctx *c, float *const *y, const lmk_weight *const *w, int32_t n_w, const float *x,
                            int per_slot, const lmk_route *r)
{
    return multiply(c, y, w, n_w, NULL, x, per_slot, r);
}

int lmk_linear_experts(lmk_ctx *c, float *y, const lmk_weight *w, const float *x, int per_slot, const lmk_route *r)
{
    return multiply(c, &y, &w, 1, NULL, x, per_slot, r);
}

int lmk_linear_experts_gated(lmk_ctx *c, float *y, const lmk_weight *gate, const lmk_weight *up, int32_t activation,
                             const float *x, int per_slot, const lmk_route *r)
{
    return multiply(c, &y, (const lmk_weight *const[]){ gate, up }, 2, &activation, x, per_slot, r);
}

typedef struct sum_job {
    const lmk_kernels *kernels;
    float *y;
    const float *slots;
    const lmk_route *r;
    int64_t dim;
} sum_job;

static void sum_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const sum_job *job = arg;
    const int32_t k = job->r->k;
    for (int64_t i = begin; i < end; i++)
        for (int32_t j = 0; j < k; j++)
            job->kernels->axpy(job->y + i * job->dim, job->r->weight[i * k + j], job->slots + (i * k + j) * job->dim, job->dim);
}

void lmk_moe_sum(lmk_ctx *c, float *y, const float *slots, const lmk_route *r, int64_t dim)
{
    sum_job job = { c->kernels, y, slots, r, dim };
    lmk_parallel(lmk_threads(), r->n, 1 + 16384 / (dim * r->k), sum_rows, &job);
}
