/* inkling.c: the forward pass of Inkling.
 *
 * A decoder without rotations: scores get a bias by distance, which each row and head makes out of a short vector of its own.
 * Keys, values and what both halves of a block give pass short causal convolutions over positions, whose last inputs are
 * memory of the sequence, beside the keys and values. Experts that every row goes to compete with the chosen ones for its
 * weight. Everything else that is numeric is an op of the core's table; see lmk.h for shapes.
 */
#include <math.h>

#include "lmk_ffn.h"
#include "inkling.h"

#define BIASED_ROWS 64             /* whose biases, (H, extent) floats each, exist at the same time */

typedef struct step {
    lmk_ctx *c;
    lmk_span *spans;               /* (n_group, n_spans): each with the caches of its group */
    int32_t n_spans;
    int64_t n;                     /* rows */
    float *x, *h;                  /* (n, d) residual stream; normed input or output of a block */
} step;

/* y (n, width): x and what its last rows add to it */
static void convolve(const inkling_model *m, const step *s, float *y, const float *x, const float *taps, int64_t width,
                     int64_t memory)
{
    lmk->short_conv(s->c, y, x, width, taps, m->n_taps, width, 0, memory, s->spans, s->n_spans);
}

/* ---- attention ---- */

/* Full layers: queries and biases grow with the logarithm of positions, from cool_from on. */
static void cool(const inkling_model *m, const step *s, float *q, float *r)
{
    const int64_t nq = (int64_t)m->n_head * m->head_dim, nr = (int64_t)m->n_head * m->d_rel;
    for (int32_t i = 0; i < s->n_spans; i++)
        for (int32_t j = 0; j < s->spans[i].n; j++) {
            const double position = (double)(s->spans[i].n_past + j + 1) / m->cool_from;
            if (!(position > 1.0)) continue;
            const float by = (float)(1.0 + m->cool_by * log(position));
            const int64_t row = s->spans[i].row + j;
            for (int64_t d = 0; d < nq; d++) q[row * nq + d] *= by;
            for (int64_t d = 0; d < nr; d++) r[row * nr + d] *= by;
        }
}

/* The rows [first, end) of the step, as spans that begin at row 0. How many they are */
static int32_t cut_spans(lmk_span *out, const lmk_span *spans, int32_t n_spans, int64_t first, int64_t end)
{
    int32_t n = 0;
    for (int32_t i = 0; i < n_spans; i++) {
        const int64_t from = spans[i].row > first ? spans[i].row : first;
        const int64_t to = spans[i].row + spans[i].n < end ? spans[i].row + spans[i].n : end;
        if (from >= to) continue;
        out[n] = spans[i];
        out[n].n_past += from - spans[i].row;
        out[n].row = (int32_t)(from - first);
        out[n++].n = (int32_t)(to - from);
    }
    return n;
}

/* o (n, H hd): attention of q (n, H hd), with the biases of r (n, H R) */
static int attend(const inkling_model *m, const inkling_layer *l, const step *s, float *o, const float *q, const float *r)
{
    const int64_t nq = (int64_t)m->n_head * m->head_dim, nr = (int64_t)m->n_head * m->d_rel;
    int64_t seen = 0;                                   /* no row is further from what it sees */
    for (int32_t i = 0; i < s->n_spans; i++)
        if (s->spans[i].n_past + s->spans[i].n > seen) seen = s->spans[i].n_past + s->spans[i].n;
    lmk_weight rel = l->rel;
    if (seen < rel.rows) {
        rel.data = (const float *)rel.data + (rel.rows - seen) * m->d_rel;
        rel.rows = seen;
    }
    float *bias = lmk_floats(s->c, BIASED_ROWS * m->n_head * rel.rows);
    lmk_span *spans = lmk->alloc(s->c, (size_t)s->n_spans * sizeof *spans);
    if (!bias || !spans) return lmk_no_memory(s->n);
    for (int64_t first = 0; first < s->n; first += BIASED_ROWS) {
        const int64_t n = s->n - first < BIASED_ROWS ? s->n - first : BIASED_ROWS;
        const int32_t n_spans = cut_spans(spans, s->spans + l->group * s->n_spans, s->n_spans, first, first + n);
        if (lmk->linear(s->c, bias, &rel, r + first * nr, n * m->n_head)) return -1;
        lmk->attend_biased(s->c, o + first * nq, q + first * nq, l->cache, spans, n_spans, m->n_head,
                           1.0f / (float)m->head_dim, l->window, bias, (int32_t)rel.rows);
    }
    return 0;
}

