/* codes_avx512.h: vectors of 64 codes (16 rows x 4 columns) as one AVX-512 register. See codes_ref.h for each call. */
typedef __m512i b64;
typedef uint16_t b_words __attribute__((vector_size(64)));

#define WIDE_CODES 1               /* vpdpbusd multiplies bytes up to 255 */

ALWAYS b64 b_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
ALWAYS void b_store(uint8_t *p, b64 v) { _mm512_storeu_si512(p, v); }
ALWAYS b64 b_and(b64 v, int byte) { return _mm512_and_si512(v, _mm512_set1_epi8((char)byte)); }
ALWAYS b64 b_or(b64 a, b64 b) { return _mm512_or_si512(a, b); }
ALWAYS b64 b_move(b64 v, int n) { return n >= 0 ? (b64)((b_words)v << n) : (b64)((b_words)v >> -n); }
ALWAYS b64 b_table(b64 v, const uint8_t *table)
{
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)table)), v);
}

ALWAYS i16x b_dot(const b64 *codes, int n, const int8_t *x, int32_t correction, const int most, const int shift,
                  const uint8_t *next, int lines)
{
    (void)most, (void)shift;
    i16x dot = _mm512_set1_epi32(correction);
    for (int t = 0; t < n; t++) {
        int32_t x4;
        memcpy(&x4, x + 4 * t, 4);
        dot = _mm512_dpbusd_epi32(dot, codes[t], _mm512_set1_epi32(x4));
        const int line = t * lines / n;            /* evenly spread */
        if (line < (t + 1) * lines / n) LMK_FETCH(dot, next + 64 * line);
    }
    return dot;
}
