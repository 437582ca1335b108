/* profile.c: how long each op of the public table takes, while somebody wants to know.
 *
 * While profiling is on, the table's ops are the wrappers below, which call the real ones between two looks at the clock
 * and add up what the operands say about the work: bytes that must come from memory (weights and caches as they are
 * stored, each once), and operations of the dot products, a multiplication and its addition being two. While it is off,
 * nothing of this runs. One tally for the process, by op and shape of the weight.
 */
#include "blocks.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#define MAX_TALLIES 128            /* what comes later is added to the last one, "others" */

static struct {
    pthread_mutex_t lock;
    lmk_op_time tally[MAX_TALLIES];
    int n_tallies;
} profile = { .lock = PTHREAD_MUTEX_INITIALIZER };

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* With the lock held. */
static lmk_op_time *tally_of(const lmk_op_time *one)
{
    for (int i = 0; i < profile.n_tallies; i++) {
        lmk_op_time *t = &profile.tally[i];
        if (!strcmp(t->op, one->op) && t->type == one->type && t->n_expert == one->n_expert && t->rows == one->rows
            && t->cols == one->cols) return t;
    }
    if (profile.n_tallies == MAX_TALLIES) return &profile.tally[MAX_TALLIES - 1];
    lmk_op_time *fresh = &profile.tally[profile.n_tallies++];
    *fresh = (lmk_op_time){ .op = "others", .type = -1 };
    if (profile.n_tallies < MAX_TALLIES) {
        fresh->op = one->op;
        fresh->type = one->type;
        fresh->n_expert = one->n_expert;
        fresh->rows = one->rows;
        fresh->cols = one->cols;
    }
    return fresh;
}

static void count(lmk_op_time one, double took)
{
    pthread_mutex_lock(&profile.lock);
    lmk_op_time *t = tally_of(&one);
    t->calls++;
    t->n += one.n;
    t->seconds += took;
    t->bytes += one.bytes;
    t->operations += one.operations;
    pthread_mutex_unlock(&profile.lock);
}

static void add_up(lmk_op_time one, double since)
{
    count(one, seconds() - since);
}

/* ---- what the operands say ---- */

static double stored_bytes(int32_t type, double elements)
{
    const int64_t block = lmk_type_block(type);
    return block < 1 ? 0.0 : elements / (double)block * (double)lmk_type_bytes(type);
}

/* `n` rows of x meet matrices of w, `touched` of which have to be read. */
static lmk_op_time of_weight(const char *op, const lmk_weight *w, int64_t n, int64_t touched)
{
    const double size = (double)w->rows * (double)w->cols;
    return (lmk_op_time){ .op = op, .type = w->type, .n_expert = w->n_expert, .rows = w->rows, .cols = w->cols, .n = n,
                          .bytes = stored_bytes(w->type, size * (double)touched), .operations = 2.0 * size * (double)n };
}

/* An op without a weight that reads and writes so many floats; they are in some cache, as a rule. */
static lmk_op_time of_floats(const char *op, int64_t n, int64_t floats)
{
    return (lmk_op_time){ .op = op, .type = -1, .n = n, .bytes = 4.0 * (double)floats };
}

static int64_t rows_of(const lmk_span *spans, int32_t n_spans)
{
    int64_t n = 0;
    for (int32_t i = 0; i < n_spans; i++) n += spans[i].n;
    return n;
}

static double row_bytes(const lmk_kv *kv)
{
    return (double)kv->n_kv * (double)(lmk_vector_bytes(kv->dtype, kv->k_dim) + lmk_vector_bytes(kv->dtype, kv->v_dim));
}

/* Positions that the rows of a span see, counted once for each row. */
static double pairs_seen(const lmk_span *s, int64_t window)
{
    double seen = 0.0;
    for (int32_t j = 0; j < s->n; j++) {
        const int64_t before = s->n_past + j + 1;
        seen += (double)(window > 0 ? lmk_min(window, before) : before);
    }
    return seen;
}

