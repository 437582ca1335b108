/* kernels.h: every float kernel, written once over the 16-lane vector and compiled once per level (level_*.c).
 *
 * Knows nothing of threads, contexts or weights' types. One source is what makes the levels agree bit for bit: they can
 * differ only in simd_*.h, whose calls are exact. Sums: see core.h. The tail of a sum is padded with zero lanes.
 *
 * Defines every member of lmk_kernels but `isa`, `dot_q8`, `dot_packed`, `split`, `dot_halves`, `attend`, those of planes.h and
 * the optional ones. Wants DEQUANT_ROW and one of simd_*.h before it.
 */

#define LANES LMK_LANES
#define ALWAYS static inline __attribute__((always_inline))

/* Adding it to a float below 2^22 rounds that float to an integer, which then sits in the low bits. */
#define ROUNDER 12582912.0f
#define ROUNDER_BITS 0x4b400000u

/* ---- conversions ---- */

static void from_f16(float *y, const uint16_t *x, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) v_store(y + i, v_load_f16(x + i));
    if (i < n) {
        uint16_t t[LANES] = {0};
        for (int64_t j = i; j < n; j++) t[j - i] = x[j];
        v_store_part(y + i, v_load_f16(t), (int)(n - i));
    }
}

/* The scale is max |x| / 127 as a half, the integers x over that half, rounded to nearest even. A half below 2^-14 is
 * coarse and may be too small for the largest x, which is then cut to 127. NaN and what overflows a half make NaN. */
static void to_q8_0(uint8_t *y, const float *x, int64_t n)
{
    const i16x magnitude = i_set(0x7fffffff);
    for (; n > 0; n -= LMK_BLOCK, x += LMK_BLOCK, y += 2 + LMK_BLOCK) {
        v16 x0 = v_load(x), x1 = v_load(x + LANES);
        int32_t top = i_top(i_max(i_and(v_bits(x0), magnitude), i_and(v_bits(x1), magnitude)));
        float amax;
        memcpy(&amax, &top, 4);
        uint16_t scale[LANES];
        v_store_f16(scale, v_set(amax / 127.0f));
        if (top >= 0x7f800000 || scale[0] >= 0x7c00) scale[0] = 0x7e00;
        memcpy(y, scale, 2);
        memset(y + 2, 0, LMK_BLOCK);
        if (!scale[0] || scale[0] == 0x7e00) continue;
        const v16 d = v_load_f16(scale), least = v_set(-127.0f), most = v_set(127.0f), rounder = v_set(ROUNDER);
        const i16x zero = i_set(ROUNDER_BITS);
        i_store_i8((int8_t *)y + 2, i_sub(v_bits(v_add(v_max(least, v_min(most, v_div(x0, d))), rounder)), zero));
        i_store_i8((int8_t *)y + 2 + LANES, i_sub(v_bits(v_add(v_max(least, v_min(most, v_div(x1, d))), rounder)), zero));
    }
}

#ifdef EXPANDS
#include "expand.h"
#endif

/* DEQUANT_ROW, this level's build of dequant.c, knows every type; some have a faster way. */
static int dequant(int32_t type, const void *src, float *dst, int64_t n)
{
    if (type == LMK_F16) {
        from_f16(dst, src, n);
        return 0;
    }
#ifdef EXPANDS
    if (expand(type, src, dst, n)) return 0;
#endif
    return DEQUANT_ROW(type, src, dst, n);
}

/* ---- exp ---- */

/* exp by 2^n times a polynomial on +-ln(2)/2 (coefficients: Cephes expf); 2^n in two factors, so that results reach down
 * to the subnormals and up to infinity. NaN stays NaN. */
ALWAYS v16 v_exp(v16 x)
{
    x = v_max(v_set(-110.0f), v_min(v_set(89.0f), x));
    v16 t = v_fma(x, v_set(1.44269504088896341f), v_set(ROUNDER));
    i16x n = i_sub(v_bits(t), i_set(ROUNDER_BITS));
    v16 whole = v_sub(t, v_set(ROUNDER));
    v16 r = v_fma(whole, v_set(-0.693359375f), x);
    r = v_fma(whole, v_set(2.12194440e-4f), r);
    v16 p = v_set(1.9875691500e-4f);
    p = v_fma(p, r, v_set(1.3981999507e-3f));
    p = v_fma(p, r, v_set(8.3334519073e-3f));
    p = v_fma(p, r, v_set(4.1665795894e-2f));
    p = v_fma(p, r, v_set(1.6666665459e-1f));
    p = v_fma(p, r, v_set(5.0000001201e-1f));
    p = v_fma(p, v_mul(r, r), r);
    p = v_add(p, v_set(1.0f));
    i16x n1 = i_half(n), n2 = i_sub(n, n1);
    p = v_mul(p, i_float(i_exponent(i_add(n1, i_set(127)))));
    return v_mul(p, i_float(i_exponent(i_add(n2, i_set(127)))));
}

