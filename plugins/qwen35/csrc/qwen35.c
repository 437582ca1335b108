/* qwen35.c: the forward pass of Qwen3.5, dense and mixture-of-experts.
 *
 * A pre-norm decoder. Three of four layers, as a rule, are gated delta nets (arXiv:2412.06464): a short convolution over
 * the last rows, then a matrix per head that is rewritten with every row. The others are grouped-query attention whose
 * output is gated, with a rotation of the first part of a head. Everything numeric is an op of the core's table but the
 * gates of the delta nets; see lmk.h for shapes.
 */
#include <math.h>
#include <string.h>

#include "lmk.h"
#include "lmk_ffn.h"
#include "qwen35.h"

typedef struct step {
    lmk_ctx *c;
    const lmk_span *spans;
    int32_t n_spans;
    int64_t n;                                  /* rows */
    float *x, *h;                               /* (n, d) residual stream; normed input or output of a block */
    float *cs;                                  /* (n, n_pairs, 2) cos and sin of each row's position */
} step;

/* ---- attention ---- */

typedef struct query_job {
    float *q;
    const float *r;
    int64_t dim;
} query_job;

/* Of every head in r the first half */
static void take_queries(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const query_job *j = arg;
    for (int64_t i = begin; i < end; i++) memcpy(j->q + i * j->dim, j->r + 2 * i * j->dim, (size_t)j->dim * sizeof(float));
}

/* x += W_o (attention(norm(x)) * sigmoid(gate)) */
static int attention(const qwen35_model *m, const qwen35_layer *l, step *s)
{
    lmk_ctx *c = s->c;
    const int64_t n = s->n, H = m->n_head, KV = m->n_kv, hd = m->head_dim;
    float *r = lmk_floats(c, n * H * 2 * hd), *k = lmk_floats(c, n * KV * hd), *v = lmk_floats(c, n * KV * hd);
    float *q = lmk_floats(c, n * H * hd), *o = lmk_floats(c, n * H * hd);
    if (!r || !k || !v || !q || !o) return lmk_no_memory(n);

    lmk->rms_norm(c, s->h, s->x, l->attn_norm, n, m->n_embd, m->rms_eps);
    float *const y[] = { r, k, v };
    const lmk_weight *const w[] = { &l->attn_q, &l->attn_k, &l->attn_v };
    if (lmk->linear_many(c, y, w, 3, s->h, n)) return -1;
    query_job job = { q, r, hd };
    lmk->parallel_for(c, n * H, 1 + 65536 / hd, take_queries, &job);

    lmk->norm_rope(c, q, l->attn_q_norm, m->rms_eps, s->cs, n, m->n_head, m->head_dim, m->n_pairs, LMK_ROPE_HALVES);
    lmk->norm_rope(c, k, l->attn_k_norm, m->rms_eps, s->cs, n, m->n_kv, m->head_dim, m->n_pairs, LMK_ROPE_HALVES);

    lmk->kv_append(c, l->cache, s->spans, s->n_spans, k, v);
    lmk->attend(c, o, q, l->cache, s->spans, s->n_spans, m->n_head, m->attn_scale, 0);
    lmk->sigmoid_mul(c, o, r + hd, n * H, hd, 2 * hd);

    return lmk->linear_add(c, s->x, &l->attn_output, NULL, o, n);
}

/* ---- gated delta net ---- */

typedef struct gate_job {
    float *decay, *beta;                        /* (n, n_v): what the projections gave in, the gates out */
    const float *dt_bias, *ssm_a;
    int64_t n_v;
} gate_job;

/* decay = exp(a softplus(alpha + dt)), beta = sigmoid(beta); in double, whose roundings no library can differ in */
static void gate_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const gate_job *j = arg;
    for (int64_t i = begin; i < end; i++)
        for (int64_t h = 0; h < j->n_v; h++) {
            float *decay = j->decay + i * j->n_v + h, *beta = j->beta + i * j->n_v + h;
            const double t = (double)*decay + (double)j->dt_bias[h];
            const double softplus = t > 20.0 ? t : log1p(exp(t));
            *decay = (float)exp(softplus * (double)j->ssm_a[h]);
            *beta = (float)(1.0 / (1.0 + exp(-(double)*beta)));
        }
}

