/* level_amx.c: packed products of many rows on AMX-INT8 tiles. Everything else of this level is AVX-512's.
 *
 * A tile product takes the place of vpdpbusd: 16 rows of x times a block of 16 outputs gives 16 x 16 exact integers, which are
 * then scaled and added to the outputs in the order of quants.h: the same bits. That rescaling limits the speed, so the shape
 * serves it: 16 accumulators stay in registers for a whole run of blocks, and storing a tile, which takes as long for few rows
 * as for 16, stores no row in vain. While tiles are in use, the second 512-bit unit multiplies no more (it still adds), so that
 * products become floats by two additions and not by a conversion: see `number`.
 *
 * Groups are expanded run by run, into panels that stay in the first-level cache. Types with a scale per 32 columns become
 * signed codes, which need no correction. Types with integer factors become two planes, which are multiplied 64 columns at a
 * time; a quad's two sums stay in tiles, so that there is one store and one scaling for each 128 columns instead of one per 32.
 * Of types with minimums these times the sums of x are made first, and added at the end.
 *
 * Intrinsics are not used: GCC 12 believes that ldtilecfg reads 8 bytes of its 64 and drops the stores of the rest. And
 * accumulators are variables, not an array: it would keep that in memory.
 */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
#include "packed.h"
#include "store.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#define ROWS LMK_STRIP_ROWS
#define RUN 32                     /* blocks per run: a group of weights and the rows' part stay in L1, */
#define QUAD_RUN 16                /* and of planes, which are twice as large */
#define ALWAYS static inline __attribute__((always_inline))

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* For blocks: 0 to 3 hold products, 6 rows of x, 7 weights. For quads: 0 to 3 products, 4 x, 5 and 6 weights. */
static const tile_config configs[2] __attribute__((aligned(64))) = {
    {
        .palette = 1,
        .row_bytes = { 64, 64, 64, 64, 64, 64, LMK_BLOCK, 64 },
        .rows = { ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, LMK_BLOCK / 4 },
    },
    {
        .palette = 1,
        .row_bytes = { 64, 64, 64, 64, 64, 64, 64, 64 },
        .rows = { ROWS, ROWS, ROWS, ROWS, ROWS, 16, 16, 16 },
    },
};

#define TILE_LOAD(t, p) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((int64_t)64) : "memory")
#define TILE_STORE(t, p) __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"((int64_t)64) : "memory")
#define TILE_ZERO(c) __asm__ volatile("tilezero %%tmm" #c ::)
#define TILE_DOT(c, x, w) __asm__ volatile("tdpbssd %%tmm" #w ", %%tmm" #x ", %%tmm" #c ::)

/* 2^23 + 2^22, below which floats are integers and their bits count up with them */
#define MAGIC 12582912.0f
#define MAGIC_BITS 0x4b400000

typedef struct strip_pair {        /* two blocks of ROWS rows of x, the second one zero behind an odd number */
    int8_t q[ROWS][2 * LMK_BLOCK];
    float scale[2][ROWS];
} strip_pair;

typedef struct strip_extra {       /* for each block, behind all pairs */
    float sum[ROWS];               /* lmk_q8_block's */
} strip_extra;

_Static_assert(sizeof(strip_pair) == LMK_STRIP_PAIR && sizeof(strip_extra) == LMK_STRIP_EXTRA, "core.h has the sizes");

/* ---- rows of x ---- */

ALWAYS __m512i magnitude(const float *x)
{
    return _mm512_and_si512(_mm512_loadu_si512(x), _mm512_set1_epi32(0x7fffffff));
}

