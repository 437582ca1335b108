/* core.h: what the files of the core extension share. Plugins never see it; theirs is lmk.h.
 *
 * Two tables, two purposes. `lmk_api` (table.c) is the public one: coarse ops that split work over threads. `lmk_kernels`
 * is the private one below: single-threaded inner loops, one instance per instruction-set level. A context holds the
 * level it runs at, so one process can run several levels side by side and tests can compare them byte for byte.
 *
 * Same bits everywhere: float sums run over 16 virtual lanes (lane = index mod 16), one fused multiply-add chain per
 * lane, then a fixed tree (8 + 8, 4 + 4, 2 + 2, 1 + 1). kernels.h spells every kernel in terms of such 16-lane vectors.
 */
#ifndef LMK_CORE_H
#define LMK_CORE_H

#define LMK_CORE
#include "lmk.h"
#include "native.h"
#include "dequant.h"

#include <stdatomic.h>

#define LMK_LANES 16
#define LMK_BLOCK 32               /* elements per Q8_0 block, of weights and of quantised activations */
#define LMK_GROUP 16               /* output rows per packed group, and per tile of the generic path */
#define LMK_TILE 64                /* positions per KV tile, anchored at position 0 */
#define LMK_MANY 28                 /* rows from which on strips of them pay */
#define LMK_STRIP_ROWS 16           /* rows of x that the many-row kernels take at once, */
#define LMK_STRIP_PAIR 1152         /* and the bytes that two blocks of 32 columns of them take, */
#define LMK_STRIP_EXTRA 64          /* and those of each block, behind all pairs, that only types with minimums want */
#define LMK_MAX_THREADS 256

/* Packed weights are asked for this many bytes ahead of the block in work, past the end of a group into the next one, and
 * into the second-level cache. Only the first rows of x have to wait for memory. Requests take the few buffers that loads
 * need too, so that they come one by one between the products: each when `after`, a register, has been computed, which no
 * compiler can move to the front. */
#define LMK_AHEAD 16384
#if defined(__x86_64__)
#define LMK_FETCH(after, p) __asm__ volatile("prefetcht1 %1" : "+v"(after) : "m"(*(const char *)(p)))
#else
#define LMK_FETCH(after, p) __builtin_prefetch((p), 0, 2)
#endif

enum { LMK_F32 = 0, LMK_F16 = 1, LMK_Q8_0 = 8, LMK_BF16 = 30 };   /* GGML type ids that the core treats by name */

typedef struct lmk_q8_block {      /* 32 activations of one row */
    int8_t q[LMK_BLOCK];           /* within -127..127 */
    float scale;
    int32_t correction;            /* -128 times the sum of q: undoes the weights' offset */
    int32_t half;                  /* the same of the first 16 */
    float sum;                     /* scale times the sum of q: what a block's minimum is multiplied by */
    uint32_t less[2];              /* AVX2, where blocks share a scale; of the first 16 and of the last: -32 times the sum of
                                    * columns 4 i and 4 i + 1, and in the upper half of the others */
} lmk_q8_block;

static inline int64_t lmk_strip_bytes(int64_t k)
{
    const int64_t n_blocks = k / LMK_BLOCK;
    return (n_blocks + 1) / 2 * LMK_STRIP_PAIR + n_blocks * LMK_STRIP_EXTRA;
}

#define LMK_STRETCH 128            /* positions that share a softmax, anchored at position 0: two tiles */
#define LMK_PART 1024              /* and those that are summed up apart, so that threads can share a sequence */
#define LMK_MAX_KEY 1024            /* dimensions of a key whose integer products fit 32 bits; kv.py refuses more */
#define LMK_ATTEND_PAIRS 32        /* pairs that attend() multiplies at once, at most */

/* Query rows of one sequence, one after the other, and the query heads that share one kv head of an f16 or q8_0 cache. A
 * pair is a row and a head: pair p is row p / heads and head p % heads. */
