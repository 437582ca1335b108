/* nanochat.c: the forward pass of nanochat, from its first generation to the latest.
 *
 * A small pre-norm decoder without biases and norm weights: queries and keys are rotated, then normed; the feed-forward is
 * relu². What came later is there where its weights are: every layer starts from a mix of the stream and the embedding
 * (lambdas), some layers add a row of a table to their values (value embeddings), embeddings take a share of the one before
 * (smear), and the stream of the middle is taken out again before the head (backout). Matrices and norms are ops of the
 * core's table; see lmk.h for shapes.
 */
#include <math.h>

#include "lmk.h"
#include "nanochat.h"

#define GRAIN 16384                             /* values below which another thread does not pay */

typedef struct step {
    lmk_ctx *c;
    const lmk_span *spans;
    int32_t n_spans;
    int64_t n;                                  /* rows */
    const int32_t *tokens, *before;
    float *x, *x0, *h;                          /* (n, d) residual stream; what it began with; input or output of a block */
    float *middle;                              /* (n, d) the stream behind the middle layer */
    float *cs;                                  /* (n, hd / 2, 2) cos and sin of each row's position */
} step;

/* ---- loops over values ---- */

typedef struct values { float *y; const float *x; float a, b; } values;

/* y = a y + b x */
static void mix_range(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const values *j = arg;
    for (int64_t i = begin; i < end; i++) j->y[i] = j->a * j->y[i] + j->b * j->x[i];
}

/* y = max(y, 0)² */
static void relu2_range(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const values *j = arg;
    for (int64_t i = begin; i < end; i++) j->y[i] = j->y[i] > 0.0f ? j->y[i] * j->y[i] : 0.0f;
}

static void mix(step *s, float *y, float a, const float *x, float b, int64_t count)
{
    values job = { y, x, a, b };
    lmk->parallel_for(s->c, count, GRAIN, mix_range, &job);
}

/* y (n, rows) = by sigmoid(W x[:, :cols]); the sigmoid through the table's tanh, whose bits are the same on every machine */
static int gate(step *s, float *y, const lmk_weight *w, const float *x, int64_t d, float by)
{
    const int64_t n = s->n, count = n * w->rows;
    float *first = lmk_floats(s->c, n * w->cols);
    if (!first) return lmk_no_memory(n);
    for (int64_t i = 0; i < n; i++) memcpy(first + i * w->cols, x + i * d, (size_t)w->cols * sizeof(float));
    if (lmk->linear(s->c, y, w, first, n)) return -1;
    lmk->softcap(s->c, y, count, 2.0f);
    for (int64_t i = 0; i < count; i++) y[i] = by * (0.5f + 0.25f * y[i]);
    return 0;
}

/* ---- the model ---- */

/* x_t += g_t e_(t-1), g_t = lambda sigmoid(W e_t), e the normed embeddings; the first token of a sequence has none before */
static int smear(const nanochat_model *m, step *s)
{
    lmk_ctx *c = s->c;
    const int64_t n = s->n, d = m->n_embd;
    const size_t mark = lmk->mark(c);
    float *g = lmk_floats(c, n), *before = lmk_floats(c, s->n_spans * d);
    if (!g || !before) return lmk_no_memory(n);
    if (gate(s, g, &m->smear_gate, s->x, d, *m->smear_lambda)) return -1;
    if (lmk->get_rows(c, before, &m->token_embd, s->before, s->n_spans)) return -1;
    lmk->rms_norm(c, before, before, m->ones, s->n_spans, d, m->rms_eps);
    memcpy(s->h, s->x, (size_t)(n * d) * sizeof(float));
    for (int32_t i = 0; i < s->n_spans; i++) {
        const lmk_span *span = &s->spans[i];
        for (int64_t t = span->row; t < span->row + span->n; t++) {
            if (t > span->row) mix(s, s->x + t * d, 1.0f, s->h + (t - 1) * d, g[t], d);
            else if (span->n_past > 0) mix(s, s->x + t * d, 1.0f, before + i * d, g[t], d);
        }
    }
    lmk->release(c, mark);
    return 0;
}

/* v += g VE[token], g = scale sigmoid(W h), one for each key head */
static int add_value_embedding(const nanochat_model *m, const nanochat_layer *l, step *s, float *v)
{
    const int64_t n = s->n, hd = m->head_dim, KV = m->n_kv;
    float *g = lmk_floats(s->c, n * KV), *row = lmk_floats(s->c, n * KV * hd);
    if (!g || !row) return lmk_no_memory(n);
    if (gate(s, g, &l->value_gate, s->h, m->n_embd, m->value_gate_scale)) return -1;
    if (lmk->get_rows(s->c, row, &l->value_embd, s->tokens, n)) return -1;
    for (int64_t i = 0; i < n * KV; i++)
        for (int64_t j = i * hd; j < (i + 1) * hd; j++) v[j] += g[i] * row[j];
    return 0;
}

