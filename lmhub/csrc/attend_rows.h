/* attend_rows.h: the integer part of attention in rows of 16-bit integers that are multiplied in pairs. Any level, any
 * number of rows. Wants attend_float.h before it; LAYOUT(name) names what it defines.
 */

#define ATTEND_FEW 4               /* pairs that attend.h takes care of in another way */

/* q: per pair (2, kp): high, low. k: (2, 64, kp): whole integers, high. v: (2, 32, vp, 2): whole, high. weights: per slot
 * (2, 64): high, low. sum(xh * y + xl * yh) is the dot divided by the base. Dimensions i and i + 16, and positions j and
 * j + 16, are side by side. */
ALWAYS void LAYOUT(lay_query)(const attend_work *w, int64_t pair, const float *x, int e)
{
    int32_t *high = (int32_t *)(void *)w->q + pair * w->kp;
    const v16 inverse = inverse_unit(e, 13);
    for (int64_t i = 0; i < w->kp; i += 2 * LANES) {
        const i16x a = w_join(rounded(x, i, inverse, 0), rounded(x, i + LANES, inverse, 0));
        const i16x h = w_sar(w_add(a, w_set(64)), 7);
        i_store(high + i / 2, h);
        i_store(high + (w->kp + i) / 2, w_sub(a, w_shl(h, 7)));
    }
}

/* What the next tile has at the same place */
ALWAYS void LAYOUT(fetch)(const void *x, int64_t i, int64_t padded, const int half)
{
    if (half && i % 32 == 0) __builtin_prefetch((const uint16_t *)x + LMK_TILE * padded + i, 0, 2);
}

/* Keys first .. first + n - 1 as the layout's first n */
ALWAYS void LAYOUT(lay_keys)(const attend_work *w, int first, int n, const int half)
{
    int32_t *whole = (int32_t *)(void *)w->k, *high = whole + LMK_TILE * w->kp / 2;
    for (int j = first; j < first + n; j++) {
        const void *x = w->source[j];
        const v16 inverse = inverse_unit(w->e[j], 13);
        for (int64_t i = 0; i < w->kp; i += 2 * LANES, whole += LANES, high += LANES) {
            LAYOUT(fetch)(x, i, w->kp, half);
            const i16x a = w_join(rounded(x, i, inverse, half), rounded(x, i + LANES, inverse, half));
            i_store(whole, a);
            i_store(high, w_sar(w_add(a, w_set(64)), 7));
        }
    }
}

/* Columns d .. end - 1 of the tile's n values */
ALWAYS void LAYOUT(lay_values)(const attend_work *w, int64_t d, int64_t end, int n, const int half)
{
    for (int j = 0; j < n; j++) {
        if (j & LANES) continue;
        const void *x = w->source[j], *y = w->source[j + LANES];
        int32_t *whole = (int32_t *)(void *)w->v + (j / 2 / LANES * LANES + j % LANES) * w->vp;
        int32_t *high = whole + LMK_TILE / 2 * w->vp;
        const v16 unit_x = inverse_unit(w->e[j], 14), unit_y = inverse_unit(w->e[j + LANES], 14);
        for (int64_t i = d; i < end; i += LANES) {
            LAYOUT(fetch)(x, i, w->vp, half);
            LAYOUT(fetch)(y, i, w->vp, half);
            const i16x a = w_join(rounded(x, i, unit_x, half), rounded(y, i, unit_y, half));
            i_store(whole + i - d, a);
            i_store(high + i - d, w_sar(w_add(a, w_set(128)), 8));
        }
    }
}

/* 4 * sums / nq of the layout's keys from j on, nq pairs; their dots go to position `to` and on. */
ALWAYS void LAYOUT(dot_block)(const attend_work *w, int64_t pair, int64_t slot, int64_t j, int64_t to, const int sums,
                              const int nq)
{
    const int32_t *q = (const int32_t *)(const void *)w->q + pair * w->kp;
    const int32_t *k = (const int32_t *)(const void *)w->k + j * w->kp / 2, *kh = k + LMK_TILE * w->kp / 2;
    i16x acc[4][4];
    int32_t *y[4];
    for (int c = 0; c < sums; c++) {               /* sum c: pair c % nq, keys 4 * (c / nq) to that + 3 */
        y[c] = w->dots + (slot + c % nq) * LMK_TILE + to + c / nq * 4;
        for (int a = 0; a < 4; a++) acc[a][c] = i_set(0);
    }
    for (int64_t i = 0; i < w->kp / 2; i += LANES) {
        i16x high[4], low[4];
        for (int b = 0; b < nq; b++) {
            high[b] = i_load(q + b * w->kp + i);
            low[b] = i_load(q + b * w->kp + w->kp / 2 + i);
        }
        for (int a = 0; a < 4 * sums / nq; a++) {
            const i16x x = i_load(k + a * w->kp / 2 + i), xh = i_load(kh + a * w->kp / 2 + i);
            for (int b = 0; b < nq; b++) {
                i16x *sum = &acc[a % 4][a / 4 * nq + b];
                *sum = i_dot(i_dot(*sum, x, high[b]), xh, low[b]);
            }
        }
    }
#ifdef I_SUM_4X4
    if (sums == 4) {
        i_sum_4x4(y, acc);
        return;
    }
#endif
    for (int c = 0; c < sums; c++) i_sum_4(y[c], &acc[0][c], 4);
}

