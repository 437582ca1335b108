/* attend_tiles.h: the products of attention on AMX-INT8 tiles: 32 pairs times 16 keys or columns, three products each.
 *
 * The pairs are two halves of 16. Tile registers: 0 and 1 sums of the first half (high times high, and the sum of the other
 * two products), 2 and 3 of the second, 4 and 5 keys or values (high, low), 6 and 7 pairs; all are 16 rows of 64 bytes.
 *
 * Three blocks of 32 pairs are in work at once: while the tiles multiply one with keys and another with values, the vector
 * units make weights of the scores of the one between, and work on what was stored before. A tile product takes 18 cycles,
 * and so does storing one, never both at once; so that this is what limits the speed, products, stores and vector work
 * alternate in pieces that the processor can look ahead over.
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

#define FETCH_LINES(p) \
    do { for (int line_ = 0; line_ < 8; line_++) __builtin_prefetch((p) + line_ * LMK_LINE, 0, 3); } while (0)

/* 32 pairs, high plane at `x`, rows `step` bytes apart, low plane `plane` bytes behind, times a tile of lines; the tile at
 * `ahead` is fetched. A sum is added to by every third product: they take as long as three until the next one can. */
#define MULTIPLY(DOT, x, step, plane, lines, ahead)              \
    do {                                                         \
        const char *const one = (x), *const two = one + 16 * (step); \
        TILE_LOAD(5, (lines) + LMK_LINE, 2 * LMK_LINE);          \
        TILE_LOAD(6, one, step);                                 \
        DOT(1, 6, 5);                                            \
        FETCH_LINES(ahead);                                      \
        TILE_LOAD(7, two, step);                                 \
        DOT(3, 7, 5);                                            \
        FETCH_LINES((ahead) + 8 * LMK_LINE);                     \
        TILE_LOAD(4, lines, 2 * LMK_LINE);                       \
        DOT(0, 6, 4);                                            \
        TILE_LOAD(6, one + (plane), step);                       \
        DOT(1, 6, 4);                                            \
        FETCH_LINES((ahead) + 16 * LMK_LINE);                    \
        TILE_LOAD(5, two + (plane), step);                       \
        DOT(3, 5, 4);                                            \
        FETCH_LINES((ahead) + 24 * LMK_LINE);                    \
        DOT(2, 7, 4);                                            \
    } while (0)

ALWAYS void zero_sums(void)
{
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
}

ALWAYS void store_sums(int32_t *dots)
{
    TILE_STORE(0, dots);
    TILE_STORE(1, dots + TILE_INTS);
    TILE_STORE(2, dots + 2 * TILE_INTS);
    TILE_STORE(3, dots + 3 * TILE_INTS);
}

/* Row i of a half of what store_sums stored, with the base 2^bits */
ALWAYS i16x dot_at(const int32_t *dots, int i, const int bits)
{
    return i_add(i_shl(i_load(dots + i * LANES), bits), i_load(dots + i * LANES + TILE_INTS));
}

typedef struct attend_block {      /* up to 32 pairs, all of whose rows see something of the stretch */
    int64_t pair;
    int n, first, end;             /* vectors of keys [first, end) */
    int slot;                      /* of its first pair's weights */
} attend_block;

typedef struct attend_weighing {   /* of a block's pairs, a few at a time */
    const lmk_attend_task *t;
    const attend_stretch *s;
    const attend_block *b;
    int done, turn, turns;
} attend_weighing;

ALWAYS char *weights_at(const attend_work *w, int slot)
{
    return w->p + slot * BLOCKS * WEIGHTS_BYTES;
}

ALWAYS int sees_all(attend_sight sight) { return sight.lo == 0 && sight.hi == STRETCH; }

/* max[4 i + j] = the largest lane of a[4 j + i] */
ALWAYS void store_tops(float *max, const v16 *a)
{
    v16 t8[8], t4[4], t2[2];
    for (int i = 0; i < 8; i++)
        t8[i] = v_max(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x44), _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xee));
    for (int i = 0; i < 4; i++)
        t4[i] = v_max(_mm512_shuffle_f32x4(t8[2 * i], t8[2 * i + 1], 0x88), _mm512_shuffle_f32x4(t8[2 * i], t8[2 * i + 1], 0xdd));
    for (int i = 0; i < 2; i++) {
        const __m512d p = _mm512_castps_pd(t4[2 * i]), q = _mm512_castps_pd(t4[2 * i + 1]);
        t2[i] = v_max(_mm512_castpd_ps(_mm512_unpacklo_pd(p, q)), _mm512_castpd_ps(_mm512_unpackhi_pd(p, q)));
    }
    v_store(max, v_max(_mm512_shuffle_ps(t2[0], t2[1], 0x88), _mm512_shuffle_ps(t2[0], t2[1], 0xdd)));
}

/* The maxima of 16 pairs, all before the first weight: that of one pair alone is waited for */
ALWAYS void find_tops(const attend_work *w, const attend_weighing *x, int first)
{
    v16 top[LANES];
    for (int i = 0; i < LANES; i++) {
        const int slot = x->b->slot + first + i;
        const int64_t pair = x->b->pair + first + i;
        const attend_sight sight = look(x->t, x->s, pair / x->t->heads);
        float *scores = w->t + slot * STRETCH;
        v16 *const to = &top[i % 4 * 4 + i / 4];
        *to = v_set(0.0f);
        if (first + i >= x->b->n) continue;
        lean(x->t, x->s, pair, scores);
        *to = sees_all(sight) ? tops(scores, 0, VECTORS, sight, 1) : tops(scores, x->b->first, x->b->end, sight, 0);
    }
    store_tops(w->top + x->b->slot + first, top);
}