/* x += W_o attention(norm(x)) */
static int attention(const nanochat_model *m, int32_t il, step *s)
{
    const nanochat_layer *l = &m->layers[il];
    lmk_ctx *c = s->c;
    const int64_t n = s->n, hd = m->head_dim, nq = m->n_head * hd, nk = m->n_kv * hd;
    float *q = lmk_floats(c, n * nq), *k = lmk_floats(c, n * nk), *v = lmk_floats(c, n * nk), *o = lmk_floats(c, n * nq);
    if (!q || !k || !v || !o) return lmk_no_memory(n);

    lmk->rms_norm(c, s->h, s->x, m->ones, n, m->n_embd, m->rms_eps);
    float *const y[] = { q, k, v };
    const lmk_weight *const w[] = { &l->attn_q, &l->attn_k, &l->attn_v };
    if (lmk->linear_many(c, y, w, 3, s->h, n)) return -1;
    if (l->value_embd.data && add_value_embedding(m, l, s, v)) return -1;

    lmk->rope(c, q, s->cs, n, m->n_head, m->head_dim, m->head_dim / 2, LMK_ROPE_HALVES);
    lmk->rope(c, k, s->cs, n, m->n_kv, m->head_dim, m->head_dim / 2, LMK_ROPE_HALVES);
    lmk->rms_norm(c, q, q, m->qk_norm, n * m->n_head, hd, m->rms_eps);
    lmk->rms_norm(c, k, k, m->qk_norm, n * m->n_kv, hd, m->rms_eps);
    lmk->kv_append(c, il, s->spans, s->n_spans, k, v);
    lmk->attend(c, o, q, il, s->spans, s->n_spans, m->n_head, 1.0f / sqrtf((float)hd), l->window);

    return lmk->linear_add(c, s->x, &l->attn_output, NULL, o, n);
}

/* x += W_down relu(W_up norm(x))² */
static int feed_forward(const nanochat_model *m, const nanochat_layer *l, step *s)
{
    lmk_ctx *c = s->c;
    const int64_t n = s->n, ff = l->ffn_down.cols;
    float *up = lmk_floats(c, n * ff);
    if (!up) return lmk_no_memory(n);
    lmk->rms_norm(c, s->h, s->x, m->ones, n, m->n_embd, m->rms_eps);
    if (lmk->linear(c, up, &l->ffn_up, s->h, n)) return -1;
    values job = { up, NULL, 0.0f, 0.0f };
    lmk->parallel_for(c, n * ff, GRAIN, relu2_range, &job);
    return lmk->linear_add(c, s->x, &l->ffn_down, NULL, up, n);
}

/* logits = cap tanh(W norm(x - lambda middle) / cap), of the rows that somebody wants */
static int head(const nanochat_model *m, step *s, float *logits)
{
    const int64_t d = m->n_embd;
    const int64_t n = lmk_keep_wanted(s->x, d, s->spans, s->n_spans);
    if (!n) return 0;
    if (s->middle) {
        lmk_keep_wanted(s->middle, d, s->spans, s->n_spans);
        mix(s, s->x, 1.0f, s->middle, -*m->backout_lambda, n * d);
    }
    lmk->rms_norm(s->c, s->h, s->x, m->ones, n, d, m->rms_eps);
    if (lmk->linear(s->c, logits, &m->output, s->h, n)) return -1;
    lmk->softcap(s->c, logits, n * m->output.rows, m->softcap);
    return 0;
}

static int embed(const nanochat_model *m, step *s)
{
    lmk_ctx *c = s->c;
    const int64_t n = s->n, d = m->n_embd;
    if (lmk->get_rows(c, s->x, &m->token_embd, s->tokens, n)) return -1;
    lmk->rms_norm(c, s->x, s->x, m->ones, n, d, m->rms_eps);
    if (m->smear_lambda && smear(m, s)) return -1;
    memcpy(s->x0, s->x, (size_t)(n * d) * sizeof(float));
    return 0;
}

static int run(const nanochat_model *m, step *s, float *logits)
{
    lmk_ctx *c = s->c;
    const int64_t n = s->n, count = n * m->n_embd;
    s->x = lmk_floats(c, count);
    s->x0 = lmk_floats(c, count);
    s->h = lmk_floats(c, count);
    s->cs = lmk_floats(c, n * m->head_dim);
    if (m->backout_lambda) s->middle = lmk_floats(c, count);
    if (!s->x || !s->x0 || !s->h || !s->cs || (m->backout_lambda && !s->middle)) return lmk_no_memory(n);

    lmk->rope_angles(c, s->cs, s->spans, s->n_spans, m->inv_freq, m->head_dim / 2, 1.0);
    if (embed(m, s)) return -1;
    for (int32_t il = 0; il < m->n_layer; il++) {
        if (lmk->aborted(c)) return LMK_ABORTED;
        const float stay = m->resid_lambdas ? m->resid_lambdas[il] : 1.0f, back = m->x0_lambdas ? m->x0_lambdas[il] : 0.0f;
        if (m->resid_lambdas || m->x0_lambdas) mix(s, s->x, stay, s->x0, back, count);
        const size_t mark = lmk->mark(c);
        if (attention(m, il, s)) return -1;
        if (feed_forward(m, &m->layers[il], s)) return -1;
        lmk->release(c, mark);
        if (s->middle && il == m->n_layer / 2) memcpy(s->middle, s->x, (size_t)count * sizeof(float));
    }
    return head(m, s, logits);
}

int nanochat_forward(const nanochat_model *m, lmk_ctx *c, const lmk_span *spans, int32_t n_spans, const int32_t *tokens,
                     int32_t n, const int32_t *before, float *logits)
{
    step s = { .c = c, .spans = spans, .n_spans = n_spans, .n = n, .tokens = tokens, .before = before };
    const size_t mark = lmk->mark(c);
    const int status = run(m, &s, logits);
    lmk->release(c, mark);
    return status;
}
