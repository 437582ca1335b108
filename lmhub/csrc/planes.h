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

/* Writes the exponent of a vector. Returns it, or 0 where all integers are zero. */
ALWAYS int lay_exponent(char *exponent, const float *x, int64_t dim, const int keys)
{
    const int e = exponent_of(x, dim), usable = e >= (keys ? LEAST_KEY : LEAST_VALUE) && e < LMK_NOT_FINITE;
    *exponent = (char)(usable || e == LMK_NOT_FINITE ? e : keys ? 127 : ZERO_VALUE);
    return usable ? e : 0;
}

/* n elements at x, LANES at most; zeros behind them */
ALWAYS v16 elements(const float *x, int64_t n)
{
    return n < LANES ? v_load_part(x, (int)n, 0.0f) : v_load(x);
}

static void lay_key(char *block, int slot, const float *x, int64_t dim)
{
    const int e = lay_exponent(block + slot, x, dim, 1);
    const v16 inverse = e ? inverse_unit(e, LMK_KEY_BITS) : v_set(0.0f), zero = v_set(0.0f);
    char *line = block + lmk_key_at(dim, slot, 0);
    for (int64_t i = 0; i < dim; i += 4 * LANES) {
        int8_t high[4 * LANES], low[4 * LANES];
        const int64_t n = lmk_min(4 * LANES, dim - i);
        for (int64_t j = 0; j < n; j += LANES) {
            const v16 part = elements(x + i + j, n - j);
            split_key(high + j, low + j, e ? part : zero, inverse);
        }
        for (int64_t j = 0; j < n; j += 4, line += 2 * LMK_LINE) {
            memcpy(line, high + j, 4);
            memcpy(line + LMK_LINE, low + j, 4);
        }
    }
}

static void lay_value(char *block, int slot, const float *x, int64_t dim)
{
    const int e = lay_exponent(block + slot, x, dim, 0);
    const v16 inverse = e ? inverse_unit(e, LMK_VALUE_BITS) : v_set(0.0f), zero = v_set(0.0f);
    const int shift = (int)(lmk_value_at(slot, 0) % 4) * 8;
    const i16x byte = i_set(0xff), others = i_set(~(0xffu << shift));
    for (int64_t i = 0; i < dim; i += LANES) {
        int32_t *line = (int32_t *)(void *)(block + lmk_value_at(slot, i) / 4 * 4);
        const v16 part = elements(x + i, dim - i);
        const i16x a = integers(e ? part : zero, inverse), h = i_sar(i_add(a, i_set(128)), 8);
        i_store(line, i_or(i_and(i_load(line), others), i_left(i_and(h, byte), shift)));
        line += LMK_LINE / 4;
        i_store(line, i_or(i_and(i_load(line), others), i_left(i_and(a, byte), shift)));
    }
}

/* ---- many vectors at once, whole lines ---- */

/* From a line that is written to one that will be: 32 pairs on (16 keys of 128 dimensions), and the next position's */
#define KEYS_AHEAD (32 * 2 * LMK_LINE / 4)
#define VALUES_AHEAD (2 * LMK_LINE / 4)

ALWAYS void fetch_pair(const int32_t *line)
{
    __builtin_prefetch(line, 1);
    __builtin_prefetch(line + LMK_LINE / 4, 1);
}

/* The integers of a and, in the upper halves, of b: 16 bits each, as ROUNDER_BITS end with 16 zeros */
ALWAYS i16x two_integers(v16 a, v16 b, v16 inverse_a, v16 inverse_b)
{
    const v16 rounder = v_set(ROUNDER);
    return w_join(v_bits(v_fma(a, inverse_a, rounder)), v_bits(v_fma(b, inverse_b, rounder)));
}

/* The low, or the high, bytes of 0 and 2, which are in `even`, and of 1 and 3: in the order of their numbers */
ALWAYS i16x low_bytes(i16x even, i16x odd) { return i_or(i_and(even, w_set(0xff)), w_shl(odd, 8)); }
ALWAYS i16x high_bytes(i16x even, i16x odd) { return i_or(w_shr(even, 8), i_and(odd, w_set(0xff00))); }

