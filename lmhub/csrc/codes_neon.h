/* codes_neon.h: vectors of 64 codes (16 rows x 4 columns) as four NEON registers. See codes_ref.h for each call. */
typedef struct b64 { uint8x16_t q[4]; } b64;

#define WIDE_CODES 0               /* sdot multiplies signed bytes, which codes of up to 7 bits are as well */

ALWAYS b64 b_load(const uint8_t *p) { b64 r; EACH r.q[i] = vld1q_u8(p + 16 * i); return r; }
ALWAYS void b_store(uint8_t *p, b64 v) { EACH vst1q_u8(p + 16 * i, v.q[i]); }
ALWAYS b64 b_and(b64 v, int byte) { EACH v.q[i] = vandq_u8(v.q[i], vdupq_n_u8((uint8_t)byte)); return v; }
ALWAYS b64 b_or(b64 a, b64 b) { EACH a.q[i] = vorrq_u8(a.q[i], b.q[i]); return a; }
ALWAYS b64 b_move(b64 v, int n) { EACH v.q[i] = vshlq_u8(v.q[i], vdupq_n_s8((int8_t)n)); return v; }
ALWAYS b64 b_table(b64 v, const uint8_t *table)
{
    const uint8x16_t t = vld1q_u8(table);
    EACH v.q[i] = vqtbl1q_u8(t, v.q[i]);
    return v;
}

ALWAYS i16x b_dot(const b64 *codes, int n, const int8_t *x, int32_t correction, const int most, const int shift,
                  const uint8_t *next, int lines)
{
    i16x dot = i_set(0);
    for (int t = 0; t < n; t++) {
        int32_t x4;
        memcpy(&x4, x + 4 * t, 4);
        const int8x16_t xv = vreinterpretq_s8_s32(vdupq_n_s32(x4));
        EACH dot.q[i] = vdotq_s32(dot.q[i], vreinterpretq_s8_u8(codes[t].q[i]), xv);
        if (t < lines) LMK_FETCH(dot, next + 64 * t);
    }
    if (!most) return dot;
    return i_add(shift ? i_left(dot, shift) : dot, i_set((uint32_t)correction));
}
