/* codes_ref.h: vectors of 64 codes (16 rows x 4 columns), spelled out: the definition that the other codes_*.h must match.
 *
 * `b_move` shifts left by n bits, or right by -n, within pairs of bytes: what crosses into a neighbour is masked off by
 * the caller. `b_dot`: n vectors of codes times x (4n), summed per row; meanwhile `lines` of 64 bytes at `next` are fetched.
 *
 * WIDE_CODES: whether codes are stored as w + 128, which needs 8-bit unsigned factors; then `correction`, -128 times the
 * sum of x, makes up for it. Without it codes are at most `most`, b_dot moves the sum left by `shift` itself, and where
 * `most` is 0 codes are the signed values and nothing needs correcting. The result is the same integer.
 */
typedef struct b64 { uint8_t u[64]; } b64;

#define WIDE_CODES 1
#define EACH_CODE for (int i = 0; i < 64; i++)

ALWAYS b64 b_load(const uint8_t *p) { b64 r; memcpy(&r, p, sizeof r); return r; }
ALWAYS void b_store(uint8_t *p, b64 v) { memcpy(p, &v, sizeof v); }
ALWAYS b64 b_and(b64 v, int byte) { EACH_CODE v.u[i] &= (uint8_t)byte; return v; }
ALWAYS b64 b_or(b64 a, b64 b) { EACH_CODE a.u[i] |= b.u[i]; return a; }
ALWAYS b64 b_move(b64 v, int n) { EACH_CODE v.u[i] = (uint8_t)(n >= 0 ? v.u[i] << n : v.u[i] >> -n); return v; }
ALWAYS b64 b_table(b64 v, const uint8_t *table) { EACH_CODE v.u[i] = table[v.u[i] & 15]; return v; }

ALWAYS i16x b_dot(const b64 *codes, int n, const int8_t *x, int32_t correction, const int most, const int shift,
                  const uint8_t *next, int lines)
{
    (void)most, (void)shift, (void)next, (void)lines;
    i16x dot = i_set((uint32_t)correction);
    for (int t = 0; t < n; t++)
        EACH for (int c = 0; c < 4; c++) dot.u[i] += (uint32_t)(codes[t].u[4 * i + c] * x[4 * t + c]);
    return dot;
}
