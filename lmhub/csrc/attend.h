/* attend.h: one task of attention over f16 and q8_0 caches (attend_float.h). Defines LAYOUT(attend) out of the integer part
 * that attend_rows.h or attend_tiles.h has defined with the same LAYOUT.
 */

/* Queries become planes; the sums of a query that is not finite start, and stay, at NaN. */
static void LAYOUT(begin_pairs)(const lmk_attend_task *t, const attend_work *w)
{
    const float factor = t->scale * 1.44269504088896341f;
    memset(w->zero, 0, (size_t)lmk_max(w->kp, w->vp) * sizeof(float));
    memset(w->rows, 0, (size_t)w->kp * sizeof(float));
    for (int64_t pair = 0; pair < (int64_t)t->heads * t->n_rows; pair++) {
        const float *q = t->q + pair / t->heads * t->q_step + pair % t->heads * t->k_dim;
        memcpy(w->rows, q, (size_t)t->k_dim * sizeof(float));
        const int e = exponent_of(w->rows, w->kp), usable = e > 0 && e < 255;
        LAYOUT(lay_query)(w, pair, usable ? w->rows : w->zero, usable ? e : 127);
        w->unit_q[pair] = usable ? factor * 128.0f * power_of_two(e - 13) : 0.0f;
        w->max[pair] = -INFINITY;
        v_store(w->sum + pair * LANES, v_set(e == 255 ? NAN : 0.0f));
        memset(w->acc + pair * w->vp, 0, (size_t)w->vp * sizeof(float));
    }
}

/* Finds the tile's first n keys. Bit j of the result: key j is not finite. */
ALWAYS uint64_t LAYOUT(find_keys)(const lmk_attend_task *t, const attend_work *w, int64_t tile, int n, const int half)
{
    const char *k = t->k + tile * t->k_bytes;
    const uint64_t wrong = find_vectors(w, k, t->k_bytes, t->dtype, t->k_dim, w->kp, n, 127, half);
    for (int j = 0; j < LMK_TILE; j += LANES)
        v_store(w->unit_k + j, i_float(i_exponent(i_sub(i_load(w->e + j), i_set(13)))));
    return wrong;
}

/* And its values. Where one of the two is not finite, the position's share of the sum is NaN; a value that is zero gets a
 * unit below all others', so that it takes no precision from them. */
ALWAYS void LAYOUT(find_values)(const lmk_attend_task *t, const attend_work *w, int64_t tile, int n, uint64_t wrong,
                                const int half)
{
    const char *v = t->v + tile * t->v_bytes;
    wrong |= find_vectors(w, v, t->v_bytes, t->dtype, t->v_dim, w->vp, n, 127 + 14 - 40, half);
    for (int j = 0; j < LMK_TILE; j += LANES) {
        const i16x e = i_load(w->e + j);
        v_store(w->log_v + j, i_to_float(i_sub(e, i_set(127 + 14))));
        v_store(w->inverse_v + j, i_float(i_exponent(i_sub(i_set(254 + 14), e))));
    }
    for (int j = 0; wrong && j < LMK_TILE; j++)
        if (wrong >> j & 1) w->inverse_v[j] = NAN;
}

ALWAYS void LAYOUT(begin_tile)(const lmk_attend_task *t, const attend_work *w, int64_t tile, int n, const int half)
{
    const uint64_t wrong = LAYOUT(find_keys)(t, w, tile, n, half);
    LAYOUT(lay_keys)(w, 0, n, half);
    LAYOUT(find_values)(t, w, tile, n, wrong, half);
    LAYOUT(lay_values)(w, 0, w->vp, n, half);
}

/* Scores of row i of a block to weights of a slot of the batch */
ALWAYS void LAYOUT(weigh)(const attend_work *w, int i, int64_t slot, float unit_q, const float *log_v, const float *inverse_v)
{
    v16 s[LMK_TILE / LANES], top = v_set(-INFINITY), part = v_set(0.0f);
    i16x p[LMK_TILE / LANES];
    for (int c = 0; c < LMK_TILE / LANES; c++) {
        const v16 key = v_mul(i_to_float(LAYOUT(scores)(w, i, c)), v_load(w->unit_k + c * LANES));
        s[c] = v_fma(key, v_set(unit_q), v_load(log_v + c * LANES));
        top = v_max(top, s[c]);
    }
    w->top[slot] = v_top(top);
    top = v_set(w->top[slot]);
    for (int c = 0; c < LMK_TILE / LANES; c++) {
        const v16 e = v_exp2(v_sub(s[c], top));
        part = v_fma(e, v_load(inverse_v + c * LANES), part);
        p[c] = v_bits(v_fma(e, v_set(65280.0f), v_set(ROUNDER)));     /* in the low 16 bits */
    }
    LAYOUT(lay_weights)(w, slot, p);
    v_store(w->part + slot * LANES, part);
}

