/* quants.h: products with packed weights of fewer than 8 bits, written once over codes_*.h and compiled once per level.
 *
 * For one row of activations and one of outputs, whatever the path, in order:
 *
 *     acc = fma(float(integer dot), scale * scale_x, acc)         for each block of 32 columns
 *     acc = fma(float(sum of factor * integer dot), scale * scale_x, acc)
 *                                                                 for LMK_QUAD blocks of types with a scale per 256, whose
 *                                                                 16 or 32 columns have integer factors besides
 *     low = fma(minimum, scale_x * (sum of x's integers), low)    for each block of types that have minimums
 *
 * and y = acc + low. Codes with an offset are scaled up to w + 128 in 8 bits, and their scales down by the same power of
 * two, so that they look like Q8_0's; where there are factors, which leave no room for that, they stay. Few rows take the
 * codes as they unpack them; for many, a group is unpacked once into a panel that stays in cache.
 */
#include "packed.h"

static const uint8_t q_iq4_wide[16] = { 1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241 };
static const uint8_t q_iq4_signed[16] = { 129, 152, 173, 191, 207, 221, 234, 246, 1, 13, 25, 38, 53, 69, 89, 113 };
static const uint8_t q_e2m1[16] = { 16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4 };       /* plus 16 */
static const uint8_t q_e2m1_wide[16] = { 128, 136, 144, 152, 160, 176, 192, 224, 128, 120, 112, 104, 96, 80, 64, 32 };

/* By how many bits integer products are larger than those of the values that scales are meant for */
ALWAYS int q_shift(const int32_t type)
{
    const lmk_form f = lmk_form_of(type);
    return type == LMK_MXFP4 ? 3 : f.offset && !f.table && lmk_share(f) == 1 ? 8 - f.bits : 0;
}

/* What makes up for the offset of unsigned codes, out of -128 times the sum of x */
ALWAYS int32_t q_correction(const int32_t type, int32_t of_128)
{
    const lmk_form f = lmk_form_of(type);
    return !f.offset ? 0 : f.table || lmk_share(f) == 1 ? of_128 : of_128 >> (8 - f.bits);
}

/* The largest code where codes are not WIDE_CODES, 0 for signed ones */
ALWAYS int q_most(const int32_t type)
{
    const lmk_form f = lmk_form_of(type);
    return type == LMK_MXFP4 ? 28 : f.table ? 0 : (1 << f.bits) - 1;
}

/* codes[8]: the codes of the block at p */
ALWAYS void q_codes(const int32_t type, const uint8_t *p, b64 *codes)
{
    const lmk_form f = lmk_form_of(type);
    const int s = WIDE_CODES && !f.table ? q_shift(type) : 0;
    const uint8_t *table = type == LMK_MXFP4 ? (WIDE_CODES ? q_e2m1_wide : q_e2m1) : (WIDE_CODES ? q_iq4_wide : q_iq4_signed);
#pragma GCC unroll 8
    for (int t = 0; t < 8; t++) {
        b64 c = b_and(b_move(b_load(p + t % 4 * 64), s - t / 4 * 4), 15 << s);
        if (f.bits == 5) c = b_or(c, b_and(b_move(b_load(p + 256), s + 4 - t), 16 << s));
        if (f.bits == 6) c = b_or(c, b_and(b_move(b_load(p + 256 + t / 4 * 64), s + 4 - t % 4 * 2), 48 << s));
        codes[t] = f.table ? b_table(c, table) : c;
    }
}

ALWAYS v16 q_half(const uint8_t *p)
{
    uint16_t h[16];
    memcpy(h, p, sizeof h);
    return v_load_f16(h);
}

/* Field of `bits` bits, moved to where it belongs */
ALWAYS i16x q_field(i16x v, int from, int bits, int to)
{
    return i_left(i_and(i_right(v, from), i_set((1u << bits) - 1)), to);
}

