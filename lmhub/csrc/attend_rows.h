/* attend_rows.h: the products of attention line by line of a block, for any level and any number of rows: a line's four
 * bytes per lane times four of a row, for 16 keys or 16 columns at once.
 *
 * A level has the product of bytes (ATTEND_BYTES: vpdpbusd), or that of pairs of 16 bits, for which bytes are widened: those
 * at even places and those at odd ones apart. Wants attend_float.h before it; LAYOUT(name) names what it defines.
 */

#define WEIGHTS_BYTES (PLANES * LMK_LINE)          /* of the 64 positions of a block */
#define QUERY_BYTES(w) (PLANES * (w)->kp)          /* of a pair */

#ifdef ATTEND_BYTES
/* Planes of a row: high, low. vpdpbusd multiplies bytes without and with sign: keys get an offset of 128, which w->correction
 * undoes; weights have no sign. */
#define PLANES 2
#define QUERY_PLANE(w) ((w)->kp / 4)               /* integers of 32 bits from a query's plane to the next one, */
#define QUERY_QUAD 1                               /* and from four dimensions to the next ones */

typedef struct cache_line { i16x high, low; } cache_line;
typedef struct dot_sum { i16x high, a, b; } dot_sum;

ALWAYS dot_sum no_sum(void)
{
    return (dot_sum){ i_set(0), i_set(0), i_set(0) };
}

ALWAYS cache_line load_line(const char *p, const int keys)
{
    const i16x high = i_load((const int32_t *)(const void *)p), low = i_load((const int32_t *)(const void *)(p + LMK_LINE));
    const i16x sign = i_set(0x80808080u);
    return keys ? (cache_line){ _mm512_xor_si512(high, sign), _mm512_xor_si512(low, sign) } : (cache_line){ high, low };
}

ALWAYS void add_line(dot_sum *s, cache_line l, const int32_t *x, int64_t plane, const int keys)
{
    const i16x h = i_set((uint32_t)x[0]), o = i_set((uint32_t)x[plane]);
    s->high = keys ? _mm512_dpbusd_epi32(s->high, l.high, h) : _mm512_dpbusd_epi32(s->high, h, l.high);
    s->a = keys ? _mm512_dpbusd_epi32(s->a, l.low, h) : _mm512_dpbusd_epi32(s->a, h, l.low);
    s->b = keys ? _mm512_dpbusd_epi32(s->b, l.high, o) : _mm512_dpbusd_epi32(s->b, o, l.high);
}

ALWAYS i16x dot_of(dot_sum s, const int keys)
{
    return i_add(keys ? i_shl(s.high, 7) : i_shl(s.high, 8), i_add(s.a, s.b));
}

/* The bytes that lay_pairs made are the planes already. */
ALWAYS void LAYOUT(lay_planes)(const attend_work *w, int64_t pair)
{
    const int8_t *high = (const int8_t *)w->q + pair * QUERY_BYTES(w), *low = high + w->kp;
    int32_t h = 0, l = 0;
    for (int64_t i = 0; i < w->kp; i++) h += high[i], l += low[i];
    w->correction[pair] = (int32_t)(-128u * (uint32_t)(128 * h + h + l));
}

/* Bytes of positions j, j + 32, j + 16, j + 48 in each lane */
ALWAYS void LAYOUT(lay_weights)(char *p, const i16x x[4])
{
    const i16x a = w_join(x[0], x[1]), b = w_join(x[2], x[3]), byte = w_set(0xff);
    i_store((int32_t *)(void *)p, i_or(w_shr(a, 8), _mm512_andnot_si512(byte, b)));
    i_store((int32_t *)(void *)(p + LMK_LINE), i_or(i_and(a, byte), w_shl(b, 8)));
}
#else
/* Planes: high bytes at even places, at odd ones, then low bytes; those of four dimensions of a query side by side */
#define PLANES 4
#define QUERY_PLANE(w) 1
#define QUERY_QUAD 4

typedef struct cache_line { i16x whole_even, whole_odd, even, odd; } cache_line;
typedef struct dot_sum { i16x s; } dot_sum;

ALWAYS dot_sum no_sum(void)
{
    return (dot_sum){ i_set(0) };
}