/* Sums of 32 bytes each: lane j of sums[h] is that of row j, half h. */
ALWAYS void half_sums(__m512i *sums, const int8_t (*q)[2 * LMK_BLOCK])
{
    const __m512i bytes = _mm512_set1_epi8(1), words = _mm512_set1_epi16(1);
    __m512i four[4];               /* of rows 4 i to 4 i + 3; lanes of 128 bits: the first half in two parts, the second */
    for (int i = 0; i < 4; i++) {
        __m512i s[4];
        for (int j = 0; j < 4; j++) s[j] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), bytes, _mm512_load_si512(q[4 * i + j]));
        const __m512i a = _mm512_madd_epi16(_mm512_packs_epi32(s[0], s[1]), words);
        const __m512i b = _mm512_madd_epi16(_mm512_packs_epi32(s[2], s[3]), words);
        four[i] = _mm512_madd_epi16(_mm512_packs_epi32(a, b), words);
    }
    __m512i eight[2];              /* rows 8 i to 8 i + 3, first half and second, then 8 i + 4 to 8 i + 7 */
    for (int i = 0; i < 2; i++)
        eight[i] = _mm512_add_epi32(_mm512_shuffle_i32x4(four[2 * i], four[2 * i + 1], 0x88),
                                    _mm512_shuffle_i32x4(four[2 * i], four[2 * i + 1], 0xdd));
    sums[0] = _mm512_shuffle_i32x4(eight[0], eight[1], 0x88);
    sums[1] = _mm512_shuffle_i32x4(eight[0], eight[1], 0xdd);
}

typedef struct units {             /* of ROWS rows */
    float inverse[ROWS], scale[ROWS];
    __mmask16 usable;
} units;

/* Those of `vectors` times 16 columns of each row, as quantise_q8 has them; the divisions of all rows at once */
ALWAYS void find_units(units *u, const float *const *x, const int vectors)
{
    int32_t tops[ROWS] __attribute__((aligned(64)));
    for (int j = 0; j < ROWS; j++) {
        __m512i most = magnitude(x[j]);
        for (int i = 1; i < vectors; i++) most = _mm512_max_epi32(most, magnitude(x[j] + 16 * i));
        tops[j] = _mm512_reduce_max_epi32(most);
    }
    const __m512i top = _mm512_load_si512(tops);
    const __mmask16 finite = _mm512_cmplt_epi32_mask(top, _mm512_set1_epi32(0x7f800000));
    const __m512 amax = _mm512_castsi512_ps(top), most = _mm512_set1_ps(127.0f);
    u->usable = finite & _mm512_cmpge_epi32_mask(top, _mm512_set1_epi32(0x0d800000));     /* 2^-100 */
    _mm512_storeu_ps(u->inverse, _mm512_maskz_div_ps(u->usable, most, amax));
    _mm512_storeu_ps(u->scale, _mm512_mask_mov_ps(_mm512_set1_ps(NAN), finite, _mm512_maskz_div_ps(u->usable, amax, most)));
}

/* Half h of a pair; x[j] is row j's block. */
ALWAYS void quantise(strip_pair *p, int h, const float *const *x, const units *u)
{
    const __m512 rounder = _mm512_set1_ps(MAGIC);
    for (int j = 0; j < ROWS; j++)
        for (int i = 0; i < 2; i++) {
            const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x[j] + 16 * i), _mm512_set1_ps(u->inverse[j]));
            const __m512i bits = _mm512_castps_si512(_mm512_add_ps(scaled, rounder));
            _mm_store_si128((void *)(p->q[j] + LMK_BLOCK * h + 16 * i), _mm512_cvtepi32_epi8(bits));
        }
    memcpy(p->scale[h], u->scale, sizeof u->scale);
}

void lmk_strip_amx(void *strip, const float *const *x, int64_t n_x, int64_t k, int share)
{
    static const float zeros[LMK_QUAD * LMK_BLOCK];
    const int64_t n_blocks = k / LMK_BLOCK;
    strip_pair *pairs = strip;
    strip_extra *extra = (strip_extra *)(pairs + (n_blocks + 1) / 2);
    units u[2];
    if (n_blocks % 2) memset(&pairs[n_blocks / 2], 0, sizeof *pairs);
    for (int64_t b = 0; b < n_blocks; b++) {
        const int h = (int)(b % 2);
        const float *row[ROWS];
        for (int64_t j = 0; j < ROWS; j++) row[j] = j < n_x ? x[j] + b * LMK_BLOCK : zeros;
        if (share == 1) find_units(&u[h], row, 2);
        else if (b % LMK_QUAD == 0) {
            find_units(&u[0], row, 2 * LMK_QUAD);
            u[1] = u[0];
        }
        quantise(&pairs[b / 2], h, row, &u[h]);
        if (!h && b + 1 < n_blocks) continue;
        __m512i sums[2];
        half_sums(sums, (const int8_t (*)[2 * LMK_BLOCK])pairs[b / 2].q);
        for (int i = 0; i <= h; i++)
            _mm512_store_ps(extra[b - h + i].sum,
                            _mm512_maskz_mul_ps(u[i].usable, _mm512_loadu_ps(u[i].scale), _mm512_cvtepi32_ps(sums[i])));
    }
}