static lmk_op_time of_attention(const lmk_span *spans, int32_t n_spans, int32_t n_head, int64_t window)
{
    lmk_op_time one = { .op = "attend", .type = n_spans > 0 ? spans[0].kv->dtype : -1, .n = rows_of(spans, n_spans) };
    for (int32_t i = 0; i < n_spans; i++) {
        const lmk_span *s = &spans[i];
        const int64_t end = s->n_past + s->n, first = window > 0 ? lmk_max(0, s->n_past + 1 - window) : 0;
        one.bytes += row_bytes(s->kv) * (double)(end - first);
        one.operations += 2.0 * n_head * ((double)s->kv->k_dim + s->kv->v_dim) * pairs_seen(s, window);
    }
    return one;
}

static int64_t different_experts(const lmk_route *r, int64_t n_expert)
{
    int64_t different = 0;
    for (int64_t e = 0; e < n_expert; e++)
        for (int64_t i = 0; i < r->n * r->k; i++)
            if (r->expert[i] == e) { different++; break; }
    return different;
}

/* ---- the ops, timed ---- */

static int get_rows(lmk_ctx *c, float *y, const lmk_weight *w, const int32_t *ids, int64_t n)
{
    const double since = seconds();
    const int status = lmk_get_rows(c, y, w, ids, n);
    lmk_op_time one = of_weight("get_rows", w, n, 0);
    one.bytes = stored_bytes(w->type, (double)n * (double)w->cols);
    one.operations = 0.0;
    add_up(one, since);
    return status;
}

static int linear(lmk_ctx *c, float *y, const lmk_weight *w, const float *x, int64_t n)
{
    const double since = seconds();
    const int status = lmk_linear(c, y, w, x, n);
    add_up(of_weight("linear", w, n, 1), since);
    return status;
}

/* Weight by weight, each with its share of the time: that of its operations. */
static void share(const char *op, const lmk_weight *const *w, int32_t n_w, int64_t n, int64_t touched, double took)
{
    double rows = 0.0;
    for (int32_t i = 0; i < n_w; i++) rows += (double)w[i]->rows;
    for (int32_t i = 0; i < n_w; i++) count(of_weight(op, w[i], n, touched), took * (double)w[i]->rows / rows);
}

static int linear_many(lmk_ctx *c, float *const *y, const lmk_weight *const *w, int32_t n_w, const float *x, int64_t n)
{
    const double since = seconds();
    const int status = lmk_linear_many(c, y, w, n_w, x, n);
    share("linear_many", w, n_w, n, 1, seconds() - since);
    return status;
}

static int linear_add(lmk_ctx *c, float *y, const lmk_weight *w, const float *bias, const float *x, int64_t n)
{
    const double since = seconds();
    const int status = lmk_linear_add(c, y, w, bias, x, n);
    add_up(of_weight("linear_add", w, n, 1), since);
    return status;
}

static int linear_gated(lmk_ctx *c, float *y, const lmk_weight *gate, const lmk_weight *up, int32_t activation, const float *x,
                        int64_t n)
{
    const double since = seconds();
    const int status = lmk_linear_gated(c, y, gate, up, activation, x, n);
    share("linear_gated", (const lmk_weight *const[]){ gate, up }, 2, n, 1, seconds() - since);
    return status;
}

static int route(lmk_ctx *c, lmk_route *r, const float *logits, int64_t n_expert)
{
    const double since = seconds();
    const int status = lmk_route_experts(c, r, logits, n_expert);
    add_up(of_floats("route", r->n, r->n * n_expert), since);
    return status;
}

static int linear_experts(lmk_ctx *c, float *y, const lmk_weight *w, const float *x, int per_slot, const lmk_route *r)
{
    const double since = seconds();
    const int status = lmk_linear_experts(c, y, w, x, per_slot, r);
    const double took = seconds() - since;
    lmk_op_time one = of_weight("linear_experts", w, r->n * r->k, status ? 0 : different_experts(r, w->n_expert));
    count(one, took);                                             /* without the counting of experts */
    return status;
}

static int linear_experts_many(lmk_ctx *c, float *const *y, const lmk_weight *const *w, int32_t n_w, const float *x,
                               int per_slot, const lmk_route *r)
{
    const double since = seconds();
    const int status = lmk_linear_experts_many(c, y, w, n_w, x, per_slot, r);
    const double took = seconds() - since;
    share("linear_experts_many", w, n_w, r->n * r->k, status || !n_w ? 0 : different_experts(r, w[0]->n_expert), took);
    return status;
}

