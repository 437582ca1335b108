/* panels_avx2.h: many rows at AVX2. A group is unpacked once, into what suits 16 registers. quants.h includes it.
 *
 * Unsigned codes stay bytes. Each vector of them is loaded once for four rows, products of as many vectors as cannot overflow
 * are added in 16 bits, and these sums in 32 by a multiplication with the factor of their columns. Over 16 columns sums of
 * Q6_K's codes, up to 63, would overflow, but those of codes less 32 do not: so sums modulo 2^16 that begin at -32 times the
 * sum of x end as the latter.
 *
 * Signed codes, those from a table, become 16 bits, times their factor, and so does x: of each four columns 0 and 2, 1 and 3.
 */

typedef struct p_panel {
    uint8_t *codes;                /* per block 8 vectors of bytes, or of signed codes 8 times even columns and odd ones */
    float *scale;                  /* 16 per unit, */
    float *min;                    /* per block, */
    int32_t *factor;               /* and of unsigned codes per 16 or 32 columns, each twice, in 16 bits */
} p_panel;

ALWAYS int p_signed(const int32_t type) { return q_most(type) == 0; }
ALWAYS int p_code_bytes(const int32_t type) { return LMK_BLOCK * LMK_GROUP * (p_signed(type) ? 2 : 1); }

/* Vectors of unsigned codes whose products are added in 16 bits */
ALWAYS int p_run(const int32_t type)
{
    return lmk_form_of(type).steps == 2 ? 4 : (int)lmk_min(8, 32767 / (254 * lmk_max(1, q_most(type))));
}

ALWAYS p_panel p_parts(const int32_t type, uint8_t *panel, int64_t k)
{
    p_panel p = { .codes = panel, .scale = (float *)(void *)(panel + k / LMK_BLOCK * p_code_bytes(type)) };
    p.min = p.scale + k / lmk_form_of(type).unit * LMK_GROUP;
    p.factor = (int32_t *)(void *)(p.min + (lmk_form_of(type).mins ? k / LMK_BLOCK * LMK_GROUP : 0));
    return p;
}

ALWAYS i16x p_even(i16x bytes) { return w_sar(w_shl(bytes, 8), 8); }
ALWAYS i16x p_odd(i16x bytes) { return w_sar(bytes, 8); }
ALWAYS i16x p_twice(i16x factor) { return w_join(factor, factor); }

ALWAYS void p_expand(const int32_t type, p_panel p, const uint8_t *group, int64_t k)
{
    const lmk_form f = lmk_form_of(type);
    const int per_unit = f.unit / LMK_BLOCK, quads = lmk_share(f) > 1;
    const uint8_t *unit = group + lmk_code_bytes(f, k);
    int32_t factor[16 * 16];
    for (int64_t b = 0; b < k / LMK_BLOCK; b++, group += 64 * f.bits, p.codes += p_code_bytes(type)) {
        const int32_t *of_block = factor + b % per_unit * f.steps * 16;
        b64 codes[8];
        if (b % per_unit == 0) {
            q_scales(type, unit, p.scale, factor, p.min);
            unit += f.unit_bytes;
            p.scale += 16;
            p.min += per_unit * 16;
        }
        q_codes(type, group, codes);
        for (int i = 0; i < f.bits; i++) __builtin_prefetch(group + LMK_AHEAD + 64 * i, 0, 2);
        for (int i = 0; quads && !p_signed(type) && i < f.steps; i++, p.factor += 16)
            i_store(p.factor, p_twice(i_load(of_block + 16 * i)));
        for (int t = 0; t < 8; t++) {
            if (!p_signed(type)) {
                b_store(p.codes + 64 * t, codes[t]);
                continue;
            }
            const i16x c = { codes[t].lo, codes[t].hi }, by = quads ? p_twice(i_load(of_block)) : w_set(1);
            i_store((int32_t *)(void *)(p.codes + 128 * t), w_mul(p_even(c), by));
            i_store((int32_t *)(void *)(p.codes + 128 * t + 64), w_mul(p_odd(c), by));
        }
    }
}

