/* packed.c: from a file's blocks to the packed layouts that packed.h describes, in parallel, one group of rows at a time.
 *
 * The same lines are compiled for AVX2 as well where there is such a thing: moving bits about gives the same bits.
 */
#include "packed.h"

#include <string.h>

#define ALWAYS static inline __attribute__((always_inline))
#define LEAST_EXPONENT 47          /* biased, of a BF16 weight that is not taken for zero: 2^-80 */
#define EACH_BYTE(byte) ((uint32_t)(byte) * 0x01010101u)

ALWAYS uint32_t word(const uint8_t *p)
{
    uint32_t w;
    memcpy(&w, p, 4);
    return w;
}

/* The low or high nibbles of four bytes */
ALWAYS uint32_t nibbles(const uint8_t *p, int high)
{
    return word(p) >> (high ? 4 : 0) & EACH_BYTE(15);
}

/* code[t]: columns 4t to 4t + 3 of the `sub`-th 32 columns of a file's block, one per byte */
ALWAYS void read_codes(int32_t type, const uint8_t *b, int sub, uint32_t *code)
{
    const uint8_t *low = b;
    switch (type) {
    case LMK_Q4_0: case LMK_IQ4_NL: low = b + 2; break;
    case LMK_Q4_1: low = b + 4; break;
    case LMK_Q5_0: low = b + 6; break;
    case LMK_Q5_1: low = b + 8; break;
    case LMK_MXFP4: low = b + 1; break;
    case LMK_IQ4_XS: low = b + 8 + 16 * sub; break;
    case LMK_Q8_0:
        for (int t = 0; t < 8; t++) code[t] = word(b + 2 + 4 * t) ^ EACH_BYTE(128);
        return;
    case LMK_Q4_K:
        for (int t = 0; t < 8; t++) code[t] = nibbles(b + 16 + sub / 2 * 32 + 4 * t, sub % 2);
        return;
    case LMK_Q5_K:
        for (int t = 0; t < 8; t++)
            code[t] = nibbles(b + 48 + sub / 2 * 32 + 4 * t, sub % 2) | (word(b + 16 + 4 * t) >> sub & EACH_BYTE(1)) << 4;
        return;
    case LMK_Q6_K:
        for (int t = 0; t < 8; t++)
            code[t] = nibbles(b + sub / 4 * 64 + sub % 2 * 32 + 4 * t, sub % 4 / 2)
                    | (word(b + 128 + sub / 4 * 32 + 4 * t) >> sub % 4 * 2 & EACH_BYTE(3)) << 4;
        return;
    }
    for (int t = 0; t < 8; t++) code[t] = nibbles(low + t % 4 * 4, t / 4);
    if (type == LMK_Q5_0 || type == LMK_Q5_1) {
        const uint32_t fifth = word(low - 4);
        for (int t = 0; t < 8; t++) code[t] |= ((fifth >> 4 * t & 15) * 0x00204081u & EACH_BYTE(1)) << 4;
    }
}

/* dst: this row's first word in a block's codes */
ALWAYS void write_codes(int bits, uint8_t *dst, const uint32_t *code)
{
    uint32_t plane[8] = {0};
    const int n = bits == 8 ? 8 : bits;
    for (int t = 0; t < 8; t++) {
        if (bits == 8) plane[t] = code[t];
        else plane[t % 4] |= (code[t] & EACH_BYTE(15)) << t / 4 * 4;
        if (bits == 5) plane[4] |= (code[t] >> 4 & EACH_BYTE(1)) << t;
        if (bits == 6) plane[4 + t / 4] |= (code[t] >> 4 & EACH_BYTE(3)) << t % 4 * 2;
    }
    for (int t = 0; t < n; t++) memcpy(dst + t * 64, &plane[t], 4);
}

/* The 6-bit scale and minimum of block `sub` in the 12 bytes that Q4_K and Q5_K share */
ALWAYS void scale_and_min(const uint8_t *s, int sub, uint32_t *scale, uint32_t *min)
{
    *scale = sub < 4 ? s[sub] & 63u : (s[sub + 4] & 15u) | (s[sub - 4] >> 2 & 48u);
    *min = sub < 4 ? s[sub + 4] & 63u : s[sub + 4] >> 4 | (s[sub] >> 2 & 48u);
}

/* The scales of a file's block as row i of a unit's record */
ALWAYS void write_scales(int32_t type, const uint8_t *b, uint8_t *unit, int i)
{
    uint8_t *d = unit + 2 * i, *rest = unit + 32 + i;
    switch (type) {
    case LMK_MXFP4:
        unit[i] = b[0];
        return;
    case LMK_Q4_1: case LMK_Q5_1:
        memcpy(d + 32, b + 2, 2);
        break;
    case LMK_Q4_K: case LMK_Q5_K:
        memcpy(d + 32, b + 2, 2);
        for (int sub = 0; sub < 8; sub++) {
            uint32_t scale, min;
            scale_and_min(b + 4, sub, &scale, &min);
            rest[32 + 16 * sub] = (uint8_t)((scale & 15) | min << 4);
            uint8_t *high = rest + 160 + sub % 4 * 16;
            *high = (uint8_t)((sub < 4 ? 0 : *high) | (scale >> 4 | min >> 4 << 2) << sub / 4 * 4);
        }
        break;
    case LMK_Q6_K:
        for (int s = 0; s < 16; s++) rest[16 * s] = b[192 + s];
        memcpy(d, b + 208, 2);
        return;
    case LMK_IQ4_XS:
        for (int s = 0; s < 4; s++) {
            const int low = b[4 + s / 2] >> s % 2 * 4 & 15, high = b[6 + s / 2] >> s % 2 * 4 & 15;
            rest[16 * s] = (uint8_t)(low | high << 4);
        }
        rest[64] = b[2];
        rest[80] = b[3];
        break;
    }
    memcpy(d, b, 2);
}

