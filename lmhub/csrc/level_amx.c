/* level_amx.c: packed products of many rows on AMX-INT8 tiles. Everything else of this level is AVX-512's.
 *
 * A tile product takes the place of vpdpbusd: 12 rows of x times the block of 16 outputs gives 12 x 16 exact integers,
 * which are then scaled and added to the outputs block by block, as dot_q8 does it: the same bits. That rescaling limits
 * the speed, so the shape serves it: 12 rows times two groups of outputs are 24 accumulators, which stay in registers for
 * a whole run of blocks. And while tiles are in use, the second 512-bit unit multiplies no more (it still adds), so that
 * products become floats by two additions and not by a conversion: see `number`.
 *
 * Types other than Q8_0 are expanded to panels first (packed.h) and then go the same way: with scales in float32, and
 *   - with minimums: without the correction of an offset, and the sums of x times the minimums are added at the end;
 *   - with a scale per 16 columns: in steps of half a block.
 *
 * Intrinsics are not used: GCC 12 believes that ldtilecfg reads 8 bytes of its 64 and drops the stores of the rest.
 */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
#include "packed.h"

#include <immintrin.h>
#include <string.h>

#define ROWS LMK_STRIP_ROWS
#define RUN 32                     /* blocks per run: two groups of weights and the rows' part stay in L1 */
#define ALWAYS static inline __attribute__((always_inline))

/* Tile registers: 0 and 1, or 2 and 3, hold products, 4 rows of x, 5 and 6 weights. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* Steps of a whole block, and of half a one */
static const tile_config configs[2] __attribute__((aligned(64))) = {
    {
        .palette = 1,
        .row_bytes = { 64, 64, 64, 64, LMK_BLOCK, 64, 64 },
        .rows = { ROWS, ROWS, ROWS, ROWS, ROWS, LMK_BLOCK / 4, LMK_BLOCK / 4 },
    },
    {
        .palette = 1,
        .row_bytes = { 64, 64, 64, 64, LMK_BLOCK / 2, 64, 64 },
        .rows = { ROWS, ROWS, ROWS, ROWS, ROWS, LMK_BLOCK / 8, LMK_BLOCK / 8 },
    },
};

/* What a kernel is compiled for */
typedef enum form { Q8, OFFSET, MINS, HALVES } form;

static form form_of(int32_t type)
{
    const lmk_form f = lmk_form_of(type);
    return type == LMK_Q8_0 ? Q8 : f.mins ? MINS : f.steps == 2 ? HALVES : OFFSET;
}

#define TILE_LOAD(t, p, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((int64_t)(stride)) : "memory")
#define TILE_STORE(t, p) __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"((int64_t)64) : "memory")
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define TILE_DOT(c, a, b) __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

/* 2^23 + 2^22, below which floats are integers and their bits count up with them */
#define MAGIC 12582912.0f
#define MAGIC_BITS 0x4b400000

typedef struct strip_block {       /* one block of ROWS rows of x */
    int8_t q[ROWS][LMK_BLOCK];
    float scale[ROWS];
    int32_t correction[ROWS];      /* lmk_q8_block's, plus MAGIC_BITS */
    int32_t unused[8];             /* to whole cache lines */
} strip_block;

typedef struct strip_extra {       /* for each block, behind all strip_blocks */
    int32_t half[2][ROWS];         /* corrections of its halves, plus MAGIC_BITS */
    float sum[ROWS];               /* lmk_q8_block's */
    int32_t unused[12];
} strip_extra;

_Static_assert(sizeof(strip_block) == LMK_STRIP_BLOCK && sizeof(strip_extra) == LMK_STRIP_EXTRA, "core.h has the sizes");

