/* level_ref.c: the scalar reference level. Runs anywhere; every other level must give its bits. */
#include "core.h"

#include <math.h>
#include <string.h>

#define DEQUANT_ROW lmk_dequant_row

#include "simd_ref.h"
#include "kernels.h"
#include "planes.h"
#include "attend_float.h"

#define ATTEND_PAIRS 2
#define LAYOUT(name) name##_rows
#include "attend_rows.h"
#include "attend.h"

static void dot_q8(float *const *y, int64_t i0, int n_out, const uint8_t *w, const uint16_t *scales,
                   const lmk_q8_block *const *x, int64_t n_x, int64_t k)
{
    for (int64_t j = 0; j < n_x; j++)
        for (int i = 0; i < n_out; i++) {
            float acc = 0.0f;
            for (int64_t b = 0; b < k / LMK_BLOCK; b++) {
                const uint8_t *wb = w + b * LMK_BLOCK * LMK_GROUP;
                const lmk_q8_block *xb = &x[j][b];
                int32_t dot = xb->correction;
                for (int t = 0; t < LMK_BLOCK; t++) dot += wb[t / 4 * 64 + i * 4 + t % 4] * xb->q[t];
                acc = fmaf((float)dot, half_to_float(scales[b * LMK_GROUP + i]) * xb->scale, acc);
            }
            y[j][i0 + i] = acc;
        }
}

#define Q_ROWS 2
#define Q_PLAIN
#include "codes_ref.h"
#include "quants.h"
#include "halves.h"

const lmk_kernels lmk_kernels_ref = KERNELS("ref", .attend = attend_rows);
