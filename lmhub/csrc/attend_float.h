/* attend_float.h: attention over f16 and q8_0 caches: what it computes, and the part of it that is in floats.
 *
 * Queries, keys and values are integers of 14 to 16 bits per vector (one power of two as unit), each in two planes of 8
 * bits: x = unit (base * high + low). A product of two such vectors is the exact sum
 *     dot = sum (base * xh * yh + xh * yl + xl * yh)
 * in 32 bits: only low times low, below the rounding, is left out. Exact sums have no order, so that each level may add as
 * it likes. Only the softmax between the products is in floats, 16 lanes per row, in one order.
 *
 * In powers of two, per row (query and head) and stretch of 128 positions j:
 *     t[j] = dot(q, k[j]) * unit_k[j] * unit_q * scale * log2(e) + log2(unit_v[j])     (+ bias[j] * log2(e))
 *     e[j] = 2^(t[j] - max t),   p[j] = round(65280 e[j]): the stretch's weights of the values' integers
 * and the row's sums over stretches, in order, relative to the largest t so far: of e[j] / unit_v[j], and of p · v. These
 * sums begin anew after each part of 1024 positions; parts are joined in order.
 *
 * attend_rows.h and attend_tiles.h have the products, attend.h puts them together. Wants planes.h before it.
 */

#define STRETCH LMK_STRETCH
#define VECTORS (STRETCH / LANES)  /* of 16 positions, in a stretch */
#define BLOCKS (STRETCH / LMK_TILE)

/* 2^x for x <= 0, down to 2^-125 (relative error 3e-6, none at 0): weights need no more, and sums use the same */
ALWAYS v16 v_exp2(v16 x)
{
    x = v_max(x, v_set(-125.0f));
    const v16 t = v_add(x, v_set(ROUNDER)), n = v_sub(t, v_set(ROUNDER)), r = v_sub(x, n);
    v16 p = v_set(0.00958285314f);
    p = v_fma(p, r, v_set(0.0559064267f));
    p = v_fma(p, r, v_set(0.240240986f));
    p = v_fma(p, r, v_set(0.693124193f));
    return v_power(v_fma(p, r, v_set(1.0f)), n, v_bits(t));
}

/* ---- what a task works with ---- */

typedef struct attend_sums {       /* of `pairs` rows: relative to max, */
    float *max;                    /* (pairs) */
    float *sum;                    /* (pairs, 16): of e / unit_v, */
    float *acc;                    /* (pairs, vp): of p · v / 256 */
} attend_sums;

typedef struct attend_work {
    int64_t pairs, kp, vp;         /* k_dim and v_dim, with zeros, as multiples of 64 and 16 */
    int64_t key_pairs;             /* of lines for 16 keys */
    char *q;                       /* (pairs, 4 kp bytes): planes of queries, as the product likes */
    float *unit_q;                 /* (pairs) */
    float *start;                  /* (pairs): 0, or NaN where the query is not finite */
    int32_t *correction;           /* (pairs): of the product, if it needs any */
    attend_sums part, whole;
    float *t;                      /* (2, MOST, STRETCH): scores */
    char *p;                       /* (2, MOST, 4 STRETCH bytes): planes of weights, as the product likes */
    int32_t *dots;                 /* (4, 256): what tiles hold */
    float *share;                  /* (2, MOST, 16): sums of the stretch, */
    float *top;                    /* (2, MOST): its maximum, */
    float *before, *now;           /* (MOST): what the sums so far and its own are multiplied by */
    float *unit_k;                 /* (STRETCH): what the keys' integers are worth */
    float *log_v, *inverse_v;      /* (STRETCH) */
    float *row;                    /* (64, max(kp, vp)): vectors, as floats */
    char *blocks;                  /* (2, BLOCKS): keys and values of q8_0 caches, as an f16 cache has them */
} attend_work;

#define MOST LMK_ATTEND_PAIRS
#define AHEAD 6                    /* pairs on whose queries and outputs, rows that lie far apart, are asked for */

static attend_sums lay_sums(float *f, int64_t pairs, int64_t v_dim)
{
    attend_sums s = { .acc = f };
    s.sum = s.acc + pairs * lmk_value_pairs(v_dim);
    s.max = s.sum + pairs * LANES;
    return s;
}