static int linear_experts_gated(lmk_ctx *c, float *y, const lmk_weight *gate, const lmk_weight *up, int32_t activation,
                                const float *x, int per_slot, const lmk_route *r)
{
    const double since = seconds();
    const int status = lmk_linear_experts_gated(c, y, gate, up, activation, x, per_slot, r);
    const double took = seconds() - since;
    share("linear_experts_gated", (const lmk_weight *const[]){ gate, up }, 2, r->n * r->k,
          status ? 0 : different_experts(r, gate->n_expert), took);
    return status;
}

static void moe_sum(lmk_ctx *c, float *y, const float *slots, const lmk_route *r, int64_t dim)
{
    const double since = seconds();
    lmk_moe_sum(c, y, slots, r, dim);
    add_up(of_floats("moe_sum", r->n, r->n * (r->k + 2) * dim), since);
}

static void rms_norm(lmk_ctx *c, float *y, const float *x, const float *w, int64_t n, int64_t dim, float eps)
{
    const double since = seconds();
    lmk_rms_norm(c, y, x, w, n, dim, eps);
    add_up(of_floats("rms_norm", n, 2 * n * dim), since);
}

static void silu_mul(lmk_ctx *c, float *y, const float *gate, const float *up, int64_t n, int64_t dim, int64_t ld)
{
    const double since = seconds();
    lmk_silu_mul(c, y, gate, up, n, dim, ld);
    add_up(of_floats("silu_mul", n, 3 * n * dim), since);
}

static void gelu_mul(lmk_ctx *c, float *y, const float *gate, const float *up, int64_t n, int64_t dim, int64_t ld)
{
    const double since = seconds();
    lmk_gelu_mul(c, y, gate, up, n, dim, ld);
    add_up(of_floats("gelu_mul", n, 3 * n * dim), since);
}

static void sigmoid_mul(lmk_ctx *c, float *y, const float *gate, int64_t n, int64_t dim, int64_t ld)
{
    const double since = seconds();
    lmk_sigmoid_mul(c, y, gate, n, dim, ld);
    add_up(of_floats("sigmoid_mul", n, 3 * n * dim), since);
}

static void softcap(lmk_ctx *c, float *x, int64_t n, float cap)
{
    const double since = seconds();
    lmk_softcap(c, x, n, cap);
    add_up(of_floats("softcap", 0, 2 * n), since);
}

static void add(lmk_ctx *c, float *y, const float *x, int64_t n)
{
    const double since = seconds();
    lmk_add(c, y, x, n);
    add_up(of_floats("add", 0, 3 * n), since);
}

static void add_bias(lmk_ctx *c, float *y, const float *b, int64_t n, int64_t dim)
{
    const double since = seconds();
    lmk_add_bias(c, y, b, n, dim);
    add_up(of_floats("add_bias", n, 2 * n * dim), since);
}

static void rope_angles(lmk_ctx *c, float *cs, const lmk_span *spans, int32_t n_spans, const double *inv_freq,
                        int32_t n_pairs, double magnitude)
{
    const double since = seconds();
    lmk_rope_angles(c, cs, spans, n_spans, inv_freq, n_pairs, magnitude);
    const int64_t n = rows_of(spans, n_spans);
    add_up(of_floats("rope_angles", n, 2 * n * n_pairs), since);
}

static void rope(lmk_ctx *c, float *x, const float *cs, int64_t n, int32_t n_head, int32_t head_dim, int32_t n_pairs,
                 int32_t pairing)
{
    const double since = seconds();
    lmk_rope(c, x, cs, n, n_head, head_dim, n_pairs, pairing);
    add_up(of_floats("rope", n, 2 * n * n_head * head_dim), since);
}

static void norm_rope(lmk_ctx *c, float *x, const float *w, float eps, const float *cs, int64_t n, int32_t n_head,
                      int32_t head_dim, int32_t n_pairs, int32_t pairing)
{
    const double since = seconds();
    lmk_norm_rope(c, x, w, eps, cs, n, n_head, head_dim, n_pairs, pairing);
    add_up(of_floats("norm_rope", n, 2 * n * n_head * head_dim), since);
}

