/* simd_ref.h: the 16-lane vector, spelled out. This is the definition that the other simd_*.h must match bit for bit. */
#include <math.h>
#include <string.h>

typedef struct v16 { float f[16]; } v16;
typedef struct i16x { uint32_t u[16]; } i16x;      /* 16 lanes of 32-bit integers; wraps around */

#define EACH for (int i = 0; i < 16; i++)

static inline v16 v_set(float a) { v16 r; EACH r.f[i] = a; return r; }
static inline v16 v_load(const float *p) { v16 r; memcpy(&r, p, sizeof r); return r; }
static inline void v_store(float *p, v16 a) { memcpy(p, &a, sizeof a); }
static inline v16 v_load_part(const float *p, int n, float rest) { v16 r; EACH r.f[i] = i < n ? p[i] : rest; return r; }
static inline void v_store_part(float *p, v16 a, int n) { memcpy(p, &a, (size_t)n * sizeof(float)); }
static inline v16 v_add(v16 a, v16 b) { EACH a.f[i] += b.f[i]; return a; }
static inline v16 v_sub(v16 a, v16 b) { EACH a.f[i] -= b.f[i]; return a; }
static inline v16 v_mul(v16 a, v16 b) { EACH a.f[i] *= b.f[i]; return a; }
static inline v16 v_div(v16 a, v16 b) { EACH a.f[i] /= b.f[i]; return a; }
static inline v16 v_fma(v16 a, v16 b, v16 c) { EACH c.f[i] = fmaf(a.f[i], b.f[i], c.f[i]); return c; }
static inline v16 v_max(v16 a, v16 b) { EACH a.f[i] = a.f[i] > b.f[i] ? a.f[i] : b.f[i]; return a; }  /* NaN: b */
static inline v16 v_min(v16 a, v16 b) { EACH a.f[i] = a.f[i] < b.f[i] ? a.f[i] : b.f[i]; return a; }  /* NaN: b */
static inline v16 v_where_least(v16 a, v16 b, v16 x) { EACH x.f[i] = a.f[i] >= b.f[i] ? x.f[i] : 0.0f; return x; }

static inline v16 v_quiet(v16 a) { EACH a.f[i] = a.f[i] == a.f[i] ? a.f[i] : NAN; return a; }      /* the one NaN for all */

static inline float v_sum(v16 a)
{
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) a.f[i] += a.f[i + half];
    return a.f[0];
}

static inline float v_top(v16 a)
{
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) a.f[i] = a.f[i] > a.f[i + half] ? a.f[i] : a.f[i + half];
    return a.f[0];
}

static inline i16x v_bits(v16 a) { i16x r; memcpy(&r, &a, sizeof r); return r; }
static inline v16 i_float(i16x a) { v16 r; memcpy(&r, &a, sizeof r); return r; }     /* the bits, taken as floats */
static inline i16x i_set(uint32_t a) { i16x r; EACH r.u[i] = a; return r; }
static inline i16x i_add(i16x a, i16x b) { EACH a.u[i] += b.u[i]; return a; }
static inline i16x i_sub(i16x a, i16x b) { EACH a.u[i] -= b.u[i]; return a; }
static inline i16x i_mul(i16x a, i16x b) { EACH a.u[i] *= b.u[i]; return a; }
static inline i16x i_and(i16x a, i16x b) { EACH a.u[i] &= b.u[i]; return a; }
static inline i16x i_half(i16x a) { EACH a.u[i] = (uint32_t)((int32_t)a.u[i] >> 1); return a; }
static inline i16x i_exponent(i16x a) { EACH a.u[i] <<= 23; return a; }
static inline i16x i_max(i16x a, i16x b) { EACH a.u[i] = (int32_t)a.u[i] > (int32_t)b.u[i] ? a.u[i] : b.u[i]; return a; }
static inline int32_t i_top(i16x a) { int32_t r = (int32_t)a.u[0]; EACH if ((int32_t)a.u[i] > r) r = (int32_t)a.u[i]; return r; }
static inline int32_t i_sum(i16x a) { uint32_t r = 0; EACH r += a.u[i]; return (int32_t)r; }
static inline void i_store_i8(int8_t *p, i16x a) { EACH p[i] = (int8_t)a.u[i]; }     /* lanes are within -128..127 */

static inline i16x i_or(i16x a, i16x b) { EACH a.u[i] |= b.u[i]; return a; }
static inline i16x i_load(const int32_t *p) { i16x r; memcpy(&r, p, sizeof r); return r; }
static inline void i_store(int32_t *p, i16x a) { memcpy(p, &a, sizeof a); }
static inline i16x i_shift(i16x a, int n) { EACH a.u[i] = n < 0 ? a.u[i] >> -n : a.u[i] << n; return a; }
#define i_shl(a, n) i_shift(a, n)                  /* by a literal number of bits */
static inline i16x i_sar(i16x a, int n) { EACH a.u[i] = (uint32_t)((int32_t)a.u[i] >> n); return a; }

