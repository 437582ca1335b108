/* expand_grids.h: types of up to three bits to float32, for the levels that look values up within a vector (LOOKS_UP).
 *
 * Few bits means few values: an element is a place in a table of four or eight floats, made once for all elements that share a
 * scale, by the operations of dequant.c in their order. Sixteen fields are spread over the lanes by one shift and looked up by
 * one shuffle. b is one block in the file, y its elements; layouts: dequant.c. x86 only: words are read as they lie.
 */
#include "iq_grids.h"

ALWAYS uint32_t e_u16(const uint8_t *p) { uint16_t u; memcpy(&u, p, sizeof u); return u; }
ALWAYS uint32_t e_u32(const uint8_t *p) { uint32_t u; memcpy(&u, p, sizeof u); return u; }
ALWAYS uint64_t e_u64(const uint8_t *p) { uint64_t u; memcpy(&u, p, sizeof u); return u; }

/* Seven signs in each byte; the eighth makes their number even. */
ALWAYS uint32_t e_even_signs(uint32_t s)
{
    uint32_t parity = s ^ s >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return s | (parity & 0x01010101) << 7;
}

/* Four times seven bits, each to a byte */
ALWAYS uint32_t e_sevens(uint32_t u)
{
    return (u & 0x7f) | (u << 1 & 0x7f00) | (u << 2 & 0x7f0000) | (u << 3 & 0x7f000000);
}

/* ---- grids of eight elements, two to a vector ---- */

#define TIMES_4(...) __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__
static const float e_iq2_values[LANES] = { TIMES_4(8, 25, 43, 0) };

ALWAYS v16 e_iq2_scale(v16 d, i16x scale)
{
    return v_mul(v_mul(d, v_add(v_set(0.5f), i_to_float(scale))), v_set(0.25f));
}

ALWAYS v16 e_eights(const uint16_t *grid, v16 table, uint32_t i, uint32_t j)
{
    return v_pick4(table, i_fields2(grid[i] | (uint32_t)grid[j] << 16));
}

static void e_iq2_xxs(const uint8_t *b, float *y)
{
    const v16 d = e_half(b), values = v_load(e_iq2_values);
    for (const uint8_t *q = b + 2; q < b + 66; q += 8, y += 32) {
        const uint32_t rest = e_u32(q + 4), signs = e_even_signs(e_sevens(rest));
        const v16 table = v_mul(e_iq2_scale(d, i_set(rest >> 28)), values);
        v_store(y, v_signed(e_eights(lmk_iq2_xxs_grid, table, q[0], q[1]), signs));
        v_store(y + 16, v_signed(e_eights(lmk_iq2_xxs_grid, table, q[2], q[3]), signs >> 16));
    }
}

static void e_iq2_xs(const uint8_t *b, float *y)
{
    float scale[LANES];
    v_store(scale, e_iq2_scale(e_half(b), i_and(i_fields4(e_u64(b + 66)), i_set(15))));
    for (int g = 0; g < 16; g++) {
        const uint32_t q = e_u32(b + 2 + 4 * g), signs = e_even_signs((q >> 9 & 0x7f) | (q >> 17 & 0x7f00));
        const v16 table = v_mul(v_set(scale[g]), v_load(e_iq2_values));
        v_store(y + 16 * g, v_signed(e_eights(lmk_iq2_xs_grid, table, q & 511, q >> 16 & 511), signs));
    }
}

static void e_iq2_s(const uint8_t *b, float *y)
{
    float scale[LANES];
    v_store(scale, e_iq2_scale(e_half(b), i_and(i_fields4(e_u64(b + 74)), i_set(15))));
    for (int g = 0; g < 16; g++) {
        const uint32_t high = (uint32_t)b[66 + g / 2] >> g % 2 * 4;
        const uint32_t i = b[2 + 2 * g] | (high & 3) << 8, j = b[3 + 2 * g] | (high & 12) << 6;
        const v16 table = v_mul(v_set(scale[g]), v_load(e_iq2_values));
        v_store(y + 16 * g, v_signed(e_eights(lmk_iq2_s_grid, table, i, j), e_u16(b + 34 + 2 * g)));
    }
}

/* With the deltas of two points added, which is exact; bits 0 and 1 of the place are set where the first, the second is negative */
#define PLUS(delta) -1 + delta, delta, 1 + delta, 0, -1 + delta, delta, 1 + delta, 0
static const float e_iq1_values[4][LANES] = {
    { PLUS(0.125f), PLUS(0.125f) }, { PLUS(-0.125f), PLUS(0.125f) },
    { PLUS(0.125f), PLUS(-0.125f) }, { PLUS(-0.125f), PLUS(-0.125f) },
};

ALWAYS v16 e_iq1_scale(v16 d, i16x scale) { return v_mul(d, i_to_float(i_add(i_add(scale, scale), i_set(1)))); }

static void e_iq1_s(const uint8_t *b, float *y)
{
    const v16 d = e_half(b);
    for (int g = 0; g < 8; g++, y += 32) {
        const uint8_t *q = b + 2 + 4 * g;
        const uint32_t high = e_u16(b + 34 + 2 * g);
        const v16 table = v_mul(e_iq1_scale(d, i_set(high >> 12 & 7)), v_load(e_iq1_values[(high >> 15) * 3]));
        v_store(y, e_eights(lmk_iq1_s_grid, table, q[0] | (high << 8 & 0x700), q[1] | (high << 5 & 0x700)));
        v_store(y + 16, e_eights(lmk_iq1_s_grid, table, q[2] | (high << 2 & 0x700), q[3] | (high >> 1 & 0x700)));
    }
}