/* A block of bytes times nx rows of x: sum (nx) += factor * products */
ALWAYS void p_bytes(const int32_t type, const uint8_t *codes, const int32_t *factor, const lmk_q8_block *const *x, int64_t b,
                    i16x *sum, const int nx)
{
    const lmk_form f = lmk_form_of(type);
    const int run = p_run(type);
    i16x part[Q_ROWS];
#pragma GCC unroll 8
    for (int t = 0; t < 8; t++) {
        const b64 c = b_load(codes + 64 * t);
#pragma GCC unroll 8
        for (int j = 0; j < nx; j++) {
            int32_t x4;
            memcpy(&x4, x[j][b].q + 4 * t, 4);
            const __m256i xv = _mm256_set1_epi32(x4);
            const i16x product = { _mm256_maddubs_epi16(c.lo, xv), _mm256_maddubs_epi16(c.hi, xv) };
            if (t % run) part[j] = w_add(part[j], product);
            else part[j] = f.steps == 2 ? w_add(product, i_set(x[j][b].less[t / run])) : product;
            KEEP(part[j]);
        }
        if ((t + 1) % run) continue;
        const i16x by = lmk_share(f) > 1 ? i_load(factor + t / (8 / f.steps) * 16) : w_set(1 << q_shift(type));
#pragma GCC unroll 8
        for (int j = 0; j < nx; j++) sum[j] = i_dot(sum[j], part[j], by);
    }
}

/* The same of 16 bits, which have their factors already */
ALWAYS void p_words(const uint8_t *codes, const lmk_q8_block *const *x, int64_t b, i16x *sum, const int nx)
{
    int32_t words[Q_ROWS][2][8];   /* even and odd columns */
    for (int j = 0; j < nx; j++) {
        const __m256i q = b_half((const uint8_t *)x[j][b].q);
        const i16x both = { _mm256_slli_epi16(q, 8), q }, wide = p_odd(both);
        i_store(words[j][0], wide);
    }
    __asm__ volatile("" : "+m"(words));            /* or each would come from a register, by two shuffles */
#pragma GCC unroll 16
    for (int t = 0; t < 16; t++) {
        const i16x c = i_load((const int32_t *)(const void *)(codes + 64 * t));
#pragma GCC unroll 8
        for (int j = 0; j < nx; j++) {
            sum[j] = i_dot(sum[j], c, i_set((uint32_t)words[j][t % 2][t / 2]));
            KEEP(sum[j]);
        }
    }
}

ALWAYS void p_multiply(const int32_t type, float *const *y, int64_t i0, int n_out, p_panel p, const lmk_q8_block *const *x,
                       int64_t k, const int nx)
{
    const lmk_form f = lmk_form_of(type);
    const int share = lmk_share(f), corrected = share == 1 && f.offset && !p_signed(type);
    v16 acc[Q_ROWS], low[Q_ROWS];
#pragma GCC unroll 8
    for (int j = 0; j < nx; j++) acc[j] = low[j] = v_set(0.0f);
    for (int64_t b = 0; b < k / LMK_BLOCK; b += share) {
        i16x sum[Q_ROWS];
#pragma GCC unroll 8
        for (int j = 0; j < nx; j++) sum[j] = i_set(corrected ? (uint32_t)q_correction(type, x[j][b].correction) : 0);
        for (int i = 0; i < share; i++, p.codes += p_code_bytes(type), p.factor += 16 * f.steps) {
            if (p_signed(type)) p_words(p.codes, x, b + i, sum, nx);
            else p_bytes(type, p.codes, p.factor, x, b + i, sum, nx);
        }
        const v16 s = v_load(p.scale + b * LMK_BLOCK / f.unit * 16);
#pragma GCC unroll 8
        for (int j = 0; j < nx; j++) acc[j] = v_fma(i_to_float(sum[j]), v_mul(s, v_set(x[j][b].scale)), acc[j]);
    }
    for (int64_t b = 0; f.mins && b < k / LMK_BLOCK; b++)
#pragma GCC unroll 8
        for (int j = 0; j < nx; j++) low[j] = v_fma(v_load(p.min + 16 * b), v_set(x[j][b].sum), low[j]);
#pragma GCC unroll 8
    for (int j = 0; j < nx; j++) v_store_part(y[j] + i0, f.mins ? v_add(acc[j], low[j]) : acc[j], n_out);
}

/* What q_many of quants.h does */
ALWAYS void q_many(const int32_t type, float *const *y, int64_t i0, int n_out, const uint8_t *group,
                   const lmk_q8_block *const *x, int64_t n_x, int64_t k, uint8_t *panel)
{
    const p_panel p = p_parts(type, panel, k);
    int64_t j = 0;
    p_expand(type, p, group, k);
    for (; j + Q_ROWS <= n_x; j += Q_ROWS) p_multiply(type, y + j, i0, n_out, p, x + j, k, Q_ROWS);
    for (; j < n_x; j++) p_multiply(type, y + j, i0, n_out, p, x + j, k, 1);
}