/* The same 16 lanes as twice as many of 16 bits; w_join: the low halves of a in the even ones, of b in the odd ones */
static inline i16x w_lanes(i16x a, i16x b, int op, int n)
{
    int16_t x[32], y[32];
    memcpy(x, &a, sizeof a);
    memcpy(y, &b, sizeof b);
    for (int i = 0; i < 32; i++) {
        const uint16_t u = (uint16_t)x[i], v = (uint16_t)y[i];
        x[i] = (int16_t)(op == '+' ? u + v : op == '-' ? u - v : op == '<' ? u << n : op == '>' ? u >> n : x[i] >> n);
    }
    memcpy(&a, x, sizeof a);
    return a;
}
static inline i16x w_join(i16x a, i16x b) { EACH a.u[i] = (a.u[i] & 0xffff) | b.u[i] << 16; return a; }
static inline i16x w_set(uint16_t a) { return i_set(a * 0x10001u); }
static inline i16x w_add(i16x a, i16x b) { return w_lanes(a, b, '+', 0); }
static inline i16x w_sub(i16x a, i16x b) { return w_lanes(a, b, '-', 0); }
#define w_shl(a, n) w_lanes(a, a, '<', n)
#define w_shr(a, n) w_lanes(a, a, '>', n)
#define w_sar(a, n) w_lanes(a, a, 's', n)
static inline i16x i_dot(i16x sum, i16x a, i16x b)  /* sum += the products of each pair of 16-bit lanes */
{
    EACH sum.u[i] += (uint32_t)((int16_t)a.u[i] * (int16_t)b.u[i]) + (uint32_t)((int16_t)(a.u[i] >> 16) * (int16_t)(b.u[i] >> 16));
    return sum;
}

static inline float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff, bits;
    float f;
    if (rest >= 0x7c00) {                           /* infinity, or NaN: made quiet as the hardware does */
        bits = sign | 0x7f800000u | (rest & 0x3ff) << 13 | (rest > 0x7c00 ? 0x400000u : 0);
        memcpy(&f, &bits, 4);
    } else if (rest >= 0x400) {
        bits = sign | ((rest << 13) + (112u << 23));
        memcpy(&f, &bits, 4);
    } else {
        f = (float)rest * 0x1p-24f;
        if (sign) f = -f;
    }
    return f;
}

static inline uint16_t float_to_half(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    if (rest >= 0x477ff000) return (uint16_t)(sign | 0x7c00);             /* rounds to 65536 or more */
    if (rest < 0x38800000) {                        /* subnormal: the addition rounds at the right bit */
        float a;
        memcpy(&a, &rest, 4);
        a += 0.5f;
        memcpy(&rest, &a, 4);
        return (uint16_t)(sign | (rest - 0x3f000000));
    }
    rest += 0xfff + (rest >> 13 & 1);
    return (uint16_t)(sign | (rest - (112u << 23)) >> 13);
}

/* p 2^n, both normal, for an integer n; in bits the low ones are n's */
static inline v16 v_power(v16 p, v16 n, i16x bits)
{
    (void)n;
    return i_float(i_add(v_bits(p), i_exponent(bits)));
}
static inline i16x i_left(i16x a, int n) { EACH a.u[i] <<= n; return a; }
static inline i16x i_right(i16x a, int n) { EACH a.u[i] >>= n; return a; }
static inline i16x i_load_u8(const uint8_t *p) { i16x r; EACH r.u[i] = p[i]; return r; }
static inline i16x i_load_i8(const int8_t *p) { i16x r; EACH r.u[i] = (uint32_t)p[i]; return r; }
static inline v16 i_to_float(i16x a) { v16 r; EACH r.f[i] = (float)(int32_t)a.u[i]; return r; }

/* Sixteen fields of two or four bits in the lowest bits of their lanes; what is above them is of no meaning. */
static inline i16x i_fields2(uint32_t u) { i16x r; EACH r.u[i] = u >> 2 * i; return r; }
static inline i16x i_fields4(uint64_t u) { i16x r; EACH r.u[i] = (uint32_t)(u >> 4 * i); return r; }
/* A lane's place in its four lanes of a table (the low two bits count), or in one of eight that is there twice (the low four
 * count and are below 8) */
static inline v16 v_pick4(v16 table, i16x at) { v16 r; EACH r.f[i] = table.f[i / 4 * 4 + (at.u[i] & 3)]; return r; }
static inline v16 v_pick8(v16 table, i16x at) { v16 r; EACH r.f[i] = table.f[at.u[i] & 7]; return r; }
static inline v16 v_signed(v16 a, uint32_t signs) { EACH a.f[i] *= signs >> i & 1 ? -1.0f : 1.0f; return a; }

/* Rows a[i] become columns */
static inline void v_transpose(v16 *a)
{
    for (int j = 1; j < 16; j++)
        for (int i = 0; i < j; i++) {
            const float t = a[j].f[i];
            a[j].f[i] = a[i].f[j], a[i].f[j] = t;
        }
}

static inline v16 v_load_f16(const uint16_t *p) { v16 r; EACH r.f[i] = half_to_float(p[i]); return r; }
static inline void v_store_f16(uint16_t *p, v16 a) { EACH p[i] = float_to_half(a.f[i]); }

#define DELTA_BLOCKS 1                              /* delta.h: blocks of columns in registers */
#define V_FETCH(after, p) __builtin_prefetch((p), 0, 2)      /* core.h */
#define BLOCK_W 1                                   /* register block of dot_f32: rows of w, rows of x */
#define BLOCK_X 1
#define H_ROWS 1                                    /* halves.h: rows of x and groups of weights in registers, */
#define H_GROUPS 1
#define H_DIRECT 1                                  /* and rows of x straight from packed weights */
