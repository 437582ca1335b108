/* codes_avx2.h: vectors of 64 codes (16 rows x 4 columns) as two AVX2 registers. See codes_ref.h for each call. */
typedef struct b64 { __m256i lo, hi; } b64;
typedef uint16_t b_words __attribute__((vector_size(32)));

#define MANY_ROWS "panels_avx2.h"
#define WIDE_CODES 0               /* the pairs that maddubs adds must stay within 16 bits */

ALWAYS __m256i b_half(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
ALWAYS b64 b_load(const uint8_t *p) { return (b64){ b_half(p), b_half(p + 32) }; }
ALWAYS void b_store(uint8_t *p, b64 v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, v.lo);
    _mm256_storeu_si256((__m256i *)(void *)(p + 32), v.hi);
}
ALWAYS b64 b_and(b64 v, int byte)
{
    const __m256i mask = _mm256_set1_epi8((char)byte);
    return (b64){ _mm256_and_si256(v.lo, mask), _mm256_and_si256(v.hi, mask) };
}
ALWAYS b64 b_or(b64 a, b64 b) { return BOTH(b64, _mm256_or_si256, a, b); }
ALWAYS __m256i b_move_half(__m256i v, int n) { return n >= 0 ? (__m256i)((b_words)v << n) : (__m256i)((b_words)v >> -n); }
ALWAYS b64 b_move(b64 v, int n) { return (b64){ b_move_half(v.lo, n), b_move_half(v.hi, n) }; }
ALWAYS b64 b_table(b64 v, const uint8_t *table)
{
    const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table));
    return (b64){ _mm256_shuffle_epi8(both, v.lo), _mm256_shuffle_epi8(both, v.hi) };
}

/* Unsigned codes: as many products are added in 16 bits as cannot overflow. Signed ones (most = 0): |w| times the signed
 * x, one at a time. Exact either way. */
ALWAYS __m256i b_dot_half(const b64 *codes, int hi, int n, const int8_t *x, const int most, const uint8_t *next,
                           int lines)
{
    const int run = most ? 32767 / (most * 254) : 1;
    __m256i sum = _mm256_setzero_si256(), part = _mm256_setzero_si256();
    for (int t = 0; t < n; t++) {
        int32_t x4;
        memcpy(&x4, x + 4 * t, 4);
        __m256i w = hi ? codes[t].hi : codes[t].lo, xv = _mm256_set1_epi32(x4);
        __m256i product = most ? _mm256_maddubs_epi16(w, xv) : _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(xv, w));
        part = t % run ? _mm256_add_epi16(part, product) : product;
        if (t < lines) LMK_FETCH(part, next + 64 * t);
        if ((t + 1) % run == 0 || t + 1 == n) sum = _mm256_add_epi32(sum, _mm256_madd_epi16(part, _mm256_set1_epi16(1)));
    }
    return sum;
}

ALWAYS i16x b_dot(const b64 *codes, int n, const int8_t *x, int32_t correction, const int most, const int shift,
                  const uint8_t *next, int lines)
{
    const int half = (lines + 1) / 2;
    i16x dot = { b_dot_half(codes, 0, n, x, most, next, half),
                 b_dot_half(codes, 1, n, x, most, next + 64 * half, lines - half) };
    if (!most) return dot;
    if (shift) dot = (i16x){ _mm256_slli_epi32(dot.lo, shift), _mm256_slli_epi32(dot.hi, shift) };
    return i_add(dot, i_set((uint32_t)correction));
}
