/* lmk.h: the lmhub kernel API, the header that a family plugin sees.
 *
 * The core extension owns instruction-set dispatch, the thread pool and the kernels, and hands them out as one table of
 * function pointers. Members are appended, never moved or removed: bump LMK_ABI_MINOR to append, LMK_ABI_MAJOR to break.
 *
 * Conventions
 *   - Matrices are row-major; `(n, d)` in a comment is a shape, the last index is contiguous.
 *   - A "row" is one position of one sequence in the current step. Every op treats rows independently: the bits of a row's
 *     result depend on nothing but that row's input (not on n, on the other rows, on the thread count).
 *   - Ops that can fail return 0 or -1 and leave a sentence for lmk_last_error(); forwards pass it on.
 *   - Memory from alloc() belongs to the context's arena and lives until release() or the end of the step.
 *
 * The part between the cdef marks is also what cffi reads, so it holds no preprocessor but integer #defines.
 */
#ifndef LMK_H
#define LMK_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* cdef: begin */
#define LMK_ABI_MAJOR 1
#define LMK_ABI_MINOR 7

#define LMK_ABORTED 1              /* a forward's return value when abort was asked for between layers; no cache moved */

#define LMK_ROPE_HALVES 0          /* rotate (j, j + n_pairs): NEOX */
#define LMK_ROPE_PAIRS 1           /* rotate (2j, 2j + 1): interleaved */

#define LMK_SILU 0
#define LMK_GELU 1                 /* in its tanh form */

#define LMK_WANT_NONE 0            /* logits of no row of the span, of its last row, of all its rows */
#define LMK_WANT_LAST 1
#define LMK_WANT_ALL 2

typedef struct lmk_ctx lmk_ctx;    /* one per loaded model: arena, abort flag; the thread pool behind it is shared */

typedef struct lmk_weight {        /* n_expert matrices of (rows, cols); a plain matrix has n_expert = 1 */
    int32_t type;                  /* GGML type id of `data` */
    int32_t n_expert;
    int64_t rows, cols;
    const void *data;              /* file layout, (n_expert, rows, cols); NULL where only `packed` is left */
    const void *packed;            /* the kernels' own layout, or NULL when the kernels read `data`; the bits are the same */
} lmk_weight;

typedef struct lmk_kv {            /* the KV cache of one sequence over n_layer attention layers of one geometry */
    void *k;                       /* keys of n_layer layers and n_kv heads; only the ops know how they lie in memory */
    void *v;                       /* values, likewise */
    int32_t dtype;                 /* GGML type id: 0 = F32, 1 = F16 (or 16 bits), 8 = Q8_0 (dims: multiples of 32) */
    int32_t n_layer, n_kv, k_dim, v_dim;
    int64_t capacity;              /* positions */
} lmk_kv;

typedef struct lmk_memory {        /* what recurrent layers remember of one sequence; lies in front of its first lmk_kv */
    const float *past;             /* of the tokens before this step; not to be read where there were none: zeros */
    float *next;                   /* of these and the step's; all of it has to be written */
} lmk_memory;

typedef struct lmk_span {          /* one sequence's share of a step */
    lmk_kv *kv;                    /* where layers differ in geometry: an array, one cache per group of them */
    int64_t n_past;                /* positions already in kv; the span's row j sits at position n_past + j */
    int32_t row;                   /* index of the span's first row within the step */
    int32_t n;                     /* rows */
    int32_t want;                  /* LMK_WANT_* */
} lmk_span;

typedef struct lmk_delta {         /* the operands of a gated delta rule; rows of q, k and v are `ld` floats apart */
    int32_t n_k, n_v;              /* key heads, value heads: a multiple of the former */
    int32_t k_dim, v_dim;          /* v_dim: a multiple of 16 */
    int32_t grouped;               /* 0: value head h has key head h % n_k; 1: h / (n_v / n_k) */
    float scale;                   /* of o */
    int64_t ld_qk, ld_v;
    const float *q, *k;            /* (n, n_k * k_dim) */
    const float *v;                /* (n, n_v * v_dim) */
    const float *decay, *beta;     /* (n, n_v) */
} lmk_delta;

typedef struct lmk_route {         /* which experts each of n rows goes to */
    int64_t n;
    int32_t k;                     /* experts per row */
    int32_t *expert;               /* (n, k), ascending within a row */
    float *weight;                 /* (n, k) */
} lmk_route;
/* cdef: end */

typedef void (*lmk_range_fn)(void *arg, int64_t begin, int64_t end, int thread);

