/* expand.h: the common quantised types to float32 over the 16-lane vector, for the levels that have one in hardware.
 *
 * The same operations in the same order as dequant.c, which defines the types and serves all others (and the reference
 * level, so that comparing levels compares the two). b is one block in the file, y its elements.
 */

/* 16 fields of 4 bits: byte i of q, shifted right */
ALWAYS i16x e_nibbles(const uint8_t *q, int shift)
{
    return i_and(i_right(i_load_u8(q), shift), i_set(15));
}

/* 16 fields of `bits` bits, moved to where they belong in the element */
ALWAYS i16x e_field(const uint8_t *q, int shift, uint32_t bits, int to)
{
    return i_left(i_and(i_right(i_load_u8(q), shift), i_set((1u << bits) - 1)), to);
}

ALWAYS v16 e_half(const uint8_t *b)
{
    uint16_t h[LANES];
    memcpy(h, b, 2);
    for (int i = 1; i < LANES; i++) h[i] = h[0];
    return v_load_f16(h);
}

static void e_q4_0(const uint8_t *b, float *y)
{
    const v16 d = e_half(b);
    for (int g = 0; g < 2; g++) v_store(y + 16 * g, v_mul(d, i_to_float(i_sub(e_nibbles(b + 2, 4 * g), i_set(8)))));
}

static void e_q4_1(const uint8_t *b, float *y)
{
    const v16 d = e_half(b), m = e_half(b + 2);
    for (int g = 0; g < 2; g++) v_store(y + 16 * g, v_add(v_mul(d, i_to_float(e_nibbles(b + 4, 4 * g))), m));
}

static void e_q8_0(const uint8_t *b, float *y)
{
    const v16 d = e_half(b);
    for (int g = 0; g < 2; g++) v_store(y + 16 * g, v_mul(d, i_to_float(i_load_i8((const int8_t *)b + 2 + 16 * g))));
}

/* The 6-bit scale and minimum of group g of Q4_K and Q5_K */
ALWAYS void e_scale_min(const uint8_t *s, int g, v16 d, v16 dmin, v16 *scale, v16 *min)
{
    const int low = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 2 & 48);
    const int high = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | (s[g] >> 2 & 48);
    *scale = v_mul(d, v_set((float)low));
    *min = v_mul(dmin, v_set((float)high));
}

static void e_q4_k(const uint8_t *b, float *y)
{
    const v16 d = e_half(b), dmin = e_half(b + 2);
    for (int g = 0; g < 8; g++) {
        const uint8_t *q = b + 16 + g / 2 * 32;
        v16 scale, min;
        e_scale_min(b + 4, g, d, dmin, &scale, &min);
        for (int i = 0; i < 32; i += 16)
            v_store(y + 32 * g + i, v_sub(v_mul(scale, i_to_float(e_nibbles(q + i, g % 2 * 4))), min));
    }
}

static void e_q5_k(const uint8_t *b, float *y)
{
    const v16 d = e_half(b), dmin = e_half(b + 2);
    for (int g = 0; g < 8; g++) {
        const uint8_t *q = b + 48 + g / 2 * 32;
        v16 scale, min;
        e_scale_min(b + 4, g, d, dmin, &scale, &min);
        for (int i = 0; i < 32; i += 16) {
            i16x v = i_add(e_nibbles(q + i, g % 2 * 4), e_field(b + 16 + i, g, 1, 4));
            v_store(y + 32 * g + i, v_sub(v_mul(scale, i_to_float(v)), min));
        }
    }
}

static void e_q6_k(const uint8_t *b, float *y)
{
    const int8_t *scales = (const int8_t *)b + 192;
    const v16 d = e_half(b + 208);
    for (int g = 0; g < 16; g++) {
        i16x low = e_nibbles(b + g / 8 * 64 + g % 4 * 16, g % 8 / 4 * 4);
        i16x high = e_field(b + 128 + g / 8 * 32 + g % 2 * 16, g % 8 / 2 * 2, 2, 4);
        v16 q = i_to_float(i_sub(i_add(low, high), i_set(32)));
        v_store(y + 16 * g, v_mul(v_mul(d, v_set((float)scales[g])), q));
    }
}

#ifdef LOOKS_UP
#include "expand_grids.h"
#endif

/* 1 when the type is one of these, else 0 and nothing is done. */
static int expand(int32_t type, const uint8_t *b, float *y, int64_t n)
{
    switch (type) {
#define EACH_BLOCK(id, name, elements, bytes)                                                     \
    case id:                                                                                      \
        for (int64_t i = 0; i < n / (elements); i++) name(b + i * (bytes), y + i * (elements));   \
        return 1;
        EACH_BLOCK(2, e_q4_0, 32, 18)
        EACH_BLOCK(3, e_q4_1, 32, 20)
        EACH_BLOCK(8, e_q8_0, 32, 34)
        EACH_BLOCK(12, e_q4_k, 256, 144)
        EACH_BLOCK(13, e_q5_k, 256, 176)
        EACH_BLOCK(14, e_q6_k, 256, 210)
#ifdef LOOKS_UP
        EACH_BLOCK(10, e_q2_k, 256, 84)
        EACH_BLOCK(11, e_q3_k, 256, 110)
        EACH_BLOCK(16, e_iq2_xxs, 256, 66)
        EACH_BLOCK(17, e_iq2_xs, 256, 74)
        EACH_BLOCK(18, e_iq3_xxs, 256, 98)
        EACH_BLOCK(19, e_iq1_s, 256, 50)
        EACH_BLOCK(21, e_iq3_s, 256, 110)
        EACH_BLOCK(22, e_iq2_s, 256, 82)
        EACH_BLOCK(29, e_iq1_m, 256, 56)
#endif
#undef EACH_BLOCK
    }
    return 0;
}
