/* simd_avx2.h: the 16-lane vector as two registers of AVX2 + FMA + F16C. See simd_ref.h for the meaning of each call. */
#include <immintrin.h>
#include <string.h>

typedef struct v16 { __m256 lo, hi; } v16;
typedef struct i16x { __m256i lo, hi; } i16x;

#define BOTH(type, op, a, b) ((type){ op((a).lo, (b).lo), op((a).hi, (b).hi) })

static inline v16 v_set(float a) { return (v16){ _mm256_set1_ps(a), _mm256_set1_ps(a) }; }
static inline v16 v_load(const float *p) { return (v16){ _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8) }; }
static inline void v_store(float *p, v16 a) { _mm256_storeu_ps(p, a.lo); _mm256_storeu_ps(p + 8, a.hi); }
static inline v16 v_load_part(const float *p, int n, float rest)
{
    float t[16];
    for (int i = 0; i < 16; i++) t[i] = i < n ? p[i] : rest;
    return v_load(t);
}
static inline void v_store_part(float *p, v16 a, int n)
{
    float t[16];
    v_store(t, a);
    memcpy(p, t, (size_t)n * sizeof(float));
}
static inline v16 v_add(v16 a, v16 b) { return BOTH(v16, _mm256_add_ps, a, b); }
static inline v16 v_sub(v16 a, v16 b) { return BOTH(v16, _mm256_sub_ps, a, b); }
static inline v16 v_mul(v16 a, v16 b) { return BOTH(v16, _mm256_mul_ps, a, b); }
static inline v16 v_div(v16 a, v16 b) { return BOTH(v16, _mm256_div_ps, a, b); }
static inline v16 v_max(v16 a, v16 b) { return BOTH(v16, _mm256_max_ps, a, b); }
static inline v16 v_min(v16 a, v16 b) { return BOTH(v16, _mm256_min_ps, a, b); }
static inline v16 v_fma(v16 a, v16 b, v16 c)
{
    return (v16){ _mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi) };
}
static inline v16 v_where_least(v16 a, v16 b, v16 x)
{
    return (v16){ _mm256_and_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ), x.lo),
                  _mm256_and_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ), x.hi) };
}

static inline v16 v_quiet(v16 a)
{
    const __m256 nan = _mm256_set1_ps(NAN);
    return (v16){ _mm256_blendv_ps(a.lo, nan, _mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q)),
                  _mm256_blendv_ps(a.hi, nan, _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q)) };
}

static inline float v_sum(v16 a)
{
    __m256 s8 = _mm256_add_ps(a.lo, a.hi);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

static inline float v_top(v16 a)
{
    __m256 s8 = _mm256_max_ps(a.lo, a.hi);
    __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

static inline i16x v_bits(v16 a) { return (i16x){ _mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi) }; }
static inline v16 i_float(i16x a) { return (v16){ _mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi) }; }
static inline i16x i_set(uint32_t a) { return (i16x){ _mm256_set1_epi32((int)a), _mm256_set1_epi32((int)a) }; }
static inline i16x i_add(i16x a, i16x b) { return BOTH(i16x, _mm256_add_epi32, a, b); }
static inline i16x i_sub(i16x a, i16x b) { return BOTH(i16x, _mm256_sub_epi32, a, b); }
static inline i16x i_mul(i16x a, i16x b) { return BOTH(i16x, _mm256_mullo_epi32, a, b); }
static inline i16x i_and(i16x a, i16x b) { return BOTH(i16x, _mm256_and_si256, a, b); }
static inline i16x i_max(i16x a, i16x b) { return BOTH(i16x, _mm256_max_epi32, a, b); }
static inline i16x i_half(i16x a) { return (i16x){ _mm256_srai_epi32(a.lo, 1), _mm256_srai_epi32(a.hi, 1) }; }
static inline i16x i_exponent(i16x a) { return (i16x){ _mm256_slli_epi32(a.lo, 23), _mm256_slli_epi32(a.hi, 23) }; }