static attend_work lay_out(const lmk_attend_task *t)
{
    attend_work w = { .pairs = (int64_t)t->heads * t->n_rows, .kp = (t->k_dim + 63) / 64 * 64,
                      .vp = lmk_value_pairs(t->v_dim), .key_pairs = lmk_key_pairs(t->k_dim) };
    float *f = (float *)(void *)t->scratch;
    w.dots = (int32_t *)(void *)f, f += 1024;
    w.q = (char *)f, f += (w.pairs + MOST) * w.kp;
    w.t = f, f += 2 * MOST * STRETCH;
    w.p = (char *)f, f += 2 * MOST * STRETCH;
    w.share = f, f += 2 * MOST * LANES;
    w.part = lay_sums(f, w.pairs, t->v_dim), f += lmk_sums_size(w.pairs, t->v_dim);
    w.whole = lay_sums(f, w.pairs, t->v_dim), f += lmk_sums_size(w.pairs, t->v_dim);
    w.row = f, f += LMK_TILE * lmk_max(w.kp, w.vp);
    w.blocks = (char *)f, f += BLOCKS * (lmk_block_bytes(LMK_F16, t->k_dim, 1) + lmk_block_bytes(LMK_F16, t->v_dim, 0)) / 4;
    w.unit_k = f, f += STRETCH;
    w.log_v = f, f += STRETCH;
    w.inverse_v = f, f += STRETCH;
    w.top = f, f += 2 * MOST;
    w.before = f, f += MOST;
    w.now = f, f += MOST;
    w.correction = (int32_t *)(void *)f, f += w.pairs;
    w.start = f, f += w.pairs;
    w.unit_q = f;
    return w;
}

static void begin_sums(const attend_sums *s, int64_t pairs, int64_t vp, const float *start)
{
    for (int64_t i = 0; i < pairs; i++) {
        s->max[i] = -INFINITY;
        v_store(s->sum + i * LANES, v_set(start ? start[i] : 0.0f));
    }
    memset(s->acc, 0, (size_t)(pairs * vp) * sizeof(float));
}

/* ---- a stretch of the cache ---- */

typedef struct attend_stretch {
    int64_t position;              /* of its first key */
    int n;                         /* keys that exist */
    const char *k[BLOCKS], *v[BLOCKS];
    const char *next_k, *next_v;   /* of the stretch behind it, to be fetched */
} attend_stretch;

/* A block of a q8_0 cache as an f16 cache would have it */
static void expand_block(const attend_work *w, char *block, const char *x, int64_t dim, int n, const int keys)
{
    const int64_t bytes = dim / LMK_BLOCK * (2 + LMK_BLOCK);
    for (int j = 0; j < n; j++) {
        for (int64_t i = 0; i < bytes; i += LMK_LINE) __builtin_prefetch(x + (LMK_TILE + j) * bytes + i, 0, 2);
        dequant(LMK_Q8_0, x + j * bytes, w->row, dim);
        if (keys) lay_key(block, j, w->row, dim);
        else lay_value(block, j, w->row, dim);
    }
}

/* Finds the stretch's blocks, and what their integers are worth. Where a key or a value is not finite, the position's share
 * of the sum is NaN. */
static void begin_stretch(const lmk_attend_task *t, const attend_work *w, attend_stretch *s)
{
    uint8_t k[STRETCH], v[STRETCH];
    const int64_t k_bytes = lmk_block_bytes(LMK_F16, t->k_dim, 1), v_bytes = lmk_block_bytes(LMK_F16, t->v_dim, 0);
    int wrong = 0;
    for (int b = 0; b < BLOCKS; b++) {
        const int n = (int)lmk_max(0, lmk_min(LMK_TILE, s->n - b * LMK_TILE));
        const int64_t tile = s->position / LMK_TILE + b;
        s->k[b] = t->k + tile * t->k_step;
        s->v[b] = t->v + tile * t->v_step;
        if (t->dtype == LMK_Q8_0) {
            char *block = w->blocks + b * (k_bytes + v_bytes);
            expand_block(w, block, s->k[b], t->k_dim, n, 1);
            expand_block(w, block + k_bytes, s->v[b], t->v_dim, n, 0);
            s->k[b] = block;
            s->v[b] = block + k_bytes;
        }
        memset(k + b * LMK_TILE, 127, LMK_TILE);
        memset(v + b * LMK_TILE, ZERO_VALUE, LMK_TILE);
        memcpy(k + b * LMK_TILE, s->k[b], (size_t)n);
        memcpy(v + b * LMK_TILE, s->v[b], (size_t)n);
    }
    s->next_k = t->k + (s->position / LMK_TILE + BLOCKS) * t->k_step;
    s->next_v = t->v + (s->position / LMK_TILE + BLOCKS) * t->v_step;
    for (int j = 0; j < STRETCH; j++) wrong |= (k[j] == LMK_NOT_FINITE) | (v[j] == LMK_NOT_FINITE);
    for (int j = 0; j < STRETCH; j += LANES) {
        const i16x e = i_load_u8(v + j);
        v_store(w->unit_k + j, i_float(i_exponent(i_sub(i_load_u8(k + j), i_set(LMK_KEY_BITS)))));
        v_store(w->log_v + j, i_to_float(i_sub(e, i_set(127 + LMK_VALUE_BITS))));
        v_store(w->inverse_v + j, i_float(i_exponent(i_sub(i_set(254 + LMK_VALUE_BITS), e))));
    }
    for (int j = 0; wrong && j < STRETCH; j++)
        if (k[j] == LMK_NOT_FINITE || v[j] == LMK_NOT_FINITE) {
            w->log_v[j] = ZERO_VALUE - 127 - LMK_VALUE_BITS;
            w->inverse_v[j] = NAN;
        }
}

