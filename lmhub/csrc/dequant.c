/* Expanding GGUF tensor types to float32, one function per type, one block at a time.
 *
 * Plain C11 without intrinsics; loops have constant trip counts so that the compiler turns them into vector code. The
 * order of the float operations is that of the `gguf` Python package (scale times sub-scale, times the integer, minus
 * the minimum), every step in float32, so that the results are equal bit for bit. Indices come from masked bit fields
 * only: no byte of a hostile file can lead outside a table. Layouts: ggml's block structs.
 *
 * b is one block in the file (unaligned, little-endian), y its elements. dequant.h: compiling this file again. */
#include "dequant.h"

#include <string.h>

#include "iq_grids.h"

#ifndef LMK_SUFFIX
#define LMK_SUFFIX(name) name

int64_t lmk_type_block(int32_t type) {
    switch (type) {
#define X(id, name, elements, bytes) case id: return elements;
        LMK_DEQUANT_TYPES(X)
#undef X
    }
    return -1;
}

int64_t lmk_type_bytes(int32_t type) {
    switch (type) {
#define X(id, name, elements, bytes) case id: return bytes;
        LMK_DEQUANT_TYPES(X)
#undef X
    }
    return -1;
}
#endif

#define FN(name) LMK_SUFFIX(lmk_dq_##name)

static inline uint32_t FN(u16)(const uint8_t *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8; }

static inline uint32_t FN(u32)(const uint8_t *p) { return FN(u16)(p) | FN(u16)(p + 2) << 16; }

static inline float FN(float)(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* IEEE half to float, exactly, without branches. A subnormal becomes the mantissa of a number just above 2^-14, which
 * is then taken away: only normal floats take part, so it holds in flush-to-zero mode as well. */
static inline float FN(half)(uint32_t h) {
    uint32_t rest = (h & 0x7fff) << 13, subnormal;
    float tiny = FN(float)(rest + (113u << 23)) - 0x1p-14f;
    memcpy(&subnormal, &tiny, 4);
    uint32_t is_subnormal = -(uint32_t)(rest < (1u << 23)), is_special = -(uint32_t)(rest >= (31u << 23));
    uint32_t normal = (rest + (112u << 23)) & ~(is_subnormal | is_special);
    uint32_t special = (rest | 0x7f800000u) & is_special;
    return FN(float)(normal | special | (subnormal & is_subnormal) | (h & 0x8000) << 16);
}

static inline float FN(half_at)(const uint8_t *p) { return FN(half)(FN(u16)(p)); }

/* ---- one element per block ---- */

static inline void FN(f32)(const uint8_t *b, float *y) { memcpy(y, b, 4); }

static inline void FN(f16)(const uint8_t *b, float *y) { *y = FN(half_at)(b); }

static inline void FN(bf16)(const uint8_t *b, float *y) { *y = FN(float)(FN(u16)(b) << 16); }

/* ---- 32 elements per block: element i in the low nibble of byte i, element i + 16 in the high one ---- */

/* half d; nibbles[16] */
static inline void FN(q4_0)(const uint8_t *b, float *y) {
    float d = FN(half_at)(b);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)((b[2 + i] & 15) - 8);
        y[i + 16] = d * (float)((b[2 + i] >> 4) - 8);
    }
}

/* half d, m; nibbles[16] */
static inline void FN(q4_1)(const uint8_t *b, float *y) {
    float d = FN(half_at)(b), m = FN(half_at)(b + 2);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)(b[4 + i] & 15) + m;
        y[i + 16] = d * (float)(b[4 + i] >> 4) + m;
    }
}

/* half d; fifth bits u32; nibbles[16] */
static inline void FN(q5_0)(const uint8_t *b, float *y) {
    float d = FN(half_at)(b);
    uint32_t high = FN(u32)(b + 2);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)((int)((b[6 + i] & 15) | (high >> i & 1) << 4) - 16);
        y[i + 16] = d * (float)((int)(b[6 + i] >> 4 | (high >> (i + 16) & 1) << 4) - 16);
    }
}

/* half d, m; fifth bits u32; nibbles[16] */
static inline void FN(q5_1)(const uint8_t *b, float *y) {
    float d = FN(half_at)(b), m = FN(half_at)(b + 2);
    uint32_t high = FN(u32)(b + 4);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)(int)((b[8 + i] & 15) | (high >> i & 1) << 4) + m;
        y[i + 16] = d * (float)(int)(b[8 + i] >> 4 | (high >> (i + 16) & 1) << 4) + m;
    }
}

