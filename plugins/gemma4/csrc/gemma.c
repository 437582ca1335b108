/* gemma.c: the forward pass of Gemma 4 and Gemma 3 (arXiv:2503.19786).
 *
 * A decoder with a norm before and behind each half of its blocks. Sliding layers, which see a window, alternate with
 * full ones; they differ in rotation, and in Gemma 4 in heads and head sizes too. What only some models have is there
 * where its weights are: experts beside the dense feed-forward, an input of each layer's own, layers at the end that
 * read the keys and values of earlier ones. Everything numeric is an op of the core's table; see lmk.h for shapes.
 *
 * A diffusion model runs the same layers over canvases: blocks of positions that all see each other, and of what lies
 * before the block what its first position would see. Nothing of a canvas stays in the caches.
 */
#include <math.h>

#include "lmk.h"
#include "gemma.h"

typedef struct step {
    lmk_ctx *c;
    lmk_span *spans;                            /* (n_group, n_spans): each with the caches of its group */
    int32_t n_spans;
    const lmk_span *reads;                      /* (n_group, n_reads): what attention reads; `spans`, or a span per row */
    int32_t n_reads;
    int32_t ahead;                              /* positions behind its own that a row sees, beyond any window */
    int64_t n;                                  /* rows */
    float *x, *h;                               /* (n, d) residual stream; normed input or output of a block */
    float *cs[2];                               /* (n, n_pairs, 2) cos and sin, for sliding layers and for full ones */
    float *own;                                 /* (n_layer, own_rows, P) each layer's own input */
    int64_t own_rows;
} step;

typedef struct scaling { float *x, by; } scaling;

static void scale_range(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const scaling *j = arg;
    for (int64_t i = begin; i < end; i++) j->x[i] *= j->by;
}

static void scale(step *s, float *x, int64_t count, float by)
{
    scaling job = { x, by };
    if (by != 1.0f) lmk->parallel_for(s->c, count, 1 << 16, scale_range, &job);
}

/* x += norm(h) */
static void add_normed(const gemma_model *m, step *s, const float *norm)
{
    lmk->rms_norm(s->c, s->h, s->h, norm, s->n, m->n_embd, m->rms_eps);
    lmk->add(s->c, s->x, s->h, s->n * m->n_embd);
}

/* Keys and values of h into the layer's cache. Values are normed without a weight, and not rotated. */
static void remember(const gemma_model *m, const gemma_layer *l, step *s, float *k, float *v)
{
    lmk_ctx *c = s->c;
    const int64_t n = s->n, hd = l->head_dim;
    if (m->value_norm) lmk->rms_norm(c, v, l->attn_v.data ? v : k, m->value_norm, n * l->n_kv, hd, m->rms_eps);
    lmk->norm_rope(c, k, l->attn_k_norm, m->rms_eps, s->cs[l->is_full], n, l->n_kv, l->head_dim, m->rope[l->is_full].n_pairs,
                   LMK_ROPE_HALVES);
    lmk->kv_append(c, l->cache, s->spans + l->group * s->n_spans, s->n_spans, k, v);
}

/* x += norm(W_o attention(norm(x))) */
static int attention(const gemma_model *m, const gemma_layer *l, step *s)
{
    lmk_ctx *c = s->c;
    const int64_t n = s->n, hd = l->head_dim, nq = l->n_head * hd, nk = l->n_kv * hd;
    const int64_t window = l->window ? l->window + s->ahead : 0;
    float *q = lmk_floats(c, n * nq), *k = lmk_floats(c, n * nk), *v = lmk_floats(c, n * nk), *o = lmk_floats(c, n * nq);
    if (!q || !k || !v || !o) return lmk_no_memory(n);

    lmk->rms_norm(c, s->h, s->x, l->attn_norm, n, m->n_embd, m->rms_eps);
    float *const y[] = { q, k, v };
    const lmk_weight *const w[] = { &l->attn_q, &l->attn_k, &l->attn_v };
    if (lmk->linear_many(c, y, w, l->attn_v.data ? 3 : l->attn_k.data ? 2 : 1, s->h, n)) return -1;

    lmk->norm_rope(c, q, l->attn_q_norm, m->rms_eps, s->cs[l->is_full], n, l->n_head, l->head_dim, m->rope[l->is_full].n_pairs,
                   LMK_ROPE_HALVES);
    if (l->attn_k.data) remember(m, l, s, k, v);
    lmk->attend(c, o, q, l->cache, s->reads + l->group * s->n_reads, s->n_reads, l->n_head, m->attn_scale, window);

    if (lmk->linear(c, s->h, &l->attn_output, o, n)) return -1;
    add_normed(m, s, l->post_attention_norm);
    return 0;
}