/* x += conv(W_o attention(norm(x))) */
static int attention(const inkling_model *m, const inkling_layer *l, step *s)
{
    lmk_ctx *c = s->c;
    const int64_t n = s->n, d = m->n_embd, hd = m->head_dim, nq = m->n_head * hd, nk = l->n_kv * hd, last = m->n_taps - 1;
    float *q = lmk_floats(c, n * nq), *raw_k = lmk_floats(c, n * nk), *raw_v = lmk_floats(c, n * nk);
    float *k = lmk_floats(c, n * nk), *v = lmk_floats(c, n * nk), *r = lmk_floats(c, n * m->n_head * m->d_rel);
    float *o = lmk_floats(c, n * nq), *raw_o = lmk_floats(c, n * d);
    if (!q || !raw_k || !raw_v || !k || !v || !r || !o || !raw_o) return lmk_no_memory(n);

    lmk->rms_norm(c, s->h, s->x, l->attn_norm, n, d, m->rms_eps);
    float *const y[] = { q, raw_k, raw_v, r };
    const lmk_weight *const w[] = { &l->attn_q, &l->attn_k, &l->attn_v, &l->attn_r };
    if (lmk->linear_many(c, y, w, 4, s->h, n)) return -1;

    convolve(m, s, k, raw_k, l->conv_k, nk, l->memory);
    convolve(m, s, v, raw_v, l->conv_v, nk, l->memory + last * nk);
    lmk->rms_norm(c, q, q, l->attn_q_norm, n * m->n_head, hd, m->rms_eps);
    lmk->rms_norm(c, k, k, l->attn_k_norm, n * l->n_kv, hd, m->rms_eps);
    if (!l->window && m->cool_by != 0.0f) cool(m, s, q, r);
    lmk->kv_append(c, l->cache, s->spans + l->group * s->n_spans, s->n_spans, k, v);
    if (attend(m, l, s, o, q, r)) return -1;

    if (lmk->linear(c, raw_o, &l->attn_output, o, n)) return -1;
    convolve(m, s, s->h, raw_o, l->conv_attn, d, l->memory + 2 * last * nk);
    lmk->add(c, s->x, s->h, n * d);
    return 0;
}

/* ---- feed-forward ---- */

typedef struct route_job {
    const inkling_model *m;
    const inkling_layer *l;
    const float *logits;           /* (n, E + S) */
    lmk_route chosen, shared;
} route_job;

static float log_sigmoid(float z)
{
    return z < 0.0f ? z - log1pf(expf(z)) : -log1pf(expf(-z));
}

/* Weights of a row's experts, chosen and shared: softmax of the logarithms of their sigmoids, scaled */
static void weigh(const route_job *j, const float *z, const int32_t *expert, float *chosen, float *shared)
{
    const int32_t k = j->chosen.k, n_shared = j->shared.k, n_expert = j->l->ffn_gate_exps.n_expert;
    float top = -INFINITY, sum = 0.0f;
    for (int32_t i = 0; i < k; i++) chosen[i] = log_sigmoid(z[expert[i]]);
    for (int32_t i = 0; i < n_shared; i++) shared[i] = log_sigmoid(z[n_expert + i]);
    for (int32_t i = 0; i < k; i++) top = fmaxf(top, chosen[i]);
    for (int32_t i = 0; i < n_shared; i++) top = fmaxf(top, shared[i]);
    for (int32_t i = 0; i < k; i++) sum += chosen[i] = expf(chosen[i] - top);
    for (int32_t i = 0; i < n_shared; i++) sum += shared[i] = expf(shared[i] - top);
    const float scale = j->m->route_scale * j->l->ffn_scale / sum;
    for (int32_t i = 0; i < k; i++) chosen[i] *= scale;
    for (int32_t i = 0; i < n_shared; i++) shared[i] *= scale;
}

