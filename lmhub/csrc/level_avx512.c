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
    for (int j = 0; j < nx; j++) acc[j] = v_set(0.0f);
    for (int64_t b = 0; b < k / LMK_BLOCK; b++, w += LMK_BLOCK * LMK_GROUP) {
        __m512i wv[LMK_BLOCK / 4];
        for (int t = 0; t < LMK_BLOCK / 4; t++) wv[t] = _mm512_loadu_si512(w + t * 64);
        v16 scale = v_load_f16(scales + b * LMK_GROUP);
        for (int j = 0; j < nx; j++) {
            __m512i dot = _mm512_set1_epi32(x[j][b].correction);
            for (int t = 0; t < LMK_BLOCK / 4; t++) {
                int32_t x4;
                memcpy(&x4, x[j][b].q + t * 4, 4);
                dot = _mm512_dpbusd_epi32(dot, wv[t], _mm512_set1_epi32(x4));
                if (ahead && j == 0) LMK_FETCH(dot, w + t * 64 + LMK_AHEAD);
            }
            if (ahead && j == 0) LMK_FETCH(dot, (const uint8_t *)(scales + b * LMK_GROUP) + LMK_AHEAD);
            acc[j] = v_fma(_mm512_cvtepi32_ps(dot), v_mul(scale, v_set(x[j][b].scale)), acc[j]);
        }
    }
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

/* A tile wants codes with their sign: w, not w + 128. */
void lmk_expand_signed_avx512(int32_t type, uint8_t *panel, const uint8_t *group, int64_t k)
{
    const __m512i top = _mm512_set1_epi8((char)128);
    if (type == LMK_Q8_0) {
        const uint16_t *scales = (const uint16_t *)(const void *)(group + k * LMK_GROUP);
        from_f16(lmk_panel_scales(panel, k), scales, k / LMK_BLOCK * LMK_GROUP);
    } else {
#define EXPAND(type) q_expand(type, panel, group, k)
        Q_EACH_TYPE(EXPAND)
#undef EXPAND
        group = panel;
    }
    if (!lmk_form_of(type).offset) return;
    for (int64_t i = 0; i < k * LMK_GROUP; i += 64)
        _mm512_storeu_si512(panel + i, _mm512_xor_si512(_mm512_loadu_si512(group + i), top));
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