ALWAYS cache_line load_line(const char *p, const int keys)
{
    const i16x high = i_load((const int32_t *)(const void *)p), low = i_load((const int32_t *)(const void *)(p + LMK_LINE));
    cache_line l = { .even = w_sar(w_shl(high, 8), 8), .odd = w_sar(high, 8) };
    l.whole_even = w_add(keys ? w_shl(l.even, 7) : w_shl(high, 8), w_sar(w_shl(low, 8), 8));
    l.whole_odd = w_add(keys ? w_shl(l.odd, 7) : w_shl(l.odd, 8), w_sar(low, 8));
    return l;
}

/* whole * xh + high * xl is the dot divided by the base. */
ALWAYS void add_line(dot_sum *s, cache_line l, const int32_t *x, int64_t plane, const int keys)
{
    (void)keys;
    s->s = i_dot(s->s, l.whole_even, i_set((uint32_t)x[0]));
    s->s = i_dot(s->s, l.whole_odd, i_set((uint32_t)x[plane]));
    s->s = i_dot(s->s, l.even, i_set((uint32_t)x[2 * plane]));
    s->s = i_dot(s->s, l.odd, i_set((uint32_t)x[3 * plane]));
}

ALWAYS i16x dot_of(dot_sum s, const int keys)
{
    (void)keys;
    return s.s;
}

ALWAYS void LAYOUT(lay_planes)(const attend_work *w, int64_t pair)
{
    int8_t *bytes = (int8_t *)w->q + pair * QUERY_BYTES(w);
    int16_t planes[LMK_MAX_KEY / 4][4][2];
    for (int64_t i = 0; i < w->kp; i++) {
        planes[i / 4][i % 2][i % 4 / 2] = bytes[i];
        planes[i / 4][2 + i % 2][i % 4 / 2] = bytes[w->kp + i];
    }
    memcpy(bytes, planes, (size_t)QUERY_BYTES(w));
    w->correction[pair] = 0;
}

ALWAYS void LAYOUT(lay_weights)(char *p, const i16x x[4])
{
    const i16x a = w_join(x[0], x[1]), b = w_join(x[2], x[3]), byte = w_set(0xff);
    i_store((int32_t *)(void *)p, w_shr(a, 8));
    i_store((int32_t *)(void *)(p + LMK_LINE), w_shr(b, 8));
    i_store((int32_t *)(void *)(p + 2 * LMK_LINE), i_and(a, byte));
    i_store((int32_t *)(void *)(p + 3 * LMK_LINE), i_and(b, byte));
}
#endif

ALWAYS void fetch_line(const char *p)
{
    __builtin_prefetch(p, 0, 2);
    __builtin_prefetch(p + LMK_LINE, 0, 2);
}

/* Scores of n pairs and the 16 keys of vector c. Meanwhile the group at `ahead` is fetched. */
ALWAYS void LAYOUT(score)(const attend_work *w, const attend_stretch *s, int64_t pair, int c, const char *ahead, const int n)
{
    const int64_t lines = w->key_pairs, step = QUERY_BYTES(w) / 4;
    const char *k = s->k[c / 4] + LMK_LINE + c % 4 * lines * 2 * LMK_LINE;
    const int32_t *q = (const int32_t *)(const void *)w->q + pair * step;
    dot_sum sum[4];
    for (int i = 0; i < n; i++) sum[i] = no_sum();
    for (int64_t d = 0; d < lines; d++) {
        const cache_line line = load_line(k + d * 2 * LMK_LINE, 1);
        fetch_line(ahead + d * 2 * LMK_LINE);
        for (int i = 0; i < n; i++) add_line(&sum[i], line, q + i * step + d * QUERY_QUAD, QUERY_PLANE(w), 1);
    }
    for (int i = 0; i < n; i++) {
        const i16x dot = i_add(dot_of(sum[i], 1), i_set((uint32_t)w->correction[pair + i]));
        v_store(w->t + i * STRETCH + c * LANES, scored(dot, v_load(w->unit_k + c * LANES), v_set(w->unit_q[pair + i]),
                                                       v_load(w->log_v + c * LANES)));
    }
}