/* ---- products ---- */

typedef int32_t product[ROWS][LMK_GROUP];

typedef struct run {               /* a group's panel, or planes, over a run of blocks */
    const uint8_t *w;
    const float *scales;           /* LMK_GROUP per block, or per two quads */
    int64_t n_steps;               /* blocks, or quads */
    float *const *y;               /* (n): the outputs, if this is the last run */
    int64_t i0, n;
    __mmask16 mask;                /* of the outputs that exist */
    float *sums;                   /* (ROWS, LMK_GROUP): of the runs before, and of all runs but the last */
    const float *low;              /* (ROWS, LMK_GROUP): what minimums add; or NULL */
    int first, last;
} run;

/* float(dot), exact: |dot| < 2^20 */
ALWAYS __m512 number(const int32_t *dot)
{
    const __m512i bits = _mm512_add_epi32(_mm512_load_si512(dot), _mm512_set1_epi32(MAGIC_BITS));
    return _mm512_sub_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(MAGIC));
}

/* float(64 high + low) */
ALWAYS __m512 joined(const int32_t *high, const int32_t *low)
{
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(high), 6), _mm512_load_si512(low)));
}

#define EACH_ROW(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11) M(12) M(13) M(14) M(15)

#define START(j) \
    __m512 acc##j = !r->first && j < n ? _mm512_load_ps(r->sums + j * LMK_GROUP) : _mm512_setzero_ps();
#define RESCALE(j) \
    if (j < n) acc##j = _mm512_fmadd_ps(number(done[j]), _mm512_mul_ps(w, _mm512_set1_ps(x_scale[j])), acc##j);
#define RESCALE_QUAD(j) \
    if (j < n) acc##j = _mm512_fmadd_ps(joined(highs[j], lows[j]), _mm512_mul_ps(w, _mm512_set1_ps(x_scale[j])), acc##j);
