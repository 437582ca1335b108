/* simd_avx512.h: the 16-lane vector as one AVX-512 register. See simd_ref.h for the meaning of each call. */
#include <immintrin.h>

typedef __m512 v16;
typedef __m512i i16x;

static inline v16 v_set(float a) { return _mm512_set1_ps(a); }
static inline v16 v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, v16 a) { _mm512_storeu_ps(p, a); }
static inline v16 v_load_part(const float *p, int n, float rest)
{
    return _mm512_mask_loadu_ps(_mm512_set1_ps(rest), (__mmask16)((1u << n) - 1), p);
}
static inline void v_store_part(float *p, v16 a, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a); }
static inline v16 v_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
static inline v16 v_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
static inline v16 v_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
static inline v16 v_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
static inline v16 v_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
static inline v16 v_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
static inline v16 v_min(v16 a, v16 b) { return _mm512_min_ps(a, b); }
static inline v16 v_where_least(v16 a, v16 b, v16 x)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), x);
}

static inline v16 v_quiet(v16 a)
{
    return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), _mm512_set1_ps(NAN));
}

static inline float v_sum(v16 a)
{
    __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

static inline float v_top(v16 a)
{
    __m256 s8 = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

static inline i16x v_bits(v16 a) { return _mm512_castps_si512(a); }
static inline v16 i_float(i16x a) { return _mm512_castsi512_ps(a); }
static inline i16x i_set(uint32_t a) { return _mm512_set1_epi32((int)a); }
static inline i16x i_add(i16x a, i16x b) { return _mm512_add_epi32(a, b); }
static inline i16x i_sub(i16x a, i16x b) { return _mm512_sub_epi32(a, b); }
static inline i16x i_mul(i16x a, i16x b) { return _mm512_mullo_epi32(a, b); }
static inline i16x i_and(i16x a, i16x b) { return _mm512_and_si512(a, b); }
static inline i16x i_half(i16x a) { return _mm512_srai_epi32(a, 1); }
static inline i16x i_exponent(i16x a) { return _mm512_slli_epi32(a, 23); }
static inline i16x i_max(i16x a, i16x b) { return _mm512_max_epi32(a, b); }
static inline int32_t i_top(i16x a) { return _mm512_reduce_max_epi32(a); }
static inline int32_t i_sum(i16x a) { return _mm512_reduce_add_epi32(a); }
static inline void i_store_i8(int8_t *p, i16x a) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a)); }

static inline i16x i_load_u8(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
static inline i16x i_load_i8(const int8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }
static inline v16 v_power(v16 p, v16 n, i16x bits) { (void)bits; return _mm512_scalef_ps(p, n); }
static inline i16x i_left(i16x a, int n) { return _mm512_sll_epi32(a, _mm_cvtsi32_si128(n)); }
static inline i16x i_right(i16x a, int n) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n)); }
static inline v16 i_to_float(i16x a) { return _mm512_cvtepi32_ps(a); }

static inline i16x i_fields2(uint32_t u)
{
    return _mm512_srlv_epi32(i_set(u), _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30));
}
static inline i16x i_fields4(uint64_t u)
{
    const __m512i each = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i words = _mm512_permutexvar_epi32(each, _mm512_castsi128_si512(_mm_cvtsi64_si128((int64_t)u)));
    return _mm512_srlv_epi32(words, _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28));
}
static inline v16 v_pick4(v16 table, i16x at) { return _mm512_permutevar_ps(table, at); }
static inline v16 v_pick8(v16 table, i16x at) { return _mm512_permutexvar_ps(at, table); }
static inline v16 v_signed(v16 a, uint32_t signs) { return _mm512_mask_mul_ps(a, (__mmask16)signs, a, v_set(-1.0f)); }

#define i_shl(a, n) _mm512_slli_epi32(a, n)
#define i_sar(a, n) _mm512_srai_epi32(a, n)
static inline i16x i_or(i16x a, i16x b) { return _mm512_or_si512(a, b); }
static inline i16x i_load(const int32_t *p) { return _mm512_loadu_si512(p); }
static inline void i_store(int32_t *p, i16x a) { _mm512_storeu_si512(p, a); }

