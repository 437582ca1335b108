/* attend_tiles.h: the products of attention on AMX-INT8 tiles: 32 pairs times 16 keys or columns, three products each.
 *
 * The pairs are two halves of 16. Tile registers: 0 and 1 sums of the first half (high times high, and the sum of the other
 * two products), 2 and 3 of the second, 4 and 5 keys or values (high, low), 6 and 7 pairs; all are 16 rows of 64 bytes. One
 * half's sums are stored while the other half is multiplied, and the vector units work on what was stored before and on the
 * weights of the 32 pairs before: the tiles never wait for either.
 *
 * Pairs behind the last one are multiplied as well, whatever they are, and nobody looks at them. Where dimensions end within
 * a tile, what lies behind them in memory meets zeros of the queries. Wants attend_rows.h before it; LAYOUT(name) names
 * what it defines.
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

#define TILE_LOAD(t, p, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((int64_t)(stride)) : "memory")
#define TILE_STORE(t, p) __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"((int64_t)64) : "memory")
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define TILE_DOT_SS(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#define TILE_DOT_US(c, a, b) __asm__ volatile("tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#define TILE_INTS 256

ALWAYS void LAYOUT(lay_planes)(const attend_work *w, int64_t pair)
{
    (void)w, (void)pair;
}

/* 16 pairs, high plane at `x`, rows `step` bytes apart, low plane `plane` bytes behind, times a tile of lines */
#define MULTIPLY(DOT, high, cross, x, step, plane, lines)   \
    do {                                                    \
        TILE_LOAD(4, lines, 2 * LMK_LINE);                  \
        TILE_LOAD(6, x, step);                              \
        DOT(high, 6, 4);                                    \
        TILE_LOAD(5, (lines) + LMK_LINE, 2 * LMK_LINE);     \
        DOT(cross, 6, 5);                                   \
        TILE_LOAD(7, (x) + (plane), step);                  \
        DOT(cross, 7, 4);                                   \
    } while (0)

ALWAYS void store_half(int32_t *dots, const int half)
{
    if (half) {
        TILE_STORE(2, dots);
        TILE_STORE(3, dots + TILE_INTS);
    } else {
        TILE_STORE(0, dots);
        TILE_STORE(1, dots + TILE_INTS);
    }
}

/* Row i of what store_half stored, with the base 2^bits */
ALWAYS i16x dot_at(const int32_t *dots, int i, const int bits)
{
    return i_add(i_shl(i_load(dots + i * LANES), bits), i_load(dots + i * LANES + TILE_INTS));
}

typedef struct attend_block {      /* up to 32 pairs, all of whose rows see something of the stretch */
    int64_t pair;
    int n, first, end;             /* vectors of keys [first, end) */
    float *t;                      /* (32, STRETCH) */
} attend_block;

ALWAYS void dot_keys(const attend_work *w, const attend_stretch *s, const attend_block *b, int c, const int half)
{
    const char *q = w->q + (b->pair + 16 * half) * 4 * w->kp, *k = s->k[c / 4] + LMK_LINE + c % 4 * w->key_pairs * 2 * LMK_LINE;
    if (half) {
        TILE_ZERO(2);
        TILE_ZERO(3);
        for (int64_t i = 0; i < w->kp; i += 64) MULTIPLY(TILE_DOT_SS, 2, 3, q + i, 4 * w->kp, w->kp, k + i / 4 * 2 * LMK_LINE);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        for (int64_t i = 0; i < w->kp; i += 64) MULTIPLY(TILE_DOT_SS, 0, 1, q + i, 4 * w->kp, w->kp, k + i / 4 * 2 * LMK_LINE);
    }
}

ALWAYS void score_half(const attend_work *w, const attend_block *b, int c, const int32_t *dots, const int half)
{
    const v16 unit_k = v_load(w->unit_k + c * LANES), log_v = v_load(w->log_v + c * LANES);
    const float *unit_q = w->unit_q + b->pair + 16 * half;
    float *t = b->t + half * 16 * STRETCH + c * LANES;
    for (int i = 0; i < lmk_min(16, b->n - 16 * half); i++)
        v_store(t + i * STRETCH, scored(dot_at(dots, i, 7), unit_k, v_set(unit_q[i]), log_v));
}

ALWAYS void dot_values(const attend_work *w, const attend_stretch *s, const attend_block *b, int64_t d, const int half)
{
    const char *p = w->p + half * 16 * BLOCKS * WEIGHTS_BYTES;
    if (half) {
        TILE_ZERO(2);
        TILE_ZERO(3);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
    }
    for (int i = b->first / 4; i < (b->end + 3) / 4; i++) {
        const char *x = p + i * WEIGHTS_BYTES, *v = s->v[i] + LMK_LINE + d * 2 * LMK_LINE;
        if (half) MULTIPLY(TILE_DOT_US, 2, 3, x, BLOCKS * WEIGHTS_BYTES, LMK_LINE, v);
        else MULTIPLY(TILE_DOT_US, 0, 1, x, BLOCKS * WEIGHTS_BYTES, LMK_LINE, v);
    }
}