typedef struct lmk_attend_task {
    const char *k, *v;             /* the kv head's blocks in tile 0 (blocks.h) */
    int64_t k_step, v_step;        /* bytes from a tile's to the next one's */
    int32_t dtype, k_dim, v_dim;
    int32_t heads, n_rows;
    const float *q;                /* of pair 0; k_dim floats per head, rows q_step floats apart */
    float *y;                      /* likewise with v_dim and y_step */
    int64_t q_step, y_step;
    int64_t position, window;      /* of row 0; 0 = no window */
    const float *bias;             /* NULL, or of pair 0, by position, the row's own one last; heads `extent` floats apart */
    int64_t extent, bias_step;     /* rows bias_step floats apart */
    float scale;
    int64_t first_part, end_part;  /* those of the cache that count; the rows see nothing of others */
    float *parts;                  /* NULL, or where their sums go, or are, lmk_attend_sums() floats each */
    void *scratch;                 /* lmk_attend_scratch() bytes, 64-byte aligned */
} lmk_attend_task;

/* Rows of one sequence and up to LMK_DELTA_BLOCKS blocks of 16 columns of one value head. A block of M is (k_dim, 16): for
 * each entry of a key the 16 columns, one block behind the other. */
#define LMK_DELTA_BLOCKS 4
typedef struct lmk_delta_task {
    const float *past;             /* the blocks as they were; NULL: zeros */
    float *next;                   /* and where they go */
    const float *q, *k, *v, *decay, *beta;
    float *o;
    int64_t n_rows, ld_qk, ld_v, ld_gates, ld_o;   /* floats between rows */
    int64_t k_dim;
    int n_blocks;
    float scale;
} lmk_delta_task;

typedef struct lmk_place {         /* a part of some rows: from column `at` of each on */
    float *const *row;
    int64_t at;
} lmk_place;

/* y = a joined with b, element by element: n_cols columns of n rows. y may be a. */
typedef void (*lmk_join)(lmk_place y, lmk_place a, lmk_place b, int64_t n, int n_cols);

typedef struct lmk_ending lmk_ending;      /* store.h */