/* scale (16), factor (16 per step), min (16 per block): those of a unit, from its record */
ALWAYS void q_scales(const int32_t type, const uint8_t *unit, float *scale, int32_t *factor, float *min)
{
    const v16 down = v_set(1.0f / (float)(1 << q_shift(type)));
    if (type == LMK_MXFP4) {       /* 2^(e - 128) in two factors, the second with `down`: each is a normal number */
        const i16x e = i_load_u8(unit), half = i_half(e);
        const v16 a = i_float(i_exponent(i_add(half, i_set(63))));
        v_store(scale, v_mul(a, i_float(i_exponent(i_add(i_sub(e, half), i_set(60))))));
        return;
    }
    const v16 d = q_half(unit);
    if (type == LMK_Q4_1 || type == LMK_Q5_1) v_store(min, q_half(unit + 32));
    v_store(scale, v_mul(d, down));
    if (type == LMK_Q4_K || type == LMK_Q5_K) {
        const v16 dmin = v_sub(v_set(0.0f), q_half(unit + 32));
        uint8_t s[8 * 16], m[8 * 16];
        for (int b = 0; b < 8; b += 4) {       /* four blocks at once, as bytes */
            const b64 low = b_load(unit + 64 + 16 * b), high = b_load(unit + 192);
            b_store(s + 16 * b, b_or(b_and(low, 15), b_and(b_move(high, 4 - b), 48)));
            b_store(m + 16 * b, b_or(b_and(b_move(low, -4), 15), b_and(b_move(high, 2 - b), 48)));
        }
        for (int b = 0; b < 8; b++) {
            i_store(factor + 16 * b, i_load_u8(s + 16 * b));
            v_store(min + 16 * b, v_mul(dmin, i_to_float(i_load_u8(m + 16 * b))));
        }
    }
    if (type == LMK_Q6_K)
        for (int s = 0; s < 16; s++) i_store(factor + 16 * s, i_load_i8((const int8_t *)unit + 32 + 16 * s));
    if (type == LMK_IQ4_XS)
        for (int b = 0; b < 8; b++) {
            const i16x low = i_load_u8(unit + 32 + b % 4 * 16), high = i_load_u8(unit + 96 + b / 4 * 16);
            const i16x s = i_add(q_field(low, b / 4 * 4, 4, 0), q_field(high, b % 4 * 2, 2, 4));
            i_store(factor + 16 * b, i_sub(s, i_set(32)));
        }
}

/* Sums of one to eight rows of x */
typedef struct q_sums {
    v16 acc[8], low[8];
    i16x whole[8];                 /* of the blocks that share a scale so far */
} q_sums;

ALWAYS void q_start(q_sums *s, const int nx)
{
#pragma GCC unroll 8
    for (int j = 0; j < nx; j++) {
        s->acc[j] = s->low[j] = v_set(0.0f);
        s->whole[j] = i_set(0);
    }
}

/* Block b times nx rows of x; meanwhile `lines` of 64 bytes at `next` are fetched. */
ALWAYS void q_block(const int32_t type, const b64 *codes, const float *scale, const int32_t *factor, const float *min,
                    const lmk_q8_block *const *x, int64_t b, q_sums *s, const int nx, const uint8_t *next, const int lines)
{
    const lmk_form f = lmk_form_of(type);
    const int most = q_most(type), shift = q_shift(type), share = lmk_share(f);
#pragma GCC unroll 8
    for (int j = 0; j < nx; j++) {
        const lmk_q8_block *xb = &x[j][b];
        const int n = j ? 0 : lines;
        i16x dot;
        if (f.steps == 2) {
            const int32_t all = q_correction(type, xb->correction), half = q_correction(type, xb->half);
            const i16x dot0 = b_dot(codes, 4, xb->q, half, most, shift, next, n / 2);
            const i16x dot1 = b_dot(codes + 4, 4, xb->q + 16, all - half, most, shift, next + 64 * (n / 2), n - n / 2);
            dot = i_add(i_mul(i_load(factor), dot0), i_mul(i_load(factor + 16), dot1));
        } else {
            dot = b_dot(codes, 8, xb->q, q_correction(type, xb->correction), most, shift, next, n);
            if (share > 1) dot = i_mul(i_load(factor), dot);
        }
        s->whole[j] = share > 1 ? i_add(s->whole[j], dot) : dot;
        if (f.mins) s->low[j] = v_fma(v_load(min), v_set(xb->sum), s->low[j]);
    }
    if ((b + 1) % share) return;
#pragma GCC unroll 8
    for (int j = 0; j < nx; j++) {
        s->acc[j] = v_fma(i_to_float(s->whole[j]), v_mul(v_load(scale), v_set(x[j][b].scale)), s->acc[j]);
        s->whole[j] = i_set(0);
    }
}

