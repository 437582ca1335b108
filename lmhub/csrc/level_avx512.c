/* level_avx512.c: AVX-512 F, BW, VL, DQ and VNNI. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
#include "core.h"

#include <math.h>
#include <string.h>

#define LMK_SUFFIX(name) name##_avx512
#include "dequant.c"
#define DEQUANT_ROW lmk_dequant_row_avx512

#include "simd_avx512.h"
#include "kernels.h"
#include "planes.h"
#include "attend_float.h"

#define ATTEND_BYTES
#define ATTEND_PAIRS 4
#define LAYOUT(name) name##_rows
#include "attend_rows.h"
#include "attend.h"

#undef LAYOUT
#define ATTEND_TILES 16            /* pairs from which on tiles pay */
#define LAYOUT(name) name##_tiles
#include "attend_tiles.h"
#include "attend.h"

ALWAYS void dot_q8_block(float *const *y, int64_t i0, int n_out, const uint8_t *w, const uint16_t *scales,
                         const lmk_q8_block *const *x, int64_t k, const int nx, const int ahead)
{
    v16 acc[8];
#pragma GCC unroll 8
    for (int j = 0; j < nx; j++) acc[j] = v_set(0.0f);
    for (int64_t b = 0; b < k / LMK_BLOCK; b++, w += LMK_BLOCK * LMK_GROUP) {
        __m512i wv[LMK_BLOCK / 4];
        v16 scale = v_load_f16(scales + b * LMK_GROUP);
#pragma GCC unroll 8
        for (int j = 0; j < nx; j++) {
            __m512i dot = _mm512_set1_epi32(x[j][b].correction);
#pragma GCC unroll 8
            for (int t = 0; t < LMK_BLOCK / 4; t++) {
                int32_t x4;
                memcpy(&x4, x[j][b].q + t * 4, 4);
                if (j == 0) wv[t] = _mm512_loadu_si512(w + t * 64);
                dot = _mm512_dpbusd_epi32(dot, wv[t], _mm512_set1_epi32(x4));
                const int n = j * (LMK_BLOCK / 4) + t;     /* of nx times 8 products; the requests come evenly between them */
                if (ahead && n % nx == 0) LMK_FETCH(dot, w + n / nx * 64 + LMK_AHEAD);
            }
            if (ahead && j == nx - 1) LMK_FETCH(dot, (const uint8_t *)(scales + b * LMK_GROUP) + LMK_AHEAD);
            acc[j] = v_fma(_mm512_cvtepi32_ps(dot), v_mul(scale, v_set(x[j][b].scale)), acc[j]);
        }
    }
#pragma GCC unroll 8
    for (int j = 0; j < nx; j++) v_store_part(y[j] + i0, acc[j], n_out);
}

static void dot_q8(float *const *y, int64_t i0, int n_out, const uint8_t *w, const uint16_t *scales,
                   const lmk_q8_block *const *x, int64_t n_x, int64_t k)
{
    int64_t j = 0;
    if (n_x >= 8) dot_q8_block(y, i0, n_out, w, scales, x, k, 8, 1), j = 8;
    for (; j + 8 <= n_x; j += 8) dot_q8_block(y + j, i0, n_out, w, scales, x + j, k, 8, 0);
    for (; j + 4 <= n_x; j += 4) dot_q8_block(y + j, i0, n_out, w, scales, x + j, k, 4, 1);
    for (; j + 2 <= n_x; j += 2) dot_q8_block(y + j, i0, n_out, w, scales, x + j, k, 2, 1);
    if (j < n_x) dot_q8_block(y + j, i0, n_out, w, scales, x + j, k, 1, 1);
}

#define Q_ROWS 8
#include "codes_avx512.h"
#include "quants.h"
#include "halves.h"

void lmk_expand_signed_avx512(int32_t type, uint8_t *codes, float *scales, float *mins, const uint8_t *group, int64_t k,
                              int64_t first, int64_t n)
{
    const __m512i top = _mm512_set1_epi8((char)128);
    const uint8_t *from = codes;
    if (type == LMK_Q8_0) {
        from = group + first * LMK_BLOCK * LMK_GROUP;
        from_f16(scales, (const uint16_t *)(const void *)(group + k * LMK_GROUP) + first * LMK_GROUP, n * LMK_GROUP);
    } else {
#define EXPAND(type) q_expand(type, codes, scales, NULL, mins, group, k, first, n)
        Q_EACH_BLOCK_TYPE(EXPAND)
#undef EXPAND
    }
    if (!lmk_form_of(type).offset) return;
    for (int64_t i = 0; i < n * LMK_BLOCK * LMK_GROUP; i += 64)
        _mm512_storeu_si512(codes + i, _mm512_xor_si512(_mm512_loadu_si512(from + i), top));
}

