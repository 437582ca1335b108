/* planes.h: vectors of floats as integers in two planes of bytes, and the blocks of a cache that are made of them.
 *
 * Knows no attention. Wants kernels.h before it; blocks.h says where a block has its bytes.
 */
#include "blocks.h"

#define MARGIN 0x10400u            /* added to a float's bits, moves mantissas above 1.992 to the next exponent */
#define LARGEST 160                /* exponents from here on count as not finite, lest a score exceed the floats, ... */
#define LEAST_KEY 16               /* ... below this, or ... */
#define LEAST_VALUE 102            /* ... of values below what halves reach, as zero: its exponent is the one below, ... */
#define ZERO_VALUE 101             /* so that it takes no precision from others */

/* The exponent of x (n): |x| < 2^(e - 126), and with a margin, so that rounding does not exceed the planes */
ALWAYS int exponent_of(const float *x, int64_t n)
{
    const i16x magnitude = i_set(0x7fffffff);
    i16x top = i_set(0);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) top = i_max(top, i_and(v_bits(v_load(x + i)), magnitude));
    if (i < n) top = i_max(top, i_and(v_bits(v_load_part(x + i, (int)(n - i), 0.0f)), magnitude));
    const uint32_t e = ((uint32_t)i_top(top) + MARGIN) >> 23;
    return e >= LARGEST ? LMK_NOT_FINITE : (int)e;
}

ALWAYS float power_of_two(int biased)
{
    const uint32_t bits = (uint32_t)biased << 23;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* 16 elements over their unit, rounded. For bits = 13 at most 16319, for 14 at most 32639 */
ALWAYS i16x integers(v16 x, v16 inverse_unit)
{
    return i_sub(v_bits(v_fma(x, inverse_unit, v_set(ROUNDER))), i_set(ROUNDER_BITS));
}

/* 16 of a query's or a key's elements: high and low bytes */
ALWAYS void split_key(int8_t *high, int8_t *low, v16 x, v16 inverse_unit)
{
    const i16x a = integers(x, inverse_unit), h = i_sar(i_add(a, i_set(64)), 7);
    i_store_i8(high, h);
    i_store_i8(low, i_sub(a, i_shl(h, 7)));
}

ALWAYS v16 inverse_unit(int e, int bits)
{
    return v_set(power_of_two(254 + bits - e));
}

static void lay_key(char *block, int slot, const float *x, int64_t dim)
{
    const int e = exponent_of(x, dim), usable = e >= LEAST_KEY && e < LMK_NOT_FINITE;
    const v16 inverse = usable ? inverse_unit(e, LMK_KEY_BITS) : v_set(0.0f), zero = v_set(0.0f);
    char *line = block + lmk_key_at(dim, slot, 0);
    block[slot] = (char)(usable || e == LMK_NOT_FINITE ? e : 127);
    for (int64_t i = 0; i < dim; i += 4 * LANES) {
        int8_t high[4 * LANES], low[4 * LANES];
        const int64_t n = lmk_min(4 * LANES, dim - i);
        for (int64_t j = 0; j < n; j += LANES) {
            const v16 part = n - j < LANES ? v_load_part(x + i + j, (int)(n - j), 0.0f) : v_load(x + i + j);
            split_key(high + j, low + j, usable ? part : zero, inverse);
        }
        for (int64_t j = 0; j < n; j += 4, line += 2 * LMK_LINE) {
            memcpy(line, high + j, 4);
            memcpy(line + LMK_LINE, low + j, 4);
        }
    }
}

static void lay_value(char *block, int slot, const float *x, int64_t dim)
{
    const int e = exponent_of(x, dim), usable = e >= LEAST_VALUE && e < LMK_NOT_FINITE;
    const v16 inverse = usable ? inverse_unit(e, LMK_VALUE_BITS) : v_set(0.0f), zero = v_set(0.0f);
    const int shift = (int)(lmk_value_at(slot, 0) % 4) * 8;
    const i16x byte = i_set(0xff), others = i_set(~(0xffu << shift));
    block[slot] = (char)(usable || e == LMK_NOT_FINITE ? e : ZERO_VALUE);
    for (int64_t i = 0; i < dim; i += LANES) {
        int32_t *line = (int32_t *)(void *)(block + lmk_value_at(slot, i) / 4 * 4);
        const v16 part = dim - i < LANES ? v_load_part(x + i, (int)(dim - i), 0.0f) : v_load(x + i);
        const i16x a = integers(usable ? part : zero, inverse), h = i_sar(i_add(a, i_set(128)), 8);
        i_store(line, i_or(i_and(i_load(line), others), i_left(i_and(h, byte), shift)));
        line += LMK_LINE / 4;
        i_store(line, i_or(i_and(i_load(line), others), i_left(i_and(a, byte), shift)));
    }
}
