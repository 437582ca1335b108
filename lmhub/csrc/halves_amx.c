/* halves_amx.c: products of many rows with BF16 weights on AMX-BF16 tiles.
 *
 * `tdpbf16ps` computes a block of 32 columns as halves.h defines it: even and odd columns apart, in fused chains from zero,
 * their sum added to the output. So sums stay in tiles over all blocks. 32 rows of x meet two groups of 16 outputs: four
 * tiles of sums, which hide the instruction's latency, two of x and two of weights. The high parts of a block are
 * multiplied first, then the low ones.
 *
 * Intrinsics are not used: GCC 12 believes that ldtilecfg reads 8 bytes of its 64 and drops the stores of the rest.
 */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
#include "packed.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#define ROWS LMK_HALF_ROWS
#define RUN 16                     /* blocks per run: two groups of weights stay in L1 */
#define TILE (LMK_GROUP * ROWS)    /* floats of a tile of sums */
#define WEIGHTS (LMK_BLOCK * LMK_GROUP)    /* halves of a tile of weights, and of x */

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* Tile registers: 0 to 3 hold sums, 4 and 5 rows of x, 6 and 7 weights. */
#define TILE_LOAD(t, p) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((int64_t)64) : "memory")
#define TILE_STORE(t, p) __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"((int64_t)64) : "memory")
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define TILE_DOT(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

/* n_blocks of two strips, or of one, times two groups, added to the sums (strips, 2, 16, 16); `first`: to nothing */
static inline __attribute__((always_inline)) void run_strips(float *sums, const uint16_t *x, int64_t strip_halves,
                                                             const uint16_t *const w[2], int64_t n_blocks, int first,
                                                             const int both)
{
    if (first) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    } else {
        TILE_LOAD(0, sums);
        TILE_LOAD(1, sums + TILE);
        if (both) {
            TILE_LOAD(2, sums + 2 * TILE);
            TILE_LOAD(3, sums + 3 * TILE);
        }
    }
    for (int64_t b = 0; b < n_blocks; b++)
        for (int part = 0; part < 2; part++, x += WEIGHTS) {
            TILE_LOAD(4, x);
            if (both) TILE_LOAD(5, x + strip_halves);
            if (part == 0) {
                TILE_LOAD(6, w[0] + b * WEIGHTS);
                TILE_LOAD(7, w[1] + b * WEIGHTS);
            }
            TILE_DOT(0, 4, 6);
            TILE_DOT(1, 4, 7);
            if (both) {
                TILE_DOT(2, 5, 6);
                TILE_DOT(3, 5, 7);
            }
        }
    TILE_STORE(0, sums);
    TILE_STORE(1, sums + TILE);
    if (both) {
        TILE_STORE(2, sums + 2 * TILE);
        TILE_STORE(3, sums + 3 * TILE);
    }
}

/* y = sums times units, with one NaN for all */
static void finish(float *const *y, int64_t i0, int n_out, const float *sums, const float *units, int64_t n_x)
{
    for (int64_t j = 0; j < n_x; j++)
        for (int g = 0; g * LMK_GROUP < n_out; g++) {
            const __mmask16 mask = (__mmask16)((1u << lmk_min(LMK_GROUP, n_out - g * LMK_GROUP)) - 1);
            const __m512 sum = _mm512_loadu_ps(sums + (j / ROWS * 2 + g) * TILE + j % ROWS * LMK_GROUP);
            const __m512 out = _mm512_mul_ps(sum, _mm512_set1_ps(units[j]));
            const __mmask16 bad = _mm512_cmp_ps_mask(out, out, _CMP_UNORD_Q);
            _mm512_mask_storeu_ps(y[j] + i0 + g * LMK_GROUP, mask, _mm512_mask_mov_ps(out, bad, _mm512_set1_ps(NAN)));
        }
}

void lmk_dot_tiles_amx(float *const *y, int64_t i0, int n_out, const uint16_t *w, int64_t group_halves, const uint16_t *strips,
                       const float *units, int64_t n_x, int64_t k, const uint16_t *next, float *scratch)
{
    const int64_t n_blocks = lmk_half_blocks(k), strip_halves = n_blocks * LMK_HALF_TILES;
    const int64_t n_strips = (n_x + ROWS - 1) / ROWS;
    const uint8_t rows = (uint8_t)lmk_min(ROWS, n_x);
    const tile_config config = {
        .palette = 1,
        .row_bytes = { 64, 64, 64, 64, 64, 64, 64, 64 },
        .rows = { rows, rows, rows, rows, rows, rows, LMK_BLOCK / 2, LMK_BLOCK / 2 },
    };
    /* What the next call reads comes in evenly while this one computes. */
    const int64_t turns = (n_blocks + RUN - 1) / RUN * ((n_strips + 1) / 2);
    const int64_t ahead = next ? (2 * group_halves / 32 + turns - 1) / turns * 32 : 0;
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
    for (int64_t first = 0; first < n_blocks; first += RUN) {
        const uint16_t *const groups[2] = { w + first * WEIGHTS, w + (n_out > LMK_GROUP ? group_halves : 0) + first * WEIGHTS };
        const int64_t n = lmk_min(RUN, n_blocks - first);
        for (int64_t s = 0; s < n_strips; s += 2) {
            const uint16_t *x = strips + s * strip_halves + first * LMK_HALF_TILES;
            for (int64_t a = 0; a < ahead; a += 32) _mm_prefetch((const char *)(next + a), _MM_HINT_T1);
            if (next) next += ahead;
            if (s + 1 < n_strips) run_strips(scratch + s * 2 * TILE, x, strip_halves, groups, n, first == 0, 1);
            else run_strips(scratch + s * 2 * TILE, x, strip_halves, groups, n, first == 0, 0);
        }
    }
    __asm__ volatile("tilerelease" ::);
    finish(y, i0, n_out, scratch, units, n_x);
}
#endif
