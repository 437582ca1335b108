/* level_amx.c: packed products of many rows on AMX-INT8 tiles. Everything else of this level is AVX-512's.
 *
 * A tile product takes the place of vpdpbusd: 16 rows of x times the block of 16 outputs gives 16 x 16 exact integers,
 * which are then scaled and added to the outputs block by block, as dot_q8 does it: the same bits. That rescaling limits
 * the speed, so the shape serves it: 16 accumulators stay in registers for a whole run of blocks, and storing a tile, which
 * takes as long for few rows as for 16, stores no row in vain. While tiles are in use, the second 512-bit unit multiplies no
 * more (it still adds), so that products become floats by two additions and not by a conversion: see `number`.
 *
 * A group is expanded to a panel first (packed.h), with signed codes, which need no correction, and scales in float32. Types
 *   - with minimums get the sums of x times the minimums added at the end;
 *   - with a scale per 16 columns go in steps of half a block.
 *
 * Intrinsics are not used: GCC 12 believes that ldtilecfg reads 8 bytes of its 64 and drops the stores of the rest. And
 * accumulators are variables, not an array: it would keep that in memory.
 */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
#include "packed.h"

#include <immintrin.h>
#include <math.h>

#define ROWS LMK_STRIP_ROWS
#define RUN 32                     /* blocks per run: a group of weights and the rows' part stay in L1 */
#define ALWAYS static inline __attribute__((always_inline))

/* Tile registers: 0 to 3 hold products, 6 rows of x, 7 weights. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* Steps of a whole block, and of half a one */
static const tile_config configs[2] __attribute__((aligned(64))) = {
    {
        .palette = 1,
        .row_bytes = { 64, 64, 64, 64, 64, 64, LMK_BLOCK, 64 },
        .rows = { ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, LMK_BLOCK / 4 },
    },
    {
        .palette = 1,
        .row_bytes = { 64, 64, 64, 64, 64, 64, LMK_BLOCK / 2, 64 },
        .rows = { ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, LMK_BLOCK / 8 },
    },
};

#define TILE_LOAD(t, p, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((int64_t)(stride)) : "memory")
#define TILE_STORE(t, p) __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"((int64_t)64) : "memory")
#define TILE_DOT(c) __asm__ volatile("tilezero %%tmm" #c "\n\ttdpbssd %%tmm7, %%tmm6, %%tmm" #c ::)

/* 2^23 + 2^22, below which floats are integers and their bits count up with them */
#define MAGIC 12582912.0f
#define MAGIC_BITS 0x4b400000

typedef struct strip_block {       /* one block of ROWS rows of x */
    int8_t q[ROWS][LMK_BLOCK];
    float scale[ROWS];
} strip_block;

typedef struct strip_extra {       /* for each block, behind all strip_blocks */
    float sum[ROWS];               /* lmk_q8_block's */
} strip_extra;

_Static_assert(sizeof(strip_block) == LMK_STRIP_BLOCK && sizeof(strip_extra) == LMK_STRIP_EXTRA, "core.h has the sizes");

ALWAYS __m512i magnitude(const float *x)
{
    return _mm512_and_si512(_mm512_loadu_si512(x), _mm512_set1_epi32(0x7fffffff));
}

/* Sums of 32 bytes each: lane j is that of row j of q. */
ALWAYS __m512i row_sums(const int8_t (*q)[LMK_BLOCK])
{
    const __m512i bytes = _mm512_set1_epi8(1), words = _mm512_set1_epi16(1);
    __m512i four[2];               /* lanes of 128 bits: rows 8 h + 0, 2, 4, 6 twice, then 8 h + 1, 3, 5, 7 twice */
    for (int h = 0; h < 2; h++) {
        __m512i s[4];
        for (int i = 0; i < 4; i++)
            s[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), bytes, _mm512_load_si512(q[8 * h + 2 * i]));
        const __m512i a = _mm512_madd_epi16(_mm512_packs_epi32(s[0], s[1]), words);
        const __m512i b = _mm512_madd_epi16(_mm512_packs_epi32(s[2], s[3]), words);
        four[h] = _mm512_madd_epi16(_mm512_packs_epi32(a, b), words);
    }
    const __m512i sums = _mm512_add_epi32(_mm512_shuffle_i32x4(four[0], four[1], 0x88),
                                          _mm512_shuffle_i32x4(four[0], four[1], 0xdd));
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15), sums);
}