ALWAYS void mix_half(const attend_work *w, const attend_block *b, int64_t d, const int32_t *dots, const int half)
{
    float *acc = w->part.acc + (b->pair + 16 * half) * w->vp + d;
    const float *before = w->before + 16 * half, *now = w->now + 16 * half;
    for (int i = 0; i < lmk_min(16, b->n - 16 * half); i++, acc += w->vp)
        v_store(acc, mixed(v_load(acc), dot_at(dots, i, 8), before[i], now[i]));
}

/* Weights of the block's pairs [i, end) */
ALWAYS void weigh_pairs(const lmk_attend_task *t, const attend_work *w, const attend_stretch *s, const attend_block *b, int i,
                        int end, attend_sight *sight)
{
    for (; i < end; i++) {
        char *p = w->p + i * BLOCKS * WEIGHTS_BYTES;
        lean(t, s, b->pair + i, b->t + i * STRETCH);
        look(t, w, s, (b->pair + i) / t->heads, sight);
        if (sight->lo == 0 && sight->hi == STRETCH)
            weigh(w, i, b->t + i * STRETCH, p, WEIGHTS_BYTES, 0, VECTORS, 1, lay_weights_rows);
        else
            weigh(w, i, b->t + i * STRETCH, p, WEIGHTS_BYTES, b->first, b->end, 0, lay_weights_rows);
    }
}

/* Scores of block b, and meanwhile the weights of the one before; n = 0 where there is none. */
static void score_block(const lmk_attend_task *t, const attend_work *w, const attend_stretch *s, const attend_block *b,
                        const attend_block *before)
{
    int32_t *const dots[2] = { w->dots, w->dots + 2 * TILE_INTS };
    attend_sight sight = { .row = -1, .lo = -1, .hi = -1 };
    const int steps = lmk_max(1, b->end - b->first) * 2;
    int i = 0;
    for (int c = b->first, step = 1; c < b->end; c++) {
        dot_keys(w, s, b, c, 0);
        if (c > b->first) {
            store_half(dots[1], 1);
            score_half(w, b, c - 1, dots[0], 0);
        }
        weigh_pairs(t, w, s, before, i, before->n * step / steps, &sight), i = before->n * step++ / steps;
        dot_keys(w, s, b, c, 1);
        store_half(dots[0], 0);
        if (c > b->first) score_half(w, b, c - 1, dots[1], 1);
        weigh_pairs(t, w, s, before, i, before->n * step / steps, &sight), i = before->n * step++ / steps;
    }
    if (b->end > b->first) {
        store_half(dots[1], 1);
        score_half(w, b, b->end - 1, dots[0], 0);
        score_half(w, b, b->end - 1, dots[1], 1);
    }
    weigh_pairs(t, w, s, before, i, before->n, &sight);
}

static void mix_block_values(const attend_work *w, const attend_stretch *s, const attend_block *b)
{
    int32_t *const dots[2] = { w->dots, w->dots + 2 * TILE_INTS };
    for (int64_t d = 0; d < w->vp; d += LANES) {
        dot_values(w, s, b, d, 0);
        if (d > 0) {
            store_half(dots[1], 1);
            mix_half(w, b, d - LANES, dots[0], 0);
        }
        dot_values(w, s, b, d, 1);
        store_half(dots[0], 0);
        if (d > 0) mix_half(w, b, d - LANES, dots[1], 1);
    }
    store_half(dots[1], 1);
    mix_half(w, b, w->vp - LANES, dots[0], 0);
    mix_half(w, b, w->vp - LANES, dots[1], 1);
}

static void LAYOUT(all_pairs)(const lmk_attend_task *t, const attend_work *w, const attend_stretch *s, int64_t pair, int64_t end)
{
    attend_block before = { .n = 0 };
    for (int side = 0; before.n || pair < end; pair += MOST, side ^= 1) {
        attend_block b = { .pair = pair, .n = (int)lmk_max(0, lmk_min(MOST, end - pair)), .t = w->t + side * MOST * STRETCH };
        if (b.n) sight_of(t, s, pair / t->heads, (pair + b.n - 1) / t->heads, &b.first, &b.end);
        score_block(t, w, s, &b, &before);
        if (before.n) {
            rebase(w, before.pair, before.n);
            mix_block_values(w, s, &before);
        }
        before = b;
    }
}