/* x += W_out (norm(o) * silu(z)), o being what the heads' matrices say to the queries */
static int delta_net(const qwen35_model *m, const qwen35_layer *l, step *s)
{
    lmk_ctx *c = s->c;
    const int64_t n = s->n, S = m->state_dim, QK = 2 * m->n_k * S, V = m->n_v * S, past = m->taps - 1;
    float *u = lmk_floats(c, n * (QK + V)), *z = lmk_floats(c, n * V);
    float *decay = lmk_floats(c, n * m->n_v), *beta = lmk_floats(c, n * m->n_v);
    float *qk = lmk_floats(c, n * QK), *v = lmk_floats(c, n * V), *o = lmk_floats(c, n * V);
    if (!u || !z || !decay || !beta || !qk || !v || !o) return lmk_no_memory(n);

    lmk->rms_norm(c, s->h, s->x, l->attn_norm, n, m->n_embd, m->rms_eps);
    float *const y[] = { u, z, decay, beta };
    const lmk_weight *const w[] = { &l->attn_qkv, &l->attn_gate, &l->ssm_alpha, &l->ssm_beta };
    if (lmk->linear_many(c, y, w, 4, s->h, n)) return -1;
    gate_job job = { decay, beta, l->dt_bias, l->ssm_a, m->n_v };
    lmk->parallel_for(c, n, 1 + 256 / m->n_v, gate_rows, &job);

    lmk->short_conv(c, qk, u, QK + V, l->conv_qk, m->taps, QK, 1, l->memory, s->spans, s->n_spans);
    lmk->short_conv(c, v, u + QK, QK + V, l->conv_v, m->taps, V, 1, l->memory + past * QK, s->spans, s->n_spans);
    lmk->rms_norm(c, qk, qk, m->unit, n * 2 * m->n_k, S, m->rms_eps / (float)S);

    const lmk_delta d = { .n_k = m->n_k, .n_v = m->n_v, .k_dim = m->state_dim, .v_dim = m->state_dim, .grouped = m->grouped,
                          .scale = 1.0f / sqrtf((float)S), .ld_qk = QK, .ld_v = V, .q = qk, .k = qk + QK / 2, .v = v,
                          .decay = decay, .beta = beta };
    lmk->delta_rule(c, o, &d, l->memory + past * (QK + V), s->spans, s->n_spans);
    lmk->rms_norm(c, o, o, l->ssm_norm, n * m->n_v, S, m->rms_eps);
    lmk->silu_mul(c, o, z, o, n, V, V);

    return lmk->linear_add(c, s->x, &l->ssm_out, NULL, o, n);
}

/* ---- feed-forward ---- */

/* x += sigmoid(g h) times the expert that every row goes to */
static int shared_expert(const qwen35_model *m, const qwen35_layer *l, step *s)
{
    lmk_ctx *c = s->c;
    const int64_t n = s->n;
    lmk_route r = { .n = n, .k = 1 };
    r.expert = lmk->alloc(c, (size_t)n * sizeof(int32_t));
    r.weight = lmk_floats(c, n);
    float *gate = lmk_floats(c, n), *y = lmk_floats(c, n * m->n_embd);
    if (!r.expert || !r.weight || !gate || !y) return lmk_no_memory(n);

    if (lmk->linear(c, gate, &l->ffn_gate_inp_shexp, s->h, n)) return -1;
    for (int64_t i = 0; i < n; i++) r.expert[i] = 0, r.weight[i] = 1.0f;
    lmk->sigmoid_mul(c, r.weight, gate, 1, n, n);
    if (lmk_swiglu(c, y, &l->ffn_gate_shexp, &l->ffn_up_shexp, &l->ffn_down_shexp, s->h, n)) return -1;
    lmk->moe_sum(c, s->x, y, &r, m->n_embd);
    return 0;
}

static int feed_forward(const qwen35_model *m, const qwen35_layer *l, step *s)
{
    lmk_ctx *c = s->c;
    lmk->rms_norm(c, s->h, s->x, l->post_attention_norm, s->n, m->n_embd, m->rms_eps);
    if (l->ffn_gate_inp.data) {
        const lmk_mixture e = { .router = &l->ffn_gate_inp, .gate = &l->ffn_gate, .up = &l->ffn_up,
                                .gate_up = &l->ffn_gate_up, .down = &l->ffn_down, .k = m->n_expert_used };
        return lmk_add_experts(c, s->x, &e, s->h, s->n) || shared_expert(m, l, s) ? -1 : 0;
    }
    return lmk_add_swiglu(c, s->x, &l->ffn_gate, &l->ffn_up, &l->ffn_down, s->h, s->n);
}

/* logits = W_out norm(x), of the rows that somebody wants */
static int head(const qwen35_model *m, step *s, float *logits)
{
    const int64_t n = lmk_keep_wanted(s->x, m->n_embd, s->spans, s->n_spans);
    if (!n) return 0;
    lmk->rms_norm(s->c, s->h, s->x, m->output_norm, n, m->n_embd, m->rms_eps);
    return lmk->linear(s->c, logits, &m->output, s->h, n);
}

static int run(const qwen35_model *m, step *s, const int32_t *tokens, float *logits)
{
    lmk_ctx *c = s->c;
    const int64_t n = s->n;
    s->x = lmk_floats(c, n * m->n_embd);
    s->h = lmk_floats(c, n * m->n_embd);
    s->cs = lmk_floats(c, n * m->n_pairs * 2);
    if (!s->x || !s->h || !s->cs) return lmk_no_memory(n);

    if (lmk->get_rows(c, s->x, &m->token_embd, tokens, n)) return -1;
    lmk->rope_angles(c, s->cs, s->spans, s->n_spans, m->inv_freq, m->n_pairs, m->rope_magnitude);
    for (int32_t il = 0; il < m->n_layer; il++) {
        const qwen35_layer *l = &m->layers[il];
        if (lmk->aborted(c)) return LMK_ABORTED;
        const size_t mark = lmk->mark(c);
        if (l->ssm_a ? delta_net(m, l, s) : attention(m, l, s)) return -1;
        lmk->release(c, mark);
        if (feed_forward(m, l, s)) return -1;
        lmk->release(c, mark);
    }
    return head(m, s, logits);
}

int qwen35_forward(const qwen35_model *m, lmk_ctx *c, const lmk_span *spans, int32_t n_spans, const int32_t *tokens,
                   int32_t n, float *logits)
{
    step s = { .c = c, .spans = spans, .n_spans = n_spans, .n = n };
    const size_t mark = lmk->mark(c);
    const int status = run(m, &s, tokens, logits);
    lmk->release(c, mark);
    return status;
}
