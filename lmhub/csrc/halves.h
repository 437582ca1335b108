/* halves.h: products with weights of 16 bits, F16 and BF16, written once over simd_*.h and compiled once per level.
 *
 * The definition, for one row of x and one of outputs. Columns come in blocks of 32, the last one padded with zeros:
 *
 *     even = fma(w[2t], x[2t], even), odd = fma(w[2t + 1], x[2t + 1], odd)       for t from 0 to 15, both from 0
 *     acc = acc + (even + odd)
 *
 * which is what the tile instruction `tdpbf16ps` computes. F16 weights meet x as it is. BF16 weights meet x as two parts,
 * each a BF16 number: x is divided by a power of two, so that the row's largest element is in [2, 4), high is that
 * rounded to BF16, low the rest rounded to BF16, and a part below 2^-30 counts as zero. A block is added to acc for the
 * high parts, then for the low ones; y = acc times the power of two.
 *
 * Tiles take numbers below 2^-126 for zero, other instructions do not; so there must be none. Packed weights are 0 or at
 * least 2^-80, parts 0 or at least 2^-30: all products, and so all sums, are multiples of 2^-124.
 *
 * A row of x that is not finite makes all its outputs NaN, and there is only one NaN.
 */
#include "packed.h"

#define H_RUN 8                    /* blocks that are expanded at once: two groups of them stay in L1 */

ALWAYS int h_parts(const int32_t type) { return type == LMK_BF16 ? 2 : 1; }

/* ---- parts ---- */

/* 2^e such that the largest |x| / 2^e is in [2, 4), and 2^-e. 0 where that counts as zero, NaN where it is not finite */
ALWAYS float h_unit(const float *x, int64_t k, float *inverse)
{
    const i16x magnitude = i_set(0x7fffffff);
    i16x largest = i_set(0);
    for (int64_t i = 0; i < k; i += LANES) {
        const v16 a = k - i < LANES ? v_load_part(x + i, (int)(k - i), 0.0f) : v_load(x + i);
        largest = i_max(largest, i_and(v_bits(a), magnitude));
    }
    const uint32_t exponent = (uint32_t)i_top(largest) >> 23, of_unit = (exponent - 1) << 23, of_inverse = (255 - exponent) << 23;
    float unit;
    memcpy(&unit, &of_unit, 4);
    memcpy(inverse, &of_inverse, 4);
    return exponent == 255 ? NAN : exponent < 27 ? 0.0f : unit;
}

/* As BF16, nearest with ties to even; finite */
ALWAYS v16 h_round(v16 a)
{
    const i16x bits = v_bits(a), odd = i_and(i_right(bits, 16), i_set(1));
    return i_float(i_and(i_add(bits, i_add(odd, i_set(0x7fff))), i_set(0xffff0000u)));
}

ALWAYS v16 h_least(v16 a)
{
    return v_where_least(i_float(i_and(v_bits(a), i_set(0x7fffffff))), v_set(0x1p-30f), a);
}

ALWAYS void h_split(v16 x, v16 inverse, v16 *high, v16 *low)
{
    const v16 scaled = v_mul(x, inverse), top = h_round(scaled);
    *high = h_least(top);
    *low = h_least(h_round(v_sub(scaled, top)));
}

/* parts (blocks, 2, 32): the high and low parts of each block */
static float split(float *parts, const float *x, int64_t k)
{
    float inverse;
    const float unit = h_unit(x, k, &inverse);
    const v16 by = v_set(inverse);
    for (int64_t i = 0; i < lmk_half_blocks(k) * LMK_BLOCK; i += LANES) {
        float *to = parts + i / LMK_BLOCK * 2 * LMK_BLOCK + i % LMK_BLOCK;
        v16 high = v_set(0.0f), low = high;
        if (unit > 0.0f && i < k) h_split(v_load_part(x + i, (int)lmk_min(LANES, k - i), 0.0f), by, &high, &low);
        v_store(to, high);
        v_store(to + LMK_BLOCK, low);
    }
    return unit;
}

/* ---- products ---- */