/* The k experts with the largest sigmoid(z) + selection (ties: lowest id), in ascending order */
static void choose(const route_job *j, const float *z, int32_t *expert)
{
    const int32_t k = j->chosen.k, n_expert = j->l->ffn_gate_exps.n_expert;
    float score[k];
    for (int32_t i = 0; i < k; i++) score[i] = -INFINITY;
    int32_t n = 0;
    for (int32_t e = 0; e < n_expert; e++) {
        const float s = 1.0f / (1.0f + expf(-z[e])) + j->l->selection[e];
        int32_t at = n < k ? n++ : s > score[k - 1] ? k - 1 : k;
        if (at == k) continue;
        for (; at > 0 && s > score[at - 1]; at--) {
            score[at] = score[at - 1];
            expert[at] = expert[at - 1];
        }
        score[at] = s;
        expert[at] = e;
    }
    for (int32_t i = 1; i < k; i++)
        for (int32_t at = i; at > 0 && expert[at] < expert[at - 1]; at--) {
            const int32_t e = expert[at];
            expert[at] = expert[at - 1];
            expert[at - 1] = e;
        }
}

static void route_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const route_job *j = arg;
    const int64_t k = j->chosen.k, n_shared = j->shared.k;
    for (int64_t i = begin; i < end; i++) {
        const float *z = j->logits + i * j->l->ffn_gate_inp.rows;
        choose(j, z, j->chosen.expert + i * k);
        weigh(j, z, j->chosen.expert + i * k, j->chosen.weight + i * k, j->shared.weight + i * n_shared);
        for (int32_t e = 0; e < n_shared; e++) j->shared.expert[i * n_shared + e] = e;
    }
}

/* y (n, d) += sum over the experts e of each row of h: w_e W_down,e(silu(W_gate,e h) * W_up,e h) */
static int add_experts(const step *s, float *y, const float *h, const lmk_weight *gate, const lmk_weight *up,
                       const lmk_weight *down, const lmk_route *r)
{
    lmk_ctx *c = s->c;
    const size_t mark = lmk->mark(c);
    const int64_t slots = r->n * r->k;
    float *act = lmk_floats(c, slots * down->cols), *out = lmk_floats(c, slots * down->rows);
    if (!act || !out) return lmk_no_memory(s->n);
    if (lmk->linear_experts_gated(c, act, gate, up, LMK_SILU, h, 0, r)) return -1;
    if (lmk->linear_experts(c, out, down, act, 1, r)) return -1;
    lmk->moe_sum(c, y, out, r, down->rows);
    lmk->release(c, mark);
    return 0;
}

/* y (n, d) = what the experts make of h, chosen ones first */
static int experts(const inkling_model *m, const inkling_layer *l, const step *s, float *y, const float *h)
{
    lmk_ctx *c = s->c;
    const int64_t n = s->n;
    route_job job = { .m = m, .l = l, .chosen = { .n = n, .k = m->n_expert_used }, .shared = { .n = n, .k = m->n_shared } };
    lmk_route *const routes[] = { &job.chosen, &job.shared };
    float *logits = lmk_floats(c, n * l->ffn_gate_inp.rows);
    for (int i = 0; i < 2; i++) {
        routes[i]->expert = lmk->alloc(c, (size_t)(n * routes[i]->k) * sizeof(int32_t));
        routes[i]->weight = lmk_floats(c, n * routes[i]->k);
        if (!routes[i]->expert || !routes[i]->weight || !logits) return lmk_no_memory(n);
    }
    if (lmk->linear(c, logits, &l->ffn_gate_inp, h, n)) return -1;
    job.logits = logits;
    lmk->parallel_for(c, n, 1 + 2048 / l->ffn_gate_inp.rows, route_rows, &job);
    memset(y, 0, (size_t)(n * m->n_embd) * sizeof(float));
    if (add_experts(s, y, h, &l->ffn_gate_exps, &l->ffn_up_exps, &l->ffn_down_exps, &job.chosen)) return -1;
    return add_experts(s, y, h, &l->ffn_gate_shexp, &l->ffn_up_shexp, &l->ffn_down_shexp, &job.shared);
}