#define FINISH(j)                                                                               \
    if (j < n && !r->last) _mm512_store_ps(r->sums + j * LMK_GROUP, acc##j);                    \
    if (j < n && r->last && j < r->n)                                                           \
        _mm512_mask_storeu_ps(r->y[j] + r->i0, r->mask, r->low ? _mm512_add_ps(acc##j, _mm512_load_ps(r->low + j * LMK_GROUP)) : acc##j);

/* While the tiles multiply block b, the products of b - 2 are on their way to memory and those of b - 3 are scaled. */
#define BLOCK_STEP(b, now, before, last)                                                \
    if ((b) < r->n_steps) {                                                             \
        TILE_LOAD(6, x[(b) / 2].q[0] + (b) % 2 * LMK_BLOCK);                            \
        TILE_LOAD(7, r->w + (b) * (LMK_BLOCK * LMK_GROUP));                             \
        TILE_ZERO(now);                                                                 \
        TILE_DOT(now, 6, 7);                                                            \
    }                                                                                   \
    if ((b) >= 2 && (b) - 2 < r->n_steps) TILE_STORE(before, p[before]);                \
    if ((b) >= 3 && (b) - 3 < r->n_steps) {                                             \
        const __m512 w = _mm512_loadu_ps(r->scales + ((b) - 3) * LMK_GROUP);            \
        const float *x_scale = x[((b) - 3) / 2].scale[((b) - 3) % 2];                   \
        const int32_t (*done)[LMK_GROUP] = p[last];                                     \
        EACH_ROW(RESCALE)                                                               \
    }

/* One run of blocks; n >= r->n rows */
ALWAYS void run_blocks(const run *r, const strip_pair *x, const int n)
{
    product p[4] __attribute__((aligned(64)));
    EACH_ROW(START)
    for (int64_t b = 0; b < r->n_steps + 3; b += 4) {
        BLOCK_STEP(b, 0, 2, 1)
        BLOCK_STEP(b + 1, 1, 3, 2)
        BLOCK_STEP(b + 2, 2, 0, 3)
        BLOCK_STEP(b + 3, 3, 1, 0)
    }
    EACH_ROW(FINISH)
}

#define QUAD_PAIR(i, high, low)                                     \
    TILE_LOAD(4, x[i].q[0]);                                        \
    TILE_LOAD(5, r->w + (i) * (4 * LMK_BLOCK * LMK_GROUP));         \
    TILE_LOAD(6, r->w + (i) * (4 * LMK_BLOCK * LMK_GROUP) + 1024);  \
    TILE_DOT(high, 4, 5);                                           \
    TILE_DOT(low, 4, 6);

/* While the tiles multiply quad s, the products of s - 1 are scaled. */
#define QUAD_STEP(s, high, low, high_before, low_before)                                \
    if ((s) < r->n_steps) {                                                             \
        TILE_ZERO(high);                                                                \
        TILE_ZERO(low);                                                                 \
        QUAD_PAIR(2 * (s), high, low)                                                   \
        QUAD_PAIR(2 * (s) + 1, high, low)                                               \
    }                                                                                   \
    if ((s) >= 1 && (s) - 1 < r->n_steps) {                                             \
        const __m512 w = _mm512_loadu_ps(r->scales + ((s) - 1) / 2 * LMK_GROUP);        \
        const float *x_scale = x[2 * (s) - 2].scale[0];                                 \
        const int32_t (*highs)[LMK_GROUP] = p[high_before], (*lows)[LMK_GROUP] = p[low_before]; \
        EACH_ROW(RESCALE_QUAD)                                                          \
    }                                                                                   \
    if ((s) < r->n_steps) {                                                             \
        TILE_STORE(high, p[high]);                                                      \
        TILE_STORE(low, p[low]);                                                        \
    }

/* One run of quads; n >= r->n rows */
ALWAYS void run_quads(const run *r, const strip_pair *x, const int n)
{
    product p[4] __attribute__((aligned(64)));
    EACH_ROW(START)
    for (int64_t s = 0; s < r->n_steps + 1; s += 2) {
        QUAD_STEP(s, 0, 1, 2, 3)
        QUAD_STEP(s + 1, 2, 3, 0, 1)
    }
    EACH_ROW(FINISH)
}

static const strip_extra *extras(const uint8_t *strip, int64_t n_blocks)
{
    return (const strip_extra *)(const void *)(strip + (n_blocks + 1) / 2 * (int64_t)sizeof(strip_pair));
}

#define MIN_START(j) __m512 low##j = first ? _mm512_setzero_ps() : _mm512_load_ps(low + j * LMK_GROUP);
#define MIN_ADD(j) low##j = _mm512_fmadd_ps(min, _mm512_set1_ps(extra[b].sum[j]), low##j);
#define MIN_FINISH(j) _mm512_store_ps(low + j * LMK_GROUP, low##j);

/* low (ROWS, LMK_GROUP) += minimums times sums of x, over a run */
static void multiply_mins(float *low, const float *mins, const strip_extra *extra, int64_t n_blocks, int first)
{
    EACH_ROW(MIN_START)
    for (int64_t b = 0; b < n_blocks; b++) {
        const __m512 min = _mm512_loadu_ps(mins + b * LMK_GROUP);
        EACH_ROW(MIN_ADD)
    }
    EACH_ROW(MIN_FINISH)
}

typedef struct panel {             /* a run of a group's blocks: codes with their sign, or planes of half as many */
    uint8_t codes[RUN * LMK_BLOCK * LMK_GROUP];
    float scales[RUN * LMK_GROUP], mins[RUN * LMK_GROUP];
} panel;

_Static_assert(sizeof(panel) == LMK_STRIPS_PANEL, "packed.h has the size");

typedef struct task {              /* up to two groups with all rows */
    const lmk_ending *ending;
    int64_t n_x, n_blocks, strip_bytes;
    const uint8_t *strips;
    panel *panels;
    float *sums;                   /* (strips, 2, ROWS, LMK_GROUP): between runs */
    float *lows;                   /* likewise what minimums add, or NULL */
    const uint8_t *next;           /* what the next call reads, which comes in evenly while this one computes; or NULL */
    int64_t next_step;             /* bytes of it for each strip of each run */
} task;

/* The run of n blocks from `first` on, whose panels are ready */
ALWAYS void run_strips(task *t, int64_t first, int64_t n, const int quads)
{
    __asm__ volatile("ldtilecfg %0" ::"m"(configs[quads]));
    for (int64_t j = 0; j < t->n_x; j += ROWS) {
        const strip_pair *x = (const strip_pair *)(const void *)(t->strips + j / ROWS * t->strip_bytes) + first / 2;
        for (int64_t a = 0; a < t->next_step; a += 64) _mm_prefetch((const char *)t->next + a, _MM_HINT_T1);
        t->next += t->next_step;
        const lmk_place to = lmk_from_row(t->ending->to, j);
        const int64_t n_rows = lmk_min(ROWS, t->n_x - j);
        for (int s = 0; s * LMK_GROUP < t->ending->n_out; s++) {
            const int64_t outs = lmk_min(LMK_GROUP, t->ending->n_out - s * LMK_GROUP), at = (j / ROWS * 2 + s) * (ROWS * LMK_GROUP);
            const run r = {
                .w = t->panels[s].codes, .scales = t->panels[s].scales, .n_steps = quads ? n / LMK_QUAD : n,
                .y = to.row, .i0 = to.at + s * LMK_GROUP, .n = n_rows,
                .mask = (__mmask16)((1u << outs) - 1), .sums = t->sums + at, .low = t->lows ? t->lows + at : NULL,
                .first = first == 0, .last = first + n == t->n_blocks,
            };
            const int rows = r.n > 12 ? 16 : r.n > 8 ? 12 : 8;
#define RUN_ROWS(n) if (rows == n) { if (quads) run_quads(&r, x, n); else run_blocks(&r, x, n); }
            RUN_ROWS(16) RUN_ROWS(12) RUN_ROWS(8)
#undef RUN_ROWS
        }
        if (first + n == t->n_blocks) lmk_end(t->ending, j, n_rows);
    }
    __asm__ volatile("tilerelease" ::);
}

void lmk_dot_strips_amx(int32_t type, const lmk_ending *ending, const uint8_t *w, int64_t group_bytes, const void *strips,
                        int64_t n_x, int64_t k, const uint8_t *next, uint8_t *scratch)
{
    const lmk_form f = lmk_form_of(type);
    const int quads = lmk_share(f) > 1;
    const int64_t n_blocks = k / LMK_BLOCK, length = quads ? QUAD_RUN : RUN, n_strips = (n_x + ROWS - 1) / ROWS;
    const int64_t steps = (n_blocks + length - 1) / length * n_strips;
    panel *panels = (panel *)(void *)scratch;
    float *sums = (float *)(void *)(panels + 2), *lows = sums + lmk_strips_sums(n_x);
    task t = {
        .ending = ending, .n_x = n_x, .n_blocks = n_blocks, .strip_bytes = lmk_strip_bytes(k), .strips = strips,
        .panels = panels, .sums = sums, .lows = f.mins ? lows : NULL,
        .next = next, .next_step = next ? (2 * group_bytes / 64 + steps - 1) / steps * 64 : 0,
    };
    for (int64_t first = 0; first < n_blocks; first += length) {
        const int64_t n = lmk_min(length, n_blocks - first);
        for (int s = 0; s * LMK_GROUP < ending->n_out; s++) {
            panel *p = &panels[s];
            const uint8_t *group = w + s * group_bytes;
            if (quads) lmk_expand_planes_avx512(type, p->codes, p->scales, p->mins, group, k, first, n);
            else lmk_expand_signed_avx512(type, p->codes, p->scales, p->mins, group, k, first, n);
            for (int64_t i = 0; f.mins && i < n_strips; i++)
                multiply_mins(lows + (2 * i + s) * (ROWS * LMK_GROUP), p->mins,
                              extras(t.strips + i * t.strip_bytes, n_blocks) + first, n, first == 0);
        }
        if (quads) run_strips(&t, first, n, 1);
        else run_strips(&t, first, n, 0);
    }
}
#endif