ALWAYS void q_finish(const int32_t type, float *const *y, int64_t i0, int n_out, const q_sums *s, const int nx)
{
#pragma GCC unroll 8
    for (int j = 0; j < nx; j++)
        v_store_part(y[j] + i0, lmk_form_of(type).mins ? v_add(s->acc[j], s->low[j]) : s->acc[j], n_out);
}

/* nx rows of x straight from the packed group */
ALWAYS void q_direct(const int32_t type, float *const *y, int64_t i0, int n_out, const uint8_t *group,
                     const lmk_q8_block *const *x, int64_t k, const int nx)
{
    const lmk_form f = lmk_form_of(type);
    const uint8_t *unit = group + lmk_code_bytes(f, k);
    q_sums s;
    q_start(&s, nx);
    for (int64_t b = 0; b < k / LMK_BLOCK; unit += f.unit_bytes) {
        float scale[16], min[8 * 16];
        int32_t factor[16 * 16];
        q_scales(type, unit, scale, factor, min);
        for (int i = 0; i < f.unit / LMK_BLOCK; i++, b++, group += 64 * f.bits) {
            b64 codes[8];
            q_codes(type, group, codes);
            q_block(type, codes, scale, factor + 16 * i * f.steps, min + 16 * i, x, b, &s, nx, group + LMK_AHEAD, f.bits);
            if (64 * i < f.unit_bytes) V_FETCH(s.acc[0], unit + 64 * i + LMK_AHEAD);
        }
    }
    q_finish(type, y, i0, n_out, &s, nx);
}

/* n blocks from `first` on, where a unit begins, as a panel has them */
ALWAYS void q_expand(const int32_t type, uint8_t *panel, float *scale, int32_t *factor, float *min, const uint8_t *group,
                     int64_t k, int64_t first, int64_t n)
{
    const lmk_form f = lmk_form_of(type);
    const uint8_t *unit = group + lmk_code_bytes(f, k) + first * LMK_BLOCK / f.unit * f.unit_bytes;
    group += first * 64 * f.bits;
    for (int64_t b = 0; b < n; b++, group += 64 * f.bits, panel += 512) {
        b64 codes[8];
        if (b % (f.unit / LMK_BLOCK) == 0) {
            q_scales(type, unit, scale, factor, min);
            unit += f.unit_bytes;
            scale += 16;
            if (lmk_share(f) > 1) factor += f.unit / LMK_BLOCK * f.steps * 16;
            min += f.unit / LMK_BLOCK * 16;
        }
        q_codes(type, group, codes);
        for (int i = 0; i < f.bits; i++) __builtin_prefetch(group + LMK_AHEAD + 64 * i, 0, 2);
        for (int t = 0; t < 8; t++) b_store(panel + 64 * t, codes[t]);
    }
}

