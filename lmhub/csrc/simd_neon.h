/* simd_neon.h: the 16-lane vector as four registers of NEON. See simd_ref.h for the meaning of each call. */
#include <arm_neon.h>
#include <string.h>

typedef struct v16 { float32x4_t q[4]; } v16;
typedef struct i16x { int32x4_t q[4]; } i16x;

#define EACH for (int i = 0; i < 4; i++)
#define AS_U32(a) vreinterpretq_u32_s32(a)
#define AS_S16(a) vreinterpretq_s16_s32(a)
#define OF_S16(a) vreinterpretq_s32_s16(a)

static inline v16 v_set(float a) { v16 r; EACH r.q[i] = vdupq_n_f32(a); return r; }
static inline v16 v_load(const float *p) { v16 r; EACH r.q[i] = vld1q_f32(p + 4 * i); return r; }
static inline void v_store(float *p, v16 a) { EACH vst1q_f32(p + 4 * i, a.q[i]); }
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
static inline v16 v_add(v16 a, v16 b) { EACH a.q[i] = vaddq_f32(a.q[i], b.q[i]); return a; }
static inline v16 v_sub(v16 a, v16 b) { EACH a.q[i] = vsubq_f32(a.q[i], b.q[i]); return a; }
static inline v16 v_mul(v16 a, v16 b) { EACH a.q[i] = vmulq_f32(a.q[i], b.q[i]); return a; }
static inline v16 v_div(v16 a, v16 b) { EACH a.q[i] = vdivq_f32(a.q[i], b.q[i]); return a; }
static inline v16 v_fma(v16 a, v16 b, v16 c) { EACH c.q[i] = vfmaq_f32(c.q[i], a.q[i], b.q[i]); return c; }
/* vmaxq would give NaN for a NaN on either side. */
static inline float32x4_t q_max(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline v16 v_max(v16 a, v16 b) { EACH a.q[i] = q_max(a.q[i], b.q[i]); return a; }
static inline v16 v_min(v16 a, v16 b) { EACH a.q[i] = vbslq_f32(vcltq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]); return a; }
static inline v16 v_where_least(v16 a, v16 b, v16 x)
{
    EACH x.q[i] = vreinterpretq_f32_u32(vandq_u32(vcgeq_f32(a.q[i], b.q[i]), vreinterpretq_u32_f32(x.q[i])));
    return x;
}

static inline v16 v_quiet(v16 a)
{
    EACH a.q[i] = vbslq_f32(vceqq_f32(a.q[i], a.q[i]), a.q[i], vdupq_n_f32(NAN));
    return a;
}

static inline float v_sum(v16 a)
{
    const float32x4_t s4 = vaddq_f32(vaddq_f32(a.q[0], a.q[2]), vaddq_f32(a.q[1], a.q[3]));
    const float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
    return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
}

static inline float v_top(v16 a)
{
    const float32x4_t m4 = q_max(q_max(a.q[0], a.q[2]), q_max(a.q[1], a.q[3]));
    const float32x4_t m2 = q_max(m4, vextq_f32(m4, m4, 2));
    return vgetq_lane_f32(q_max(m2, vdupq_laneq_f32(m2, 1)), 0);
}

static inline i16x v_bits(v16 a) { i16x r; EACH r.q[i] = vreinterpretq_s32_f32(a.q[i]); return r; }
static inline v16 i_float(i16x a) { v16 r; EACH r.q[i] = vreinterpretq_f32_s32(a.q[i]); return r; }
static inline i16x i_set(uint32_t a) { i16x r; EACH r.q[i] = vdupq_n_s32((int32_t)a); return r; }
static inline i16x i_add(i16x a, i16x b) { EACH a.q[i] = vaddq_s32(a.q[i], b.q[i]); return a; }
static inline i16x i_sub(i16x a, i16x b) { EACH a.q[i] = vsubq_s32(a.q[i], b.q[i]); return a; }
static inline i16x i_mul(i16x a, i16x b) { EACH a.q[i] = vmulq_s32(a.q[i], b.q[i]); return a; }
static inline i16x i_and(i16x a, i16x b) { EACH a.q[i] = vandq_s32(a.q[i], b.q[i]); return a; }
static inline i16x i_or(i16x a, i16x b) { EACH a.q[i] = vorrq_s32(a.q[i], b.q[i]); return a; }
static inline i16x i_max(i16x a, i16x b) { EACH a.q[i] = vmaxq_s32(a.q[i], b.q[i]); return a; }
static inline i16x i_half(i16x a) { EACH a.q[i] = vshrq_n_s32(a.q[i], 1); return a; }
static inline i16x i_exponent(i16x a) { EACH a.q[i] = vshlq_n_s32(a.q[i], 23); return a; }
static inline i16x i_left(i16x a, int n) { EACH a.q[i] = vshlq_s32(a.q[i], vdupq_n_s32(n)); return a; }
static inline i16x i_right(i16x a, int n)
{
    EACH a.q[i] = vreinterpretq_s32_u32(vshlq_u32(AS_U32(a.q[i]), vdupq_n_s32(-n)));
    return a;
}
#define i_shl(a, n) i_left(a, n)
#define i_sar(a, n) i_left(a, -(n))
static inline v16 v_power(v16 p, v16 n, i16x bits)
{
    (void)n;
    return i_float(i_add(v_bits(p), i_exponent(bits)));
}

