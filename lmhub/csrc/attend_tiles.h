/* attend_tiles.h: the integer part of attention on AMX-INT8 tiles: 16 pairs times 16 keys or columns, three products each.
 *
 * Tile registers: 0 to 3 sums, 4 and 5 pairs (high, low), 6 and 7 keys or values (high, low); all are 16 rows of 64 bytes.
 * Wants attend_float.h and simd_avx512.h before it; LAYOUT(name) names what it defines.
 */

typedef struct attend_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} attend_config;

/* Static and read by an asm statement: GCC 12 believes that _tile_loadconfig reads 8 bytes of it. */
static const attend_config all_tiles __attribute__((aligned(64))) = {
    .palette = 1,
    .row_bytes = { 64, 64, 64, 64, 64, 64, 64, 64 },
    .rows = { 16, 16, 16, 16, 16, 16, 16, 16 },
};

#undef ATTEND_FEW
#define ATTEND_FEW 0
#define TILE_BYTES 1024
#define TILE_LOAD(t, p, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((int64_t)(stride)) : "memory")
#define TILE_STORE(t, p) __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"((int64_t)64) : "memory")
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define TILE_DOT_SS(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#define TILE_DOT_US(c, a, b) __asm__ volatile("tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

/* 64 integers in four vectors to bytes: lane i has those of elements i, i + 32, i + 16, i + 48. Base 256 */
ALWAYS void LAYOUT(split_8)(const i16x x[4], i16x *high, i16x *low)
{
    const i16x a = w_join(x[0], x[1]), b = w_join(x[2], x[3]), half = w_set(128), byte = w_set(255);
    *high = i_or(w_shr(w_add(a, half), 8), _mm512_andnot_si512(byte, w_add(b, half)));
    *low = i_or(i_and(a, byte), w_shl(b, 8));
}

/* The same in base 128 */
ALWAYS void LAYOUT(split_7)(const i16x x[4], i16x *high, i16x *low)
{
    const i16x a = w_join(x[0], x[1]), b = w_join(x[2], x[3]), half = w_set(64), byte = w_set(255);
    const i16x ah = w_sar(w_add(a, half), 7), bh = w_sar(w_add(b, half), 7);
    *high = i_or(i_and(ah, byte), w_shl(bh, 8));
    *low = i_or(i_and(w_sub(a, w_shl(ah, 7)), byte), w_shl(w_sub(b, w_shl(bh, 7)), 8));
}

ALWAYS void LAYOUT(lay_vector)(char *high, char *low, const void *x, int64_t n, int e, const int half)
{
    const v16 inverse = inverse_unit(e, 13);
    for (int64_t i = 0; i < n; i += 64) {
        i16x a[4], h, l;
        for (int r = 0; r < 4; r++) a[r] = rounded(x, i + r * LANES, inverse, half);
        LAYOUT(split_7)(a, &h, &l);
        _mm512_store_si512(high + i, h);
        _mm512_store_si512(low + i, l);
    }
}

/* q: per pair (2, kp): high, low. */
ALWAYS void LAYOUT(lay_query)(const attend_work *w, int64_t pair, const float *x, int e)
{
    char *high = w->q + pair * 2 * w->kp;
    LAYOUT(lay_vector)(high, high + w->kp, x, w->kp, e, 0);
}

/* 16 rows of 16 times 4 bytes to columns */
ALWAYS void LAYOUT(turn)(char *dst, const char *src, int64_t stride)
{
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_si512(src + i * stride);
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {              /* a[i + c]: column c of each lane's four, of rows i .. i + 3 */
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    for (int c = 0; c < 4; c++) {
        const __m512i p = _mm512_shuffle_i32x4(a[c], a[c + 4], 0x88), q = _mm512_shuffle_i32x4(a[c + 8], a[c + 12], 0x88);
        const __m512i r = _mm512_shuffle_i32x4(a[c], a[c + 4], 0xdd), s = _mm512_shuffle_i32x4(a[c + 8], a[c + 12], 0xdd);
        _mm512_store_si512(dst + (c + 0) * 64, _mm512_shuffle_i32x4(p, q, 0x88));
        _mm512_store_si512(dst + (c + 4) * 64, _mm512_shuffle_i32x4(r, s, 0x88));
        _mm512_store_si512(dst + (c + 8) * 64, _mm512_shuffle_i32x4(p, q, 0xdd));
        _mm512_store_si512(dst + (c + 12) * 64, _mm512_shuffle_i32x4(r, s, 0xdd));
    }
}

/* k: (4 groups of 16 keys, kp / 64, 2) tiles; a tile's row has 4 dimensions of each key. In the memory behind them the keys
 * are laid first as rows, (2, 64, kp). */
ALWAYS void LAYOUT(lay_keys)(const attend_work *w, int first, int n, const int half)
{
    (void)first;
    char *tile = w->k, *high = w->k + 2 * LMK_TILE * w->kp, *low = high + LMK_TILE * w->kp;
    for (int j = 0; j < n; j++)
        LAYOUT(lay_vector)(high + j * w->kp, low + j * w->kp, w->source[j], w->kp, w->e[j], half);
    for (int64_t g = 0; g < n; g += 16)
        for (int64_t i = 0; i < w->kp; i += 64, tile += 2 * TILE_BYTES) {
            LAYOUT(turn)(tile, high + g * w->kp + i, w->kp);
            LAYOUT(turn)(tile + TILE_BYTES, low + g * w->kp + i, w->kp);
        }
}

/* v: (vp / 16, 2) tiles; row j of a tile has positions j, j + 32, j + 16, j + 48 of each of 16 columns. */
ALWAYS void LAYOUT(lay_values)(const attend_work *w, int64_t d, int64_t end, int n, const int half)
{
    (void)d, (void)end;
    for (int j = 0; j < n && j < LANES; j++) {
        int32_t *tile = (int32_t *)(void *)(w->v + j * 64);
        v16 inverse[4];
        for (int r = 0; r < 4; r++) inverse[r] = inverse_unit(w->e[j + r * LANES], 14);
        for (int64_t i = 0; i < w->vp; i += LANES, tile += 2 * TILE_BYTES / 4) {
            i16x a[4], h, l;
            for (int r = 0; r < 4; r++) a[r] = rounded(w->source[j + r * LANES], i, inverse[r], half);
            LAYOUT(split_8)(a, &h, &l);
            i_store(tile, h);
            i_store(tile + TILE_BYTES / 4, l);
        }
    }
}

/* dots: per group of 16 keys two tiles (16, 16): high times high, and the sum of the other two products */
ALWAYS void LAYOUT(dot_keys)(const attend_work *w, int64_t pair, int n, int first, int n_keys)
{
    (void)n, (void)first;
    const int64_t group = w->kp / 64 * 2 * TILE_BYTES;
    for (int g = 0; g < n_keys; g += 32) {
        const char *q = w->q + pair * 2 * w->kp, *k = w->k + g / 16 * group;
        int32_t *dots = w->dots + g / 16 * 512;
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
        for (int64_t i = 0; i < w->kp; i += 64, q += 64, k += 2 * TILE_BYTES) {
            TILE_LOAD(4, q, 2 * w->kp);
            TILE_LOAD(6, k, 64);
            TILE_DOT_SS(0, 4, 6);
            TILE_LOAD(5, q + w->kp, 2 * w->kp);
            TILE_DOT_SS(1, 5, 6);
            TILE_LOAD(6, k + group, 64);
            TILE_DOT_SS(2, 4, 6);
            TILE_DOT_SS(3, 5, 6);
            TILE_LOAD(7, k + TILE_BYTES, 64);
            TILE_DOT_SS(1, 4, 7);
            TILE_LOAD(7, k + group + TILE_BYTES, 64);
            TILE_DOT_SS(3, 4, 7);
        }
        TILE_STORE(0, dots);
        TILE_STORE(1, dots + 256);
        TILE_STORE(2, dots + 512);
        TILE_STORE(3, dots + 768);
    }
}

/* The dots, divided by the base, of row i with keys 16 c .. 16 c + 15 */
ALWAYS i16x LAYOUT(scores)(const attend_work *w, int i, int c)
{
    const int32_t *dots = w->dots + c * 512 + i * 16;
    return i_add(i_shl(i_load(dots), 7), i_load(dots + 256));
}

/* weights: per block two tiles, high and low */
ALWAYS void LAYOUT(lay_weights)(const attend_work *w, int64_t slot, const i16x p[4])
{
    char *high = w->weights + slot / SUB * 2 * TILE_BYTES + slot % SUB * 64;
    i16x h, l;
    LAYOUT(split_8)(p, &h, &l);
    _mm512_store_si512(high, h);
    _mm512_store_si512(high + TILE_BYTES, l);
}

ALWAYS void LAYOUT(mix_tile)(int32_t *dots, const char *v)
{
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_LOAD(6, v, 64);
    TILE_DOT_US(0, 4, 6);
    TILE_DOT_SS(1, 5, 6);
    TILE_LOAD(7, v + TILE_BYTES, 64);
    TILE_DOT_US(1, 4, 7);
    TILE_ZERO(2);
    TILE_ZERO(3);
    TILE_LOAD(6, v + 2 * TILE_BYTES, 64);
    TILE_DOT_US(2, 4, 6);
    TILE_DOT_SS(3, 5, 6);
    TILE_LOAD(7, v + 3 * TILE_BYTES, 64);
    TILE_DOT_US(3, 4, 7);
    TILE_STORE(0, dots);
    TILE_STORE(1, dots + 256);
    TILE_STORE(2, dots + 512);
    TILE_STORE(3, dots + 768);
}

ALWAYS void LAYOUT(mix_rows)(const attend_work *w, int64_t pair, int64_t slot, int n, int64_t d, const int32_t *dots)
{
    for (int i = 0; i < n; i++, dots += 16) {
        float *acc = w->acc + (pair + i) * w->vp + d;
        const i16x a = i_add(i_shl(i_load(dots), 8), i_load(dots + 256));
        const i16x b = i_add(i_shl(i_load(dots + 512), 8), i_load(dots + 768));
        v_store(acc, mixed(v_load(acc), a, w->before[slot + i], w->now[slot + i]));
        v_store(acc + LANES, mixed(v_load(acc + LANES), b, w->before[slot + i], w->now[slot + i]));
    }
}

/* The tiles work on 32 columns while the vectors add up the 32 before them. */
ALWAYS void LAYOUT(mix_values)(const attend_work *w, int64_t pair, int64_t slot, int64_t first, int64_t end, int n, int n_keys)
{
    (void)first, (void)end, (void)n_keys;
    const char *weights = w->weights + slot / SUB * 2 * TILE_BYTES;
    int32_t *const dots[2] = { w->dots, w->dots + 1024 };
    TILE_LOAD(4, weights, 64);
    TILE_LOAD(5, weights + TILE_BYTES, 64);
    LAYOUT(mix_tile)(dots[0], w->v);
    int64_t d = 2 * LANES;
    for (int side = 1; d < w->vp; d += 2 * LANES, side ^= 1) {
        LAYOUT(mix_tile)(dots[side], w->v + d / LANES * 2 * TILE_BYTES);
        LAYOUT(mix_rows)(w, pair, slot, n, d - 2 * LANES, dots[side ^ 1]);
    }
    LAYOUT(mix_rows)(w, pair, slot, n, d - 2 * LANES, dots[w->vp / 32 % 2 ^ 1]);
}