/* Columns 2t and 2t + 1 of a group's rows, from the packed vector t */
ALWAYS void h_pair(const int32_t type, const uint16_t *p, v16 *even, v16 *odd)
{
    if (type == LMK_F16) {
        *even = v_load_f16(p);
        *odd = v_load_f16(p + LANES);
    } else {
        const i16x both = i_load((const int32_t *)(const void *)p);
        *even = i_float(i_shl(both, 16));
        *odd = i_float(i_and(both, i_set(0xffff0000u)));
    }
}

/* nx rows of x straight from the packed group */
ALWAYS void h_direct(const int32_t type, float *const *y, int64_t i0, int n_out, const uint16_t *w, const float *const *x,
                     const float *units, int64_t k, const int nx)
{
    const int parts = h_parts(type);
    v16 acc[H_DIRECT];
    for (int j = 0; j < nx; j++) acc[j] = v_set(0.0f);
    for (int64_t b = 0; b < lmk_half_blocks(k); b++, w += LMK_BLOCK * LMK_GROUP) {
        v16 even[2][H_DIRECT], odd[2][H_DIRECT];
        for (int p = 0; p < parts; p++)
            for (int j = 0; j < nx; j++) even[p][j] = odd[p][j] = v_set(0.0f);
        for (int t = 0; t < LMK_BLOCK / 2; t++) {
            v16 w0, w1;
            h_pair(type, w + 2 * LMK_GROUP * t, &w0, &w1);
            for (int p = 0; p < parts; p++)
                for (int j = 0; j < nx; j++) {
                    const float *xb = x[j] + (b * parts + p) * LMK_BLOCK + 2 * t;
                    even[p][j] = v_fma(w0, v_set(xb[0]), even[p][j]);
                    odd[p][j] = v_fma(w1, v_set(xb[1]), odd[p][j]);
                }
            V_FETCH(odd[0][0], (const uint8_t *)(w + 2 * LMK_GROUP * t) + LMK_AHEAD);
        }
        for (int p = 0; p < parts; p++)
            for (int j = 0; j < nx; j++) acc[j] = v_add(acc[j], v_add(even[p][j], odd[p][j]));
    }
    for (int j = 0; j < nx; j++) {
        if (type == LMK_BF16) acc[j] = v_mul(acc[j], v_set(units[j]));
        v_store_part(y[j] + i0, v_quiet(acc[j]), n_out);
    }
}

/* panel (n_blocks, 16, ng, 2, 16): even and odd columns of ng groups as floats */
ALWAYS void h_expand(const int32_t type, float *panel, const uint16_t *w, int64_t group_halves, int64_t n_blocks, const int ng)
{
    for (int64_t t = 0; t < n_blocks * LMK_BLOCK / 2; t++)
        for (int g = 0; g < ng; g++, panel += 2 * LANES) {
            v16 w0, w1;
            h_pair(type, w + g * group_halves + t * 2 * LMK_GROUP, &w0, &w1);
            v_store(panel, w0);
            v_store(panel + LANES, w1);
        }
}

/* nx rows times n_blocks of a panel, added to the sums acc (nx, ng, 16) */
ALWAYS void h_panel(const int32_t type, float *acc, const float *panel, const float *const *x, int64_t first, int64_t n_blocks,
                    const int nx, const int ng)
{
    const int parts = h_parts(type);
    const float *xs[H_ROWS];
    for (int j = 0; j < nx; j++) xs[j] = x[j] + first * parts * LMK_BLOCK;
    for (int64_t b = 0; b < n_blocks; b++, panel += LMK_BLOCK * LANES * ng)
        for (int p = 0; p < parts; p++) {
            v16 even[H_ROWS][H_GROUPS], odd[H_ROWS][H_GROUPS];
            for (int j = 0; j < nx; j++)
                for (int g = 0; g < ng; g++) even[j][g] = odd[j][g] = v_set(0.0f);
            for (int t = 0; t < LMK_BLOCK / 2; t++) {
                v16 w0[H_GROUPS], w1[H_GROUPS];
                for (int g = 0; g < ng; g++) {
                    w0[g] = v_load(panel + (t * ng + g) * 2 * LANES);
                    w1[g] = v_load(panel + (t * ng + g) * 2 * LANES + LANES);
                }
                for (int j = 0; j < nx; j++) {
                    const v16 x0 = v_set(xs[j][2 * t]), x1 = v_set(xs[j][2 * t + 1]);
                    for (int g = 0; g < ng; g++) {
                        even[j][g] = v_fma(w0[g], x0, even[j][g]);
                        odd[j][g] = v_fma(w1[g], x1, odd[j][g]);
                    }
                }
            }
            for (int j = 0; j < nx; j++) {
                xs[j] += LMK_BLOCK;
                for (int g = 0; g < ng; g++) {
                    float *sum = acc + (j * ng + g) * LANES;
                    v_store(sum, v_add(v_load(sum), v_add(even[j][g], odd[j][g])));
                }
            }
        }
}