/* A block of ROWS rows as quantise_q8 makes it, the divisions of all rows at once; x[j] is row j's block. */
ALWAYS void strip_one(strip_block *p, strip_extra *extra, const float *const *x)
{
    const __m512 rounder = _mm512_set1_ps(MAGIC);
    int32_t tops[ROWS] __attribute__((aligned(64)));
    float inverses[ROWS] __attribute__((aligned(64)));
    for (int j = 0; j < ROWS; j++) {
        tops[j] = _mm512_reduce_max_epi32(_mm512_max_epi32(magnitude(x[j]), magnitude(x[j] + 16)));
    }
    const __m512i top = _mm512_load_si512(tops);
    const __mmask16 finite = _mm512_cmplt_epi32_mask(top, _mm512_set1_epi32(0x7f800000));
    const __mmask16 usable = finite & _mm512_cmpge_epi32_mask(top, _mm512_set1_epi32(0x0d800000));     /* 2^-100 */
    const __m512 amax = _mm512_castsi512_ps(top), most = _mm512_set1_ps(127.0f);
    const __m512 scale = _mm512_maskz_div_ps(usable, amax, most);
    _mm512_store_ps(inverses, _mm512_maskz_div_ps(usable, most, amax));
    for (int j = 0; j < ROWS; j++)
        for (int i = 0; i < 2; i++) {
            const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x[j] + 16 * i), _mm512_set1_ps(inverses[j]));
            const __m512i bits = _mm512_castps_si512(_mm512_add_ps(scaled, rounder));
            _mm_store_si128((void *)(p->q[j] + 16 * i), _mm512_cvtepi32_epi8(bits));
        }
    _mm512_store_ps(p->scale, _mm512_mask_mov_ps(_mm512_set1_ps(NAN), finite, scale));
    _mm512_store_ps(extra->sum, _mm512_maskz_mul_ps(usable, scale, _mm512_cvtepi32_ps(row_sums(p->q))));
}

void lmk_strip_amx(void *strip, const float *const *x, int64_t n_x, int64_t k)
{
    static const float zeros[LMK_BLOCK];
    const int64_t n_blocks = k / LMK_BLOCK;
    strip_block *p = strip;
    strip_extra *extra = (strip_extra *)(p + n_blocks);
    for (int64_t b = 0; b < n_blocks; b++) {
        const float *row[ROWS];
        for (int64_t j = 0; j < ROWS; j++) row[j] = j < n_x ? x[j] + b * LMK_BLOCK : zeros;
        strip_one(p + b, extra + b, row);
    }
}

typedef int32_t product[ROWS][LMK_GROUP];

typedef struct run {               /* a group's panel over a run of blocks */
    const uint8_t *w;
    const float *scales;           /* LMK_GROUP per step */
    int64_t n_steps;
    float *const *y;               /* (n): the outputs, if this is the last run */
    int64_t i0, n;
    __mmask16 mask;                /* of the outputs that exist */
    float *sums;                   /* (ROWS, LMK_GROUP): of the runs before, and of all runs but the last */
    int first, last;
} run;

/* Step b is a block, or half a one, the second if odd. */
ALWAYS void load(const run *r, const strip_block *x, int64_t b, const int halves)
{
    TILE_LOAD(6, halves ? x[b / 2].q[0] + b % 2 * (LMK_BLOCK / 2) : x[b].q[0], LMK_BLOCK);
    TILE_LOAD(7, r->w + b * (LMK_BLOCK * LMK_GROUP / (halves ? 2 : 1)), 64);
}

/* float(dot), exact: |dot| < 2^20 */
ALWAYS __m512 number(const int32_t *dot)
{
    const __m512i bits = _mm512_add_epi32(_mm512_load_si512(dot), _mm512_set1_epi32(MAGIC_BITS));
    return _mm512_sub_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(MAGIC));
}

