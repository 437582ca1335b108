/* What PyTorch would do in many passes over memory, in one: norms, rotation, causal softmax, gated activation, each with
   its derivative. Activations are bfloat16, sums float32. One thread; rows are independent. Compiled by fused.py. */
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bf;

static inline float up(bf x) { uint32_t u = (uint32_t)x << 16; float f; memcpy(&f, &u, 4); return f; }
static inline bf down(float f) {
    uint32_t u; memcpy(&u, &f, 4);
    return (bf)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

/* y = x * r * w, r = 1 / sqrt(mean(x^2) + eps); x f32 [n][d], y bf16, r f32 [n] is kept for the derivative. */
void norm_forward(const float *x, const float *w, float eps, long n, long d, bf *y, float *r) {
    for (long i = 0; i < n; i++) {
        const float *xi = x + i * d;
        float s = 0;
        for (long j = 0; j < d; j++) s += xi[j] * xi[j];
        r[i] = 1 / sqrtf(s / d + eps);
        for (long j = 0; j < d; j++) y[i * d + j] = down(xi[j] * r[i] * w[j]);
    }
}

/* dx = r * (g w - x r^2 mean(g w x)), dw += sum over rows of g x r. */
void norm_backward(const bf *g, const float *x, const float *w, const float *r, long n, long d, float *dx, float *dw) {
    for (long i = 0; i < n; i++) {
        const float *xi = x + i * d;
        const bf *gi = g + i * d;
        float s = 0, ri = r[i];
        for (long j = 0; j < d; j++) s += up(gi[j]) * w[j] * xi[j];
        float c = s * ri * ri * ri / d;
        for (long j = 0; j < d; j++) {
            float gj = up(gi[j]);
            dx[i * d + j] = ri * gj * w[j] - c * xi[j];
            dw[j] += gj * xi[j] * ri;
        }
    }
}

/* Heads of x bf16 [b][t][stride] from column `first` on: normed by w (as above) and rotated, to y bf16 [b][h][copies][t][64]. */
void head_forward(const bf *x, const float *w, const float *cosine, const float *sine, float eps, long b, long t,
                  long stride, long first, long h, long copies, bf *y, float *r) {
    for (long ib = 0; ib < b; ib++) for (long it = 0; it < t; it++) for (long ih = 0; ih < h; ih++) {
        const bf *xi = x + (ib * t + it) * stride + first + ih * 64;
        const float *c = cosine + (ib * t + it) * 32, *sn = sine + (ib * t + it) * 32;
        float v[64], s = 0;
        for (int j = 0; j < 64; j++) { v[j] = up(xi[j]); s += v[j] * v[j]; }
        float q = 1 / sqrtf(s / 64 + eps);
        r[(ib * t + it) * h + ih] = q;
        bf *yi = y + ((ib * h + ih) * copies * t + it) * 64;
        for (int j = 0; j < 32; j++) {
            float one = v[j] * q * w[j], two = v[j + 32] * q * w[j + 32];
            yi[j] = down(one * c[j] - two * sn[j]);
            yi[j + 32] = down(one * sn[j] + two * c[j]);
        }
        for (long k = 1; k < copies; k++) memcpy(yi + k * t * 64, yi, 128);
    }
}

/* The derivative: g bf16 [b][h][copies][t][64] to dx bf16 (same places as x), dw += . */
void head_backward(const bf *g, const bf *x, const float *w, const float *cosine, const float *sine, const float *r, long b,
                   long t, long stride, long first, long h, long copies, bf *dx, float *dw) {
    for (long ib = 0; ib < b; ib++) for (long it = 0; it < t; it++) for (long ih = 0; ih < h; ih++) {
        const bf *xi = x + (ib * t + it) * stride + first + ih * 64;
        const float *c = cosine + (ib * t + it) * 32, *sn = sine + (ib * t + it) * 32;
        const bf *gi = g + ((ib * h + ih) * copies * t + it) * 64;
        float turned[64], back[64], s = 0, q = r[(ib * t + it) * h + ih];
        for (int j = 0; j < 64; j++) turned[j] = up(gi[j]);
        for (long k = 1; k < copies; k++) for (int j = 0; j < 64; j++) turned[j] += up(gi[k * t * 64 + j]);
        for (int j = 0; j < 32; j++) {
            back[j] = turned[j] * c[j] + turned[j + 32] * sn[j];
            back[j + 32] = turned[j + 32] * c[j] - turned[j] * sn[j];
        }
        for (int j = 0; j < 64; j++) s += back[j] * w[j] * up(xi[j]);
        float m = s * q * q * q / 64;
        bf *di = dx + (ib * t + it) * stride + first + ih * 64;
        for (int j = 0; j < 64; j++) {
            float v = up(xi[j]);
            di[j] = down(q * back[j] * w[j] - m * v);
            dw[j] += back[j] * v * q;
        }
    }
}

/* e^x for x <= 0, to about 2e-5: 2^i by the exponent, the rest by the series. */
static inline float expo(float x) {
    x = x < -80 ? -80 : x;
    float z = x * 1.44269504f, i = floorf(z), f = z - i;
    float p = 1.5403530e-4f;
    p = p * f + 1.3333558e-3f; p = p * f + 9.6181291e-3f; p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f; p = p * f + 6.9314718e-1f; p = p * f + 1.0f;
    uint32_t u = (uint32_t)((int32_t)i + 127) << 23;
    float s; memcpy(&s, &u, 4);
    return p * s;
}

/* Rows of scores bf16 [n][t][t] become probabilities in place: of scale * score, up to the diagonal; zero behind it. */
void softmax_forward(bf *scores, float scale, long n, long t) {
    float v[4096];
    for (long i = 0; i < n * t; i++) {
        bf *row = scores + i * t;
        long m = i % t + 1;
        float top = -1e30f, sum = 0;
        for (long j = 0; j < m; j++) { v[j] = up(row[j]) * scale; top = v[j] > top ? v[j] : top; }
        for (long j = 0; j < m; j++) { v[j] = expo(v[j] - top); sum += v[j]; }
        sum = 1 / sum;
        for (long j = 0; j < m; j++) row[j] = down(v[j] * sum);
        memset(row + m, 0, (t - m) * sizeof(bf));
    }
}

/* g bf16 [n][t][t] becomes the derivative of the scores in place: scale * p * (g - sum(g p)). */
void softmax_backward(bf *g, const bf *p, float scale, long n, long t) {
    for (long i = 0; i < n * t; i++) {
        bf *gi = g + i * t;
        const bf *pi = p + i * t;
        long m = i % t + 1;
        float s = 0;
        for (long j = 0; j < m; j++) s += up(gi[j]) * up(pi[j]);
        for (long j = 0; j < m; j++) gi[j] = down(scale * up(pi[j]) * (up(gi[j]) - s));
        memset(gi + m, 0, (t - m) * sizeof(bf));
    }
}

/* y = silu(a) * b for x bf16 [n][2 d] that holds a row of a, then one of b. */
void gate_forward(const bf *x, long n, long d, bf *y) {
    for (long i = 0; i < n; i++) for (long j = 0; j < d; j++) {
        float a = up(x[i * 2 * d + j]), e = expo(a < 0 ? a : -a), s = (a < 0 ? e : 1.0f) / (1 + e);
        y[i * d + j] = down(a * s * up(x[i * 2 * d + d + j]));
    }
}

void gate_backward(const bf *g, const bf *x, long n, long d, bf *dx) {
    for (long i = 0; i < n; i++) for (long j = 0; j < d; j++) {
        float a = up(x[i * 2 * d + j]), b = up(x[i * 2 * d + d + j]), gj = up(g[i * d + j]);
        float e = expo(a < 0 ? a : -a), s = (a < 0 ? e : 1.0f) / (1 + e);
        dx[i * 2 * d + j] = down(gj * b * s * (1 + a * (1 - s)));
        dx[i * 2 * d + d + j] = down(gj * a * s);
    }
}