/* Codes times factors as two planes, four codes of each of the 16 rows; `offset` is what codes are less by. */
ALWAYS void to_planes(uint8_t *high, uint8_t *low, __m512i codes, __m512i factors, const int offset)
{
    const __m512i even = _mm512_set1_epi16(0xff), each = _mm512_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0,
        0x0c0c0c0c, 0x08080808, 0x04040404, 0, 0x0c0c0c0c, 0x08080808, 0x04040404, 0, 0x0c0c0c0c, 0x08080808, 0x04040404, 0);
    const __m512i f = _mm512_shuffle_epi8(factors, each);              /* a row's, for each of its codes */
    __m512i p = _mm512_maddubs_epi16(_mm512_and_si512(codes, even), f);
    __m512i q = _mm512_maddubs_epi16(_mm512_andnot_si512(even, codes), f);
    if (offset) {
        const __m512i less = _mm512_maddubs_epi16(_mm512_set1_epi16((short)offset), f);
        p = _mm512_sub_epi16(p, less);
        q = _mm512_sub_epi16(q, less);
    }
    b_store(high, _mm512_ternarylogic_epi32(even, _mm512_srli_epi16(p, 6), _mm512_slli_epi16(q, 2), 0xca));
    b_store(low, b_and(_mm512_ternarylogic_epi32(even, p, _mm512_slli_epi16(q, 8), 0xca), 63));
}

ALWAYS void q_planes(const int32_t type, uint8_t *planes, float *scale, float *min, const uint8_t *group, int64_t k,
                     int64_t first, int64_t n)
{
    const lmk_form f = lmk_form_of(type);
    const int offset = !f.offset ? 0 : f.table ? 128 : 1 << (f.bits - 1);
    const uint8_t *unit = group + lmk_code_bytes(f, k) + first / 8 * f.unit_bytes;
    group += first * 64 * f.bits;
    for (int64_t b = 0; b < n; scale += 16, min += 8 * 16, unit += f.unit_bytes) {
        int32_t factor[16 * 16];
        q_scales(type, unit, scale, factor, min);
        for (int i = 0; i < 8; i++, b++, group += 64 * f.bits) {
            uint8_t *to = planes + b / 2 * 2048 + b % 2 * 512;
            b64 codes[8];
            q_codes(type, group, codes);
            for (int t = 0; t < 8; t++)
                to_planes(to + 64 * t, to + 1024 + 64 * t, codes[t], i_load(factor + 16 * (i * f.steps + t * f.steps / 8)), offset);
        }
    }
}

void lmk_expand_planes_avx512(int32_t type, uint8_t *planes, float *scales, float *mins, const uint8_t *group, int64_t k,
                              int64_t first, int64_t n)
{
#define EXPAND(type) q_planes(type, planes, scales, mins, group, k, first, n)
    Q_EACH_QUAD_TYPE(EXPAND)
#undef EXPAND
}

/* A row of x as its row of the tiles of a strip: for each block 32 high parts, then 32 low ones */
static float split_tiles(uint16_t *tiles, const float *x, int64_t k)
{
    float inverse;
    const float unit = h_unit(x, k, &inverse);
    const v16 by = v_set(inverse);
    for (int64_t i = 0; i < lmk_half_blocks(k) * LMK_BLOCK; i += LANES) {
        uint16_t *to = tiles + i / LMK_BLOCK * LMK_HALF_TILES + i % LMK_BLOCK;
        v16 high = v_set(0.0f), low = high;
        if (unit > 0.0f && i < k) h_split(v_load_part(x + i, (int)lmk_min(LANES, k - i), 0.0f), by, &high, &low);
        _mm256_storeu_si256((void *)to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(v_bits(high), 16)));
        _mm256_storeu_si256((void *)(to + LMK_HALF_TILES / 2), _mm512_cvtepi32_epi16(_mm512_srli_epi32(v_bits(low), 16)));
    }
    return unit;
}

/* Tiles are for many rows: they take as long for few. */
static void attend_amx(const lmk_attend_task *t)
{
    if ((int64_t)t->n_rows * t->heads < ATTEND_TILES) {
        attend_rows(t);
        return;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(all_tiles));
    attend_tiles(t);
    __asm__ volatile("tilerelease" ::);
}

const lmk_kernels lmk_kernels_avx512 = KERNELS("avx512", .attend = attend_rows);
const lmk_kernels lmk_kernels_amx = KERNELS("amx", .attend = attend_amx, .strip = lmk_strip_amx,
                                                .dot_strips = lmk_dot_strips_amx, .split_tiles = split_tiles,
                                                .dot_tiles = lmk_dot_tiles_amx);
#endif