static void lay_keys(char *block, int first, const float *x, int64_t ldx, int64_t dim)
{
    float inverses[LANES];
    int usable = 1;
    for (int j = 0; j < LANES; j++) {
        const int e = lay_exponent(block + first + j, x + j * ldx, dim, 1);
        inverses[j] = power_of_two(254 + LMK_KEY_BITS - (int)lmk_max(e, LEAST_KEY));
        usable &= e > 0;
    }
    if (!usable) {                                  /* rare; and NaN times zero would be NaN */
        for (int j = 0; j < LANES; j++) lay_key(block, first + j, x + j * ldx, dim);
        return;
    }
    const v16 inverse = v_load(inverses);
    const i16x half = w_set(64), rest = w_set(127);
    int32_t *line = (int32_t *)(void *)(block + lmk_key_at(dim, first, 0));
    for (int64_t i = 0; i < dim; i += LANES) {
        v16 a[LANES];              /* one for each key, and then for each dimension */
        for (int j = 0; j < LANES; j++) a[j] = elements(x + j * ldx + i, dim - i);
        v_transpose(a);
        for (int j = 0; j < LANES && i + j < dim; j += 4, line += 2 * LMK_LINE / 4) {
            const i16x even = w_add(two_integers(a[j], a[j + 2], inverse, inverse), half);
            const i16x odd = w_add(two_integers(a[j + 1], a[j + 3], inverse, inverse), half);
            fetch_pair(line + KEYS_AHEAD);
            i_store(line, high_bytes(w_add(even, even), w_add(odd, odd)));
            i_store(line + LMK_LINE / 4, low_bytes(w_sub(i_and(even, rest), half), w_sub(i_and(odd, rest), half)));
        }
    }
}

/* Positions j, j + 32, j + 16 and j + 48: their bytes share lines. Bytes of `others` stay as they are. */
ALWAYS void lay_four_values(char *block, int j, const float *const *row, const v16 *inverse, int64_t dim, uint32_t others)
{
    const i16x half = w_set(128);
    for (int64_t i = 0; i < dim; i += LANES) {
        int32_t *line = (int32_t *)(void *)(block + lmk_value_at(j, i));
        v16 a[4];
        for (int b = 0; b < 4; b++) a[b] = elements(row[b] + i, dim - i);
        const i16x even = two_integers(a[0], a[2], inverse[0], inverse[2]);
        const i16x odd = two_integers(a[1], a[3], inverse[1], inverse[3]);
        i16x high = high_bytes(w_add(even, half), w_add(odd, half)), low = low_bytes(even, odd);
        if (others) {
            const i16x stay = i_set(others), go = i_set(~others);
            high = i_or(i_and(high, go), i_and(i_load(line), stay));
            low = i_or(i_and(low, go), i_and(i_load(line + LMK_LINE / 4), stay));
        }
        fetch_pair(line + VALUES_AHEAD);
        i_store(line, high);
        i_store(line + LMK_LINE / 4, low);
    }
}

static void lay_values(char *block, int first, int end, const float *x, int64_t ldx, int64_t dim)
{
    for (int j = 0; j < LANES; j++) {               /* where one of the four is not new, another stands in for it */
        const int any = first + ((j - first) & (LANES - 1));
        const float *row[4];
        v16 inverse[4];
        uint32_t others = 0;
        int usable = 1;
        for (int slot = j; slot < LMK_TILE; slot += LANES) {
            const int b = (int)(lmk_value_at(slot, 0) % 4), is_new = slot >= first && slot < end, at = is_new ? slot : any;
            row[b] = x + (at - first) * ldx;
            const int e = lay_exponent(block + at, row[b], dim, 0);
            inverse[b] = inverse_unit((int)lmk_max(e, LEAST_VALUE), LMK_VALUE_BITS);
            usable &= e > 0;
            others |= is_new ? 0 : 0xffu << 8 * b;
        }
        if (usable && !others) lay_four_values(block, j, row, inverse, dim, 0);
        else if (usable) lay_four_values(block, j, row, inverse, dim, others);
        else
            for (int slot = any; slot < end; slot += LANES) lay_value(block, slot, x + (slot - first) * ldx, dim);
    }
}