/* y (n, d) = sum over the k experts e of each row: w_e s_e W_down,e(gelu(W_gate,e h) * W_up,e h), h = norm(x). The router
 * has a norm of its own. */
static int experts(const gemma_model *m, const gemma_layer *l, step *s, float *y)
{
    lmk_ctx *c = s->c;
    const int64_t n = s->n, d = m->n_embd, E = l->ffn_gate_inp.rows, ff = l->ffn_down_exps.cols;
    lmk_route r = { .n = n, .k = m->n_expert_used };
    const int64_t slots = n * r.k;
    r.expert = lmk->alloc(c, (size_t)slots * sizeof(int32_t));
    r.weight = lmk_floats(c, slots);
    float *h = lmk_floats(c, n * d), *router = lmk_floats(c, n * E), *act = lmk_floats(c, slots * ff);
    float *out = lmk_floats(c, slots * d);
    if (!r.expert || !r.weight || !h || !router || !act || !out) return lmk_no_memory(n);

    lmk->rms_norm(c, h, s->x, l->router_norm, n, d, m->rms_eps);
    if (lmk->linear(c, router, &l->ffn_gate_inp, h, n)) return -1;
    if (lmk->route(c, &r, router, E)) return -1;
    for (int64_t i = 0; i < slots && l->expert_scale; i++) r.weight[i] *= l->expert_scale[r.expert[i]];

    lmk->rms_norm(c, h, s->x, l->pre_ffw_norm_2, n, d, m->rms_eps);
    if (l->ffn_gate_up_exps.data) {
        float *wide = lmk_floats(c, slots * 2 * ff);
        if (!wide) return lmk_no_memory(n);
        if (lmk->linear_experts(c, wide, &l->ffn_gate_up_exps, h, 0, &r)) return -1;
        lmk->gelu_mul(c, act, wide, wide + ff, slots, ff, 2 * ff);
    } else if (lmk->linear_experts_gated(c, act, &l->ffn_gate_exps, &l->ffn_up_exps, LMK_GELU, h, 0, &r)) {
        return -1;
    }
    if (lmk->linear_experts(c, out, &l->ffn_down_exps, act, 1, &r)) return -1;
    memset(y, 0, (size_t)(n * d) * sizeof(float));
    lmk->moe_sum(c, y, out, &r, d);
    return 0;
}

/* x += norm(W_down(gelu(W_gate h) * W_up h)), h = norm(x); with experts: norm(norm(that) + norm(theirs)) */
static int feed_forward(const gemma_model *m, const gemma_layer *l, step *s)
{
    lmk_ctx *c = s->c;
    const int64_t n = s->n, d = m->n_embd, ff = l->ffn_down.cols;
    float *wide = lmk_floats(c, n * ff), *mixed = lmk_floats(c, n * d);
    if (!wide || !mixed) return lmk_no_memory(n);

    lmk->rms_norm(c, s->h, s->x, l->ffn_norm, n, d, m->rms_eps);
    if (lmk->linear_gated(c, wide, &l->ffn_gate, &l->ffn_up, LMK_GELU, s->h, n)) return -1;
    if (lmk->linear(c, s->h, &l->ffn_down, wide, n)) return -1;

    if (l->ffn_gate_inp.data) {
        if (experts(m, l, s, mixed)) return -1;
        lmk->rms_norm(c, s->h, s->h, l->post_ffw_norm_1, n, d, m->rms_eps);
        lmk->rms_norm(c, mixed, mixed, l->post_ffw_norm_2, n, d, m->rms_eps);
        lmk->add(c, s->h, mixed, n * d);
    }
    add_normed(m, s, l->post_ffw_norm);
    return 0;
}

/* x += norm(W_proj(gelu(W_gate x) * own)) */
static int own_input(const gemma_model *m, int32_t il, step *s)
{
    const gemma_layer *l = &m->layers[il];
    const int64_t n = s->n, P = m->n_per_layer;
    float *gate = lmk_floats(s->c, n * P);
    if (!gate) return lmk_no_memory(n);
    if (lmk->linear(s->c, gate, &l->inp_gate, s->x, n)) return -1;
    lmk->gelu_mul(s->c, gate, gate, s->own + il * s->own_rows * P, n, P, P);
    if (lmk->linear(s->c, s->h, &l->proj, gate, n)) return -1;
    add_normed(m, s, l->post_norm);
    return 0;
}

/* Layers [from, to) */
static int layers(const gemma_model *m, step *s, int32_t from, int32_t to)
{
    for (int32_t il = from; il < to && s->n; il++) {
        const gemma_layer *l = &m->layers[il];
        if (lmk->aborted(s->c)) return LMK_ABORTED;
        const size_t mark = lmk->mark(s->c);
        if (attention(m, l, s)) return -1;
        if (feed_forward(m, l, s)) return -1;
        if (m->n_per_layer && own_input(m, il, s)) return -1;
        scale(s, s->x, s->n * m->n_embd, l->output_scale);
        lmk->release(s->c, mark);
    }
    return 0;
}