typedef struct lmk_api {
    int32_t abi_major, abi_minor;
    uint64_t size;                 /* sizeof(lmk_api) of the core that filled the table */
    const char *isa;               /* "ref", "avx2", "avx512", "amx", "neon", "i8mm" */

    /* since 1.0: runtime */
    int (*fail)(const char *format, ...);                                   /* record the sentence, return -1 */
    int (*aborted)(lmk_ctx *c);                                             /* 1 after lmk_abort(c): return LMK_ABORTED */
    void *(*alloc)(lmk_ctx *c, size_t bytes);                               /* 64-byte aligned; NULL when memory is out */
    size_t (*mark)(lmk_ctx *c);
    void (*release)(lmk_ctx *c, size_t mark);                               /* frees what was allocated after the mark */
    void (*parallel_for)(lmk_ctx *c, int64_t n, int64_t grain, lmk_range_fn fn, void *arg);

    /* since 1.0: linear. y = x Wᵀ */
    int (*get_rows)(lmk_ctx *c, float *y, const lmk_weight *w, const int32_t *ids, int64_t n);   /* y (n, cols) */
    int (*linear)(lmk_ctx *c, float *y, const lmk_weight *w, const float *x, int64_t n);         /* y (n, rows), x (n, cols) */

    /* since 1.0: mixture of experts. route: softmax over all logits (n, n_expert), the k largest (ties: lowest id),
     * renormalised by max(sum, 2^-14); r->expert and r->weight must have room for (n, k). linear_experts: y (n*k, rows);
     * x is (n, cols), or (n*k, cols) when per_slot is 1. moe_sum: y (n, dim) += sum over slots in ascending expert id. */
    int (*route)(lmk_ctx *c, lmk_route *r, const float *logits, int64_t n_expert);
    int (*linear_experts)(lmk_ctx *c, float *y, const lmk_weight *w, const float *x, int per_slot, const lmk_route *r);
    void (*moe_sum)(lmk_ctx *c, float *y, const float *slots, const lmk_route *r, int64_t dim);

    /* since 1.0: element-wise and per-row. `ld` is the distance between rows in floats. In place where y == x. */
    void (*rms_norm)(lmk_ctx *c, float *y, const float *x, const float *w, int64_t n, int64_t dim, float eps);
    void (*silu_mul)(lmk_ctx *c, float *y, const float *gate, const float *up, int64_t n, int64_t dim, int64_t ld);
    void (*add)(lmk_ctx *c, float *y, const float *x, int64_t count);                            /* y += x */
    void (*add_bias)(lmk_ctx *c, float *y, const float *b, int64_t n, int64_t dim);              /* every row += b (dim) */

    /* since 1.0: positions. angles: (cos, sin) * magnitude of pos * inv_freq[j], in double, stored as (n, n_pairs, 2).
     * rope: x (n, n_head * head_dim) in place; entries from 2 * n_pairs on pass through. */
    void (*rope_angles)(lmk_ctx *c, float *cs, const lmk_span *spans, int32_t n_spans, const double *inv_freq,
                        int32_t n_pairs, double magnitude);
    void (*rope)(lmk_ctx *c, float *x, const float *cs, int64_t n, int32_t n_head, int32_t head_dim, int32_t n_pairs,
                 int32_t pairing);

    /* since 1.0: attention over layer `il` of each span's cache. kv_append writes k (n, n_kv * k_dim) and v at the spans'
     * positions. attend: causal softmax(scale * q kᵀ) v, consecutive query heads share a kv head; window > 0 keeps the
     * last `window` positions (own one included). q (n, n_head * k_dim), y (n, n_head * v_dim). */
    void (*kv_append)(lmk_ctx *c, int32_t il, const lmk_span *spans, int32_t n_spans, const float *k, const float *v);
    void (*attend)(lmk_ctx *c, float *y, const float *q, int32_t il, const lmk_span *spans, int32_t n_spans,
                   int32_t n_head, float scale, int64_t window);

    /* since 1.1: linear for n_w weights of the same cols that share x: y[i] (n, w[i]->rows). The same bits, sooner. */
    int (*linear_many)(lmk_ctx *c, float *const *y, const lmk_weight *const *w, int32_t n_w, const float *x, int64_t n);

    /* since 1.2: gelu_mul is silu_mul with GELU in its tanh form. softcap: x = cap * tanh(x / cap). */
    void (*gelu_mul)(lmk_ctx *c, float *y, const float *gate, const float *up, int64_t n, int64_t dim, int64_t ld);
    void (*softcap)(lmk_ctx *c, float *x, int64_t count, float cap);

    /* since 1.3: linear_experts for n_w weights of the same cols that share x and the route: y[i] (n*k, w[i]->rows) */
    int (*linear_experts_many)(lmk_ctx *c, float *const *y, const lmk_weight *const *w, int32_t n_w, const float *x,
                               int per_slot, const lmk_route *r);

    /* since 1.4: attend with a bias by distance: row i's score of head h for the position `distance` before its own gets
     * bias[i, h, extent - 1 - distance], and further away nothing. bias (n, n_head, extent). */
    void (*attend_biased)(lmk_ctx *c, float *y, const float *q, int32_t il, const lmk_span *spans, int32_t n_spans,
                          int32_t n_head, float scale, int64_t window, const float *bias, int32_t extent);

    /* since 1.5: y (n, dim) times the logistic function of gate, whose rows are `ld` floats apart */
    void (*sigmoid_mul)(lmk_ctx *c, float *y, const float *gate, int64_t n, int64_t dim, int64_t ld);

    /* since 1.5: recurrent layers. Each has its place in the spans' memories, `offset` floats from their beginning, and writes
     * all of it. short_conv: y (n, dim) = sum over j < taps of w[j] x[row - taps + 1 + j], channel by channel, then SiLU where
     * `silu` is 1; w (taps, dim), rows of x `ld` floats apart, dim and offset multiples of 16. It remembers the last taps - 1
     * rows of x, (taps - 1, dim). delta_rule: for each value head, with M (v_dim, k_dim) in (n_v, v_dim, k_dim) floats,
     *     M = decay M;  M = M + beta (v - M k) kᵀ;  o = scale M q
     * row by row (arXiv:2412.06464). o (n, n_v * v_dim). Only the ops know how M lies in memory. */
    void (*short_conv)(lmk_ctx *c, float *y, const float *x, int64_t ld, const float *w, int32_t taps, int64_t dim, int32_t silu,
                       int64_t offset, const lmk_span *spans, int32_t n_spans);
    void (*delta_rule)(lmk_ctx *c, float *o, const lmk_delta *d, int64_t offset, const lmk_span *spans, int32_t n_spans);

    /* since 1.6: products that are joined with what is there while they are in cache; the bits of one op after the other.
     * linear_add: y += x Wᵀ + bias, which is (rows) or NULL. linear_gated: y (n, rows) = act(x Gᵀ) * (x Uᵀ), act being
     * LMK_SILU or LMK_GELU, gate and up of one shape; linear_experts_gated: the same with a slot's experts, y (n*k, rows). */
    int (*linear_add)(lmk_ctx *c, float *y, const lmk_weight *w, const float *bias, const float *x, int64_t n);
    int (*linear_gated)(lmk_ctx *c, float *y, const lmk_weight *gate, const lmk_weight *up, int32_t activation, const float *x,
                        int64_t n);
    int (*linear_experts_gated)(lmk_ctx *c, float *y, const lmk_weight *gate, const lmk_weight *up, int32_t activation,
                                const float *x, int per_slot, const lmk_route *r);

    /* since 1.7: rms_norm of every head by w (head_dim), then rope, in one pass */
    void (*norm_rope)(lmk_ctx *c, float *x, const float *w, float eps, const float *cs, int64_t n, int32_t n_head,
                      int32_t head_dim, int32_t n_pairs, int32_t pairing);
} lmk_api;

