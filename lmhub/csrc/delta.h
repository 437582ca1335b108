/* delta.h: the inner loops of recurrent layers, compiled once per level. Part of kernels.h.
 *
 * A lane is a column of M, that is an entry of a value: sums over a key's entries are one chain of fused multiply-adds in
 * their order, row after row. So the bits depend neither on the width of a level nor on how the rows were cut into steps.
 */

static void short_conv(float *y, const float *const *x, const float *w, int64_t ldw, int32_t taps, int64_t dim, int32_t silu)
{
    for (int64_t i = 0; i < dim; i += LANES) {
        v16 sum = v_set(0.0f);
        for (int32_t j = 0; j < taps; j++) sum = v_fma(v_load(w + j * ldw + i), v_load(x[j] + i), sum);
        v_store(y + i, silu ? v_silu_mul(sum, v_set(1.0f)) : sum);
    }
}

/* One row: M = decay M + change kᵀ, o = M q; and p = M k of the next row while M is at hand (NULL: there is none). */
ALWAYS void delta_row(v16 *o, v16 *p, const v16 *change, v16 decay, const float *from, float *to, const float *q,
                      const float *k, const float *k_next, int64_t k_dim, const int n)
{
    for (int b = 0; b < n; b++) o[b] = p[b] = v_set(0.0f);
    for (int64_t i = 0; i < k_dim; i++) {
        const v16 ki = v_set(k[i]), qi = v_set(q[i]), next = v_set(k_next ? k_next[i] : 0.0f);
        for (int b = 0; b < n; b++) {
            const int64_t at = (b * k_dim + i) * LANES;
            const v16 m = v_fma(change[b], ki, v_mul(decay, v_load(from + at)));
            v_store(to + at, m);
            o[b] = v_fma(m, qi, o[b]);
            if (k_next) p[b] = v_fma(m, next, p[b]);
        }
    }
}

ALWAYS void delta_blocks(const lmk_delta_task *t, const int n)
{
    const float *from = t->past ? t->past : t->next;
    if (!t->past) memset(t->next, 0, (size_t)(n * t->k_dim * LANES) * sizeof(float));
    v16 p[LMK_DELTA_BLOCKS], o[LMK_DELTA_BLOCKS], change[LMK_DELTA_BLOCKS];
    for (int b = 0; b < n; b++) {
        p[b] = v_set(0.0f);
        for (int64_t i = 0; i < t->k_dim; i++) p[b] = v_fma(v_load(from + (b * t->k_dim + i) * LANES), v_set(t->k[i]), p[b]);
    }
    for (int64_t row = 0; row < t->n_rows; row++, from = t->next) {
        const float *q = t->q + row * t->ld_qk, *k = t->k + row * t->ld_qk, *v = t->v + row * t->ld_v;
        const v16 decay = v_set(t->decay[row * t->ld_gates]), beta = v_set(t->beta[row * t->ld_gates]), scale = v_set(t->scale);
        for (int b = 0; b < n; b++) change[b] = v_mul(beta, v_sub(v_load(v + b * LANES), v_mul(decay, p[b])));
        if (row + 1 < t->n_rows) delta_row(o, p, change, decay, from, t->next, q, k, k + t->ld_qk, t->k_dim, n);
        else delta_row(o, p, change, decay, from, t->next, q, k, NULL, t->k_dim, n);
        for (int b = 0; b < n; b++) v_store(t->o + row * t->ld_o + b * LANES, v_mul(scale, o[b]));
    }
}

static void delta(const lmk_delta_task *t)
{
    lmk_delta_task part = *t;
    for (int left = t->n_blocks; left > 0;) {
        const int n = left >= DELTA_BLOCKS ? DELTA_BLOCKS : 1;
        if (n == DELTA_BLOCKS) delta_blocks(&part, DELTA_BLOCKS);
        else delta_blocks(&part, 1);
        if (part.past) part.past += n * t->k_dim * LANES;
        part.next += n * t->k_dim * LANES;
        part.v += n * LANES;
        part.o += n * LANES;
        left -= n;
    }
}