#ifdef MANY_ROWS                    /* the level has a q_many of its own */
#include MANY_ROWS
#else
ALWAYS void q_panel(const int32_t type, float *const *y, int64_t i0, int n_out, const uint8_t *panel,
                    const lmk_q8_block *const *x, int64_t k, const int nx)
{
    const lmk_form f = lmk_form_of(type);
    const float *scale = lmk_panel_scales(panel, k), *min = lmk_panel_mins(f, panel, k);
    const int32_t *factor = lmk_panel_factors(f, panel, k);
    q_sums s;
    q_start(&s, nx);
    for (int64_t b = 0; b < k / LMK_BLOCK; b++, panel += 512, factor += 16 * f.steps, min += 16) {
        b64 codes[8];
        for (int t = 0; t < 8; t++) codes[t] = b_load(panel + 64 * t);
        q_block(type, codes, scale + b * LMK_BLOCK / f.unit * 16, factor, min, x, b, &s, nx, panel, 0);
    }
    q_finish(type, y, i0, n_out, &s, nx);
}

/* LMK_PANEL_ROWS rows and more, in any number */
ALWAYS void q_many(const int32_t type, float *const *y, int64_t i0, int n_out, const uint8_t *group,
                   const lmk_q8_block *const *x, int64_t n_x, int64_t k, uint8_t *panel)
{
    const lmk_form f = lmk_form_of(type);
    int64_t j = 0;
    q_expand(type, panel, lmk_panel_scales(panel, k), lmk_panel_factors(f, panel, k), lmk_panel_mins(f, panel, k), group, k, 0,
             k / LMK_BLOCK);
    for (; j + Q_ROWS <= n_x; j += Q_ROWS) q_panel(type, y + j, i0, n_out, panel, x + j, k, Q_ROWS);
    for (; j < n_x; j++) q_panel(type, y + j, i0, n_out, panel, x + j, k, 1);
}
#endif

ALWAYS void q_dot(const int32_t type, float *const *y, int64_t i0, int n_out, const uint8_t *group,
                  const lmk_q8_block *const *x, int64_t n_x, int64_t k, uint8_t *panel)
{
    int64_t j = 0;
    if (n_x >= LMK_PANEL_ROWS) {
        q_many(type, y, i0, n_out, group, x, n_x, k, panel);
        return;
    }
    if (Q_ROWS == 8)               /* 32 registers hold eight rows' sums beside the codes */
        for (; j + 8 <= n_x; j += 8) q_direct(type, y + j, i0, n_out, group, x + j, k, 8);
    for (; j + Q_ROWS / 2 <= n_x; j += Q_ROWS / 2) q_direct(type, y + j, i0, n_out, group, x + j, k, Q_ROWS / 2);
    for (; j < n_x; j++) q_direct(type, y + j, i0, n_out, group, x + j, k, 1);
}

/* case T: `call` with `type` replaced by the constant T, which is what makes it fast */
#ifdef Q_PLAIN                     /* one body for all types */
#define Q_EACH_TYPE(call) call(type);
#else
#define Q_CASE(type, call) \
    case type: call(type); break;
#define Q_QUAD_CASES(call) Q_CASE(LMK_Q4_K, call) Q_CASE(LMK_Q5_K, call) Q_CASE(LMK_Q6_K, call) Q_CASE(LMK_IQ4_XS, call)
#define Q_BLOCK_CASES(call)                                                                        \
    Q_CASE(LMK_Q4_0, call) Q_CASE(LMK_Q4_1, call) Q_CASE(LMK_Q5_0, call) Q_CASE(LMK_Q5_1, call)     \
    Q_CASE(LMK_IQ4_NL, call) Q_CASE(LMK_MXFP4, call)
#define Q_EACH_QUAD_TYPE(call) switch (type) { Q_QUAD_CASES(call) }
#define Q_EACH_BLOCK_TYPE(call) switch (type) { Q_BLOCK_CASES(call) }
#define Q_EACH_TYPE(call) switch (type) { Q_BLOCK_CASES(call) Q_QUAD_CASES(call) }
#endif

static void dot_packed(int32_t type, float *const *y, int64_t i0, int n_out, const uint8_t *group,
                       const lmk_q8_block *const *x, int64_t n_x, int64_t k, uint8_t *panel)
{
#define DOT(type) q_dot(type, y, i0, n_out, group, x, n_x, k, panel)
    Q_EACH_TYPE(DOT)
#undef DOT
}