/* What a row sees of a stretch: positions [lo, hi) */
typedef struct attend_sight {
    int lo, hi;
} attend_sight;

ALWAYS attend_sight look(const lmk_attend_task *t, const attend_stretch *stretch, int64_t row)
{
    const int64_t position = t->position + row - stretch->position;
    return (attend_sight){ .lo = t->window > 0 ? (int)lmk_max(0, position - t->window + 1) : 0,
                           .hi = (int)lmk_min(STRETCH, position + 1) };
}

/* All bits of the lanes of vector c that are seen, none of the others */
ALWAYS i16x seen(attend_sight s, int c)
{
    static const int32_t edges[3 * LANES] = { [LANES ... 2 * LANES - 1] = -1 };
    const int64_t lo = lmk_min(LANES, lmk_max(0, s.lo - c * LANES)), hi = lmk_min(LANES, lmk_max(0, s.hi - c * LANES));
    return i_and(i_load(edges + LANES - lo), i_load(edges + 2 * LANES - hi));
}

/* The part of a stretch that rows [row, end] see together, in whole vectors */
ALWAYS void sight_of(const lmk_attend_task *t, const attend_stretch *s, int64_t row, int64_t last, int *first, int *end)
{
    const int64_t lo = t->window > 0 ? t->position + row - t->window + 1 - s->position : 0;
    *first = (int)lmk_max(0, lo) / LANES;
    *end = (int)(lmk_min(STRETCH, t->position + last + 1 - s->position) + LANES - 1) / LANES;
}

/* ---- from scores to weights ---- */

/* 16 scores in powers of two */
ALWAYS v16 scored(i16x dot, v16 unit_k, v16 unit_q, v16 log_v)
{
    return v_fma(v_mul(i_to_float(dot), unit_k), unit_q, log_v);
}

/* The pair's bias to its scores of the stretch, in powers of two as they are */
ALWAYS void lean(const lmk_attend_task *t, const attend_stretch *s, int64_t pair, float *scores)
{
    if (!t->bias) return;
    const int64_t row = pair / t->heads, end = t->position + row + 1, first = end - t->extent;
    const float *bias = t->bias + row * t->bias_step + pair % t->heads * t->extent - first;
    const int64_t behind = lmk_min(end, s->position + STRETCH);
    for (int64_t j = lmk_max(first, s->position); j < behind; j += LANES) {
        const int n = (int)lmk_min(LANES, behind - j);
        float *at = scores + (j - s->position);
        v_store_part(at, v_fma(v_load_part(bias + j, n, 0.0f), v_set(1.44269504088896341f), v_load_part(at, n, 0.0f)), n);
    }
}

typedef void lay_weights_fn(char *p, const i16x x[4]);

/* The largest of a row's scores of vectors [first, end), lane by lane. `all`: of the whole stretch, and all are seen; otherwise
 * those that are not become -inf. */
ALWAYS v16 tops(float *t, int first, int end, attend_sight sight, const int all)
{
    v16 top[2] = { v_set(-INFINITY), v_set(-INFINITY) };
    if (all) first = 0, end = VECTORS;
    for (int c = first; c < end; c++) {
        v16 s = v_load(t + c * LANES);
        if (!all) {
            s = v_min(s, i_float(i_sub(i_set(0xff800000u), i_and(seen(sight, c), i_set(0x80000000u)))));
            v_store(t + c * LANES, s);
        }
        top[c % 2] = v_max(top[c % 2], s);
    }
    return v_max(top[0], top[1]);
}

