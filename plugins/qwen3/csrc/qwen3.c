/* qwen3.c: the forward pass of Qwen3 (arXiv:2505.09388), dense and mixture-of-experts.
 *
 * A pre-norm decoder: grouped-query attention with RMS norm on every query and key head before the rotation, then a
 * SwiGLU feed-forward, one or a few of many. Everything numeric is an op of the core's table; see lmk.h for shapes.
 */
#include <math.h>
#include <string.h>

#include "lmk.h"
#include "lmk_ffn.h"
#include "qwen3.h"

typedef struct step {
    lmk_ctx *c;
    const lmk_span *spans;
    int32_t n_spans;
    int64_t n;                                  /* rows */
    float *x, *h;                               /* (n, d) residual stream; normed input or output of a block */
    float *q, *k, *v, *o;                       /* (n, H hd), (n, KV hd), (n, KV vd), (n, H vd) */
    float *cs;                                  /* (n, n_pairs, 2) cos and sin of each row's position */
} step;

/* Columns [from, from + width) of src (n, ld) become dst (n, width). */
static void columns(float *dst, const float *src, int64_t n, int64_t from, int64_t width, int64_t ld)
{
    for (int64_t i = 0; i < n; i++) memcpy(dst + i * width, src + i * ld + from, (size_t)width * sizeof(float));
}

/* q, k, v = W_q h, W_k h, W_v h */
static int project(const qwen3_layer *l, step *s, int64_t nq, int64_t nk, int64_t nv)
{
    lmk_ctx *c = s->c;
    if (l->attn_qkv.data) {
        const size_t mark = lmk->mark(c);
        float *qkv = lmk_floats(c, s->n * (nq + nk + nv));
        if (!qkv) return lmk_no_memory(s->n);
        if (lmk->linear(c, qkv, &l->attn_qkv, s->h, s->n)) return -1;
        columns(s->q, qkv, s->n, 0, nq, nq + nk + nv);
        columns(s->k, qkv, s->n, nq, nk, nq + nk + nv);
        columns(s->v, qkv, s->n, nq + nk, nv, nq + nk + nv);
        lmk->release(c, mark);
    } else {
        float *const y[] = { s->q, s->k, s->v };
        const lmk_weight *const w[] = { &l->attn_q, &l->attn_k, &l->attn_v };
        if (lmk->linear_many(c, y, w, 3, s->h, s->n)) return -1;
    }
    if (l->attn_q_bias) lmk->add_bias(c, s->q, l->attn_q_bias, s->n, nq);
    if (l->attn_k_bias) lmk->add_bias(c, s->k, l->attn_k_bias, s->n, nk);
    if (l->attn_v_bias) lmk->add_bias(c, s->v, l->attn_v_bias, s->n, nv);
    return 0;
}

/* x += W_o attention(norm(x)) */
static int attention(const qwen3_model *m, int32_t il, step *s)
{
    const qwen3_layer *l = &m->layers[il];
    lmk_ctx *c = s->c;
    const int64_t n = s->n, H = m->n_head, KV = m->n_kv, hd = m->head_dim;

    lmk->rms_norm(c, s->h, s->x, l->attn_norm, n, m->n_embd, m->rms_eps);
    if (project(l, s, H * hd, KV * hd, KV * m->value_dim)) return -1;

    lmk->norm_rope(c, s->q, l->attn_q_norm, m->rms_eps, s->cs, n, m->n_head, m->head_dim, m->n_pairs, LMK_ROPE_HALVES);
    lmk->norm_rope(c, s->k, l->attn_k_norm, m->rms_eps, s->cs, n, m->n_kv, m->head_dim, m->n_pairs, LMK_ROPE_HALVES);

    lmk->kv_append(c, il, s->spans, s->n_spans, s->k, s->v);
    lmk->attend(c, s->o, s->q, il, s->spans, s->n_spans, m->n_head, 1.0f / sqrtf((float)hd), 0);

    return lmk->linear_add(c, s->x, &l->attn_output, l->attn_output_bias, s->o, n);
}

/* x += the block's feed-forward, one or a few of many, of norm(x) */
static int feed_forward(const qwen3_model *m, int32_t il, step *s)
{
    const qwen3_layer *l = &m->layers[il];
    lmk_ctx *c = s->c;
    const size_t mark = lmk->mark(c);
    lmk->rms_norm(c, s->h, s->x, l->ffn_norm, s->n, m->n_embd, m->rms_eps);
    if (l->ffn_gate_inp.data) {
        const lmk_mixture e = { .router = &l->ffn_gate_inp, .gate = &l->ffn_gate, .up = &l->ffn_up,
                                .gate_up = &l->ffn_gate_up, .down = &l->ffn_down, .k = m->n_expert_used };
        if (lmk_add_experts(c, s->x, &e, s->h, s->n)) return -1;
    } else {
        if (lmk_add_swiglu(c, s->x, &l->ffn_gate, &l->ffn_up, &l->ffn_down, s->h, s->n)) return -1;
    }
    lmk->release(c, mark);
    return 0;
}

/* logits = W_out norm(x), of the rows that somebody wants */
static int head(const qwen3_model *m, step *s, float *logits)
{
    const int64_t n = lmk_keep_wanted(s->x, m->n_embd, s->spans, s->n_spans);
    if (!n) return 0;
    lmk->rms_norm(s->c, s->h, s->x, m->output_norm, n, m->n_embd, m->rms_eps);
    return lmk->linear(s->c, logits, &m->output, s->h, n);
}

static int run(const qwen3_model *m, step *s, const int32_t *tokens, float *logits)
{
    lmk_ctx *c = s->c;
    const int64_t n = s->n, H = m->n_head, KV = m->n_kv;
    s->x = lmk_floats(c, n * m->n_embd);
    s->h = lmk_floats(c, n * m->n_embd);
    s->q = lmk_floats(c, n * H * m->head_dim);
    s->k = lmk_floats(c, n * KV * m->head_dim);
    s->v = lmk_floats(c, n * KV * m->value_dim);
    s->o = lmk_floats(c, n * H * m->value_dim);
    s->cs = lmk_floats(c, n * m->n_pairs * 2);
    if (!s->x || !s->h || !s->q || !s->k || !s->v || !s->o || !s->cs)
        return lmk_no_memory(n);

    if (lmk->get_rows(c, s->x, &m->token_embd, tokens, n)) return -1;
    lmk->rope_angles(c, s->cs, s->spans, s->n_spans, m->inv_freq, m->n_pairs, m->rope_magnitude);
    for (int32_t il = 0; il < m->n_layer; il++) {
        if (lmk->aborted(c)) return LMK_ABORTED;
        if (attention(m, il, s)) return -1;
        if (feed_forward(m, il, s)) return -1;
    }
    return head(m, s, logits);
}

int qwen3_forward(const qwen3_model *m, lmk_ctx *c, const lmk_span *spans, int32_t n_spans, const int32_t *tokens,
                  int32_t n, float *logits)
{
    step s = { .c = c, .spans = spans, .n_spans = n_spans, .n = n };
    const size_t mark = lmk->mark(c);
    const int status = run(m, &s, tokens, logits);
    lmk->release(c, mark);
    return status;
}