static inline int32_t i_top(i16x a)
{
    return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.q[0], a.q[1]), vmaxq_s32(a.q[2], a.q[3])));
}
static inline int32_t i_sum(i16x a)
{
    return vaddvq_s32(vaddq_s32(vaddq_s32(a.q[0], a.q[1]), vaddq_s32(a.q[2], a.q[3])));
}
static inline void i_store_i8(int8_t *p, i16x a)
{
    const int16x8_t lo = vcombine_s16(vmovn_s32(a.q[0]), vmovn_s32(a.q[1]));
    const int16x8_t hi = vcombine_s16(vmovn_s32(a.q[2]), vmovn_s32(a.q[3]));
    vst1q_s8(p, vcombine_s8(vmovn_s16(lo), vmovn_s16(hi)));
}
static inline i16x i_load_u8(const uint8_t *p)
{
    const uint8x16_t b = vld1q_u8(p);
    const uint16x8_t lo = vmovl_u8(vget_low_u8(b)), hi = vmovl_u8(vget_high_u8(b));
    return (i16x){ { vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(lo))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(lo))),
                     vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(hi))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(hi))) } };
}
static inline i16x i_load_i8(const int8_t *p)
{
    const int8x16_t b = vld1q_s8(p);
    const int16x8_t lo = vmovl_s8(vget_low_s8(b)), hi = vmovl_s8(vget_high_s8(b));
    return (i16x){ { vmovl_s16(vget_low_s16(lo)), vmovl_s16(vget_high_s16(lo)), vmovl_s16(vget_low_s16(hi)),
                     vmovl_s16(vget_high_s16(hi)) } };
}
static inline v16 i_to_float(i16x a) { v16 r; EACH r.q[i] = vcvtq_f32_s32(a.q[i]); return r; }
static inline i16x i_load(const int32_t *p) { i16x r; EACH r.q[i] = vld1q_s32(p + 4 * i); return r; }
static inline void i_store(int32_t *p, i16x a) { EACH vst1q_s32(p + 4 * i, a.q[i]); }

static inline i16x w_join(i16x a, i16x b)
{
    EACH a.q[i] = OF_S16(vtrn1q_s16(AS_S16(a.q[i]), AS_S16(b.q[i])));
    return a;
}
static inline i16x w_set(uint16_t a) { i16x r; EACH r.q[i] = OF_S16(vdupq_n_s16((int16_t)a)); return r; }
static inline i16x w_add(i16x a, i16x b) { EACH a.q[i] = OF_S16(vaddq_s16(AS_S16(a.q[i]), AS_S16(b.q[i]))); return a; }
static inline i16x w_sub(i16x a, i16x b) { EACH a.q[i] = OF_S16(vsubq_s16(AS_S16(a.q[i]), AS_S16(b.q[i]))); return a; }
static inline i16x w_shl(i16x a, int n) { EACH a.q[i] = OF_S16(vshlq_s16(AS_S16(a.q[i]), vdupq_n_s16((int16_t)n))); return a; }
static inline i16x w_sar(i16x a, int n) { return w_shl(a, -n); }
static inline i16x w_shr(i16x a, int n)
{
    EACH a.q[i] = vreinterpretq_s32_u16(vshlq_u16(vreinterpretq_u16_s32(a.q[i]), vdupq_n_s16((int16_t)-n)));
    return a;
}
static inline i16x i_dot(i16x sum, i16x a, i16x b)
{
    EACH {
        const int16x8_t x = AS_S16(a.q[i]), y = AS_S16(b.q[i]);
        const int32x4_t lo = vmull_s16(vget_low_s16(x), vget_low_s16(y));
        sum.q[i] = vaddq_s32(sum.q[i], vpaddq_s32(lo, vmull_high_s16(x, y)));
    }
    return sum;
}
/* Four rows of four */
static inline void transpose_4x4(float32x4_t *a)
{
    const float32x4x2_t p = vtrnq_f32(a[0], a[1]), q = vtrnq_f32(a[2], a[3]);
    a[0] = vcombine_f32(vget_low_f32(p.val[0]), vget_low_f32(q.val[0]));
    a[1] = vcombine_f32(vget_low_f32(p.val[1]), vget_low_f32(q.val[1]));
    a[2] = vcombine_f32(vget_high_f32(p.val[0]), vget_high_f32(q.val[0]));
    a[3] = vcombine_f32(vget_high_f32(p.val[1]), vget_high_f32(q.val[1]));
}

static inline void v_transpose(v16 *a)
{
    for (int j = 0; j < 4; j++)
        for (int i = 0; i <= j; i++) {             /* the squares at (i, j) and (j, i) change places */
            float32x4_t p[4], q[4];
            for (int n = 0; n < 4; n++) p[n] = a[4 * i + n].q[j], q[n] = a[4 * j + n].q[i];
            transpose_4x4(p);
            transpose_4x4(q);
            for (int n = 0; n < 4; n++) a[4 * i + n].q[j] = q[n], a[4 * j + n].q[i] = p[n];
        }
}

static inline v16 v_load_f16(const uint16_t *p)
{
    v16 r;
    EACH r.q[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
    return r;
}
static inline void v_store_f16(uint16_t *p, v16 a)
{
    EACH vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.q[i])));
}

#define V_FETCH(after, p) LMK_FETCH(after, p)
#define EXPANDS                                     /* expand.h pays */
#define DELTA_BLOCKS 1                              /* delta.h: blocks of columns in registers */
#define BLOCK_W 2
#define BLOCK_X 2
#define H_ROWS 2                                    /* halves.h: rows of x and groups of weights in registers, */
#define H_GROUPS 1
#define H_DIRECT 1                                  /* and rows of x straight from packed weights */