/* The same scores to weights of the slot, whose maximum is known, in blocks of the cache. */
ALWAYS void weigh(const attend_work *w, int slot, const float *t, char *p, int64_t p_block, int first, int end,
                  attend_sight sight, const int all, lay_weights_fn *const lay)
{
    const v16 top = v_set(w->top[slot]);
    v16 share = v_set(0.0f);
    if (all) first = 0, end = VECTORS;
    for (int b = first / 4; b < (end + 3) / 4; b++) {
        i16x x[4];
        for (int i = 0; i < 4; i++) {
            const int c = 4 * b + i;
            x[i] = i_set(0);
            if (!all && (c < first || c >= end)) continue;
            const v16 e = v_exp2(v_sub(v_load(t + c * LANES), top));
            v16 inverse = v_load(w->inverse_v + c * LANES);
            if (!all) inverse = i_float(i_and(v_bits(inverse), seen(sight, c)));
            share = v_fma(e, inverse, share);
            x[i] = v_bits(v_fma(e, v_set(65280.0f), v_set(ROUNDER)));     /* in the low 16 bits */
        }
        lay(p + b * p_block, x);
    }
    v_store(w->share + slot * LANES, share);
}

/* Brings the sums so far and the stretch's to one maximum, for pairs pair .. pair + n - 1, which have the slots from `slot` on. */
ALWAYS void rebase(const attend_work *w, int64_t pair, int slot, int n)
{
    const attend_sums *s = &w->part;
    for (int i = 0; i < n; i += LANES) {
        const int part = (int)lmk_min(LANES, n - i);
        const v16 was = v_load_part(s->max + pair + i, part, 0.0f), top = v_load_part(w->top + slot + i, part, 0.0f);
        const v16 max = v_max(was, top);
        v_store_part(s->max + pair + i, max, part);
        v_store_part(w->before + i, v_exp2(v_sub(was, max)), part);
        v_store_part(w->now + i, v_exp2(v_sub(top, max)), part);
    }
    for (int i = 0; i < n; i++) {
        float *sum = s->sum + (pair + i) * LANES;
        v_store(sum, v_fma(v_load(sum), v_set(w->before[i]), v_mul(v_load(w->share + (slot + i) * LANES), v_set(w->now[i]))));
    }
}

/* What becomes of 16 columns of a row's sum over values: dot is p · v / 256. */
ALWAYS v16 mixed(v16 acc, i16x dot, float before, float now)
{
    return v_fma(acc, v_set(before), v_mul(i_to_float(dot), v_set(now)));
}

/* ---- parts ---- */

/* The same for the sums of a part and those of all before it. What a row has not seen of it changes nothing. */
static void join_part(const attend_sums *whole, const attend_sums *part, int64_t pairs, int64_t vp)
{
    for (int64_t i = 0; i < pairs; i++) {
        const float was = whole->max[i], top = part->max[i];
        if (top == -INFINITY) continue;
        whole->max[i] = was > top ? was : top;
        const v16 max = v_set(whole->max[i]), before = v_exp2(v_sub(v_set(was), max)), now = v_exp2(v_sub(v_set(top), max));
        float *acc = whole->acc + i * vp, *sum = whole->sum + i * LANES;
        const float *x = part->acc + i * vp;
        v_store(sum, v_fma(v_load(sum), before, v_mul(v_load(part->sum + i * LANES), now)));
        for (int64_t d = 0; d < vp; d += LANES)
            v_store(acc + d, v_fma(v_load(acc + d), before, v_mul(v_load(x + d), now)));
    }
}

static void end_pairs(const lmk_attend_task *t, const attend_sums *s, int64_t pairs, int64_t vp)
{
    for (int64_t pair = 0; pair < pairs; pair++) {
        float *y = t->y + pair / t->heads * t->y_step + pair % t->heads * t->v_dim, *acc = s->acc + pair * vp;
        if (pair + AHEAD < pairs) {
            const float *ahead = t->y + (pair + AHEAD) / t->heads * t->y_step + (pair + AHEAD) % t->heads * t->v_dim;
            for (int64_t d = 0; d < t->v_dim; d += LANES) __builtin_prefetch(ahead + d, 1);
        }
        const v16 inverse = v_set(1.0f / (v_sum(v_load(s->sum + pair * LANES)) * (65280.0f / 256.0f)));
        for (int64_t d = 0; d < t->v_dim; d += LANES)
            v_store_part(y + d, v_mul(v_load(acc + d), inverse), (int)lmk_min(LANES, t->v_dim - d));
    }
}

static void attend_join(const lmk_attend_task *t)
{
    const attend_work w = lay_out(t);
    const int64_t size = lmk_sums_size(w.pairs, t->v_dim);
    begin_sums(&w.whole, w.pairs, w.vp, NULL);
    for (int64_t part = t->first_part; part < t->end_part; part++) {
        const attend_sums sums = lay_sums(t->parts + (part - t->first_part) * size, w.pairs, t->v_dim);
        join_part(&w.whole, &sums, w.pairs, w.vp);
    }
    end_pairs(t, &w.whole, w.pairs, w.vp);
}