typedef struct own_job {
    float *own;                                 /* (L, n, P) */
    const float *table, *projected;             /* (n, L, P) */
    int64_t n, L, P;
} own_job;

static void join_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const own_job *j = arg;
    const float scale = sqrtf((float)j->P), half = sqrtf(0.5f);
    for (int64_t i = begin; i < end; i++)
        for (int64_t il = 0; il < j->L; il++) {
            const int64_t from = (i * j->L + il) * j->P, to = (il * j->n + i) * j->P;
            for (int64_t p = 0; p < j->P; p++)
                j->own[to + p] = (j->projected[from + p] + j->table[from + p] * scale) * half;
        }
}

/* own = (norm(W x) + sqrt(P) table[token]) / sqrt(2), x being the embedding before it is scaled: the factor sqrt(d) that it
 * gets is the one by which the product would be divided. */
static int own_inputs(const gemma_model *m, step *s, const int32_t *tokens)
{
    lmk_ctx *c = s->c;
    const int64_t n = s->n, P = m->n_per_layer, all = n * m->n_layer * P;
    s->own = lmk_floats(c, all);
    s->own_rows = n;
    const size_t mark = lmk->mark(c);
    float *table = lmk_floats(c, all), *projected = lmk_floats(c, all);
    if (!s->own || !table || !projected) return lmk_no_memory(n);
    if (lmk->get_rows(c, table, &m->per_layer_token_embd, tokens, n)) return -1;
    if (lmk->linear(c, projected, &m->per_layer_model_proj, s->x, n)) return -1;
    lmk->rms_norm(c, projected, projected, m->per_layer_proj_norm, n * m->n_layer, P, m->rms_eps);
    own_job job = { s->own, table, projected, n, m->n_layer, P };
    lmk->parallel_for(c, n, 1 + 16384 / (m->n_layer * P), join_rows, &job);
    lmk->release(c, mark);
    return 0;
}

/* All keys and values are cached: from here on the step has only the rows whose logits somebody wants. */
static void narrow(const gemma_model *m, step *s)
{
    const int64_t P = m->n_per_layer;
    for (int i = 0; i < 2; i++) lmk_keep_wanted(s->cs[i], 2 * m->rope[i].n_pairs, s->spans, s->n_spans);
    for (int32_t il = m->first_shared; il < m->n_layer && P; il++)
        lmk_keep_wanted(s->own + il * s->own_rows * P, P, s->spans, s->n_spans);
    s->n = lmk_keep_wanted(s->x, m->n_embd, s->spans, s->n_spans);

    int32_t row = 0;
    for (int32_t i = 0; i < m->n_group * s->n_spans; i++) {
        lmk_span *span = &s->spans[i];
        const int32_t n = lmk_wanted(span);
        if (i % s->n_spans == 0) row = 0;
        span->n_past += span->n - n;
        span->n = n;
        span->row = row;
        row += n;
    }
}

/* x = the tokens' embeddings, not scaled yet; and the rotations of their positions */
static int begin(const gemma_model *m, step *s, const int32_t *tokens)
{
    lmk_ctx *c = s->c;
    const int64_t n = s->n, d = m->n_embd;
    s->x = lmk_floats(c, n * d);
    s->h = lmk_floats(c, n * d);
    if (!s->x || !s->h) return lmk_no_memory(n);
    for (int i = 0; i < 2; i++) {
        const gemma_rope *r = &m->rope[i];
        s->cs[i] = lmk_floats(c, n * r->n_pairs * 2);
        if (!s->cs[i]) return lmk_no_memory(n);
        lmk->rope_angles(c, s->cs[i], s->spans, s->n_spans, r->inv_freq, r->n_pairs, r->magnitude);
    }
    return lmk->get_rows(c, s->x, &m->token_embd, tokens, n);
}

/* For each group of caches: spans whose `kv` is the group's */
static void spread(lmk_span *to, const lmk_span *spans, int32_t n_spans, int32_t n_group)
{
    for (int32_t i = 0; i < n_group * n_spans; i++) {
        to[i] = spans[i % n_spans];
        to[i].kv += i / n_spans;
    }
}

