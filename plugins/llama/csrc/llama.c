/* llama.c: the forward pass of Llama (arXiv:2302.13971, 2407.21783) and its relatives: Mistral, Mixtral, SmolLM2.
 *
 * A pre-norm decoder: grouped-query attention over rotated pairs of neighbours, then a SwiGLU feed-forward, one or a few
 * of many. Everything numeric is an op of the core's table; see lmk.h for shapes.
 */
#include <math.h>

#include "lmk.h"
#include "lmk_ffn.h"
#include "llama.h"

typedef struct step {
    lmk_ctx *c;
    const lmk_span *spans;
    int32_t n_spans;
    int64_t n;                                  /* rows */
    float *x, *h;                               /* (n, d) residual stream; normed input or output of a block */
    float *q, *k, *v, *o;                       /* (n, H hd), (n, KV hd), (n, KV vd), (n, H vd) */
    float *cs;                                  /* (n, n_pairs, 2) cos and sin of each row's position */
} step;

static void add_bias(step *s, float *y, const float *bias, int64_t rows)
{
    if (bias) lmk->add_bias(s->c, y, bias, s->n, rows);
}

/* q, k, v = W_q h + b_q, W_k h + b_k, W_v h + b_v */
static int project(const llama_layer *l, step *s)
{
    float *const y[] = { s->q, s->k, s->v };
    const lmk_weight *const w[] = { &l->attn_q, &l->attn_k, &l->attn_v };
    if (lmk->linear_many(s->c, y, w, 3, s->h, s->n)) return -1;
    add_bias(s, s->q, l->attn_q_bias, l->attn_q.rows);
    add_bias(s, s->k, l->attn_k_bias, l->attn_k.rows);
    add_bias(s, s->v, l->attn_v_bias, l->attn_v.rows);
    return 0;
}

/* x += W_o attention(norm(x)) */
static int attention(const llama_model *m, int32_t il, step *s)
{
    const llama_layer *l = &m->layers[il];
    lmk_ctx *c = s->c;
    const int64_t n = s->n;

    lmk->rms_norm(c, s->h, s->x, l->attn_norm, n, m->n_embd, m->rms_eps);
    if (project(l, s)) return -1;

    lmk->rope(c, s->q, s->cs, n, m->n_head, m->head_dim, m->n_pairs, LMK_ROPE_PAIRS);
    lmk->rope(c, s->k, s->cs, n, m->n_kv, m->head_dim, m->n_pairs, LMK_ROPE_PAIRS);
    lmk->kv_append(c, il, s->spans, s->n_spans, s->k, s->v);
    lmk->attend(c, s->o, s->q, il, s->spans, s->n_spans, m->n_head, 1.0f / sqrtf((float)m->head_dim), m->window);

    return lmk->linear_add(c, s->x, &l->attn_output, l->attn_output_bias, s->o, n);
}

/* x += the block's feed-forward, one or a few of many, of norm(x) */
static int feed_forward(const llama_model *m, int32_t il, step *s)
{
    const llama_layer *l = &m->layers[il];
    lmk_ctx *c = s->c;
    const size_t mark = lmk->mark(c);
    lmk->rms_norm(c, s->h, s->x, l->ffn_norm, s->n, m->n_embd, m->rms_eps);
    if (l->ffn_gate_inp.data) {
        const lmk_mixture e = { .router = &l->ffn_gate_inp, .gate = &l->ffn_gate, .up = &l->ffn_up,
                                .down = &l->ffn_down, .k = m->n_expert_used };
        if (lmk_add_experts(c, s->x, &e, s->h, s->n)) return -1;
    } else {
        if (lmk_add_swiglu(c, s->x, &l->ffn_gate, &l->ffn_up, &l->ffn_down, s->h, s->n)) return -1;
    }
    lmk->release(c, mark);
    return 0;
}

/* logits = W_out norm(x), of the rows that somebody wants */
static int head(const llama_model *m, step *s, float *logits)
{
    const int64_t n = lmk_keep_wanted(s->x, m->n_embd, s->spans, s->n_spans);
    if (!n) return 0;
    lmk->rms_norm(s->c, s->h, s->x, m->output_norm, n, m->n_embd, m->rms_eps);
    return lmk->linear(s->c, logits, &m->output, s->h, n);
}

static int run(const llama_model *m, step *s, const int32_t *tokens, float *logits)
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
    if (!s->x || !s->h || !s->q || !s->k || !s->v || !s->o || !s->cs) return lmk_no_memory(n);

    if (lmk->get_rows(c, s->x, &m->token_embd, tokens, n)) return -1;
    lmk->rope_angles(c, s->cs, s->spans, s->n_spans, m->inv_freq, m->n_pairs, m->rope_magnitude);
    for (int32_t il = 0; il < m->n_layer; il++) {
        if (lmk->aborted(c)) return LMK_ABORTED;
        if (attention(m, il, s)) return -1;
        if (feed_forward(m, il, s)) return -1;
    }
    return head(m, s, logits);
}

int llama_forward(const llama_model *m, lmk_ctx *c, const lmk_span *spans, int32_t n_spans, const int32_t *tokens,
                  int32_t n, float *logits)
{
    step s = { .c = c, .spans = spans, .n_spans = n_spans, .n = n };
    const size_t mark = lmk->mark(c);
    const int status = run(m, &s, tokens, logits);
    lmk->release(c, mark);
    return status;
}