void lmk_strip_amx(void *strip, const lmk_q8_block *const *x, int64_t n_x, int64_t k)
{
    const int64_t n_blocks = k / LMK_BLOCK;
    strip_block *p = strip;
    strip_extra *extra = (strip_extra *)(p + n_blocks);
    if (n_x < ROWS) memset(p, 0, (size_t)n_blocks * (sizeof *p + sizeof *extra));
    for (int64_t j = 0; j < n_x; j++)
        for (int64_t b = 0; b < n_blocks; b++) {
            const lmk_q8_block *xb = &x[j][b];
            memcpy(p[b].q[j], xb->q, LMK_BLOCK);
            p[b].scale[j] = xb->scale;
            p[b].correction[j] = xb->correction + MAGIC_BITS;
            extra[b].half[0][j] = xb->half + MAGIC_BITS;
            extra[b].half[1][j] = xb->correction - xb->half + MAGIC_BITS;
            extra[b].sum[j] = xb->sum;
        }
}

typedef int32_t products[2][ROWS][LMK_GROUP];

typedef struct run {               /* two groups of weights over a run of blocks */
    const uint8_t *w[2];
    const void *scales[2];         /* LMK_GROUP per step: F16 for Q8, else float */
    int64_t n_steps;
    float *const *y;               /* (n) */
    int64_t i0, n;
    __mmask16 mask[2];             /* of each group's outputs, those that exist */
    int again;                     /* earlier runs' sums are in y */
} run;

/* Step b is a block; for HALVES half a one, the second if odd */
ALWAYS void multiply(const run *r, const strip_block *x, int64_t b, const int odd, const form f)
{
    const int64_t step_bytes = LMK_BLOCK * LMK_GROUP / (f == HALVES ? 2 : 1);
    TILE_LOAD(4, f == HALVES ? x[b / 2].q[0] + odd * LMK_BLOCK / 2 : x[b].q[0], LMK_BLOCK);
    TILE_LOAD(5, r->w[0] + b * step_bytes, 64);
    TILE_LOAD(6, r->w[1] + b * step_bytes, 64);
    if (odd) {
        TILE_ZERO(2);
        TILE_ZERO(3);
        TILE_DOT(2, 4, 5);
        TILE_DOT(3, 4, 6);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_DOT(0, 4, 5);
        TILE_DOT(1, 4, 6);
    }
}

ALWAYS void store(products *p, const int odd)
{
    if (odd) {
        TILE_STORE(2, p[1][0]);
        TILE_STORE(3, p[1][1]);
    } else {
        TILE_STORE(0, p[0][0]);
        TILE_STORE(1, p[0][1]);
    }
}

/* float(dot + correction), exact: |dot + correction| < 2^20 */
ALWAYS __m512 number(const int32_t *dot, __m512i correction)
{
    return _mm512_sub_ps(_mm512_castsi512_ps(_mm512_add_epi32(_mm512_load_si512(dot), correction)), _mm512_set1_ps(MAGIC));
}

ALWAYS __m512 scales(const void *p, int64_t step, const form f)
{
    if (f == Q8) return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)((const uint16_t *)p + step * LMK_GROUP)));
    return _mm512_loadu_ps((const float *)p + step * LMK_GROUP);
}

/* acc += the products of step b, of n rows with both groups */
ALWAYS void rescale(__m512 acc[2][ROWS], const run *r, const strip_block *x, const strip_extra *extra, int64_t b,
                    products *p, const int odd, const int n, const form f)
{
    const __m512 w0 = scales(r->scales[0], b, f), w1 = scales(r->scales[1], b, f);
    if (f == HALVES) b /= 2;
    for (int j = 0; j < n; j++) {
        const __m512 scale = _mm512_set1_ps(x[b].scale[j]);
        const __m512i correction = _mm512_set1_epi32(f == MINS     ? MAGIC_BITS
                                                     : f == HALVES ? extra[b].half[odd][j]
                                                                   : x[b].correction[j]);
        acc[0][j] = _mm512_fmadd_ps(number(p[odd][0][j], correction), _mm512_mul_ps(w0, scale), acc[0][j]);
        acc[1][j] = _mm512_fmadd_ps(number(p[odd][1][j], correction), _mm512_mul_ps(w1, scale), acc[1][j]);
    }
}