/* `count` rows at src as one group at dst */
ALWAYS void pack_rows(const int32_t type, uint8_t *dst, const uint8_t *src, int64_t count, int64_t cols)
{
    const lmk_form f = lmk_form_of(type);
    const int64_t n_units = cols / f.unit, bytes = lmk_type_bytes(type);
    uint8_t *scales = dst + lmk_code_bytes(f, cols);
    if (count < LMK_GROUP) memset(dst, 0, (size_t)lmk_group_bytes(f, cols));
    for (int64_t i = 0; i < count; i++)
        for (int64_t u = 0; u < n_units; u++, src += bytes) {
            write_scales(type, src, scales + u * f.unit_bytes, (int)i);
            for (int sub = 0; sub < f.unit / LMK_BLOCK; sub++) {
                uint32_t code[8];
                read_codes(type, src, sub, code);
                write_codes(f.bits, dst + (u * (f.unit / LMK_BLOCK) + sub) * 64 * f.bits + i * 4, code);
            }
        }
}

/* The same of F16 or BF16 */
ALWAYS void pack_halves(const int32_t type, uint8_t *dst, const uint8_t *src, int64_t count, int64_t cols)
{
    uint16_t *to = (uint16_t *)(void *)dst;
    for (int64_t c = 0; c < cols; c += LMK_BLOCK, to += LMK_BLOCK * LMK_GROUP) {
        uint16_t block[LMK_GROUP][LMK_BLOCK] = { { 0 } };
        for (int64_t i = 0; i < count; i++)
            memcpy(block[i], src + (i * cols + c) * 2, (size_t)lmk_min(LMK_BLOCK, cols - c) * 2);
        for (int i = 0; i < LMK_GROUP && type == LMK_BF16; i++)
            for (int t = 0; t < LMK_BLOCK; t++) block[i][t] = (block[i][t] & 0x7f80) < LEAST_EXPONENT << 7 ? 0 : block[i][t];
        for (int t = 0; t < LMK_BLOCK / 2; t++)
            for (int i = 0; i < LMK_GROUP; i++) {
                uint16_t *pair = to + 2 * LMK_GROUP * t;
                pair[type == LMK_F16 ? i : 2 * i] = block[i][2 * t];
                pair[type == LMK_F16 ? LMK_GROUP + i : 2 * i + 1] = block[i][2 * t + 1];
            }
    }
}

/* A constant type is what makes it fast. */
ALWAYS void pack_type(int32_t type, uint8_t *dst, const uint8_t *src, int64_t count, int64_t cols)
{
#define CASE(type) \
    case type: pack_rows(type, dst, src, count, cols); break;
    switch (type) {
        CASE(LMK_Q4_0) CASE(LMK_Q4_1) CASE(LMK_Q5_0) CASE(LMK_Q5_1) CASE(LMK_Q8_0) CASE(LMK_Q4_K) CASE(LMK_Q5_K)
        CASE(LMK_Q6_K) CASE(LMK_IQ4_NL) CASE(LMK_IQ4_XS) CASE(LMK_MXFP4)
    case LMK_F16: pack_halves(LMK_F16, dst, src, count, cols); break;
    case LMK_BF16: pack_halves(LMK_BF16, dst, src, count, cols); break;
    }
#undef CASE
}

static void pack_plain(int32_t type, uint8_t *dst, const uint8_t *src, int64_t count, int64_t cols)
{
    pack_type(type, dst, src, count, cols);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void pack_avx2(int32_t type, uint8_t *dst, const uint8_t *src, int64_t count, int64_t cols)
{
    pack_type(type, dst, src, count, cols);
}
#define PACK (__builtin_cpu_supports("avx2") ? pack_avx2 : pack_plain)
#else
#define PACK pack_plain
#endif

void lmk_pack_groups(uint8_t *dst, const lmk_weight *w, int64_t begin, int64_t end)
{
    const int64_t groups = lmk_groups(w->rows), size = lmk_packed_group(w->type, w->cols);
    const int64_t row = w->cols / lmk_type_block(w->type) * lmk_type_bytes(w->type);
    for (int64_t g = begin; g < end; g++, dst += size) {
        const int64_t first = g % groups * LMK_GROUP;
        const uint8_t *src = (const uint8_t *)w->data + (g / groups * w->rows + first) * row;
        PACK(w->type, dst, src, lmk_min(LMK_GROUP, w->rows - first), w->cols);
    }
}

typedef struct pack_job {
    const lmk_weight *w;
    uint8_t *dst;
} pack_job;

static void pack(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const pack_job *job = arg;
    lmk_pack_groups(job->dst + begin * lmk_packed_group(job->w->type, job->w->cols), job->w, begin, end);
}

int64_t lmk_packed_bytes(int32_t type, int64_t rows, int64_t cols, int64_t n_expert)
{
    const lmk_form f = lmk_form_of(type);
    const int packable = lmk_is_half(type) || (f.bits && cols % f.unit == 0);
    if (!packable || rows < 1 || cols < 1 || n_expert < 1) return 0;
    return n_expert * lmk_groups(rows) * lmk_packed_group(type, cols);
}

int lmk_pack(const lmk_weight *w, void *dst)
{
    if (!lmk_packed_bytes(w->type, w->rows, w->cols, w->n_expert))
        return lmk_fail("Weights of type %d and %lld columns have no packed layout; use them as they are.", w->type,
                        (long long)w->cols);
    pack_job job = { w, dst };
    lmk_parallel(lmk_threads(), w->n_expert * lmk_groups(w->rows), 4, pack, &job);
    return 0;
}
