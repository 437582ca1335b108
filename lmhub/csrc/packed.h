/* packed.h: the packed layouts, for those who write them (packed.c) and those who read them (quants.h, level_*.c).
 *
 * A matrix is a run of groups of 16 output rows, the last one padded with zeros. A group has the bits per weight of the
 * file, in another order: first the codes of each block of 32 columns, then the scales of each unit of 32 or 256 columns;
 * its size is rounded up to 64 bytes.
 *
 * The codes of a block are eight vectors of 64 bytes, each 4 consecutive columns of each of the 16 rows, which is what
 * `vpdpbusd` multiplies. Codes of 8 bits (Q8_0, stored as w + 128) lie there as they are. Shorter ones are unsigned and
 * split: four vectors hold the low 4 bits (vector t in the low nibbles, t + 4 in the high ones), then come planes of the
 * remaining bits: the fifth bits in one vector (bit t of a byte belongs to vector t), or the fifth and sixth in two (bits
 * 2 * (t % 4) of the byte in plane t / 4).
 *
 * Scales of a unit, each field (16) with one value per row:
 *   Q4_0 Q5_0 IQ4_NL Q8_0   F16 d
 *   Q4_1 Q5_1               F16 d, F16 minimum
 *   MXFP4                   u8 exponent
 *   Q4_K Q5_K               F16 d, F16 dmin, u8[8] low nibbles of scale and minimum of each block, u8[4] their high two
 *                           bits, each, of block b in the low nibble and of b + 4 in the high one
 *   Q6_K                    F16 d, i8[16] scale of each 16 columns
 *   IQ4_XS                  F16 d, u8[4] low nibbles of the scales of blocks b and b + 4, u8[2] high two bits of four each
 */
#ifndef LMK_PACKED_H
#define LMK_PACKED_H

#include "core.h"

enum { LMK_Q4_0 = 2, LMK_Q4_1 = 3, LMK_Q5_0 = 6, LMK_Q5_1 = 7, LMK_Q4_K = 12, LMK_Q5_K = 13, LMK_Q6_K = 14, LMK_IQ4_NL = 20,
       LMK_IQ4_XS = 23, LMK_MXFP4 = 39 };

typedef struct lmk_form {          /* of a type's packed layout; all zero where it has none */
    int bits;                      /* of a code */
    int offset;                    /* 1: codes stand for code - 2^(bits - 1), or for what a table says */
    int table;                     /* 1: codes are indices */
    int mins;                      /* 1: every block has a minimum, which is added */
    int steps;                     /* scales per block of 32 */
    int unit, unit_bytes;          /* columns that share a record of scales, and its size for 16 rows */
} lmk_form;

/* Units of 256 columns have integers for the scales of their blocks, which make the products of LMK_QUAD blocks one exact
 * integer if these blocks of x share a scale. */
#define LMK_QUAD 4

static inline __attribute__((always_inline)) lmk_form lmk_form_of(int32_t type)
{
    switch (type) {
    case LMK_Q4_0: return (lmk_form){ 4, 1, 0, 0, 1, 32, 32 };
    case LMK_Q4_1: return (lmk_form){ 4, 0, 0, 1, 1, 32, 64 };
    case LMK_Q5_0: return (lmk_form){ 5, 1, 0, 0, 1, 32, 32 };
    case LMK_Q5_1: return (lmk_form){ 5, 0, 0, 1, 1, 32, 64 };
    case LMK_Q8_0: return (lmk_form){ 8, 1, 0, 0, 1, 32, 32 };
    case LMK_Q4_K: return (lmk_form){ 4, 0, 0, 1, 1, 256, 256 };
    case LMK_Q5_K: return (lmk_form){ 5, 0, 0, 1, 1, 256, 256 };
    case LMK_Q6_K: return (lmk_form){ 6, 1, 0, 0, 2, 256, 288 };
    case LMK_IQ4_NL: return (lmk_form){ 4, 1, 1, 0, 1, 32, 32 };
    case LMK_IQ4_XS: return (lmk_form){ 4, 1, 1, 0, 1, 256, 128 };
    case LMK_MXFP4: return (lmk_form){ 4, 1, 1, 0, 1, 32, 16 };
    }
    return (lmk_form){ 0, 0, 0, 0, 0, 0, 0 };
}

/* Blocks of x that share a scale */
static inline __attribute__((always_inline)) int lmk_share(lmk_form f) { return f.unit == 256 ? LMK_QUAD : 1; }

static inline int64_t lmk_code_bytes(lmk_form f, int64_t cols) { return cols / LMK_BLOCK * 64 * f.bits; }

static inline int64_t lmk_group_bytes(lmk_form f, int64_t cols)
{
    return (lmk_code_bytes(f, cols) + cols / f.unit * f.unit_bytes + 63) / 64 * 64;
}

/* F16 and BF16 have neither codes nor scales. A group is, for each block of 32 columns (the last one padded with zeros), 16
 * vectors of 2 consecutive columns of each of the 16 rows: for F16 first the one column, then the other; for BF16 in pairs,
 * as tiles want them. BF16 weights below 2^-80 become 0. */