typedef struct lmk_kernels {
    const char *isa;

    /* dst (n) = the float values of n elements at src; n is a whole number of blocks. 0, or -1 for an unknown type. */
    int (*dequant)(int32_t type, const void *src, float *dst, int64_t n);
    void (*to_q8_0)(uint8_t *y, const float *x, int64_t n);     /* blocks of a file: F16 scale, 32 int8; n: a multiple */

    /* y[j][i] = w[i] · x[j] for n_w rows of w (k each, ldw apart) and n_x rows of x */
    void (*dot_f32)(float *const *y, const float *w, int64_t ldw, int64_t n_w, const float *const *x, int64_t n_x,
                    int64_t k);

    /* One packed group: y[j][i0 + i] = w[i] · x[j] for i < n_out <= 16. `scales` (k / 32, 16) are F16; x[j] (k / 32). */
    void (*quantise_q8)(lmk_q8_block *q, const float *x, int64_t k, int share);   /* blocks that share a scale */
    void (*dot_q8)(float *const *y, int64_t i0, int n_out, const uint8_t *w, const uint16_t *scales,
                   const lmk_q8_block *const *x, int64_t n_x, int64_t k);

    /* The same for a group of another packed type; `panel`: k / 32 * LMK_PANEL_BLOCK bytes of scratch. */
    void (*dot_packed)(int32_t type, float *const *y, int64_t i0, int n_out, const uint8_t *group,
                       const lmk_q8_block *const *x, int64_t n_x, int64_t k, uint8_t *panel);

    /* Both for many rows and two groups at once, w and w + group_bytes (n_out <= 32); NULL where nothing is faster.
     * x comes in strips of LMK_STRIP_ROWS rows, lmk_strip_bytes(k) each and 64-byte aligned, which `strip` makes of up to so
     * many rows of floats. y is what `ending` makes of them, strip by strip. Meanwhile the two groups at `next` are fetched,
     * unless it is NULL. `scratch`: lmk_strips_scratch() bytes, 64-byte aligned. */
    void (*strip)(void *strip, const float *const *x, int64_t n_x, int64_t k, int share);
    void (*dot_strips)(int32_t type, const lmk_ending *ending, const uint8_t *w, int64_t group_bytes, const void *strips,
                       int64_t n_x, int64_t k, const uint8_t *next, uint8_t *scratch);

    /* F16 and BF16 weights, packed; halves.h has the definition. `split` makes a row of x the (k / 32, 2, 32) parts that BF16
     * weights meet, and returns their unit. x[j]: such parts, or floats for F16, padded to whole blocks; units (n_x) for
     * BF16. One or two groups, n_out <= 32; scratch: lmk_half_scratch(n_x) floats when n_x >= LMK_PANEL_ROWS. */
    float (*split)(float *parts, const float *x, int64_t k);
    void (*dot_halves)(int32_t type, float *const *y, int64_t i0, int n_out, const uint16_t *w, int64_t group_halves,
                       const float *const *x, const float *units, int64_t n_x, int64_t k, float *scratch);

    /* The same for BF16 on tiles; NULL where there are none. x comes in strips of 16 rows, k / 32 * LMK_HALF_TILES each, that
     * split_tiles fills row by row: `tiles` is where the row begins in its strip. Meanwhile the group_halves at `next` and
     * those behind them are fetched, unless it is NULL. */
    float (*split_tiles)(uint16_t *tiles, const float *x, int64_t k);
    void (*dot_tiles)(float *const *y, int64_t i0, int n_out, const uint16_t *w, int64_t group_halves, const uint16_t *strips,
                      const float *units, int64_t n_x, int64_t k, const uint16_t *next, float *scratch);

    void (*rms_norm)(float *y, const float *x, const float *w, int64_t dim, float eps);
    void (*silu_mul)(float *y, const float *gate, const float *up, int64_t dim);
    void (*gelu_mul)(float *y, const float *gate, const float *up, int64_t dim);
    void (*sigmoid_mul)(float *y, const float *gate, const float *up, int64_t dim);
    void (*add)(float *y, const float *a, const float *b, int64_t dim);
    lmk_join join_silu_mul, join_gelu_mul, join_add;

    /* n pairs by their angles: (a[p], b[p]), or (x[2p], x[2p + 1]) */
    void (*rotate_halves)(float *restrict a, float *restrict b, const float *cosine, const float *sine, int32_t n);
    void (*rotate_pairs)(float *x, const float *cosine, const float *sine, int32_t n);

    void (*softcap)(float *x, int64_t n, float cap);
    void (*axpy)(float *y, float a, const float *x, int64_t n);                          /* y += a x, fused */
    float (*max)(const float *x, int64_t n);
    float (*checked_max)(const float *x, int64_t n);                                     /* NaN where any is NaN or +inf */
    float (*exp_sum)(float *y, const float *x, int64_t n, float shift, float factor);    /* y = exp((x - shift) factor) */
    /* sum[t] of the x (n), none of them negative, that are >= least[t]; t < 3 */
    void (*sum_least)(const float *x, int64_t n, const float *least, float *sum);

    /* y (dim) = sum over j < taps of w[j] x[j], rows of w `ldw` apart; SiLU of it where `silu` is 1. dim: a multiple of 16 */
    void (*short_conv)(float *y, const float *const *x, const float *w, int64_t ldw, int32_t taps, int64_t dim, int32_t silu);
    void (*delta)(const lmk_delta_task *t);

    /* Online softmax over one KV tile. s (64): raw scores in, weights out, 0 outside [lo, hi). Updates the running
     * maximum and sum; returns what earlier results must be multiplied by. */
    float (*softmax_tile)(float *s, int lo, int hi, float scale, float *max, float *sum);
    /* acc[i] (dim) = acc[i] * factor[i] + sum over j in [lo, hi) of p[i][j] v[j] */
    void (*mix)(float *const *acc, const float *factor, const float *const *p, int n, const float *v, int64_t ldv, int lo,
                int hi, int64_t dim);

    /* One vector (dim) into the slot of an F16 cache's block */
    void (*lay_key)(char *block, int slot, const float *x, int64_t dim);
    void (*lay_value)(char *block, int slot, const float *x, int64_t dim);
    /* Many, ldx apart, to the same bits: 16 keys, from a multiple of 16 on; at least 16 values, for slots [first, end) */
    void (*lay_keys)(char *block, int first, const float *x, int64_t ldx, int64_t dim);
    void (*lay_values)(char *block, int first, int end, const float *x, int64_t ldx, int64_t dim);
    /* See attend_float.h. y, or the sums of some parts; attend_join: y, of the sums of all parts. */
    void (*attend)(const lmk_attend_task *t);
    void (*attend_join)(const lmk_attend_task *t);
} lmk_kernels;

/* level_*.c */
extern const lmk_kernels lmk_kernels_ref;
#if defined(__x86_64__)
extern const lmk_kernels lmk_kernels_avx2;
extern const lmk_kernels lmk_kernels_avx512;
extern const lmk_kernels lmk_kernels_amx;
void lmk_strip_amx(void *strip, const float *const *x, int64_t n_x, int64_t k, int share);
void lmk_dot_strips_amx(int32_t type, const lmk_ending *ending, const uint8_t *w, int64_t group_bytes, const void *strips,
                        int64_t n_x, int64_t k, const uint8_t *next, uint8_t *scratch);