/* acc = acc * before + dot(p, v) / 256 * now for n pairs, 16 columns from d on and blocks [first, end) */
ALWAYS void LAYOUT(mix)(const attend_work *w, const attend_stretch *s, int64_t pair, int64_t d, int first, int end,
                        const char *ahead, const int n)
{
    dot_sum sum[4];
    for (int i = 0; i < n; i++) sum[i] = no_sum();
    for (int b = first; b < end; b++) {
        const int lines = (int)lmk_min(LANES, s->n - b * LMK_TILE);
        const char *v = s->v[b] + LMK_LINE + d * 2 * LMK_LINE;
        const int32_t *p = (const int32_t *)(const void *)(w->p + b * WEIGHTS_BYTES);
        for (int j = 0; j < lines; j++) {
            const cache_line line = load_line(v + j * 2 * LMK_LINE, 0);
            if (b == 0) fetch_line(ahead + j * 2 * LMK_LINE);
            else fetch_line(ahead + (LANES + j) * 2 * LMK_LINE);
            for (int i = 0; i < n; i++) add_line(&sum[i], line, p + i * BLOCKS * WEIGHTS_BYTES / 4 + j, LANES, 0);
        }
    }
    for (int i = 0; i < n; i++) {
        float *acc = w->part.acc + (pair + i) * w->vp + d;
        v_store(acc, mixed(v_load(acc), dot_of(sum[i], 0), w->before[i], w->now[i]));
    }
}

/* Scores to weights, for a pair that sees no more than vectors [first, end) */
ALWAYS void LAYOUT(weigh_pair)(const lmk_attend_task *t, const attend_work *w, const attend_stretch *s, int64_t pair, int slot,
                               int first, int end)
{
    float *row = w->t + slot * STRETCH;
    char *p = w->p + slot * BLOCKS * WEIGHTS_BYTES;
    const attend_sight sight = look(t, s, pair / t->heads);
    lean(t, s, pair, row);
    if (sight.lo == 0 && sight.hi == STRETCH) {
        w->top[slot] = v_top(tops(row, 0, VECTORS, sight, 1));
        weigh(w, slot, row, p, WEIGHTS_BYTES, 0, VECTORS, sight, 1, LAYOUT(lay_weights));
    } else {
        w->top[slot] = v_top(tops(row, first, end, sight, 0));
        weigh(w, slot, row, p, WEIGHTS_BYTES, first, end, sight, 0, LAYOUT(lay_weights));
    }
}

ALWAYS void LAYOUT(pairs)(const lmk_attend_task *t, const attend_work *w, const attend_stretch *s, int64_t pair, const int n)
{
    int first, end;
    sight_of(t, s, pair / t->heads, (pair + n - 1) / t->heads, &first, &end);
    for (int c = first; c < end; c++) {
        const int next = c + 1;
        const char *ahead = next < end ? s->k[next / 4] + LMK_LINE + next % 4 * w->key_pairs * 2 * LMK_LINE : s->v[0] + LMK_LINE;
        LAYOUT(score)(w, s, pair, c, ahead, n);
    }
    for (int i = 0; i < n; i++) LAYOUT(weigh_pair)(t, w, s, pair + i, i, first, end);
    rebase(w, pair, 0, n);
    for (int64_t d = 0; d < w->vp; d += LANES) {
        const char *ahead = d + LANES < w->vp ? s->v[0] + LMK_LINE + (d + LANES) * 2 * LMK_LINE : s->next_k;
        LAYOUT(mix)(w, s, pair, d, first / 4, (end + 3) / 4, ahead, n);
    }
}

#ifdef ATTEND_WIDE
#include "attend_wide.h"
#endif

static void LAYOUT(all_pairs)(const lmk_attend_task *t, const attend_work *w, const attend_stretch *s, int64_t pair, int64_t end)
{
#ifdef ATTEND_WIDE
    for (; pair + 4 <= end; pair += lmk_min(MOST, end - pair)) many_pairs(t, w, s, pair, (int)lmk_min(MOST, end - pair));
#endif
#if ATTEND_PAIRS == 4
    for (; pair + 4 <= end; pair += 4) LAYOUT(pairs)(t, w, s, pair, 4);
#endif
    for (; pair + 2 <= end; pair += 2) LAYOUT(pairs)(t, w, s, pair, 2);
    if (pair < end) LAYOUT(pairs)(t, w, s, pair, 1);
}