static inline i16x w_join(i16x a, i16x b)
{
    return _mm512_ternarylogic_epi32(_mm512_set1_epi32(0xffff), a, _mm512_slli_epi32(b, 16), 0xca);
}
static inline i16x w_set(uint16_t a) { return _mm512_set1_epi16((short)a); }
static inline i16x w_add(i16x a, i16x b) { return _mm512_add_epi16(a, b); }
static inline i16x w_sub(i16x a, i16x b) { return _mm512_sub_epi16(a, b); }
#define w_shl(a, n) _mm512_slli_epi16(a, n)
#define w_shr(a, n) _mm512_srli_epi16(a, n)
#define w_sar(a, n) _mm512_srai_epi16(a, n)
static inline i16x i_dot(i16x sum, i16x a, i16x b) { return _mm512_dpwssd_epi32(sum, a, b); }

static inline void v_transpose(v16 *a)
{
    v16 t[16];
    for (int i = 0; i < 16; i += 4) {               /* 4 x 4 elements within lanes of 128 bits */
        const v16 p = _mm512_unpacklo_ps(a[i], a[i + 1]), q = _mm512_unpackhi_ps(a[i], a[i + 1]);
        const v16 r = _mm512_unpacklo_ps(a[i + 2], a[i + 3]), s = _mm512_unpackhi_ps(a[i + 2], a[i + 3]);
        t[i] = _mm512_shuffle_ps(p, r, 0x44);
        t[i + 1] = _mm512_shuffle_ps(p, r, 0xee);
        t[i + 2] = _mm512_shuffle_ps(q, s, 0x44);
        t[i + 3] = _mm512_shuffle_ps(q, s, 0xee);
    }
    for (int i = 0; i < 4; i++) {                   /* 4 x 4 lanes */
        const v16 p = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88), q = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd);
        const v16 r = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88), s = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xdd);
        a[i] = _mm512_shuffle_f32x4(p, r, 0x88);
        a[i + 4] = _mm512_shuffle_f32x4(q, s, 0x88);
        a[i + 8] = _mm512_shuffle_f32x4(p, r, 0xdd);
        a[i + 12] = _mm512_shuffle_f32x4(q, s, 0xdd);
    }
}

static inline v16 v_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline void v_store_f16(uint16_t *p, v16 a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* y[b][i0 + a] = v_sum(acc[a][b]): sixteen sums at once, each by v_sum's tree, as a transposition with additions. */
#define V_SUM_4X4
static inline void v_sum_4x4(float *const *y, int64_t i0, v16 acc[4][4])
{
    v16 s8[8], s4[4], s2[2];
    for (int i = 0; i < 8; i++) {
        v16 p = acc[i / 2][i % 2 * 2], q = acc[i / 2][i % 2 * 2 + 1];
        s8[i] = v_add(_mm512_shuffle_f32x4(p, q, 0x44), _mm512_shuffle_f32x4(p, q, 0xee));
    }
    for (int i = 0; i < 4; i++)
        s4[i] = v_add(_mm512_shuffle_f32x4(s8[2 * i], s8[2 * i + 1], 0x88),
                      _mm512_shuffle_f32x4(s8[2 * i], s8[2 * i + 1], 0xdd));
    for (int i = 0; i < 2; i++) {
        __m512d p = _mm512_castps_pd(s4[2 * i]), q = _mm512_castps_pd(s4[2 * i + 1]);
        s2[i] = v_add(_mm512_castpd_ps(_mm512_unpacklo_pd(p, q)), _mm512_castpd_ps(_mm512_unpackhi_pd(p, q)));
    }
    v16 s = v_add(_mm512_shuffle_ps(s2[0], s2[1], 0x88), _mm512_shuffle_ps(s2[0], s2[1], 0xdd));
    _mm_storeu_ps(y[0] + i0, _mm512_extractf32x4_ps(s, 0));
    _mm_storeu_ps(y[1] + i0, _mm512_extractf32x4_ps(s, 1));
    _mm_storeu_ps(y[2] + i0, _mm512_extractf32x4_ps(s, 2));
    _mm_storeu_ps(y[3] + i0, _mm512_extractf32x4_ps(s, 3));
}

#define V_FETCH(after, p) LMK_FETCH(after, p)
#define EXPANDS                                     /* expand.h pays, */
#define LOOKS_UP                                    /* and so does expand_grids.h */
#define DELTA_BLOCKS 4                              /* delta.h: blocks of columns in registers */
#define BLOCK_W 4
#define BLOCK_X 4
#define H_ROWS 6                                    /* halves.h: rows of x and groups of weights in registers, */
#define H_GROUPS 2
#define H_DIRECT 4                                  /* and rows of x straight from packed weights */
