/* level_neon.c: NEON with the dot-product instructions (Armv8.2), and the level above it, which has those for 2 x 2
 * products of eight bytes (i8mm, Armv8.6) as well.
 */
#if defined(__aarch64__)
#ifdef LMK_I8MM
#pragma GCC target("arch=armv8.2-a+dotprod+i8mm")
#else
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif
#include "core.h"

#include <math.h>
#include <string.h>

#define DEQUANT_ROW lmk_dequant_row

#include "simd_neon.h"
#include "kernels.h"
#include "planes.h"
#include "attend_float.h"

#define ATTEND_PAIRS 2
#define LAYOUT(name) name##_rows
#include "attend_rows.h"
#include "attend.h"

/* The stored w + 128, less the 128: 16 bytes, 4 columns of 4 outputs */
ALWAYS int8x16_t q8_weights(const uint8_t *w)
{
    return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(w), vdupq_n_u8(128)));
}

/* dot[j]: the block times x[j], for nx rows */
ALWAYS void q8_dots(i16x *dot, const uint8_t *w, const lmk_q8_block *const *x, int64_t b, const int nx)
{
    for (int j = 0; j < nx; j++) dot[j] = i_set(0);
    for (int t = 0; t < LMK_BLOCK / 4; t++, w += 64)
        for (int j = 0; j < nx; j++) {
            int32_t x4;
            memcpy(&x4, x[j][b].q + 4 * t, 4);
            const int8x16_t xv = vreinterpretq_s8_s32(vdupq_n_s32(x4));
            EACH dot[j].q[i] = vdotq_s32(dot[j].q[i], q8_weights(w + 16 * i), xv);
        }
}

#ifdef LMK_I8MM
/* The same for pairs of rows: smmla multiplies 8 columns of two outputs with 8 of two rows. */
ALWAYS void q8_pair_dots(i16x *dot, const uint8_t *w, const lmk_q8_block *const *x, int64_t b, const int nx)
{
    int32x4_t part[4][2][2];       /* outputs 4i to 4i + 3 by twos, pairs of rows: (2 outputs, 2 rows) */
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < nx / 2; j++) part[i][0][j] = part[i][1][j] = vdupq_n_s32(0);
    for (int t = 0; t < LMK_BLOCK / 4; t += 2, w += 128) {
        int8x16_t xv[2];
        for (int j = 0; j < nx / 2; j++) xv[j] = vcombine_s8(vld1_s8(x[2 * j][b].q + 4 * t), vld1_s8(x[2 * j + 1][b].q + 4 * t));
        for (int i = 0; i < 4; i++) {
            const int32x4_t first = vreinterpretq_s32_s8(q8_weights(w + 16 * i));
            const int32x4_t second = vreinterpretq_s32_s8(q8_weights(w + 64 + 16 * i));
            const int8x16_t low = vreinterpretq_s8_s32(vzip1q_s32(first, second));
            const int8x16_t high = vreinterpretq_s8_s32(vzip2q_s32(first, second));
            for (int j = 0; j < nx / 2; j++) {
                part[i][0][j] = vmmlaq_s32(part[i][0][j], low, xv[j]);
                part[i][1][j] = vmmlaq_s32(part[i][1][j], high, xv[j]);
            }
        }
    }
    for (int j = 0; j < nx / 2; j++)
        for (int i = 0; i < 4; i++) {
            dot[2 * j].q[i] = vuzp1q_s32(part[i][0][j], part[i][1][j]);
            dot[2 * j + 1].q[i] = vuzp2q_s32(part[i][0][j], part[i][1][j]);
        }
}
#define Q8_DOTS(dot, w, x, b, nx) (nx > 1 ? q8_pair_dots(dot, w, x, b, nx) : q8_dots(dot, w, x, b, nx))
#else
#define Q8_DOTS(dot, w, x, b, nx) q8_dots(dot, w, x, b, nx)
#endif

ALWAYS void dot_q8_block(float *const *y, int64_t i0, int n_out, const uint8_t *w, const uint16_t *scales,
                         const lmk_q8_block *const *x, int64_t k, const int nx)
{
    v16 acc[4];
    for (int j = 0; j < nx; j++) acc[j] = v_set(0.0f);
    for (int64_t b = 0; b < k / LMK_BLOCK; b++, w += LMK_BLOCK * LMK_GROUP) {
        i16x dot[4];
        __builtin_prefetch(w + LMK_AHEAD);
        Q8_DOTS(dot, w, x, b, nx);
        const v16 scale = v_load_f16(scales + b * LMK_GROUP);
        for (int j = 0; j < nx; j++) acc[j] = v_fma(i_to_float(dot[j]), v_mul(scale, v_set(x[j][b].scale)), acc[j]);
    }
    for (int j = 0; j < nx; j++) v_store_part(y[j] + i0, acc[j], n_out);
}

static void dot_q8(float *const *y, int64_t i0, int n_out, const uint8_t *w, const uint16_t *scales,
                   const lmk_q8_block *const *x, int64_t n_x, int64_t k)
{
    int64_t j = 0;
    for (; j + 4 <= n_x; j += 4) dot_q8_block(y + j, i0, n_out, w, scales, x + j, k, 4);
    for (; j + 2 <= n_x; j += 2) dot_q8_block(y + j, i0, n_out, w, scales, x + j, k, 2);
    if (j < n_x) dot_q8_block(y + j, i0, n_out, w, scales, x + j, k, 1);
}

#define Q_ROWS 4
#include "codes_neon.h"
#include "quants.h"
#include "halves.h"

#ifdef LMK_I8MM
const lmk_kernels lmk_kernels_i8mm = KERNELS("i8mm", .attend = attend_rows);
#else
const lmk_kernels lmk_kernels_neon = KERNELS("neon", .attend = attend_rows);
#endif
#endif
