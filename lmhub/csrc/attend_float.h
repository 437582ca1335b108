/* attend_float.h: attention over f16 and q8_0 caches: what it computes, and the part of it that is in floats.
 *
 * Queries, keys and values become integers of 14 to 16 bits per vector (one power of two as unit), each split in two
 * planes of 8 bits: x = unit (base * high + low). A product of two such vectors is the exact sum
 *     dot = sum (base * xh * yh + xh * yl + xl * yh)
 * in 32 bits: only low times low, below the rounding, is left out. Exact sums have no order, so that each level may lay
 * tiles out and add as it likes. Only the softmax between the products is in floats, 16 lanes per row, in one order.
 *
 * In powers of two, per row (query and head) and tile of 64 positions j:
 *     t[j] = dot(q, k[j]) * unit_k[j] * unit_q * scale * log2(e) + log2(unit_v[j])
 *     e[j] = 2^(t[j] - max t),   p[j] = round(65280 e[j]): the tile's weights of the values' integers
 * and the row's sums over tiles, in order, relative to the largest t so far: of e[j] / unit_v[j], and of p · v.
 *
 * attend_rows.h and attend_tiles.h are the integer parts, attend.h puts them together. Wants kernels.h before it.
 */

#define SUB LMK_ATTEND_SUB
#define BATCH LMK_ATTEND_BATCH
#define MARGIN 0x10400u            /* added to a float's bits, moves mantissas above 1.992 to the next exponent */

/* ---- the float part ---- */

/* 2^x for x <= 0, down to 2^-125 (relative error 1e-7) */
ALWAYS v16 v_exp2(v16 x)
{
    x = v_max(x, v_set(-125.0f));
    v16 t = v_add(x, v_set(ROUNDER));
    v16 r = v_sub(x, v_sub(t, v_set(ROUNDER)));
    v16 p = v_set(1.326472731307149e-3f);
    p = v_fma(p, r, v_set(9.671512991189957e-3f));
    p = v_fma(p, r, v_set(5.550733581185341e-2f));
    p = v_fma(p, r, v_set(2.4022242426872253e-1f));
    p = v_fma(p, r, v_set(6.931470036506653e-1f));
    p = v_fma(p, r, v_set(1.0f));
    return i_float(i_add(v_bits(p), i_exponent(v_bits(t))));
}

/* The exponent e (biased) of the unit of x (n, a multiple of 16): |x| < 2^(e - 126), and with a margin, so that rounding
 * does not exceed the planes. 0 for what counts as zero, 255 where something is not finite. */
ALWAYS int exponent_of(const float *x, int64_t n)
{
    i16x top = i_set(0);
    for (int64_t i = 0; i < n; i += LANES) top = i_max(top, i_and(v_bits(v_load(x + i)), i_set(0x7fffffff)));
    const uint32_t e = ((uint32_t)i_top(top) + MARGIN) >> 23;
    return e >= 255 ? 255 : e < 16 ? 0 : (int)e;
}