void lmk_dot_tiles_amx(float *const *y, int64_t i0, int n_out, const uint16_t *w, int64_t group_halves, const uint16_t *strips,
                       const float *units, int64_t n_x, int64_t k, const uint16_t *next, float *scratch);
#elif defined(__aarch64__)
extern const lmk_kernels lmk_kernels_neon;
extern const lmk_kernels lmk_kernels_i8mm;
#endif

/* cpu.c */
const lmk_kernels *lmk_kernels_for(const char *level);          /* NULL, with a sentence, when the machine lacks it */

/* arena.c */
typedef struct lmk_chunk lmk_chunk;
typedef struct lmk_arena {
    lmk_chunk *top;
    size_t peak;                   /* the most that was ever in use at once */
    int64_t n_malloc;
    int64_t reserved;              /* bytes held now */
} lmk_arena;

struct lmk_ctx {
    const lmk_kernels *kernels;
    lmk_arena arena;
    atomic_int abort;
};

void *lmk_alloc(lmk_ctx *c, size_t bytes);
size_t lmk_mark(lmk_ctx *c);
void lmk_release(lmk_ctx *c, size_t mark);

/* error.c */
int lmk_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* profile.c: replaces every op by one that is timed as well, and starts to count from nothing */
void lmk_time_ops(lmk_api *api);

/* pool.c: as many threads as `width`, the caller included. Ops that need scratch per thread read lmk_threads() once. */
void lmk_parallel(int width, int64_t n, int64_t grain, lmk_range_fn fn, void *arg);

/* cache.c: the blocks of a layer's kv head in the tile from `position` on, and bytes from there to the next tile's */
const char *lmk_keys(const lmk_kv *kv, int32_t il, int32_t head, int64_t position);
const char *lmk_values(const lmk_kv *kv, int32_t il, int32_t head, int64_t position);
int64_t lmk_keys_step(const lmk_kv *kv);
int64_t lmk_values_step(const lmk_kv *kv);

/* linear.c, experts.c, rows.c, cache.c, attend.c, recurrent.c: the ops behind the public table; lmk.h says what they do */
int lmk_get_rows(lmk_ctx *c, float *y, const lmk_weight *w, const int32_t *ids, int64_t n);
int lmk_linear(lmk_ctx *c, float *y, const lmk_weight *w, const float *x, int64_t n);
int lmk_linear_many(lmk_ctx *c, float *const *y, const lmk_weight *const *w, int32_t n_w, const float *x, int64_t n);
int lmk_linear_add(lmk_ctx *c, float *y, const lmk_weight *w, const float *bias, const float *x, int64_t n);
int lmk_linear_gated(lmk_ctx *c, float *y, const lmk_weight *gate, const lmk_weight *up, int32_t activation, const float *x,
                     int64_t n);

typedef struct lmk_segment {       /* a run of slots that share one matrix of a weight */
    int32_t expert;
    int64_t first, count;
} lmk_segment;

typedef struct lmk_slots {         /* rows of x that meet matrices of a weight */
    int64_t n;
    const lmk_segment *segments;   /* (n_segments), one behind the other, n slots in all */
    int64_t n_segments;
    const int32_t *x_index;        /* (n): the row of x that a slot reads, and the row of y that it writes; NULL: its own */
    const int32_t *y_index;
} lmk_slots;

/* y[i][s] (w[i]->rows) = the segment's matrix of w[i] times x[s] (cols), for all n_w weights and every slot s */
int lmk_linear_slots(lmk_ctx *c, float *const *y, const lmk_weight *const *w, int32_t n_w, const float *x, int64_t n_x,
                     const lmk_slots *slots);
/* The same for a pair: y[s] = act(gate) * up */
int lmk_linear_slots_gated(lmk_ctx *c, float *y, const lmk_weight *gate, const lmk_weight *up, int32_t activation,
                           const float *x, int64_t n_x, const lmk_slots *slots);

/* shelf.c: called before a product with the experts of the first `n` segments; how many of them may be multiplied now. */
int64_t lmk_shelf_fetch(const lmk_weight *const *w, int32_t n_w, const lmk_segment *segments, int64_t n);

typedef struct lmk_store lmk_store;        /* store.h */