/* y (n, d) = scale * W_down(silu(W_gate h) * W_up h) */
static int dense(const inkling_model *m, const inkling_layer *l, const step *s, float *y, const float *h)
{
    if (lmk_swiglu(s->c, y, &l->ffn_gate, &l->ffn_up, &l->ffn_down, h, s->n)) return -1;
    for (int64_t i = 0; i < s->n * m->n_embd; i++) y[i] *= l->ffn_scale;
    return 0;
}

/* x += conv(feed-forward(norm(x))) */
static int feed_forward(const inkling_model *m, const inkling_layer *l, step *s)
{
    const int64_t n = s->n, d = m->n_embd, nk = (int64_t)l->n_kv * m->head_dim;
    float *y = lmk_floats(s->c, n * d);
    if (!y) return lmk_no_memory(n);
    lmk->rms_norm(s->c, s->h, s->x, l->ffn_norm, n, d, m->rms_eps);
    if (l->ffn_gate_inp.rows ? experts(m, l, s, y, s->h) : dense(m, l, s, y, s->h)) return -1;
    convolve(m, s, s->h, y, l->conv_mlp, d, l->memory + (m->n_taps - 1) * (2 * nk + d));
    lmk->add(s->c, s->x, s->h, n * d);
    return 0;
}

/* ---- all of it ---- */

/* Logits of the rows that somebody wants. What lies behind n_vocab in the head's rows is padding. */
static int head(const inkling_model *m, const step *s, float *logits)
{
    lmk_ctx *c = s->c;
    const int64_t n = lmk_keep_wanted(s->x, m->n_embd, s->spans, s->n_spans), rows = m->output.rows;
    if (!n) return 0;
    float *all = rows == m->n_vocab ? logits : lmk_floats(c, n * rows);
    if (!all) return lmk_no_memory(n);
    lmk->rms_norm(c, s->h, s->x, m->output_norm, n, m->n_embd, m->rms_eps);
    if (lmk->linear(c, all, &m->output, s->h, n)) return -1;
    for (int64_t i = 0; i < n && all != logits; i++)
        memcpy(logits + i * m->n_vocab, all + i * rows, (size_t)m->n_vocab * sizeof *logits);
    return 0;
}

static int run(const inkling_model *m, step *s, const int32_t *tokens, float *logits)
{
    lmk_ctx *c = s->c;
    const int64_t n = s->n, d = m->n_embd;
    s->x = lmk_floats(c, n * d);
    s->h = lmk_floats(c, n * d);
    if (!s->x || !s->h) return lmk_no_memory(n);
    if (lmk->get_rows(c, s->x, &m->token_embd, tokens, n)) return -1;
    lmk->rms_norm(c, s->x, s->x, m->token_embd_norm, n, d, m->rms_eps);
    for (int32_t il = 0; il < m->n_layer; il++) {
        if (lmk->aborted(c)) return LMK_ABORTED;
        const size_t mark = lmk->mark(c);
        if (attention(m, &m->layers[il], s) || feed_forward(m, &m->layers[il], s)) return -1;
        lmk->release(c, mark);
    }
    return head(m, s, logits);
}

int inkling_forward(const inkling_model *m, lmk_ctx *c, const lmk_span *spans, int32_t n_spans, const int32_t *tokens,
                    int32_t n, float *logits)
{
    step s = { .c = c, .n_spans = n_spans, .n = n };
    const size_t mark = lmk->mark(c);
    s.spans = lmk->alloc(c, (size_t)(m->n_group * n_spans) * sizeof *s.spans);
    if (!s.spans) return lmk_no_memory(n);
    for (int32_t i = 0; i < m->n_group * n_spans; i++) {
        s.spans[i] = spans[i % n_spans];
        s.spans[i].kv += i / n_spans;
    }
    const int status = run(m, &s, tokens, logits);
    lmk->release(c, mark);
    return status;
}
