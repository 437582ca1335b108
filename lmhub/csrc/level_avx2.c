/* level_avx2.c: AVX2 + FMA + F16C. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#include "core.h"

#include <math.h>
#include <string.h>

#define LMK_SUFFIX(name) name##_avx2
#include "dequant.c"
#define DEQUANT_ROW lmk_dequant_row_avx2

#include "simd_avx2.h"
#include "kernels.h"
#include "planes.h"
#include "attend_float.h"

#define ATTEND_PAIRS 2
#define ATTEND_WIDE
#define LAYOUT(name) name##_rows
#include "attend_rows.h"
#include "attend.h"

/* |w| <= 128 and |x| <= 127, so the pairs that maddubs adds stay within 16 bits: nothing saturates, the sum is exact. */
ALWAYS __m256i dot_4(__m256i sum, __m256i w, __m256i w_abs, int32_t x4)
{
    __m256i x = _mm256_sign_epi8(_mm256_set1_epi32(x4), w);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(w_abs, x), _mm256_set1_epi16(1)));
}

ALWAYS void dot_q8_block(float *const *y, int64_t i0, int n_out, const uint8_t *w, const uint16_t *scales,
                         const lmk_q8_block *const *x, int64_t k, const int nx, const int ahead)
{
    const __m256i offset = _mm256_set1_epi8(-128);
    v16 acc[4];
    for (int j = 0; j < nx; j++) acc[j] = v_set(0.0f);
    for (int64_t b = 0; b < k / LMK_BLOCK; b++, w += LMK_BLOCK * LMK_GROUP) {
        __m256i lo[4], hi[4];
        for (int j = 0; j < nx; j++) lo[j] = hi[j] = _mm256_setzero_si256();
        for (int t = 0; t < LMK_BLOCK / 4; t++) {
            __m256i w0 = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(w + t * 64)), offset);
            __m256i w1 = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(w + t * 64 + 32)), offset);
            __m256i w0_abs = _mm256_abs_epi8(w0), w1_abs = _mm256_abs_epi8(w1);
            for (int j = 0; j < nx; j++) {
                int32_t x4;
                memcpy(&x4, x[j][b].q + t * 4, 4);
                lo[j] = dot_4(lo[j], w0, w0_abs, x4);
                hi[j] = dot_4(hi[j], w1, w1_abs, x4);
            }
            if (ahead) LMK_FETCH(lo[0], w + t * 64 + LMK_AHEAD);
        }
        if (ahead) LMK_FETCH(lo[0], (const uint8_t *)(scales + b * LMK_GROUP) + LMK_AHEAD);
        v16 scale = v_load_f16(scales + b * LMK_GROUP);
        for (int j = 0; j < nx; j++) {
            v16 dot = { _mm256_cvtepi32_ps(lo[j]), _mm256_cvtepi32_ps(hi[j]) };
            acc[j] = v_fma(dot, v_mul(scale, v_set(x[j][b].scale)), acc[j]);
        }
    }
    for (int j = 0; j < nx; j++) v_store_part(y[j] + i0, acc[j], n_out);
}

static void dot_q8(float *const *y, int64_t i0, int n_out, const uint8_t *w, const uint16_t *scales,
                   const lmk_q8_block *const *x, int64_t n_x, int64_t k)
{
    int64_t j = 0;
    if (n_x >= 4) dot_q8_block(y, i0, n_out, w, scales, x, k, 4, 1), j = 4;
    for (; j + 4 <= n_x; j += 4) dot_q8_block(y + j, i0, n_out, w, scales, x + j, k, 4, 0);
    if (j + 2 <= n_x) dot_q8_block(y + j, i0, n_out, w, scales, x + j, k, 2, 1), j += 2;
    if (j < n_x) dot_q8_block(y + j, i0, n_out, w, scales, x + j, k, 1, 1);
}

#define Q_ROWS 4
#include "codes_avx2.h"
#include "quants.h"
#include "halves.h"

const lmk_kernels lmk_kernels_avx2 = KERNELS("avx2", .attend = attend_rows);
#endif