/* One translation unit per plugin: the pointer is set once by lmk_bind, which the core's native.bind() calls. */
#ifndef LMK_CORE
static const lmk_api *lmk;

/* Returns 0 when bound, -1 for another major version, -2 when the core is older than the plugin. */
int lmk_bind(uintptr_t table)
{
    const lmk_api *api = (const lmk_api *)table;
    if (api->abi_major != LMK_ABI_MAJOR) return -1;
    if (api->abi_minor < LMK_ABI_MINOR) return -2;
    lmk = api;
    return 0;
}

/* ---- what every forward does ---- */

static inline const lmk_memory *lmk_memory_of(const lmk_span *span) { return (const lmk_memory *)span->kv - 1; }

static inline float *lmk_floats(lmk_ctx *c, int64_t count) { return lmk->alloc(c, (size_t)count * sizeof(float)); }

static inline int lmk_no_memory(int64_t n)
{
    return lmk->fail("There is no memory left for a step of %lld rows; lower the batch size.", (long long)n);
}

/* How many of the span's rows, its last ones, somebody wants the logits of */
static inline int32_t lmk_wanted(const lmk_span *span)
{
    return span->want == LMK_WANT_ALL ? span->n : span->want == LMK_WANT_LAST ? 1 : 0;
}

/* The wanted rows of x (n, width) move to its front. Returns their number. */
static inline int64_t lmk_keep_wanted(float *x, int64_t width, const lmk_span *spans, int32_t n_spans)
{
    int64_t kept = 0;
    for (int32_t i = 0; i < n_spans; i++) {
        const int64_t n = lmk_wanted(&spans[i]), first = spans[i].row + spans[i].n - n;
        memmove(x + kept * width, x + first * width, (size_t)(n * width) * sizeof(float));
        kept += n;
    }
    return kept;
}
#endif

#endif