static float exp_sum(float *y, const float *x, int64_t n, float shift, float factor)
{
    v16 sum = v_set(0.0f), s = v_set(shift), f = v_set(factor);
    for (int64_t i = 0; i < n; i += LANES) {
        int part = n - i < LANES ? (int)(n - i) : LANES;
        v16 e = v_exp(v_mul(v_sub(v_load_part(x + i, part, 0.0f), s), f));
        v_store_part(y + i, e, part);
        sum = v_add(sum, part < LANES ? v_load_part(y + i, part, 0.0f) : e);
    }
    return v_sum(sum);
}

static float vector_max(const float *x, int64_t n)
{
    v16 m = v_set(-INFINITY);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) m = v_max(m, v_load(x + i));
    if (i < n) m = v_max(m, v_load_part(x + i, (int)(n - i), -INFINITY));
    return v_top(m);
}

static float checked_max(const float *x, int64_t n)
{
    /* Times zero, NaN and infinity are NaN and everything else is nothing; -inf is let off. */
    v16 m = v_set(-INFINITY), wrong = v_set(0.0f), lowest = v_set(-3.402823466e+38f), zero = v_set(0.0f);
    for (int64_t i = 0; i < n; i += LANES) {
        v16 a = n - i < LANES ? v_load_part(x + i, (int)(n - i), -INFINITY) : v_load(x + i);
        m = v_max(m, a);
        wrong = v_fma(v_max(lowest, a), zero, wrong);
    }
    return v_sum(wrong) == 0.0f ? v_top(m) : NAN;
}

static void sum_least(const float *x, int64_t n, const float *least, float *sum)
{
    v16 s[3], l[3];
    for (int t = 0; t < 3; t++) s[t] = v_set(0.0f), l[t] = v_set(least[t]);
    for (int64_t i = 0; i < n; i += LANES) {
        v16 a = n - i < LANES ? v_load_part(x + i, (int)(n - i), 0.0f) : v_load(x + i);
        for (int t = 0; t < 3; t++) s[t] = v_add(s[t], v_where_least(a, l[t], a));
    }
    for (int t = 0; t < 3; t++) sum[t] = v_sum(s[t]);
}

/* ---- rows ---- */

static void rms_norm(float *y, const float *x, const float *w, int64_t dim, float eps)
{
    v16 squares = v_set(0.0f);
    int64_t i = 0;
    for (; i + LANES <= dim; i += LANES) {
        v16 a = v_load(x + i);
        squares = v_fma(a, a, squares);
    }
    if (i < dim) {
        v16 a = v_load_part(x + i, (int)(dim - i), 0.0f);
        squares = v_fma(a, a, squares);
    }
    v16 inverse = v_set(1.0f / sqrtf(v_sum(squares) / (float)dim + eps));
    for (i = 0; i + LANES <= dim; i += LANES)
        v_store(y + i, v_mul(v_mul(v_load(x + i), inverse), v_load(w + i)));
    if (i < dim) {
        int part = (int)(dim - i);
        v16 a = v_mul(v_load_part(x + i, part, 0.0f), inverse);
        v_store_part(y + i, v_mul(a, v_load_part(w + i, part, 0.0f)), part);
    }
}

ALWAYS v16 v_silu_mul(v16 gate, v16 up)
{
    v16 one = v_set(1.0f);
    return v_mul(v_div(gate, v_add(one, v_exp(v_sub(v_set(0.0f), gate)))), up);
}

ALWAYS v16 v_sigmoid_mul(v16 gate, v16 up)
{
    return v_div(up, v_add(v_set(1.0f), v_exp(v_sub(v_set(0.0f), gate))));
}

/* (1 + tanh t) / 2 is the logistic function of 2 t, so that GELU's tanh form is a SiLU with another slope. */
ALWAYS v16 v_gelu_mul(v16 gate, v16 up)
{
    const v16 one = v_set(1.0f);
    v16 slope = v_fma(v_mul(gate, gate), v_set(0.044715f), one);
    slope = v_mul(slope, v_set(-1.59576912160573071f));              /* -2 sqrt(2 / pi) */
    return v_mul(v_div(gate, v_add(one, v_exp(v_mul(gate, slope)))), up);
}