/* dots[i][first + j] of pairs pair .. pair + n - 1 with the layout's first n_keys keys, and with some more, which count for
 * nothing */
ALWAYS void LAYOUT(dot_keys)(const attend_work *w, int64_t pair, int n, int first, int n_keys)
{
    int i = 0;
#if ATTEND_SUMS == 4
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < n_keys; j += 4) LAYOUT(dot_block)(w, pair + i, i, j, first + j, 4, 4);
    for (; i + 2 <= n; i += 2)
        for (int j = 0; j < n_keys; j += 8) LAYOUT(dot_block)(w, pair + i, i, j, first + j, 4, 2);
#endif
    for (; i < n; i++)
        for (int j = 0; j < n_keys; j += 4 * ATTEND_SUMS) LAYOUT(dot_block)(w, pair + i, i, j, first + j, ATTEND_SUMS, 1);
}

/* The dots, divided by the base, of row i with keys 16 c .. 16 c + 15 */
ALWAYS i16x LAYOUT(scores)(const attend_work *w, int i, int c)
{
    return i_load(w->dots + i * LMK_TILE + c * LANES);
}

ALWAYS void LAYOUT(lay_weights)(const attend_work *w, int64_t slot, const i16x p[4])
{
    int32_t *high = (int32_t *)(void *)w->weights + slot * LMK_TILE;
    for (int c = 0; c < 2; c++, high += LANES) {
        const i16x a = w_join(p[2 * c], p[2 * c + 1]), h = w_shr(w_add(a, w_set(128)), 8);
        i_store(high, h);
        i_store(high + LMK_TILE / 2, w_sub(a, w_shl(h, 8)));
    }
}

/* n pairs, 32 columns from d on, which the layout has from `column` on */
ALWAYS void LAYOUT(mix_block)(const attend_work *w, int64_t pair, int64_t slot, int n_keys, int64_t d, int64_t column,
                              const int n)
{
    const int32_t *p = (const int32_t *)(const void *)w->weights + slot * LMK_TILE;
    i16x a0[4], a1[4];
    for (int i = 0; i < n; i++) a0[i] = a1[i] = i_set(0);
    for (int j = 0; j < LMK_TILE / 2 && j / LANES * 2 * LANES + j % LANES < n_keys; j++) {
        const int32_t *v = (const int32_t *)(const void *)w->v + j * w->vp + column, *vh = v + LMK_TILE / 2 * w->vp;
        const i16x v0 = i_load(v), v1 = i_load(v + LANES), h0 = i_load(vh), h1 = i_load(vh + LANES);
        for (int i = 0; i < n; i++) {
            const i16x high = i_set((uint32_t)p[i * LMK_TILE + j]), low = i_set((uint32_t)p[i * LMK_TILE + LMK_TILE / 2 + j]);
            a0[i] = i_dot(i_dot(a0[i], high, v0), low, h0);
            a1[i] = i_dot(i_dot(a1[i], high, v1), low, h1);
        }
    }
    for (int i = 0; i < n; i++) {
        float *acc = w->acc + (pair + i) * w->vp + d;
        v_store(acc, mixed(v_load(acc), a0[i], w->before[slot + i], w->now[slot + i]));
        v_store(acc + LANES, mixed(v_load(acc + LANES), a1[i], w->before[slot + i], w->now[slot + i]));
    }
}

/* acc = acc * before + dot(p, v) / 256 * now, for pairs pair .. pair + n - 1, columns d .. end - 1, which the layout has from
 * its first column on */
ALWAYS void LAYOUT(mix_values)(const attend_work *w, int64_t pair, int64_t slot, int64_t d, int64_t end, int n, int n_keys)
{
    for (int64_t column = 0; d < end; d += 2 * LANES, column += 2 * LANES) {
        int i = 0;
#if ATTEND_SUMS == 4
        for (; i + 4 <= n; i += 4) LAYOUT(mix_block)(w, pair + i, slot + i, n_keys, d, column, 4);
        for (; i + 2 <= n; i += 2) LAYOUT(mix_block)(w, pair + i, slot + i, n_keys, d, column, 2);
#endif
        for (; i < n; i++) LAYOUT(mix_block)(w, pair + i, slot + i, n_keys, d, column, 1);
    }
}