/* Pairs [pair, end), all of whose rows see something of the tile, which has n_keys positions */
static void LAYOUT(pairs_of_tile)(const lmk_attend_task *t, const attend_work *w, int64_t tile, int n_keys, int64_t pair,
                                  int64_t end)
{
    attend_sight s = { 0, 0, NULL, NULL };
    int64_t row = pair / t->heads, left = t->heads;        /* of this row's pairs */
    for (; pair < end; pair += BATCH) {
        const int n = (int)lmk_min(BATCH, end - pair);
        for (int slot = 0; slot < n; slot += SUB) {
            const int part = (int)lmk_min(SUB, n - slot);
            LAYOUT(dot_keys)(w, pair + slot, part, 0, n_keys);
            for (int i = 0; i < part; i++) {
                look(t, w, tile, row, &s);
                LAYOUT(weigh)(w, i, slot + i, w->unit_q[pair + slot + i], s.log_v, s.inverse_v);
                if (--left == 0) row++, left = t->heads;
            }
        }
        rebase(w, pair, n);
        for (int slot = 0; slot < n; slot += SUB)
            LAYOUT(mix_values)(w, pair + slot, slot, 0, w->vp, (int)lmk_min(SUB, n - slot), n_keys);
    }
}

#if ATTEND_FEW
/* The same from the beginning, for few pairs: what is laid out is small and used up while it is in L1. */
ALWAYS void LAYOUT(few_of_tile)(const lmk_attend_task *t, const attend_work *w, int64_t tile, int n_keys, int64_t pair, int n,
                                const int half)
{
    const uint64_t wrong = LAYOUT(find_keys)(t, w, tile, n_keys, half);
    for (int first = 0; first < n_keys; first += LANES) {
        const int part = (int)lmk_min(LANES, n_keys - first);
        LAYOUT(lay_keys)(w, first, part, half);
        LAYOUT(dot_keys)(w, pair, n, first, part);
    }
    LAYOUT(find_values)(t, w, tile, n_keys, wrong, half);
    attend_sight s = { 0, 0, NULL, NULL };
    for (int i = 0; i < n; i++) {
        look(t, w, tile, (pair + i) / t->heads, &s);
        LAYOUT(weigh)(w, i, i, w->unit_q[pair + i], s.log_v, s.inverse_v);
    }
    rebase(w, pair, n);
    for (int64_t d = 0; d < w->vp; d += 2 * LANES) {
        LAYOUT(lay_values)(w, d, d + 2 * LANES, n_keys, half);
        LAYOUT(mix_values)(w, pair, 0, d, d + 2 * LANES, n, n_keys);
    }
}
#endif

static void LAYOUT(attend)(const lmk_attend_task *t)
{
    const attend_work w = lay_out(t);
    const int half = t->dtype == LMK_F16 && t->k_dim == w.kp && t->v_dim == w.vp;
    LAYOUT(begin_pairs)(t, &w);
    const int64_t last = t->position + t->n_rows - 1;
    const int64_t seen = t->window > 0 ? lmk_max(0, t->position - t->window + 1) : 0;
    for (int64_t tile = seen / LMK_TILE * LMK_TILE; tile <= last; tile += LMK_TILE) {
        const int n_keys = (int)lmk_min(LMK_TILE, last + 1 - tile);
        /* Rows [first, end) see something of the tile. */
        const int64_t first = lmk_max(0, tile - t->position);
        const int64_t end = t->window > 0 ? lmk_min(t->n_rows, tile + LMK_TILE - 1 + t->window - t->position) : t->n_rows;
#if ATTEND_FEW
        const int n = (int)lmk_max(0, end - first) * t->heads;
        if (n <= ATTEND_FEW) {
            if (half) LAYOUT(few_of_tile)(t, &w, tile, n_keys, first * t->heads, n, 1);
            else LAYOUT(few_of_tile)(t, &w, tile, n_keys, first * t->heads, n, 0);
            continue;
        }
#endif
        if (half) LAYOUT(begin_tile)(t, &w, tile, n_keys, 1);
        else LAYOUT(begin_tile)(t, &w, tile, n_keys, 0);
        LAYOUT(pairs_of_tile)(t, &w, tile, n_keys, first * t->heads, end * t->heads);
    }
    end_pairs(t, &w);
}