/* ng groups times many rows. scratch: a panel of H_RUN blocks, then the sums (n_x, ng, 16) */
ALWAYS void h_many(const int32_t type, float *const *y, int64_t i0, int n_out, const uint16_t *w, int64_t group_halves,
                   const float *const *x, const float *units, int64_t n_x, int64_t k, float *scratch, const int ng)
{
    float *const panel = scratch, *const acc = scratch + H_RUN * LMK_BLOCK * LANES * ng;
    memset(acc, 0, (size_t)(n_x * ng * LANES) * sizeof *acc);
    for (int64_t first = 0; first < lmk_half_blocks(k); first += H_RUN) {
        const int64_t n_blocks = lmk_min(H_RUN, lmk_half_blocks(k) - first), step = ng * LANES;
        h_expand(type, panel, w + first * LMK_BLOCK * LMK_GROUP, group_halves, n_blocks, ng);
        int64_t j = 0;
        for (; j + H_ROWS <= n_x; j += H_ROWS) h_panel(type, acc + j * step, panel, x + j, first, n_blocks, H_ROWS, ng);
        for (; j < n_x; j++) h_panel(type, acc + j * step, panel, x + j, first, n_blocks, 1, ng);
    }
    for (int64_t j = 0; j < n_x; j++)
        for (int g = 0; g < ng; g++) {
            v16 sum = v_load(acc + (j * ng + g) * LANES);
            if (type == LMK_BF16) sum = v_mul(sum, v_set(units[j]));
            if (g * LMK_GROUP < n_out)
                v_store_part(y[j] + i0 + g * LMK_GROUP, v_quiet(sum), (int)lmk_min(LMK_GROUP, n_out - g * LMK_GROUP));
        }
}

ALWAYS void h_dot(const int32_t type, float *const *y, int64_t i0, int n_out, const uint16_t *w, int64_t group_halves,
                  const float *const *x, const float *units, int64_t n_x, int64_t k, float *scratch)
{
    if (n_x >= LMK_PANEL_ROWS) {
        if (n_out > LMK_GROUP && H_GROUPS == 2) {
            h_many(type, y, i0, n_out, w, group_halves, x, units, n_x, k, scratch, H_GROUPS);
            return;
        }
        for (; n_out > 0; n_out -= LMK_GROUP, i0 += LMK_GROUP, w += group_halves)
            h_many(type, y, i0, (int)lmk_min(LMK_GROUP, n_out), w, group_halves, x, units, n_x, k, scratch, 1);
        return;
    }
    for (; n_out > 0; n_out -= LMK_GROUP, i0 += LMK_GROUP, w += group_halves) {
        const int n = (int)lmk_min(LMK_GROUP, n_out);
        int64_t j = 0;
        for (; j + H_DIRECT <= n_x; j += H_DIRECT) h_direct(type, y + j, i0, n, w, x + j, units + j, k, H_DIRECT);
        for (; j < n_x; j++) h_direct(type, y + j, i0, n, w, x + j, units + j, k, 1);
    }
}

static void dot_halves(int32_t type, float *const *y, int64_t i0, int n_out, const uint16_t *w, int64_t group_halves,
                       const float *const *x, const float *units, int64_t n_x, int64_t k, float *scratch)
{
    if (type == LMK_F16) h_dot(LMK_F16, y, i0, n_out, w, group_halves, x, units, n_x, k, scratch);
    else h_dot(LMK_BF16, y, i0, n_out, w, group_halves, x, units, n_x, k, scratch);
}