#define GATED(name)                                                                                                    \
    static void name(float *y, const float *gate, const float *up, int64_t dim)                                       \
    {                                                                                                                \
        int64_t i = 0;                                                                                               \
        for (; i + LANES <= dim; i += LANES) v_store(y + i, v_##name(v_load(gate + i), v_load(up + i)));              \
        if (i < dim) {                                                                                               \
            int part = (int)(dim - i);                                                                               \
            v_store_part(y + i, v_##name(v_load_part(gate + i, part, 0.0f), v_load_part(up + i, part, 0.0f)), part);  \
        }                                                                                                            \
    }

GATED(silu_mul)
GATED(gelu_mul)
GATED(sigmoid_mul)
GATED(add)

#define JOIN(name)                                                                                                     \
    static void join_##name(lmk_place y, lmk_place a, lmk_place b, int64_t n, int n_cols)                             \
    {                                                                                                                \
        for (int64_t j = 0; j < n; j++) name(y.row[j] + y.at, a.row[j] + a.at, b.row[j] + b.at, n_cols);              \
    }

JOIN(silu_mul)
JOIN(gelu_mul)
JOIN(add)

/* tanh z = 2 / (1 + e^-2z) - 1: as exact as the cap's own size allows, which is what logits are compared by. */
static void softcap(float *x, int64_t n, float cap)
{
    const v16 one = v_set(1.0f), two = v_set(2.0f), slope = v_set(-2.0f / cap), size = v_set(cap);
    for (int64_t i = 0; i < n; i += LANES) {
        const int part = n - i < LANES ? (int)(n - i) : LANES;
        const v16 e = v_exp(v_mul(v_load_part(x + i, part, 0.0f), slope));
        v_store_part(x + i, v_mul(v_sub(v_div(two, v_add(one, e)), one), size), part);
    }
}

static void axpy(float *y, float a, const float *x, int64_t n)
{
    int64_t i = 0;
    v16 av = v_set(a);
    for (; i + LANES <= n; i += LANES) v_store(y + i, v_fma(av, v_load(x + i), v_load(y + i)));
    if (i < n) {
        int part = (int)(n - i);
        v_store_part(y + i, v_fma(av, v_load_part(x + i, part, 0.0f), v_load_part(y + i, part, 0.0f)), part);
    }
}

/* ---- rotations: plain loops, which compilers know how to make of vectors ---- */

static void rotate_halves(float *restrict a, float *restrict b, const float *cosine, const float *sine, int32_t n)
{
    for (int32_t p = 0; p < n; p++) {
        const float x = a[p], y = b[p];
        a[p] = x * cosine[p] - y * sine[p];
        b[p] = x * sine[p] + y * cosine[p];
    }
}

static void rotate_pairs(float *x, const float *cosine, const float *sine, int32_t n)
{
    for (int32_t p = 0; p < n; p++) {
        const float a = x[2 * p], b = x[2 * p + 1];
        x[2 * p] = a * cosine[p] - b * sine[p];
        x[2 * p + 1] = a * sine[p] + b * cosine[p];
    }
}

/* ---- dot products ---- */

/* nw x nx outputs, one accumulator each: the block's shape changes speed, never bits. */
ALWAYS void dot_block(float *const *y, int64_t i0, const float *w, int64_t ldw, const float *const *x, int64_t k,
                      const int nw, const int nx)
{
    v16 acc[BLOCK_W][BLOCK_X];
    for (int a = 0; a < nw; a++)
        for (int b = 0; b < nx; b++) acc[a][b] = v_set(0.0f);
    int64_t i = 0;
    for (; i + LANES <= k; i += LANES) {
        v16 xv[BLOCK_X];
        for (int b = 0; b < nx; b++) xv[b] = v_load(x[b] + i);
        for (int a = 0; a < nw; a++) {
            v16 wv = v_load(w + a * ldw + i);
            for (int b = 0; b < nx; b++) acc[a][b] = v_fma(wv, xv[b], acc[a][b]);
        }
    }
    if (i < k) {
        int part = (int)(k - i);
        for (int a = 0; a < nw; a++) {
            v16 wv = v_load_part(w + a * ldw + i, part, 0.0f);
            for (int b = 0; b < nx; b++) acc[a][b] = v_fma(wv, v_load_part(x[b] + i, part, 0.0f), acc[a][b]);
        }
    }
#ifdef V_SUM_4X4
    if (nw == 4 && nx == 4) {
        v_sum_4x4(y, i0, acc);
        return;
    }
#endif
    for (int b = 0; b < nx; b++)
        for (int a = 0; a < nw; a++) y[b][i0 + a] = v_sum(acc[a][b]);
}

ALWAYS void dot_rows(float *const *y, const float *w, int64_t ldw, int64_t n_w, const float *const *x, int64_t k, const int nx)
{
    int64_t i = 0;
    for (; i + BLOCK_W <= n_w; i += BLOCK_W) dot_block(y, i, w + i * ldw, ldw, x, k, BLOCK_W, nx);
    for (; i < n_w; i++) dot_block(y, i, w + i * ldw, ldw, x, k, 1, nx);
}

static void dot_f32(float *const *y, const float *w, int64_t ldw, int64_t n_w, const float *const *x, int64_t n_x, int64_t k)
{
    int64_t j = 0;
    for (; j + BLOCK_X <= n_x; j += BLOCK_X) dot_rows(y + j, w, ldw, n_w, x + j, k, BLOCK_X);
#if BLOCK_X > 2
    for (; j + 2 <= n_x; j += 2) dot_rows(y + j, w, ldw, n_w, x + j, k, 2);
#endif
    for (; j < n_x; j++) dot_rows(y + j, w, ldw, n_w, x + j, k, 1);
}

/* ---- activations for the packed integer path ---- */

#ifdef PAIR_SUMS
/* A block's `less` */
ALWAYS void sum_pairs(uint32_t *less, i16x q0, i16x q1, int32_t first, int32_t last)
{
    static const int32_t mask[LANES] = { -1, -1, 0, 0, -1, -1, 0, 0, -1, -1, 0, 0, -1, -1, 0, 0 };
    const i16x pairs = i_load(mask);
    const int32_t sum0 = i_sum(i_and(q0, pairs)), sum1 = i_sum(i_and(q1, pairs));
    less[0] = (uint16_t)(-32 * sum0) | (uint32_t)(-32 * (first - sum0)) << 16;
    less[1] = (uint16_t)(-32 * sum1) | (uint32_t)(-32 * (last - sum1)) << 16;
}
#endif

/* q = x * (127 / amax), nearest with ties to even; scale = amax / 127, of `share` blocks together. Blocks with NaN or infinity
 * get the scale NaN, so that their outputs are NaN and not silently small; below 2^-100, where 127 / amax would overflow,
 * they count as zero. */
static void quantise_q8(lmk_q8_block *q, const float *x, int64_t k, int share)
{
    const i16x magnitude = i_set(0x7fffffff);
    const v16 rounder = v_set(ROUNDER);
    int32_t top = 0;
    for (int64_t b = 0; b < k / LMK_BLOCK; b++, x += LMK_BLOCK, q++) {
        if (b % share == 0) {
            i16x most = i_and(v_bits(v_load(x)), magnitude);
            for (int i = 1; i < share * (LMK_BLOCK / LANES); i++) most = i_max(most, i_and(v_bits(v_load(x + i * LANES)), magnitude));
            top = i_top(most);
        }
        float amax;
        memcpy(&amax, &top, 4);
        int usable = top < 0x7f800000 && amax >= 0x1p-100f;
        if (!usable) {
            *q = (lmk_q8_block){ .scale = top >= 0x7f800000 ? NAN : 0.0f };
            continue;
        }
        v16 inverse = v_set(127.0f / amax);
        i16x q0 = i_sub(v_bits(v_add(v_mul(v_load(x), inverse), rounder)), i_set(ROUNDER_BITS));
        i16x q1 = i_sub(v_bits(v_add(v_mul(v_load(x + LANES), inverse), rounder)), i_set(ROUNDER_BITS));
        i_store_i8(q->q, q0);
        i_store_i8(q->q + LANES, q1);
        q->scale = amax / 127.0f;
        const int32_t first = i_sum(q0), sum = first + i_sum(q1);
        q->correction = -128 * sum;
        q->half = -128 * first;
        q->sum = q->scale * (float)sum;
#ifdef PAIR_SUMS
        if (share > 1) sum_pairs(q->less, q0, q1, first, sum - first);
#endif
    }
}

/* ---- attention ---- */

static float softmax_tile(float *s, int lo, int hi, float scale, float *max, float *sum)
{
    for (int i = 0; i < lo; i++) s[i] = -INFINITY;
    for (int i = hi; i < LMK_TILE; i++) s[i] = -INFINITY;
    v16 factor = v_set(scale), top = v_set(-INFINITY), part[LMK_TILE / LANES];
    for (int i = 0; i < LMK_TILE / LANES; i++) {
        part[i] = v_mul(v_load(s + i * LANES), factor);
        top = v_max(top, part[i]);
    }
    float new_max = v_top(top);
    if (!(new_max > *max)) new_max = *max;
    v16 shift = v_set(new_max), total = v_set(0.0f);
    for (int i = 0; i < LMK_TILE / LANES; i++) {
        v16 e = v_exp(v_sub(part[i], shift));
        v_store(s + i * LANES, e);
        total = v_add(total, e);
    }
    float before[LANES];
    v_store(before, v_exp(v_set(*max - new_max)));
    *sum = fmaf(*sum, before[0], v_sum(total));
    *max = new_max;
    return before[0];
}

/* n outputs of 2 * LANES columns from column `d` on */
ALWAYS void mix_block(float *const *acc, const float *factor, const float *const *p, const float *v, int64_t ldv, int lo,
                      int hi, int64_t d, const int n)
{
    v16 a0[4], a1[4];
    for (int i = 0; i < n; i++) {
        v16 f = v_set(factor[i]);
        a0[i] = v_mul(v_load(acc[i] + d), f);
        a1[i] = v_mul(v_load(acc[i] + d + LANES), f);
    }
    for (int j = lo; j < hi; j++) {
        v16 v0 = v_load(v + j * ldv + d), v1 = v_load(v + j * ldv + d + LANES);
        for (int i = 0; i < n; i++) {
            v16 w = v_set(p[i][j]);
            a0[i] = v_fma(w, v0, a0[i]);
            a1[i] = v_fma(w, v1, a1[i]);
        }
    }
    for (int i = 0; i < n; i++) {
        v_store(acc[i] + d, a0[i]);
        v_store(acc[i] + d + LANES, a1[i]);
    }
}

/* One output, at most LANES columns from column `d` on */
static void mix_tail(float *acc, float factor, const float *p, const float *v, int64_t ldv, int lo, int hi, int64_t d,
                     int part)
{
    v16 a = v_mul(v_load_part(acc + d, part, 0.0f), v_set(factor));
    for (int j = lo; j < hi; j++) a = v_fma(v_set(p[j]), v_load_part(v + j * ldv + d, part, 0.0f), a);
    v_store_part(acc + d, a, part);
}

static void mix(float *const *acc, const float *factor, const float *const *p, int n, const float *v, int64_t ldv, int lo,
                int hi, int64_t dim)
{
    int64_t d = 0;
    for (; d + 2 * LANES <= dim; d += 2 * LANES) {
        int i = 0;
        for (; i + 4 <= n; i += 4) mix_block(acc + i, factor + i, p + i, v, ldv, lo, hi, d, 4);
        for (; i + 2 <= n; i += 2) mix_block(acc + i, factor + i, p + i, v, ldv, lo, hi, d, 2);
        for (; i < n; i++) mix_block(acc + i, factor + i, p + i, v, ldv, lo, hi, d, 1);
    }
    for (; d < dim; d += LANES)
        for (int i = 0; i < n; i++)
            mix_tail(acc[i], factor[i], p[i], v, ldv, lo, hi, d, (int)lmk_min(LANES, dim - d));
}

#include "delta.h"

#define KERNELS(level, ...)                                                                                            \
    {                                                                                                                \
        .isa = level, .dequant = dequant, .to_q8_0 = to_q8_0, .dot_f32 = dot_f32,                  \
        .quantise_q8 = quantise_q8, .dot_q8 = dot_q8, .dot_packed = dot_packed, .rms_norm = rms_norm,                \
        .silu_mul = silu_mul, .gelu_mul = gelu_mul, .sigmoid_mul = sigmoid_mul, .add = add, .softcap = softcap, .axpy = axpy, .max = vector_max,             \
        .join_silu_mul = join_silu_mul, .join_gelu_mul = join_gelu_mul, .join_add = join_add,                        \
        .rotate_halves = rotate_halves, .rotate_pairs = rotate_pairs,                                                \
        .checked_max = checked_max, .exp_sum = exp_sum, .sum_least = sum_least, .softmax_tile = softmax_tile,        \
        .mix = mix, .split = split, .dot_halves = dot_halves, .lay_key = lay_key, .lay_value = lay_value,            \
        .short_conv = short_conv, .delta = delta, .lay_keys = lay_keys, .lay_values = lay_values, .attend_join = attend_join, __VA_ARGS__                      \
    }