/* half d; int8[32] */
static inline void FN(q8_0)(const uint8_t *b, float *y) {
    float d = FN(half_at)(b);
    for (int i = 0; i < 32; i++) y[i] = (float)(int8_t)b[2 + i] * d;
}

/* ---- K-quants: 256 elements per block, two levels of scales ---- */

/* scale and minimum nibbles[16], one per 16 elements; 2-bit codes[64]; half d, dmin */
static inline void FN(q2_k)(const uint8_t *b, float *y) {
    float d = FN(half_at)(b + 80), dmin = FN(half_at)(b + 82);
    for (int g = 0; g < 16; g++) {
        float dl = d * (float)(b[g] & 15), ml = dmin * (float)(b[g] >> 4);
        const uint8_t *q = b + 16 + g / 8 * 32 + g % 2 * 16;
        int shift = g % 8 / 2 * 2;
        for (int i = 0; i < 16; i++) y[16 * g + i] = dl * (float)(q[i] >> shift & 3) - ml;
    }
}

/* third bits[32], set means plus 0 and clear means minus 4; 2-bit codes[64]; 6-bit scales[12], one per 16; half d */
static inline void FN(q3_k)(const uint8_t *b, float *y) {
    const uint8_t *scales = b + 96;
    float d = FN(half_at)(b + 108);
    for (int g = 0; g < 16; g++) {
        int low = scales[g % 8] >> g / 8 * 4 & 15, high = scales[8 + g % 4] >> g / 4 * 2 & 3;
        float dl = d * (float)((low | high << 4) - 32);
        const uint8_t *q = b + 32 + g / 8 * 32 + g % 2 * 16, *mask = b + g % 2 * 16;
        int shift = g % 8 / 2 * 2, bit = g / 2;
        for (int i = 0; i < 16; i++) y[16 * g + i] = dl * (float)((q[i] >> shift & 3) - ((mask[i] >> bit & 1) ^ 1) * 4);
    }
}

/* The 6-bit scale and minimum of group g (0 to 7) from the 12 packed bytes that Q4_K and Q5_K share. */
static inline void FN(scale_min)(const uint8_t *s, int g, int *scale, int *min) {
    if (g < 4) {
        *scale = s[g] & 63;
        *min = s[g + 4] & 63;
    } else {
        *scale = (s[g + 4] & 15) | (s[g - 4] >> 2 & 48);
        *min = s[g + 4] >> 4 | (s[g] >> 2 & 48);
    }
}

/* half d, dmin; scales[12]; nibbles[128] */
static inline void FN(q4_k)(const uint8_t *b, float *y) {
    float d = FN(half_at)(b), dmin = FN(half_at)(b + 2);
    for (int g = 0; g < 8; g++) {
        int scale, min, shift = g % 2 * 4;
        FN(scale_min)(b + 4, g, &scale, &min);
        float dl = d * (float)scale, ml = dmin * (float)min;
        const uint8_t *q = b + 16 + g / 2 * 32;
        for (int i = 0; i < 32; i++) y[32 * g + i] = dl * (float)(q[i] >> shift & 15) - ml;
    }
}

/* half d, dmin; scales[12]; fifth bits[32]; nibbles[128] */
static inline void FN(q5_k)(const uint8_t *b, float *y) {
    float d = FN(half_at)(b), dmin = FN(half_at)(b + 2);
    const uint8_t *high = b + 16;
    for (int g = 0; g < 8; g++) {
        int scale, min, shift = g % 2 * 4;
        FN(scale_min)(b + 4, g, &scale, &min);
        float dl = d * (float)scale, ml = dmin * (float)min;
        const uint8_t *q = b + 48 + g / 2 * 32;
        for (int i = 0; i < 32; i++) y[32 * g + i] = dl * (float)((q[i] >> shift & 15) | (high[i] >> g & 1) << 4) - ml;
    }
}