/* One run of steps; n >= r->n rows. While the tiles multiply step b, the products of b - 1 are on their way to memory
 * and those of b - 2 are scaled. */
ALWAYS void run_rows(const run *r, const strip_block *x, const strip_extra *extra, const int n, const form f)
{
    products p[2] __attribute__((aligned(64)));
    __m512 acc[2][ROWS];
    for (int j = 0; j < n; j++)
        for (int s = 0; s < 2; s++)
            acc[s][j] = r->again && j < r->n ? _mm512_maskz_loadu_ps(r->mask[s], r->y[j] + r->i0 + s * LMK_GROUP)
                                             : _mm512_setzero_ps();
    /* A store that misses the cache holds up those of the tiles behind it. */
    for (int64_t j = 0; j < r->n; j++)
        for (int s = 0; s < 2; s++) __asm__ volatile("prefetchw (%0)" ::"r"(r->y[j] + r->i0 + s * LMK_GROUP));
    multiply(r, x, 0, 0, f);
    if (r->n_steps > 1) {
        multiply(r, x, 1, 1, f);
        store(p, 0);
    }
    int64_t b = 2;
    for (; b + 1 < r->n_steps; b += 2) {
        multiply(r, x, b, 0, f);
        store(p, 1);
        rescale(acc, r, x, extra, b - 2, p, 0, n, f);
        multiply(r, x, b + 1, 1, f);
        store(p, 0);
        rescale(acc, r, x, extra, b - 1, p, 1, n, f);
    }
    if (b < r->n_steps) {         /* an odd number of three or more */
        multiply(r, x, b, 0, f);
        store(p, 1);
        rescale(acc, r, x, extra, b - 2, p, 0, n, f);
        store(p, 0);
        rescale(acc, r, x, extra, b - 1, p, 1, n, f);
        rescale(acc, r, x, extra, b, p, 0, n, f);
    } else if (r->n_steps > 1) {
        store(p, 1);
        rescale(acc, r, x, extra, b - 2, p, 0, n, f);
        rescale(acc, r, x, extra, b - 1, p, 1, n, f);
    } else {
        store(p, 0);
        rescale(acc, r, x, extra, 0, p, 0, n, f);
    }
    for (int j = 0; j < n; j++)
        for (int s = 0; s < 2; s++)
            if (j < r->n) _mm512_mask_storeu_ps(r->y[j] + r->i0 + s * LMK_GROUP, r->mask[s], acc[s][j]);
}

static const strip_extra *extras(const uint8_t *strip, int64_t n_blocks)
{
    return (const strip_extra *)(const void *)(strip + n_blocks * (int64_t)sizeof(strip_block));
}

/* All runs of two groups, packed (Q8) or as panels, with all rows */
ALWAYS void run_groups(float *const *y, int64_t i0, int n_out, const uint8_t *const groups[2], const uint8_t *strips,
                       int64_t strip_bytes, int64_t n_x, int64_t k, const uint8_t *next, int64_t group_bytes, const form f)
{
    const int64_t n_blocks = k / LMK_BLOCK, weights = k * LMK_GROUP, halves = f == HALVES ? 2 : 1;
    run r = { .i0 = i0 };
    for (int s = 0; s < 2; s++) r.mask[s] = (__mmask16)((1u << lmk_max(0, lmk_min(LMK_GROUP, n_out - s * LMK_GROUP))) - 1);
    /* What the next call reads comes in evenly while this one computes. */
    const int64_t parts = (n_blocks + RUN - 1) / RUN * ((n_x + ROWS - 1) / ROWS);
    const int64_t ahead = next ? (2 * group_bytes / 64 + parts - 1) / parts * 64 : 0;
    __asm__ volatile("ldtilecfg %0" ::"m"(configs[f == HALVES]));
    for (int64_t first = 0; first < n_blocks; first += RUN) {
        r.n_steps = lmk_min(RUN, n_blocks - first) * halves;
        r.again = first > 0;
        for (int s = 0; s < 2; s++) {
            r.w[s] = groups[s] + first * LMK_BLOCK * LMK_GROUP;
            r.scales[s] = groups[s] + weights + first * halves * LMK_GROUP * (f == Q8 ? 2 : 4);
        }
        const uint8_t *strip = strips;
        for (int64_t j = 0; j < n_x; j += ROWS, strip += strip_bytes) {
            const strip_block *x = (const strip_block *)(const void *)strip + first;
            const strip_extra *extra = extras(strip, n_blocks) + first;
            for (int64_t a = 0; a < ahead; a += 64) _mm_prefetch((const char *)next + a, _MM_HINT_T1);
            if (next) next += ahead;
            r.y = y + j;
            r.n = lmk_min(ROWS, n_x - j);
            if (r.n > 8) run_rows(&r, x, extra, ROWS, f);
            else if (r.n > 4) run_rows(&r, x, extra, 8, f);
            else run_rows(&r, x, extra, 4, f);
        }
    }
    __asm__ volatile("tilerelease" ::);
}