/* The pairs that are due at this turn */
static __attribute__((noinline)) void weigh_some(const attend_work *w, attend_weighing *x)
{
    const int due = x->b->n * ++x->turn / x->turns;
    for (; x->done < due; x->done++) {
        const int slot = x->b->slot + x->done;
        const attend_sight sight = look(x->t, x->s, (x->b->pair + x->done) / x->t->heads);
        const float *scores = w->t + slot * STRETCH;
        if (x->done % LANES == 0) find_tops(w, x, x->done);
        if (sees_all(sight))
            weigh(w, slot, scores, weights_at(w, slot), WEIGHTS_BYTES, 0, VECTORS, sight, 1, lay_weights_rows);
        else
            weigh(w, slot, scores, weights_at(w, slot), WEIGHTS_BYTES, x->b->first, x->b->end, sight, 0, lay_weights_rows);
    }
}

ALWAYS void score_half(const attend_work *w, const attend_block *b, int c, const int half)
{
    const int32_t *dots = w->dots + half * 2 * TILE_INTS;
    const v16 unit_k = v_load(w->unit_k + c * LANES), log_v = v_load(w->log_v + c * LANES);
    const float *unit_q = w->unit_q + b->pair + 16 * half;
    float *t = w->t + (b->slot + half * 16) * STRETCH + c * LANES;
    for (int i = 0; i < lmk_min(16, b->n - 16 * half); i++)
        v_store(t + i * STRETCH, scored(dot_at(dots, i, 7), unit_k, v_set(unit_q[i]), log_v));
}

ALWAYS const char *keys_at(const attend_work *w, const attend_stretch *s, int c)
{
    return s->k[c / 4] + LMK_LINE + c % 4 * w->key_pairs * 2 * LMK_LINE;
}

/* Scores of block b, and meanwhile weights of another */
static void score_block(const attend_work *w, const attend_stretch *s, const attend_block *b, attend_weighing *x)
{
    const int64_t step = QUERY_BYTES(w);
    const char *q = w->q + b->pair * step;
    for (int c = b->first; c < b->end; c++) {
        const char *k = keys_at(w, s, c), *ahead = c + 1 < b->end ? keys_at(w, s, c + 1) : k;
        zero_sums();
        MULTIPLY(TILE_DOT_SS, q, step, w->kp, k, ahead);
        if (c > b->first) score_half(w, b, c - 1, 0);
        weigh_some(w, x);
        for (int64_t i = 64; i < w->kp; i += 64) {
            const int64_t at = i / 4 * 2 * LMK_LINE;
            MULTIPLY(TILE_DOT_SS, q + i, step, w->kp, k + at, ahead + at);
        }
        if (c > b->first) score_half(w, b, c - 1, 1);
        weigh_some(w, x);
        store_sums(w->dots);
    }
    score_half(w, b, b->end - 1, 0);
    score_half(w, b, b->end - 1, 1);
}

ALWAYS void mix_half(const attend_work *w, const attend_block *b, int64_t d, const int half)
{
    const int32_t *dots = w->dots + half * 2 * TILE_INTS;
    float *acc = w->part.acc + (b->pair + 16 * half) * w->vp + d;
    const float *before = w->before + 16 * half, *now = w->now + 16 * half;
    for (int i = 0; i < lmk_min(16, b->n - 16 * half); i++, acc += w->vp)
        v_store(acc, mixed(v_load(acc), dot_at(dots, i, 8), before[i], now[i]));
}

/* Sums of block b, and meanwhile weights of another */
static void mix_values(const attend_work *w, const attend_stretch *s, const attend_block *b, attend_weighing *x)
{
    const char *p = weights_at(w, b->slot);
    const int first = b->first / 4, end = (b->end + 3) / 4;
    rebase(w, b->pair, b->slot, b->n);
    for (int64_t d = 0; d < w->vp; d += LANES) {
        zero_sums();
        for (int i = first; i < end; i++) {
            const char *v = s->v[i] + LMK_LINE + d * 2 * LMK_LINE, *ahead = d + LANES < w->vp ? v + LANES * 2 * LMK_LINE : v;
            MULTIPLY(TILE_DOT_US, p + i * WEIGHTS_BYTES, BLOCKS * WEIGHTS_BYTES, LMK_LINE, v, ahead);
            if (i > first) continue;
            if (d > 0) mix_half(w, b, d - LANES, 0);
            weigh_some(w, x);
        }
        if (d > 0) mix_half(w, b, d - LANES, 1);
        weigh_some(w, x);
        store_sums(w->dots);
    }
    mix_half(w, b, w->vp - LANES, 0);
    mix_half(w, b, w->vp - LANES, 1);
}

static void LAYOUT(all_pairs)(const lmk_attend_task *t, const attend_work *w, const attend_stretch *s, int64_t pair, int64_t end)
{
    attend_block next, between = { .n = 0 }, last = { .n = 0 };
    for (int slot = 0; pair < end || between.n || last.n; pair += MOST, slot ^= MOST) {
        next = (attend_block){ .pair = pair, .n = (int)lmk_max(0, lmk_min(MOST, end - pair)), .slot = slot };
        if (next.n) sight_of(t, s, pair / t->heads, (pair + next.n - 1) / t->heads, &next.first, &next.end);
        attend_weighing x = { .t = t, .s = s, .b = &between };
        x.turns = 2 * (next.end - next.first) + (last.n ? 2 * (int)(w->vp / LANES) : 0) + 1;
        if (next.n) score_block(w, s, &next, &x);
        if (last.n) mix_values(w, s, &last, &x);
        x.turn = x.turns - 1;
        weigh_some(w, &x);
        last = between;
        between = next;
    }
}