#define EACH_ROW(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11) M(12) M(13) M(14) M(15)

#define START(j) \
    __m512 acc##j = !r->first && j < n ? _mm512_load_ps(r->sums + j * LMK_GROUP) : _mm512_setzero_ps();
#define RESCALE(j) \
    if (j < n) acc##j = _mm512_fmadd_ps(number(done[j]), _mm512_mul_ps(w, _mm512_set1_ps(x_scale[j])), acc##j);
#define FINISH(j)                                                                               \
    if (j < n && !r->last) _mm512_store_ps(r->sums + j * LMK_GROUP, acc##j);                    \
    if (j < n && r->last && j < r->n) _mm512_mask_storeu_ps(r->y[j] + r->i0, r->mask, acc##j);

/* While the tiles multiply step b, the products of b - 2 are on their way to memory and those of b - 3 are scaled. A store
 * of y that misses the cache would hold up those of the tiles behind it, so its line is fetched; one for each step, because
 * all at once would leave the tiles' loads no way to the second-level cache. */
#define STEP(b, now, before, last)                                                      \
    if ((b) < ahead) __asm__ volatile("prefetchw (%0)" ::"r"(r->y[b] + r->i0));         \
    if ((b) < r->n_steps) {                                                             \
        load(r, x, b, halves);                                                          \
        TILE_DOT(now);                                                                  \
    }                                                                                   \
    if ((b) >= 2 && (b) - 2 < r->n_steps) TILE_STORE(before, p[before]);                \
    if ((b) >= 3 && (b) - 3 < r->n_steps) {                                             \
        const __m512 w = _mm512_loadu_ps(r->scales + ((b) - 3) * LMK_GROUP);            \
        const float *x_scale = x[halves ? ((b) - 3) / 2 : (b) - 3].scale;               \
        const int32_t (*done)[LMK_GROUP] = p[last];                                     \
        EACH_ROW(RESCALE)                                                               \
    }

/* One run of steps; n >= r->n rows */
ALWAYS void run_rows(const run *r, const strip_block *x, const int n, const int halves)
{
    product p[4] __attribute__((aligned(64)));
    const int64_t ahead = r->last ? r->n : 0;
    EACH_ROW(START)
    for (int64_t b = 0; b < r->n_steps + 3; b += 4) {
        STEP(b, 0, 2, 1)
        STEP(b + 1, 1, 3, 2)
        STEP(b + 2, 2, 0, 3)
        STEP(b + 3, 3, 1, 0)
    }
    EACH_ROW(FINISH)
}

static const strip_extra *extras(const uint8_t *strip, int64_t n_blocks)
{
    return (const strip_extra *)(const void *)(strip + n_blocks * (int64_t)sizeof(strip_block));
}

/* All runs of two groups' panels with all rows. Between runs their sums are in `sums` (strips, 2, ROWS, LMK_GROUP), one
 * behind the other: rows of y lie as far apart as the caches like least. There they stay if `last` is 0. */
ALWAYS void run_groups(float *const *y, int64_t i0, int n_out, const uint8_t *panels, const uint8_t *strips,
                       int64_t strip_bytes, int64_t n_x, int64_t k, const uint8_t *next, int64_t group_bytes, float *sums,
                       int last, const int halves)
{
    const int64_t n_blocks = k / LMK_BLOCK, panel_bytes = n_blocks * LMK_PANEL_BLOCK;
    /* What the next call reads comes in evenly while this one computes. */
    const int64_t parts = (n_blocks + RUN - 1) / RUN * ((n_x + ROWS - 1) / ROWS);
    const int64_t ahead = next ? (2 * group_bytes / 64 + parts - 1) / parts * 64 : 0;
    __asm__ volatile("ldtilecfg %0" ::"m"(configs[halves]));
    for (int64_t first = 0; first < n_blocks; first += RUN) {
        const uint8_t *strip = strips;
        for (int64_t j = 0; j < n_x; j += ROWS, strip += strip_bytes) {
            const strip_block *x = (const strip_block *)(const void *)strip + first;
            for (int64_t a = 0; a < ahead; a += 64) _mm_prefetch((const char *)next + a, _MM_HINT_T1);
            if (next) next += ahead;
            for (int s = 0; s * LMK_GROUP < n_out; s++) {
                const uint8_t *panel = panels + s * panel_bytes;
                const int64_t outs = lmk_min(LMK_GROUP, n_out - s * LMK_GROUP);
                const run r = {
                    .w = panel + first * LMK_BLOCK * LMK_GROUP,
                    .scales = lmk_panel_scales(panel, k) + first * (1 + halves) * LMK_GROUP,
                    .n_steps = lmk_min(RUN, n_blocks - first) * (1 + halves),
                    .y = y + j, .i0 = i0 + s * LMK_GROUP, .n = lmk_min(ROWS, n_x - j),
                    .mask = (__mmask16)((1u << outs) - 1), .sums = sums + (j / ROWS * 2 + s) * (ROWS * LMK_GROUP),
                    .first = first == 0, .last = last && first + RUN >= n_blocks,
                };
                if (r.n > 12) run_rows(&r, x, ROWS, halves);
                else if (r.n > 8) run_rows(&r, x, 12, halves);
                else run_rows(&r, x, 8, halves);
            }
        }
    }
    __asm__ volatile("tilerelease" ::);
}

#define MIN_START(j) __m512 low##j = _mm512_setzero_ps();
#define MIN_ADD(j) low##j = _mm512_fmadd_ps(min, _mm512_set1_ps(extra[b].sum[j]), low##j);
#define MIN_FINISH(j) \
    if (j < n) _mm512_mask_storeu_ps(y[j] + i0, mask, _mm512_add_ps(_mm512_load_ps(sums + j * LMK_GROUP), low##j));

/* y = the runs' sums plus minimums times sums of x, for ROWS rows or fewer and one group */
static void add_mins(float *const *y, int64_t i0, int n_out, const float *sums, const float *mins, const strip_extra *extra,
                     int64_t n, int64_t n_blocks)
{
    const __mmask16 mask = (__mmask16)((1u << n_out) - 1);
    EACH_ROW(MIN_START)
    for (int64_t b = 0; b < n_blocks; b++) {
        const __m512 min = _mm512_loadu_ps(mins + b * LMK_GROUP);
        EACH_ROW(MIN_ADD)
    }
    EACH_ROW(MIN_FINISH)
}

void lmk_dot_strips_amx(int32_t type, float *const *y, int64_t i0, int n_out, const uint8_t *w, int64_t group_bytes,
                        const void *strips, int64_t n_x, int64_t k, const uint8_t *next, uint8_t *panels)
{
    const int64_t n_blocks = k / LMK_BLOCK, strip_bytes = n_blocks * (LMK_STRIP_BLOCK + LMK_STRIP_EXTRA);
    const int64_t panel_bytes = n_blocks * LMK_PANEL_BLOCK;
    const int n_groups = n_out > LMK_GROUP ? 2 : 1;
    const lmk_form f = lmk_form_of(type);
    for (int s = 0; s < n_groups; s++) lmk_expand_signed_avx512(type, panels + s * panel_bytes, w + s * group_bytes, k);
    float *sums = (float *)(void *)(panels + 2 * panel_bytes);
    if (f.steps == 2) run_groups(y, i0, n_out, panels, strips, strip_bytes, n_x, k, next, group_bytes, sums, !f.mins, 1);
    else run_groups(y, i0, n_out, panels, strips, strip_bytes, n_x, k, next, group_bytes, sums, !f.mins, 0);
    if (!f.mins) return;
    for (int64_t j = 0; j < n_x; j += ROWS)
        for (int s = 0; s < n_groups; s++)
            add_mins(y + j, i0 + s * LMK_GROUP, (int)lmk_min(LMK_GROUP, n_out - s * LMK_GROUP),
                     sums + (j / ROWS * 2 + s) * (ROWS * LMK_GROUP), lmk_panel_mins(f, panels + s * panel_bytes, k),
                     extras((const uint8_t *)strips + j / ROWS * strip_bytes, n_blocks), lmk_min(ROWS, n_x - j), n_blocks);
}
#endif
