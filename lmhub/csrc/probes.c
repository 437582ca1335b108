/* probes.c: what the arithmetic units of this machine do at most, the floor under every prefill.
 *
 * One probe for each unit that some level's dot products run on: independent chains in registers, no memory. To add one,
 * write a function that does `rounds` rounds and returns how many operations those were, and a line in the table.
 */
#include "core.h"

#include <math.h>
#include <time.h>

#define PASSES 5
#define PIECES 32                  /* per thread: one that comes late takes fewer of them */
#define PIECE_S 200e-6

typedef double (*probe_fn)(int64_t rounds);

#define KEEP(v) __asm__ volatile("" : "+x"(v))     /* as if it had changed: nothing can be taken out of the loop */

static double ref_f32(int64_t rounds)
{
    enum { CHAINS = 16 };
    float acc[CHAINS] = { 0 }, a = 0.5f;
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < CHAINS; i++) acc[i] = fmaf(a, a, acc[i]);
    volatile float sink = 0;
    for (int i = 0; i < CHAINS; i++) sink = sink + acc[i];
    return (double)rounds * CHAINS * 2;
}

static double ref_int8(int64_t rounds)
{
    enum { CHAINS = 16 };
    int32_t acc[CHAINS] = { 0 };
    volatile int8_t w = 3;
    for (int64_t r = 0; r < rounds; r++) {
        const int8_t x = w;
        for (int i = 0; i < CHAINS; i++) acc[i] = (int32_t)((uint32_t)acc[i] + (uint32_t)(x * (x + i)));
    }
    volatile int32_t sink = 0;
    for (int i = 0; i < CHAINS; i++) sink = sink ^ acc[i];
    return (double)rounds * CHAINS * 2;
}

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma")

static double avx2_f32(int64_t rounds)
{
    enum { CHAINS = 12 };
    __m256 acc[CHAINS], a = _mm256_set1_ps(0.03125f);
    for (int i = 0; i < CHAINS; i++) acc[i] = _mm256_set1_ps((float)i);
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < CHAINS; i++) acc[i] = _mm256_fmadd_ps(a, a, acc[i]);
    for (int i = 0; i < CHAINS; i++) KEEP(acc[i]);
    return (double)rounds * CHAINS * 8 * 2;
}