/* y += minimums times sums of x, for ROWS rows or fewer and one group */
static void add_mins(float *const *y, int64_t i0, int n_out, const float *mins, const strip_extra *extra, int64_t n,
                     int64_t n_blocks)
{
    const __mmask16 mask = (__mmask16)((1u << n_out) - 1);
    __m512 low[ROWS];
    for (int j = 0; j < ROWS; j++) low[j] = _mm512_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++) {
        const __m512 min = _mm512_loadu_ps(mins + b * LMK_GROUP);
        for (int j = 0; j < ROWS; j++) low[j] = _mm512_fmadd_ps(min, _mm512_set1_ps(extra[b].sum[j]), low[j]);
    }
#pragma GCC unroll 12
    for (int j = 0; j < ROWS; j++)
        if (j < n) _mm512_mask_storeu_ps(y[j] + i0, mask, _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y[j] + i0), low[j]));
}

void lmk_dot_strips_amx(int32_t type, float *const *y, int64_t i0, int n_out, const uint8_t *w, int64_t group_bytes,
                        const void *strips, int64_t n_x, int64_t k, const uint8_t *next, uint8_t *panels)
{
    const int64_t n_blocks = k / LMK_BLOCK, strip_bytes = n_blocks * (LMK_STRIP_BLOCK + LMK_STRIP_EXTRA);
    const int64_t panel_bytes = n_blocks * LMK_PANEL_BLOCK;
    const int n_groups = n_out > LMK_GROUP ? 2 : 1;
    const uint8_t *groups[2] = { w, n_groups == 2 ? w + group_bytes : w };
    const form f = form_of(type);
    if (f != Q8) {
        for (int s = 0; s < n_groups; s++) lmk_expand_avx512(type, panels + s * panel_bytes, groups[s], k);
        groups[0] = panels;
        groups[1] = panels + (n_groups - 1) * panel_bytes;
    }
#define RUN_GROUPS(form) run_groups(y, i0, n_out, groups, strips, strip_bytes, n_x, k, next, group_bytes, form)
    if (f == Q8) RUN_GROUPS(Q8);
    else if (f == OFFSET) RUN_GROUPS(OFFSET);
    else if (f == HALVES) RUN_GROUPS(HALVES);
    else RUN_GROUPS(MINS);
#undef RUN_GROUPS
    if (f != MINS) return;
    for (int64_t j = 0; j < n_x; j += ROWS)
        for (int s = 0; s < n_groups; s++)
            add_mins(y + j, i0 + s * LMK_GROUP, (int)lmk_min(LMK_GROUP, n_out - s * LMK_GROUP),
                     lmk_panel_mins(lmk_form_of(type), groups[s], k),
                     extras((const uint8_t *)strips + j / ROWS * strip_bytes, n_blocks),
                     lmk_min(ROWS, n_x - j), n_blocks);
}
#endif