static void kv_append(lmk_ctx *c, int32_t il, const lmk_span *spans, int32_t n_spans, const float *k, const float *v)
{
    const double since = seconds();
    lmk_kv_append(c, il, spans, n_spans, k, v);
    lmk_op_time one = of_floats("kv_append", rows_of(spans, n_spans), 0);
    for (int32_t i = 0; i < n_spans; i++) {
        const lmk_kv *kv = spans[i].kv;
        one.bytes += spans[i].n * (row_bytes(kv) + 4.0 * kv->n_kv * ((double)kv->k_dim + kv->v_dim));
    }
    add_up(one, since);
}

static void attend(lmk_ctx *c, float *y, const float *q, int32_t il, const lmk_span *spans, int32_t n_spans, int32_t n_head,
                   float scale, int64_t window)
{
    const double since = seconds();
    lmk_attend(c, y, q, il, spans, n_spans, n_head, scale, window);
    add_up(of_attention(spans, n_spans, n_head, window), since);
}

static void attend_biased(lmk_ctx *c, float *y, const float *q, int32_t il, const lmk_span *spans, int32_t n_spans,
                          int32_t n_head, float scale, int64_t window, const float *bias, int32_t extent)
{
    const double since = seconds();
    lmk_attend_biased(c, y, q, il, spans, n_spans, n_head, scale, window, bias, extent);
    lmk_op_time one = of_attention(spans, n_spans, n_head, window);
    one.op = "attend_biased";
    add_up(one, since);
}

static void short_conv(lmk_ctx *c, float *y, const float *x, int64_t ld, const float *w, int32_t taps, int64_t dim, int32_t silu,
                       int64_t offset, const lmk_span *spans, int32_t n_spans)
{
    const double since = seconds();
    lmk_short_conv(c, y, x, ld, w, taps, dim, silu, offset, spans, n_spans);
    const int64_t n = rows_of(spans, n_spans);
    add_up(of_floats("short_conv", n, (2 * n + 2 * n_spans * (taps - 1) + taps) * dim), since);
}

static void delta_rule(lmk_ctx *c, float *o, const lmk_delta *d, int64_t offset, const lmk_span *spans, int32_t n_spans)
{
    const double since = seconds();
    lmk_delta_rule(c, o, d, offset, spans, n_spans);
    const int64_t n = rows_of(spans, n_spans), memory = (int64_t)d->n_v * d->v_dim * d->k_dim;
    lmk_op_time one = of_floats("delta_rule", n, 2 * n_spans * memory);
    one.operations = 6.0 * (double)n * (double)memory;
    add_up(one, since);
}

void lmk_time_ops(lmk_api *api)
{
    api->get_rows = get_rows;
    api->linear = linear;
    api->linear_many = linear_many;
    api->linear_add = linear_add;
    api->linear_gated = linear_gated;
    api->route = route;
    api->linear_experts = linear_experts;
    api->linear_experts_many = linear_experts_many;
    api->linear_experts_gated = linear_experts_gated;
    api->moe_sum = moe_sum;
    api->rms_norm = rms_norm;
    api->silu_mul = silu_mul;
    api->gelu_mul = gelu_mul;
    api->softcap = softcap;
    api->sigmoid_mul = sigmoid_mul;
    api->short_conv = short_conv;
    api->delta_rule = delta_rule;
    api->add = add;
    api->add_bias = add_bias;
    api->rope_angles = rope_angles;
    api->rope = rope;
    api->norm_rope = norm_rope;
    api->kv_append = kv_append;
    api->attend = attend;
    api->attend_biased = attend_biased;
    pthread_mutex_lock(&profile.lock);
    profile.n_tallies = 0;
    pthread_mutex_unlock(&profile.lock);
}

int lmk_profile_read(lmk_op_time *out, int n)
{
    pthread_mutex_lock(&profile.lock);
    const int n_tallies = profile.n_tallies;
    memcpy(out, profile.tally, (size_t)lmk_max(0, lmk_min(n, n_tallies)) * sizeof *out);
    pthread_mutex_unlock(&profile.lock);
    return n_tallies;
}