/* Products of pairs in 16 bits, sums of two pairs in 32, added up: three instructions for 32 multiplications. */
#define CHAIN(i)                                                                                    \
    KEEP(x##i);                                                                                     \
    acc##i = _mm256_add_epi32(acc##i, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x##i), ones))

static double avx2_int8(int64_t rounds)
{
    const __m256i w = _mm256_set1_epi8(3), ones = _mm256_set1_epi16(1);
    __m256i x0 = w, x1 = w, x2 = w, x3 = w, x4 = w, x5 = w;        /* in registers: GCC would leave an array in memory */
    __m256i acc0 = w, acc1 = w, acc2 = w, acc3 = w, acc4 = w, acc5 = w;
    for (int64_t r = 0; r < rounds; r++) {
        CHAIN(0);
        CHAIN(1);
        CHAIN(2);
        CHAIN(3);
        CHAIN(4);
        CHAIN(5);
    }
    KEEP(acc0);
    KEEP(acc1);
    KEEP(acc2);
    KEEP(acc3);
    KEEP(acc4);
    KEEP(acc5);
    return (double)rounds * 6 * 32 * 2;
}

#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
#undef KEEP
#define KEEP(v) __asm__ volatile("" : "+v"(v))

static double avx512_f32(int64_t rounds)
{
    enum { CHAINS = 16 };
    __m512 acc[CHAINS], a = _mm512_set1_ps(0.03125f);
    for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_set1_ps((float)i);
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_fmadd_ps(a, a, acc[i]);
    for (int i = 0; i < CHAINS; i++) KEEP(acc[i]);
    return (double)rounds * CHAINS * 16 * 2;
}

static double avx512_int8(int64_t rounds)
{
    enum { CHAINS = 16 };
    __m512i acc[CHAINS], w = _mm512_set1_epi8(3), x = _mm512_set1_epi8(5);
    for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_set1_epi32(i);
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_dpbusd_epi32(acc[i], w, x);
    for (int i = 0; i < CHAINS; i++) KEEP(acc[i]);
    return (double)rounds * CHAINS * 64 * 2;
}

#pragma GCC pop_options

/* Tiles: 4 sums of 2 x 2 operands, as a blocked product has them. The configuration that the thread had comes back: the
 * kernels may count on it. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

static const tile_config whole_tiles = {
    .palette = 1,
    .row_bytes = { 64, 64, 64, 64, 64, 64, 64, 64 },
    .rows = { 16, 16, 16, 16, 16, 16, 16, 16 },
};

#pragma GCC push_options
#pragma GCC target("amx-tile,amx-int8,amx-bf16")

#define TILE_PROBE(name, dp, k)                                                                     \
    static double name(int64_t rounds)                                                              \
    {                                                                                               \
        tile_config before;                                                                         \
        __asm__ volatile("sttilecfg %0" : "=m"(before));                                            \
        __asm__ volatile("ldtilecfg %0" : : "m"(whole_tiles));                                      \
        for (int64_t r = 0; r < rounds; r++) {                                                      \
            dp(0, 4, 6);                                                                            \
            dp(1, 4, 7);                                                                            \
            dp(2, 5, 6);                                                                            \
            dp(3, 5, 7);                                                                            \
        }                                                                                           \
        __asm__ volatile("ldtilecfg %0" : : "m"(before));                                           \
        return (double)rounds * 4 * 16 * 16 * (k) * 2;                                              \
    }

TILE_PROBE(amx_int8, _tile_dpbusd, 64)
TILE_PROBE(amx_bf16, _tile_dpbf16ps, 32)

#pragma GCC pop_options
#elif defined(__aarch64__)
#include <arm_neon.h>

#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod+i8mm")
#undef KEEP
#define KEEP(v) __asm__ volatile("" : "+w"(v))

static double neon_f32(int64_t rounds)
{
    enum { CHAINS = 16 };
    float32x4_t acc[CHAINS], a = vdupq_n_f32(0.03125f);
    for (int i = 0; i < CHAINS; i++) acc[i] = vdupq_n_f32((float)i);
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < CHAINS; i++) acc[i] = vfmaq_f32(acc[i], a, a);
    for (int i = 0; i < CHAINS; i++) KEEP(acc[i]);
    return (double)rounds * CHAINS * 4 * 2;
}

#define INT8_PROBE(name, dot, products)                                                             \
    static double name(int64_t rounds)                                                              \
    {                                                                                               \
        enum { CHAINS = 16 };                                                                       \
        int32x4_t acc[CHAINS];                                                                      \
        const int8x16_t w = vdupq_n_s8(3), x = vdupq_n_s8(5);                                       \
        for (int i = 0; i < CHAINS; i++) acc[i] = vdupq_n_s32(i);                                   \
        for (int64_t r = 0; r < rounds; r++)                                                        \
            for (int i = 0; i < CHAINS; i++) acc[i] = dot(acc[i], w, x);                            \
        for (int i = 0; i < CHAINS; i++) KEEP(acc[i]);                                              \
        return (double)rounds * CHAINS * (products) * 2;                                            \
    }

INT8_PROBE(neon_int8, vdotq_s32, 16)
INT8_PROBE(i8mm_int8, vmmlaq_s32, 32)

#pragma GCC pop_options
#endif

static const struct {
    lmk_probe probe;
    probe_fn run;
} probes[] = {
    { { "ref", "f32", "fma" }, ref_f32 },
    { { "ref", "int8", "imul" }, ref_int8 },
#if defined(__x86_64__)
    { { "avx2", "f32", "vfmadd" }, avx2_f32 },
    { { "avx2", "int8", "vpmaddubsw" }, avx2_int8 },
    { { "avx512", "f32", "vfmadd" }, avx512_f32 },
    { { "avx512", "int8", "vpdpbusd" }, avx512_int8 },
    { { "amx", "int8", "tdpbusd" }, amx_int8 },
    { { "amx", "bf16", "tdpbf16ps" }, amx_bf16 },
#elif defined(__aarch64__)
    { { "neon", "f32", "fmla" }, neon_f32 },
    { { "neon", "int8", "sdot" }, neon_int8 },
    { { "i8mm", "int8", "smmla" }, i8mm_int8 },
#endif
};

const lmk_probe *lmk_probe_at(int i)
{
    return i >= 0 && i < (int)(sizeof probes / sizeof *probes) ? &probes[i].probe : NULL;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct probe_job {
    probe_fn run;
    int64_t rounds;
} probe_job;

static void run_pieces(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const probe_job *job = arg;
    for (int64_t i = begin; i < end; i++) job->run(job->rounds);
}

double lmk_probe_run(int i, int threads)
{
    const lmk_probe *probe = lmk_probe_at(i);
    if (!probe) return lmk_fail("There is no probe %d; lmk_probe_at names those there are.", i);
    if (!lmk_kernels_for(probe->level)) return -1.0;
    if (threads < 1) threads = lmk_threads();
    probe_job job = { probes[i].run, 1024 };
    for (double took = 0.0; took < PIECE_S; job.rounds = took < PIECE_S ? job.rounds * 2 : job.rounds) {
        const double start = seconds();
        job.run(job.rounds);
        took = seconds() - start;
    }
    const double work = job.run(job.rounds) * PIECES * threads;
    double best = 0.0;
    for (int pass = 0; pass < PASSES; pass++) {
        const double start = seconds();
        lmk_parallel(threads, (int64_t)PIECES * threads, 1, run_pieces, &job);
        const double rate = work / (seconds() - start) * 1e-9;
        if (rate > best) best = rate;
    }
    return best;
}