static inline int32_t i_top(i16x a)
{
    __m256i m8 = _mm256_max_epi32(a.lo, a.hi);
    __m128i m4 = _mm_max_epi32(_mm256_castsi256_si128(m8), _mm256_extracti128_si256(m8, 1));
    __m128i m2 = _mm_max_epi32(m4, _mm_shuffle_epi32(m4, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(m2, _mm_shuffle_epi32(m2, 0xb1)));
}

static inline int32_t i_sum(i16x a)
{
    __m256i s8 = _mm256_add_epi32(a.lo, a.hi);
    __m128i s4 = _mm_add_epi32(_mm256_castsi256_si128(s8), _mm256_extracti128_si256(s8, 1));
    __m128i s2 = _mm_add_epi32(s4, _mm_shuffle_epi32(s4, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s2, _mm_shuffle_epi32(s2, 0xb1)));
}

static inline void i_store_i8(int8_t *p, i16x a)
{
    __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
    __m128i b = _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
    _mm_storeu_si128((__m128i *)p, b);
}

static inline i16x i_load_u8(const uint8_t *p)
{
    return (i16x){ _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)),
                   _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8))) };
}
static inline i16x i_load_i8(const int8_t *p)
{
    return (i16x){ _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)),
                   _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8))) };
}
static inline v16 v_power(v16 p, v16 n, i16x bits)
{
    (void)n;
    return i_float(i_add(v_bits(p), i_exponent(bits)));
}
static inline i16x i_left(i16x a, int n)
{
    return (i16x){ _mm256_sll_epi32(a.lo, _mm_cvtsi32_si128(n)), _mm256_sll_epi32(a.hi, _mm_cvtsi32_si128(n)) };
}
static inline i16x i_right(i16x a, int n)
{
    return (i16x){ _mm256_srl_epi32(a.lo, _mm_cvtsi32_si128(n)), _mm256_srl_epi32(a.hi, _mm_cvtsi32_si128(n)) };
}
static inline v16 i_to_float(i16x a) { return (v16){ _mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi) }; }

static inline i16x i_fields2(uint32_t u)
{
    const __m256i by = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    return (i16x){ _mm256_srlv_epi32(_mm256_set1_epi32((int)u), by), _mm256_srlv_epi32(_mm256_set1_epi32((int)(u >> 16)), by) };
}
static inline i16x i_fields4(uint64_t u)
{
    const __m256i by = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    return (i16x){ _mm256_srlv_epi32(_mm256_set1_epi32((int)u), by), _mm256_srlv_epi32(_mm256_set1_epi32((int)(u >> 32)), by) };
}
static inline v16 v_pick4(v16 table, i16x at)
{
    return (v16){ _mm256_permutevar_ps(table.lo, at.lo), _mm256_permutevar_ps(table.hi, at.hi) };
}
static inline v16 v_pick8(v16 table, i16x at)
{
    return (v16){ _mm256_permutevar8x32_ps(table.lo, at.lo), _mm256_permutevar8x32_ps(table.hi, at.hi) };
}
static inline v16 v_signed(v16 a, uint32_t signs)
{
    const __m256i s = _mm256_set1_epi32((int)signs), top = _mm256_set1_epi32((int)0x80000000);
    const __m256i lo = _mm256_sllv_epi32(s, _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24));
    const __m256i hi = _mm256_sllv_epi32(s, _mm256_setr_epi32(23, 22, 21, 20, 19, 18, 17, 16));
    const i16x minus = { _mm256_and_si256(lo, top), _mm256_and_si256(hi, top) };
    return v_mul(a, i_float(BOTH(i16x, _mm256_or_si256, minus, v_bits(v_set(1.0f)))));
}

#define EACH_HALF(op, a, n) ((i16x){ op((a).lo, n), op((a).hi, n) })
#define i_shl(a, n) EACH_HALF(_mm256_slli_epi32, a, n)
#define i_sar(a, n) EACH_HALF(_mm256_srai_epi32, a, n)
static inline i16x i_or(i16x a, i16x b) { return BOTH(i16x, _mm256_or_si256, a, b); }
static inline i16x i_load(const int32_t *p)
{
    return (i16x){ _mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 8)) };
}
static inline void i_store(int32_t *p, i16x a)
{
    _mm256_storeu_si256((__m256i *)p, a.lo);
    _mm256_storeu_si256((__m256i *)(p + 8), a.hi);
}