static int run(const gemma_model *m, step *s, const int32_t *tokens, float *logits)
{
    lmk_ctx *c = s->c;
    const int64_t n = s->n, d = m->n_embd;
    if (begin(m, s, tokens)) return -1;
    if (m->n_per_layer && own_inputs(m, s, tokens)) return -1;
    scale(s, s->x, n * d, sqrtf((float)d));

    int status = layers(m, s, 0, m->first_shared);
    if (status) return status;
    narrow(m, s);
    status = layers(m, s, m->first_shared, m->n_layer);
    if (status || !s->n) return status;

    lmk->rms_norm(c, s->h, s->x, m->output_norm, s->n, d, m->rms_eps);
    return gemma_head(m, c, s->h, s->n, logits);
}

int gemma_forward(const gemma_model *m, lmk_ctx *c, const lmk_span *spans, int32_t n_spans, const int32_t *tokens,
                  int32_t n, float *logits)
{
    step s = { .c = c, .n_spans = n_spans, .n = n };
    const size_t mark = lmk->mark(c);
    s.spans = lmk->alloc(c, (size_t)(m->n_group * n_spans) * sizeof *s.spans);
    if (!s.spans) return lmk_no_memory(n);
    spread(s.spans, spans, n_spans, m->n_group);
    s.reads = s.spans;
    s.n_reads = n_spans;
    const int status = run(m, &s, tokens, logits);
    lmk->release(c, mark);
    return status;
}

int gemma_head(const gemma_model *m, lmk_ctx *c, const float *h, int64_t n, float *logits)
{
    if (lmk->linear(c, logits, &m->output, h, n)) return -1;
    if (m->softcap > 0.0f) lmk->softcap(c, logits, n * m->output.rows, m->softcap);
    return 0;
}

/* x = norm0(sqrt(d) x + W_down(gelu(W_gate h) * W_up h)), h = norm(sqrt(d) soft) */
static int condition(const gemma_model *m, const gemma_condition *w, step *s, const float *soft)
{
    lmk_ctx *c = s->c;
    const int64_t n = s->n, d = m->n_embd, ff = w->down.cols;
    const size_t mark = lmk->mark(c);
    float *wide = lmk_floats(c, n * ff);
    if (!wide) return lmk_no_memory(n);
    memcpy(s->h, soft, (size_t)(n * d) * sizeof(float));
    scale(s, s->h, n * d, sqrtf((float)d));
    lmk->rms_norm(c, s->h, s->h, w->norm, n, d, m->rms_eps);
    if (lmk->linear_gated(c, wide, &w->gate, &w->up, LMK_GELU, s->h, n)) return -1;
    scale(s, s->x, n * d, sqrtf((float)d));
    if (lmk->linear_add(c, s->x, &w->down, NULL, wide, n)) return -1;
    lmk->rms_norm(c, s->x, s->x, w->ones, n, d, m->rms_eps);
    lmk->release(c, mark);
    return 0;
}

/* A span of one row, at the last position of its canvas, for each row of the spans: so each sees its whole canvas */
static void look_ahead(lmk_span *to, const lmk_span *spans, int32_t n_spans)
{
    for (int32_t i = 0; i < n_spans; i++)
        for (int32_t j = 0; j < spans[i].n; j++) {
            lmk_span *read = &to[spans[i].row + j];
            *read = spans[i];
            read->n_past += spans[i].n - 1;
            read->row += j;
            read->n = 1;
        }
}

static int run_canvas(const gemma_model *m, const gemma_condition *w, step *s, const int32_t *tokens, const float *soft,
                      float *hidden)
{
    if (begin(m, s, tokens)) return -1;
    if (condition(m, w, s, soft)) return -1;
    const int status = layers(m, s, 0, m->n_layer);
    if (!status) lmk->rms_norm(s->c, hidden, s->x, m->output_norm, s->n, m->n_embd, m->rms_eps);
    return status;
}

int gemma_canvas(const gemma_model *m, const gemma_condition *w, lmk_ctx *c, const lmk_span *spans, int32_t n_spans,
                 const int32_t *tokens, int32_t n, const float *soft, float *hidden)
{
    step s = { .c = c, .n_spans = n_spans, .n_reads = n, .ahead = spans[0].n - 1, .n = n };
    const size_t mark = lmk->mark(c);
    s.spans = lmk->alloc(c, (size_t)(m->n_group * n_spans) * sizeof *s.spans);
    lmk_span *reads = lmk->alloc(c, (size_t)(m->n_group * n) * sizeof *reads);
    lmk_span *rows = lmk->alloc(c, (size_t)n * sizeof *rows);
    if (!s.spans || !reads || !rows) return lmk_no_memory(n);
    spread(s.spans, spans, n_spans, m->n_group);
    look_ahead(rows, spans, n_spans);
    spread(reads, rows, n, m->n_group);
    s.reads = reads;
    const int status = run_canvas(m, w, &s, tokens, soft, hidden);
    lmk->release(c, mark);
    return status;
}