/* low nibbles[128]; high 2 bits[64]; int8 scales[16], one per 16; half d */
static inline void FN(q6_k)(const uint8_t *b, float *y) {
    const int8_t *scales = (const int8_t *)b + 192;
    float d = FN(half_at)(b + 208);
    for (int g = 0; g < 16; g++) {
        float dl = d * (float)scales[g];
        const uint8_t *low = b + g / 8 * 64 + g % 4 * 16, *high = b + 128 + g / 8 * 32 + g % 2 * 16;
        int low_shift = g % 8 / 4 * 4, high_shift = g % 8 / 2 * 2;
        for (int i = 0; i < 16; i++) {
            int q = (low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4;
            y[16 * g + i] = dl * (float)(q - 32);
        }
    }
}

/* ---- IQ types: grid points and sign masks ---- */

/* Seven stored signs; the eighth makes their number even. */
static inline uint32_t FN(even_signs)(uint32_t s) {
    uint32_t parity = s ^ s >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return s | (parity & 1) << 7;
}

static inline void FN(iq2_point)(float db, uint32_t point, uint32_t signs, float *y) {
    for (int i = 0; i < 8; i++) {
        int v = (int)(point >> 2 * i & 3);
        y[i] = db * (float)(8 + 17 * v + (v >> 1)) * (float)(1 - 2 * (int)(signs >> i & 1));
    }
}

static inline void FN(iq1_point)(float dl, uint32_t point, float delta, float *y) {
    for (int i = 0; i < 8; i++) y[i] = dl * ((float)((int)(point >> 2 * i & 3) - 1) + delta);
}

/* half d; 8 times: u8 grid index[4], u32 of 4 x 7 signs and a 4-bit scale */
static inline void FN(iq2_xxs)(const uint8_t *b, float *y) {
    float d = FN(half_at)(b);
    for (int g = 0; g < 8; g++) {
        const uint8_t *index = b + 2 + 8 * g;
        uint32_t rest = FN(u32)(index + 4);
        float db = d * (0.5f + (float)(int)(rest >> 28)) * 0.25f;
        for (int i = 0; i < 4; i++)
            FN(iq2_point)(db, lmk_iq2_xxs_grid[index[i]], FN(even_signs)(rest >> 7 * i & 127), y + 32 * g + 8 * i);
    }
}

/* half d; u16[32] of a 9-bit grid index and 7 signs; scale nibbles[8], one per 16 */
static inline void FN(iq2_xs)(const uint8_t *b, float *y) {
    float d = FN(half_at)(b);
    for (int k = 0; k < 32; k++) {
        uint32_t q = FN(u16)(b + 2 + 2 * k);
        float db = d * (0.5f + (float)(b[66 + k / 4] >> k / 2 % 2 * 4 & 15)) * 0.25f;
        FN(iq2_point)(db, lmk_iq2_xs_grid[q & 511], FN(even_signs)(q >> 9), y + 8 * k);
    }
}

/* half d; low index bits[32]; signs[32]; high 2 index bits[8]; scale nibbles[8], one per 16 */
static inline void FN(iq2_s)(const uint8_t *b, float *y) {
    float d = FN(half_at)(b);
    for (int k = 0; k < 32; k++) {
        int index = b[2 + k] | (b[66 + k / 4] >> k % 4 * 2 & 3) << 8;
        float db = d * (0.5f + (float)(b[74 + k / 4] >> k / 2 % 2 * 4 & 15)) * 0.25f;
        FN(iq2_point)(db, lmk_iq2_s_grid[index], b[34 + k], y + 8 * k);
    }
}

/* half d; grid index[64], four elements each; u32[8] of 4 x 7 signs and a 4-bit scale */
static inline void FN(iq3_xxs)(const uint8_t *b, float *y) {
    float d = FN(half_at)(b);
    for (int k = 0; k < 64; k++) {
        uint32_t rest = FN(u32)(b + 66 + k / 8 * 4), point = lmk_iq3_xxs_grid[b[2 + k]];
        uint32_t signs = FN(even_signs)(rest >> k / 2 % 4 * 7 & 127) >> k % 2 * 4;
        float db = d * (0.5f + (float)(int)(rest >> 28)) * 0.5f;
        for (int i = 0; i < 4; i++) {
            int v = (int)(point >> 4 * i & 7);
            y[4 * k + i] = db * (float)(4 + 8 * v + (v == 7 ? 2 : 0)) * (float)(1 - 2 * (int)(signs >> i & 1));
        }
    }
}

/* half d; low index bits[64]; ninth bits[8]; signs[32]; scale nibbles[4], one per 32 */
static inline void FN(iq3_s)(const uint8_t *b, float *y) {
    float d = FN(half_at)(b);
    for (int k = 0; k < 64; k++) {
        uint32_t point = lmk_iq3_s_grid[b[2 + k] | (b[66 + k / 8] >> k % 8 & 1) << 8];
        uint32_t signs = (uint32_t)b[74 + k / 2] >> k % 2 * 4;
        float db = d * (float)(1 + 2 * (b[106 + k / 16] >> k / 8 % 2 * 4 & 15));
        for (int i = 0; i < 4; i++)
            y[4 * k + i] = db * (float)(int)(1 + 2 * (point >> 4 * i & 7)) * (float)(1 - 2 * (int)(signs >> i & 1));
    }
}

/* half d; low index bits[32]; u16[8] of 4 x 3 high index bits, a 3-bit scale and the sign of delta */
static inline void FN(iq1_s)(const uint8_t *b, float *y) {
    float d = FN(half_at)(b);
    for (int k = 0; k < 32; k++) {
        uint32_t high = FN(u16)(b + 34 + k / 4 * 2);
        float dl = d * (float)(int)(2 * (high >> 12 & 7) + 1), delta = high & 0x8000 ? -0.125f : 0.125f;
        FN(iq1_point)(dl, lmk_iq1_s_grid[b[2 + k] | (high >> k % 4 * 3 & 7) << 8], delta, y + 8 * k);
    }
}

/* low index bits[32]; nibbles[16] of 3 high index bits and the sign of delta; u16[4] of 4 x 3-bit scales, one per 16,
 * and in the top nibbles half d, its lowest four bits first */
static inline void FN(iq1_m)(const uint8_t *b, float *y) {
    const uint8_t *scales = b + 48;
    uint32_t bits = 0;
    for (int i = 0; i < 4; i++) bits |= FN(u16)(scales + 2 * i) >> 12 << 4 * i;
    float d = FN(half)(bits);
    for (int k = 0; k < 32; k++) {
        uint32_t scale = FN(u16)(scales + k / 8 * 2) >> k / 2 % 4 * 3 & 7, high = b[32 + k / 2] >> k % 2 * 4;
        float dl = d * (float)(int)(2 * scale + 1), delta = high & 8 ? -0.125f : 0.125f;
        FN(iq1_point)(dl, lmk_iq1_s_grid[b[k] | (high & 7) << 8], delta, y + 8 * k);
    }
}

/* ---- 4-bit codes with a table of values ---- */

static inline float FN(iq4_value)(int code) {
    static const int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return (float)values[code];
}

/* half d; nibbles[16] */
static inline void FN(iq4_nl)(const uint8_t *b, float *y) {
    float d = FN(half_at)(b);
    for (int i = 0; i < 16; i++) {
        y[i] = d * FN(iq4_value)(b[2 + i] & 15);
        y[i + 16] = d * FN(iq4_value)(b[2 + i] >> 4);
    }
}

/* half d; high 2 scale bits u16; low scale nibbles[4], one per 32; nibbles[128] */
static inline void FN(iq4_xs)(const uint8_t *b, float *y) {
    float d = FN(half_at)(b);
    uint32_t high = FN(u16)(b + 2);
    for (int g = 0; g < 8; g++) {
        int scale = (b[4 + g / 2] >> g % 2 * 4 & 15) | (int)(high >> 2 * g & 3) << 4;
        float dl = d * (float)(scale - 32);
        const uint8_t *q = b + 8 + 16 * g;
        for (int i = 0; i < 16; i++) {
            y[32 * g + i] = dl * FN(iq4_value)(q[i] & 15);
            y[32 * g + i + 16] = dl * FN(iq4_value)(q[i] >> 4);
        }
    }
}

/* E2M1, doubled so that it is whole: 0 1 2 3 4 6 8 12 and their negatives (8 is a plain zero). OCP MX formats, 5.3.3 */
static inline float FN(e2m1)(int code) {
    static const int8_t values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return (float)values[code];
}

/* E8M0 exponent, a power of two (halved here for the doubled values); nibbles[16] */
static inline void FN(mxfp4)(const uint8_t *b, float *y) {
    float d = FN(float)(b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23);
    for (int i = 0; i < 16; i++) {
        y[i] = d * FN(e2m1)(b[1 + i] & 15);
        y[i + 16] = d * FN(e2m1)(b[1 + i] >> 4);
    }
}

/* Unsigned E4M3 without infinity, halved for the doubled values; 127 is not a number and counts as zero. */
static inline float FN(ue4m3)(uint32_t x) {
    uint32_t exponent = x >> 3 & 15, mantissa = x & 7;
    if (x == 0x7f) return 0.0f;
    if (exponent == 0) return (float)(int)mantissa * 0x1p-10f;
    return FN(float)((exponent + 119) << 23 | mantissa << 20);
}

/* UE4M3 scales[4], one per 16; then per 16: nibbles[8], element i low, element i + 8 high */
static inline void FN(nvfp4)(const uint8_t *b, float *y) {
    for (int g = 0; g < 4; g++) {
        float d = FN(ue4m3)(b[g]);
        const uint8_t *q = b + 4 + 8 * g;
        for (int i = 0; i < 8; i++) {
            y[16 * g + i] = d * FN(e2m1)(q[i] & 15);
            y[16 * g + i + 8] = d * FN(e2m1)(q[i] >> 4);
        }
    }
}

/* ---- ternary and binary types ---- */

/* Digit n of a byte that holds five base-3 digits as a fraction of 256, minus one. */
static inline float FN(trit)(uint8_t byte, uint32_t power) {
    uint8_t fraction = (uint8_t)(byte * power);
    return (float)((fraction * 3 >> 8) - 1);
}

/* five digits per byte[32], then [16]; four digits per byte[4]; half d. Digit n of a run of bytes is consecutive. */
static inline void FN(tq1_0)(const uint8_t *b, float *y) {
    static const uint8_t powers[5] = {1, 3, 9, 27, 81};
    float d = FN(half_at)(b + 52);
    for (int n = 0; n < 5; n++) {
        for (int i = 0; i < 32; i++) y[32 * n + i] = d * FN(trit)(b[i], powers[n]);
        for (int i = 0; i < 16; i++) y[160 + 16 * n + i] = d * FN(trit)(b[32 + i], powers[n]);
    }
    for (int n = 0; n < 4; n++)
        for (int i = 0; i < 4; i++) y[240 + 4 * n + i] = d * FN(trit)(b[48 + i], powers[n]);
}

/* 2-bit codes[64]; half d */
static inline void FN(tq2_0)(const uint8_t *b, float *y) {
    float d = FN(half_at)(b + 64);
    for (int g = 0; g < 8; g++)
        for (int i = 0; i < 32; i++) y[32 * g + i] = d * (float)((b[g / 4 * 32 + i] >> g % 4 * 2 & 3) - 1);
}

/* half d; signs[16], a set bit is plus d and a clear one minus d, lowest bit first */
static inline void FN(q1_0)(const uint8_t *b, float *y) {
    float d = FN(half_at)(b);
    for (int i = 0; i < 128; i++) y[i] = d * (float)((b[2 + i / 8] >> i % 8 & 1) * 2 - 1);
}

/* half d; 2-bit codes[16] of consecutive elements, value code - 1 */
static inline void FN(q2_0)(const uint8_t *b, float *y) {
    float d = FN(half_at)(b);
    for (int i = 0; i < 64; i++) y[i] = d * (float)((b[2 + i / 4] >> i % 4 * 2 & 3) - 1);
}

/* The same with 128 elements to a half */
static inline void FN(pq2_0)(const uint8_t *b, float *y) {
    float d = FN(half_at)(b);
    for (int i = 0; i < 128; i++) y[i] = d * (float)((b[2 + i / 4] >> i % 4 * 2 & 3) - 1);
}

int LMK_SUFFIX(lmk_dequant_row)(int32_t type, const void *src, float *dst, int64_t n) {
    const uint8_t *b = src;
    switch (type) {
#define X(id, name, elements, bytes)                                                      \
    case id:                                                                              \
        if (n < 0 || n % elements) return -1;                                             \
        for (int64_t i = 0; i < n / elements; i++) FN(name)(b + i * bytes, dst + i * elements); \
        return 0;
        LMK_DEQUANT_TYPES(X)
#undef X
    }
    return -1;
}

#undef FN