static inline int64_t lmk_half_blocks(int64_t cols) { return (cols + LMK_BLOCK - 1) / LMK_BLOCK; }
static inline int64_t lmk_half_group(int64_t cols) { return lmk_half_blocks(cols) * LMK_BLOCK * LMK_GROUP; }
static inline int lmk_is_half(int32_t type) { return type == LMK_F16 || type == LMK_BF16; }

/* Bytes of a group of any packed type */
static inline int64_t lmk_packed_group(int32_t type, int64_t cols)
{
    return lmk_is_half(type) ? 2 * lmk_half_group(cols) : lmk_group_bytes(lmk_form_of(type), cols);
}

#define LMK_HALF_ROWS 16           /* of x in a strip of tiles */
#define LMK_HALF_TILES (2 * LMK_HALF_ROWS * LMK_BLOCK)     /* halves of a strip's block: high parts (16, 32), low parts */

/* floats that products of n_x rows work in: an expanded panel of 8 blocks, and sums of two groups */
static inline int64_t lmk_half_scratch(int64_t n_x)
{
    return 2 * LMK_GROUP * (8 * LMK_BLOCK + (n_x + LMK_HALF_ROWS - 1) / LMK_HALF_ROWS * LMK_HALF_ROWS);
}

#define LMK_PANEL_ROWS 12          /* rows of x from which on a panel pays */

/* A panel is a group's codes as bytes, 8 vectors for each block of 32 columns, and behind them, 16 at a time, a float scale
 * for each unit, an integer one for each of its 16 or 32 columns where units have 256, and a float minimum for each block of
 * types that have them. AVX2 has its own (panels_avx2.h), with codes of 16 bits for some types. */
#define LMK_PANEL_BLOCK (2 * LMK_BLOCK * LMK_GROUP + 3 * LMK_GROUP * (int)sizeof(float))

static inline __attribute__((always_inline)) float *lmk_panel_scales(const uint8_t *panel, int64_t k)
{
    return (float *)(uintptr_t)(panel + k * LMK_GROUP);
}

static inline __attribute__((always_inline)) int32_t *lmk_panel_factors(lmk_form f, const uint8_t *panel, int64_t k)
{
    return (int32_t *)(uintptr_t)(lmk_panel_scales(panel, k) + k / f.unit * LMK_GROUP);
}

static inline __attribute__((always_inline)) float *lmk_panel_mins(lmk_form f, const uint8_t *panel, int64_t k)
{
    const int64_t factors = f.unit == 256 ? k / LMK_BLOCK * f.steps : 0;
    return (float *)(uintptr_t)(lmk_panel_factors(f, panel, k) + factors * LMK_GROUP);
}

/* Bytes that dot_strips works in for up to n_x rows: what two groups are expanded to for a run of blocks, and twice floats of
 * (strips, 2, 16, 16) */
#define LMK_STRIPS_PANEL (1280 * LMK_GROUP)

static inline int64_t lmk_strips_sums(int64_t n_x)
{
    return (n_x + LMK_STRIP_ROWS - 1) / LMK_STRIP_ROWS * (2 * LMK_STRIP_ROWS * LMK_GROUP);
}

static inline int64_t lmk_strips_scratch(int64_t n_x)
{
    return 2 * (LMK_STRIPS_PANEL + lmk_strips_sums(n_x) * (int64_t)sizeof(float));
}

/* A group of any packed type by dot_q8 or dot_packed */
static inline void lmk_dot_group(const lmk_kernels *kernels, int32_t type, float *const *y, int64_t i0, int n_out,
                                 const uint8_t *w, const lmk_q8_block *const *x, int64_t n_x, int64_t k, uint8_t *panel)
{
    if (type == LMK_Q8_0)
        kernels->dot_q8(y, i0, n_out, w, (const uint16_t *)(const void *)(w + k * LMK_GROUP), x, n_x, k);
    else
        kernels->dot_packed(type, y, i0, n_out, w, x, n_x, k, panel);
}

#if defined(__x86_64__)
/* level_avx512.c: n blocks of a group from `first` on, for tiles. Codes with their sign, of Q8_0 as well, but not of types with
 * integer scales; of these two planes of code times scale = 64 high + low, low from 0 to 63: for each 64 columns 16 vectors of
 * the one, then of the other, and n and `first` are multiples of 8. scales: (16) per unit; mins: per block. */
void lmk_expand_signed_avx512(int32_t type, uint8_t *codes, float *scales, float *mins, const uint8_t *group, int64_t k,
                              int64_t first, int64_t n);
void lmk_expand_planes_avx512(int32_t type, uint8_t *planes, float *scales, float *mins, const uint8_t *group, int64_t k,
                              int64_t first, int64_t n);
#endif

static inline int64_t lmk_groups(int64_t rows) { return (rows + LMK_GROUP - 1) / LMK_GROUP; }

/* packed.c: groups [begin, end) of w, counted over all its matrices, packed at dst */
void lmk_pack_groups(uint8_t *dst, const lmk_weight *w, int64_t begin, int64_t end);

/* Groups [g, g + n) of w as they are packed, or, of a weight that is not, packed into `fresh` on the spot: the same bits */
static inline const uint8_t *lmk_take_groups(const lmk_weight *w, int64_t g, int64_t n, uint8_t *fresh)
{
    if (w->packed) return (const uint8_t *)w->packed + g * lmk_packed_group(w->type, w->cols);
    lmk_pack_groups(fresh, w, g, g + n);
    return fresh;
}

#endif