static inline i16x w_join(i16x a, i16x b)
{
    return (i16x){ _mm256_blend_epi16(a.lo, _mm256_slli_epi32(b.lo, 16), 0xaa),
                   _mm256_blend_epi16(a.hi, _mm256_slli_epi32(b.hi, 16), 0xaa) };
}
static inline i16x w_set(uint16_t a) { return (i16x){ _mm256_set1_epi16((short)a), _mm256_set1_epi16((short)a) }; }
static inline i16x w_add(i16x a, i16x b) { return BOTH(i16x, _mm256_add_epi16, a, b); }
static inline i16x w_sub(i16x a, i16x b) { return BOTH(i16x, _mm256_sub_epi16, a, b); }
static inline i16x w_mul(i16x a, i16x b) { return BOTH(i16x, _mm256_mullo_epi16, a, b); }
#define w_shl(a, n) EACH_HALF(_mm256_slli_epi16, a, n)
#define w_shr(a, n) EACH_HALF(_mm256_srli_epi16, a, n)
#define w_sar(a, n) EACH_HALF(_mm256_srai_epi16, a, n)
static inline i16x i_dot(i16x sum, i16x a, i16x b)
{
    return i_add(sum, BOTH(i16x, _mm256_madd_epi16, a, b));
}

/* Eight rows of eight */
static inline void transpose_8x8(__m256 *a)
{
    __m256 t[8];
    for (int i = 0; i < 8; i += 4) {               /* 4 x 4 elements within the lanes of 128 bits */
        const __m256 p = _mm256_unpacklo_ps(a[i], a[i + 1]), q = _mm256_unpackhi_ps(a[i], a[i + 1]);
        const __m256 r = _mm256_unpacklo_ps(a[i + 2], a[i + 3]), s = _mm256_unpackhi_ps(a[i + 2], a[i + 3]);
        t[i] = _mm256_shuffle_ps(p, r, 0x44);
        t[i + 1] = _mm256_shuffle_ps(p, r, 0xee);
        t[i + 2] = _mm256_shuffle_ps(q, s, 0x44);
        t[i + 3] = _mm256_shuffle_ps(q, s, 0xee);
    }
    for (int i = 0; i < 4; i++) {                  /* 2 x 2 lanes */
        a[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
        a[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
}

static inline void v_transpose(v16 *a)
{
    __m256 corner[2][2][8];
    for (int i = 0; i < 8; i++) {
        corner[0][0][i] = a[i].lo, corner[0][1][i] = a[i].hi;
        corner[1][0][i] = a[i + 8].lo, corner[1][1][i] = a[i + 8].hi;
    }
    for (int j = 0; j < 4; j++) transpose_8x8(corner[j / 2][j % 2]);
    for (int i = 0; i < 8; i++) {
        a[i] = (v16){ corner[0][0][i], corner[1][0][i] };
        a[i + 8] = (v16){ corner[0][1][i], corner[1][1][i] };
    }
}

static inline v16 v_load_f16(const uint16_t *p)
{
    return (v16){ _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                  _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))) };
}

static inline void v_store_f16(uint16_t *p, v16 a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#define KEEP(v) __asm__ volatile("" : "+x"((v).lo), "+x"((v).hi))   /* computed by here: gcc would spill what it moves */
#define V_FETCH(after, p) LMK_FETCH((after).lo, p)
#define EXPANDS                                     /* expand.h pays, */
#define LOOKS_UP                                    /* and so does expand_grids.h */
#define PAIR_SUMS                                   /* panels_avx2.h wants them of x */
#define DELTA_BLOCKS 1                              /* delta.h: blocks of columns in registers */
#define BLOCK_W 3
#define BLOCK_X 2
#define H_ROWS 2                                    /* halves.h: rows of x and groups of weights in registers, */
#define H_GROUPS 1
#define H_DIRECT 2                                  /* and rows of x straight from packed weights */