typedef struct lmk_work {          /* tasks 0 to n - 1 */
    lmk_range_fn fn;
    void *arg;
    int64_t n;
} lmk_work;

/* strips.c: packed products where the level has dot_strips. The rows x (n_slots) of the segments are quantised and laid out
 * once for all weights of these columns and this share. NULL or -1 when there is no memory. */
typedef struct lmk_strips lmk_strips;
lmk_strips *lmk_lay_out(lmk_ctx *c, const float *const *x, int64_t cols, int share, const lmk_segment *segments,
                        int64_t n_segments, int64_t n_slots);
int lmk_strips_work(lmk_ctx *c, lmk_work *work, const lmk_strips *s, const lmk_weight *w, const lmk_store *to);

/* halves.c: products with packed F16 and BF16 weights. The rows of x (n_x, cols) that the slots read are prepared once for all
 * weights of that type and these columns. NULL or -1 when there is no memory. */
typedef struct lmk_halves lmk_halves;
lmk_halves *lmk_prepare_halves(lmk_ctx *c, int32_t type, const float *x, int64_t n_x, int64_t cols, const lmk_slots *slots);
int lmk_halves_work(lmk_ctx *c, lmk_work *work, const lmk_halves *h, const lmk_weight *w, const lmk_store *to);

int lmk_route_experts(lmk_ctx *c, lmk_route *r, const float *logits, int64_t n_expert);
int lmk_linear_experts(lmk_ctx *c, float *y, const lmk_weight *w, const float *x, int per_slot, const lmk_route *r);
int lmk_linear_experts_many(lmk_ctx *c, float *const *y, const lmk_weight *const *w, int32_t n_w, const float *x,
                            int per_slot, const lmk_route *r);
int lmk_linear_experts_gated(lmk_ctx *c, float *y, const lmk_weight *gate, const lmk_weight *up, int32_t activation,
                             const float *x, int per_slot, const lmk_route *r);
void lmk_moe_sum(lmk_ctx *c, float *y, const float *slots, const lmk_route *r, int64_t dim);

void lmk_rms_norm(lmk_ctx *c, float *y, const float *x, const float *w, int64_t n, int64_t dim, float eps);
void lmk_silu_mul(lmk_ctx *c, float *y, const float *gate, const float *up, int64_t n, int64_t dim, int64_t ld);
void lmk_gelu_mul(lmk_ctx *c, float *y, const float *gate, const float *up, int64_t n, int64_t dim, int64_t ld);
void lmk_softcap(lmk_ctx *c, float *x, int64_t count, float cap);
void lmk_add(lmk_ctx *c, float *y, const float *x, int64_t count);
void lmk_add_bias(lmk_ctx *c, float *y, const float *b, int64_t n, int64_t dim);
void lmk_sigmoid_mul(lmk_ctx *c, float *y, const float *gate, int64_t n, int64_t dim, int64_t ld);
void lmk_rope_angles(lmk_ctx *c, float *cs, const lmk_span *spans, int32_t n_spans, const double *inv_freq, int32_t n_pairs,
                     double magnitude);
void lmk_rope(lmk_ctx *c, float *x, const float *cs, int64_t n, int32_t n_head, int32_t head_dim, int32_t n_pairs,
              int32_t pairing);
void lmk_norm_rope(lmk_ctx *c, float *x, const float *w, float eps, const float *cs, int64_t n, int32_t n_head, int32_t head_dim,
                   int32_t n_pairs, int32_t pairing);

void lmk_kv_append(lmk_ctx *c, int32_t il, const lmk_span *spans, int32_t n_spans, const float *k, const float *v);
void lmk_attend(lmk_ctx *c, float *y, const float *q, int32_t il, const lmk_span *spans, int32_t n_spans, int32_t n_head,
                float scale, int64_t window);
void lmk_attend_biased(lmk_ctx *c, float *y, const float *q, int32_t il, const lmk_span *spans, int32_t n_spans,
                       int32_t n_head, float scale, int64_t window, const float *bias, int32_t extent);

void lmk_short_conv(lmk_ctx *c, float *y, const float *x, int64_t ld, const float *w, int32_t taps, int64_t dim, int32_t silu,
                    int64_t offset, const lmk_span *spans, int32_t n_spans);
void lmk_delta_rule(lmk_ctx *c, float *o, const lmk_delta *d, int64_t offset, const lmk_span *spans, int32_t n_spans);

static inline int64_t lmk_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t lmk_max(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