ALWAYS float power_of_two(int biased)
{
    const uint32_t bits = (uint32_t)biased << 23;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* Vectors of the cache or of queries: floats, or (half, a literal) what an f16 cache holds */
ALWAYS v16 elements(const void *x, int64_t i, const int half)
{
    return half ? v_load_f16((const uint16_t *)x + i) : v_load((const float *)x + i);
}

/* Elements i .. i + 15 over their unit, rounded: in the low 16 bits of each lane. At most 16319 for e = exponent_of the
 * vector and bits = 13, 32639 for 14. */
ALWAYS i16x rounded(const void *x, int64_t i, v16 inverse_unit, const int half)
{
    return v_bits(v_fma(elements(x, i, half), inverse_unit, v_set(ROUNDER)));
}

ALWAYS v16 inverse_unit(int e, int bits)
{
    return v_set(power_of_two(254 + bits - e));
}

/* ---- what a task works with ---- */

typedef struct attend_work {
    int64_t kp, vp;                /* k_dim and v_dim, with zeros, as multiples of 64 and 32 */
    char *q, *k, *v;               /* planes: of all pairs, of the tile's keys, of its values; as the layout likes */
    int32_t *dots;                 /* (2, SUB, 64): products, as the layout likes */
    char *weights;                 /* (BATCH, 256 bytes): planes of p */
    float *acc, *sum;              /* (pairs, vp), (pairs, 16) */
    float *max, *unit_q;           /* (pairs) */
    float *part;                   /* (BATCH, 16): sums of the tile */
    float *top, *before, *now;     /* (BATCH): the tile's maximum, what the sums so far and the tile's are multiplied by */
    float *unit_k;                 /* (64): what the tile's integers are worth */
    float *log_v, *inverse_v;      /* (64) */
    float *seen_log, *seen_inverse;    /* (64): the same, with what a row does not see at -inf and 0 */
    float *rows, *zero;            /* (64, max(kp, vp)): vectors of the cache, expanded; a vector of zeros */
    int32_t *e;                    /* (64): exponents of the tile's keys or values */
    const void **source;           /* (64): and where their elements are */
} attend_work;

static attend_work lay_out(const lmk_attend_task *t)
{
    attend_work w = { .kp = (t->k_dim + 63) / 64 * 64, .vp = (t->v_dim + 31) / 32 * 32 };
    const int64_t pairs = (int64_t)t->heads * t->n_rows;
    float *f = (float *)(void *)t->scratch;
    w.dots = (int32_t *)(void *)f, f += 2 * SUB * LMK_TILE;
    w.q = (char *)f, f += (pairs + SUB) * w.kp;
    w.k = (char *)f, f += LMK_TILE * w.kp;
    w.v = (char *)f, f += LMK_TILE * w.vp;
    w.weights = (char *)f, f += BATCH * LMK_TILE;
    w.acc = f, f += pairs * w.vp;
    w.sum = f, f += pairs * LANES;
    w.part = f, f += BATCH * LANES;
    w.rows = f, f += LMK_TILE * lmk_max(w.kp, w.vp);
    w.zero = f, f += lmk_max(w.kp, w.vp);
    w.source = (const void **)(void *)f, f += 2 * LMK_TILE;
    w.e = (int32_t *)(void *)f, f += LMK_TILE;
    w.unit_k = f, f += LMK_TILE;
    w.log_v = f, f += LMK_TILE;
    w.inverse_v = f, f += LMK_TILE;
    w.seen_log = f, f += LMK_TILE;
    w.seen_inverse = f, f += LMK_TILE;
    w.top = f, f += BATCH;
    w.before = f, f += BATCH;
    w.now = f, f += BATCH;
    w.max = f, f += pairs;
    w.unit_q = f;
    return w;
}

/* Where the tile's vectors are, as elements() reads them, and their exponents. A vector that is zero, not finite, or behind
 * the first n is taken for zeros with the exponent `none`. Bit j of the result: vector j is not finite. */
ALWAYS uint64_t find_vectors(const attend_work *w, const char *x, int64_t bytes, int32_t dtype, int64_t dim, int64_t padded,
                             int n, int none, const int half)
{
    uint16_t top[LMK_TILE] = {0};
    uint64_t wrong = 0;
    int unusable = n < LMK_TILE;
    if (!half) memset(w->rows, 0, (size_t)(n * padded) * sizeof(float));
    for (int j = 0; j < n; j++, x += bytes) {
        w->source[j] = x;
        if (half) {
            top[j] = (uint16_t)h_top((const uint16_t *)(const void *)x, dim);
            continue;
        }
        for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(x + LMK_TILE * bytes + i, 0, 2);     /* the next tile */
        w->source[j] = w->rows + j * padded;
        dequant(dtype, x, w->rows + j * padded, dim);
        w->e[j] = exponent_of(w->rows + j * padded, padded);
    }
    for (int j = 0; half && j < n; j += LANES) {
        i_store(w->e + j, i_add(v_bits(v_load_f16(top + j)), i_set(MARGIN)));
        for (int i = 0; i < LANES; i++) w->e[j + i] = (int32_t)((uint32_t)w->e[j + i] >> 23);
    }
    for (int j = 0; j < n; j++) unusable |= (w->e[j] == 0) | (w->e[j] >= 255);
    for (int j = 0; unusable && j < LMK_TILE; j++) {
        if (j < n && w->e[j] > 0 && w->e[j] < 255) continue;
        if (j < n && w->e[j] >= 255) wrong |= (uint64_t)1 << j;
        w->source[j] = w->zero;
        w->e[j] = none;
    }
    return wrong;
}

/* What a row sees of the tile: all of it, or [lo, hi), and then with what it does not see left out. */
typedef struct attend_sight {
    int lo, hi;
    const float *log_v, *inverse_v;
} attend_sight;

ALWAYS void look(const lmk_attend_task *t, const attend_work *w, int64_t tile, int64_t row, attend_sight *s)
{
    const int64_t position = t->position + row;
    const int lo = t->window > 0 ? (int)lmk_max(0, position - t->window + 1 - tile) : 0;
    const int hi = (int)lmk_min(LMK_TILE, position + 1 - tile);
    if (lo == s->lo && hi == s->hi) return;
    *s = (attend_sight){ lo, hi, w->log_v, w->inverse_v };
    if (lo == 0 && hi == LMK_TILE) return;
    for (int j = 0; j < LMK_TILE; j++) {
        w->seen_log[j] = j >= lo && j < hi ? w->log_v[j] : -INFINITY;
        w->seen_inverse[j] = j >= lo && j < hi ? w->inverse_v[j] : 0.0f;
    }
    s->log_v = w->seen_log, s->inverse_v = w->seen_inverse;
}

/* Brings the sums so far and the tile's to one maximum, for pairs pair .. pair + n - 1, which have the slots from 0 on. */
ALWAYS void rebase(const attend_work *w, int64_t pair, int n)
{
    for (int i = 0; i < n; i += LANES) {
        const int part = (int)lmk_min(LANES, n - i);
        const v16 was = v_load_part(w->max + pair + i, part, 0.0f), top = v_load_part(w->top + i, part, 0.0f);
        const v16 max = v_max(was, top);
        v_store_part(w->max + pair + i, max, part);
        v_store_part(w->before + i, v_exp2(v_sub(was, max)), part);
        v_store_part(w->now + i, v_exp2(v_sub(top, max)), part);
    }
    for (int i = 0; i < n; i++) {
        float *sum = w->sum + (pair + i) * LANES;
        v_store(sum, v_fma(v_load(sum), v_set(w->before[i]), v_mul(v_load(w->part + i * LANES), v_set(w->now[i]))));
    }
}

/* What becomes of 16 columns of a row's sum over values: dot is p · v / 256. */
ALWAYS v16 mixed(v16 acc, i16x dot, float before, float now)
{
    return v_fma(acc, v_set(before), v_mul(i_to_float(dot), v_set(now)));
}

static void end_pairs(const lmk_attend_task *t, const attend_work *w)
{
    for (int64_t pair = 0; pair < (int64_t)t->heads * t->n_rows; pair++) {
        float *y = t->y + pair / t->heads * t->y_step + pair % t->heads * t->v_dim, *acc = w->acc + pair * w->vp;
        const v16 inverse = v_set(1.0f / (v_sum(v_load(w->sum + pair * LANES)) * (65280.0f / 256.0f)));
        for (int64_t d = 0; d < t->v_dim; d += LANES)
            v_store_part(y + d, v_mul(v_load(acc + d), inverse), (int)lmk_min(LANES, t->v_dim - d));
    }
}