static void e_iq1_m(const uint8_t *b, float *y)
{
    const uint64_t s = e_u64(b + 48), threes = 0x0007000700070007;
    const uint64_t fours = (s & threes) | (s << 1 & threes << 4) | (s << 2 & threes << 8) | (s << 3 & threes << 12);
    const uint16_t half = (s >> 12 & 0xf) | (s >> 24 & 0xf0) | (s >> 36 & 0xf00) | (s >> 48 & 0xf000);
    float scale[LANES];
    v_store(scale, e_iq1_scale(e_half((const uint8_t *)&half), i_and(i_fields4(fours), i_set(7))));
    for (int g = 0; g < 16; g++) {
        const uint32_t high = b[32 + g], i = b[2 * g] | (high & 7) << 8, j = b[2 * g + 1] | (high << 4 & 0x700);
        const v16 table = v_mul(v_set(scale[g]), v_load(e_iq1_values[(high >> 3 & 1) | (high >> 6 & 2)]));
        v_store(y + 16 * g, e_eights(lmk_iq1_s_grid, table, i, j));
    }
}

/* ---- grids of four elements, four to a vector ---- */

static const float e_iq3_xxs_values[LANES] = { 4, 12, 20, 28, 36, 44, 52, 62, 4, 12, 20, 28, 36, 44, 52, 62 };
static const float e_iq3_s_values[LANES] = { 1, 3, 5, 7, 9, 11, 13, 15, 1, 3, 5, 7, 9, 11, 13, 15 };

/* Points q[i], each with bit i of `high` as the ninth of its index */
ALWAYS v16 e_fours(const uint16_t *grid, v16 table, const uint8_t *q, uint32_t high)
{
    uint64_t points = 0;
    for (int i = 0; i < 4; i++) points |= (uint64_t)grid[q[i] | (high >> i & 1) << 8] << 16 * i;
    return v_pick8(table, i_fields4(points));
}

static void e_iq3_xxs(const uint8_t *b, float *y)
{
    const v16 d = e_half(b);
    for (int g = 0; g < 8; g++, y += 32) {
        const uint32_t rest = e_u32(b + 66 + 4 * g), signs = e_even_signs(e_sevens(rest));
        const v16 scale = v_mul(v_mul(d, v_set(0.5f + (float)(int)(rest >> 28))), v_set(0.5f));
        const v16 table = v_mul(scale, v_load(e_iq3_xxs_values));
        for (int i = 0; i < 2; i++)
            v_store(y + 16 * i, v_signed(e_fours(lmk_iq3_xxs_grid, table, b + 2 + 8 * g + 4 * i, 0), signs >> 16 * i));
    }
}

static void e_iq3_s(const uint8_t *b, float *y)
{
    const v16 d = e_half(b);
    for (int g = 0; g < 8; g++, y += 32) {
        const uint32_t high = b[66 + g], signs = e_u32(b + 74 + 4 * g), scale = b[106 + g / 2] >> g % 2 * 4 & 15;
        const v16 table = v_mul(v_mul(d, v_set((float)(int)(1 + 2 * scale))), v_load(e_iq3_s_values));
        for (int i = 0; i < 2; i++)
            v_store(y + 16 * i,
                    v_signed(e_fours(lmk_iq3_s_grid, table, b + 2 + 8 * g + 4 * i, high >> 4 * i), signs >> 16 * i));
    }
}

/* ---- K-quants: the elements of a byte are 32 apart ---- */

static const float e_q2_values[LANES] = { TIMES_4(0, 1, 2, 3) };
static const float e_q3_values[LANES] = { -4, -3, -2, -1, 0, 1, 2, 3, -4, -3, -2, -1, 0, 1, 2, 3 };

static void e_q2_k(const uint8_t *b, float *y)
{
    float scale[LANES], min[LANES];
    v_store(scale, v_mul(e_half(b + 80), i_to_float(e_nibbles(b, 0))));
    v_store(min, v_mul(e_half(b + 82), i_to_float(e_nibbles(b, 4))));
    for (int i = 0; i < 4; i++) {
        const i16x q = i_load_u8(b + 16 + 16 * i);
        for (int j = 0; j < 4; j++) {
            const int g = i / 2 * 8 + 2 * j + i % 2;
            const v16 table = v_sub(v_mul(v_set(scale[g]), v_load(e_q2_values)), v_set(min[g]));
            v_store(y + 16 * g, v_pick4(table, i_right(q, 2 * j)));
        }
    }
}

/* The scales' low four and high two bits, eight at a time */
ALWAYS v16 e_q3_scales(const uint8_t *s, v16 d)
{
    const uint64_t low = e_u64(s), high = e_u32(s + 8), fours = 0x0f0f0f0f0f0f0f0f, twos = 0x3030303030303030;
    const uint64_t both[2] = { (low & fours) | ((high << 4 | high << 34) & twos),
                               (low >> 4 & fours) | ((high | high << 30) & twos) };
    uint8_t bytes[LANES];
    memcpy(bytes, both, sizeof bytes);
    return v_mul(d, i_to_float(i_sub(i_load_u8(bytes), i_set(32))));
}

static void e_q3_k(const uint8_t *b, float *y)
{
    float scale[LANES];
    v_store(scale, e_q3_scales(b + 96, e_half(b + 108)));
    for (int i = 0; i < 4; i++) {
        const i16x q = i_load_u8(b + 32 + 16 * i), mask = i_right(i_load_u8(b + i % 2 * 16), i / 2 * 4);
        for (int j = 0; j < 4; j++) {
            const int g = i / 2 * 8 + 2 * j + i % 2;
            const i16x high = i_left(i_and(i_right(mask, j), i_set(1)), 2);
            const v16 table = v_mul(v_set(scale[g]), v_load(e_q3_values));
            v_store(y + 16 * g, v_pick8(table, i_or(i_and(i_right(q, 2 * j), i_set(3)), high)));
        }
    }
}
