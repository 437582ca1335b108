/* native.h: what the core extension exports to Python, beside the marked part of lmk.h. It is also the cdef. */
#include "lmk.h"

/* runtime: contexts, levels, threads */
lmk_ctx *lmk_ctx_new(const char *level);           /* NULL = the level in use; NULL is returned for an unavailable one */
void lmk_ctx_free(lmk_ctx *c);
void lmk_ctx_reset(lmk_ctx *c);                    /* end of a step: everything in the arena is free again */
void lmk_ctx_stats(const lmk_ctx *c, int64_t *n_malloc, int64_t *reserved);
void lmk_abort(lmk_ctx *c);                        /* any thread; the next aborted() answers 1, once */

uintptr_t lmk_table(void);                         /* 0, with a sentence, when LMK_ISA asks for what is not there */
const char *lmk_isa(void);
const char *lmk_isa_reason(void);                  /* why this level and not a higher one */
const char *lmk_last_error(void);                  /* this thread's last sentence */
int lmk_threads(void);
int lmk_set_threads(int n);                        /* 0 = as many as the process may use */
int lmk_pin(int on);                               /* whether each worker has a CPU of its own; -1 where it cannot */
double lmk_bench_read(int64_t bytes, int threads); /* GB/s of reading memory; -1 when there is too little of it */

/* peaks of the arithmetic units, one probe for each unit of each level */
typedef struct lmk_probe {
    const char *level, *unit, *instruction;        /* "avx512", "int8", "vpdpbusd" */
} lmk_probe;

const lmk_probe *lmk_probe_at(int i);              /* NULL behind the last one */
double lmk_probe_run(int i, int threads);          /* 10^9 operations per second; -1 where the machine lacks the level */

/* profiling: what the ops of the table took, summed over all calls with an equal op, type and shape */
typedef struct lmk_op_time {
    const char *op;                /* a member of lmk_api */
    int32_t type, n_expert;        /* of the weight, or the type of the cache; type -1 without either */
    int64_t rows, cols;            /* of the weight; 0 without */
    int64_t calls;
    double n;                      /* rows of x */
    double seconds;
    double bytes;                  /* of weights and caches, as stored, that had to be read; of floats for other ops */
    double operations;             /* of dot products; a multiplication and its addition are two */
} lmk_op_time;

void lmk_profile(int on);                          /* between steps: starts from nothing; off, ops cost what they cost */
int lmk_profile_read(lmk_op_time *out, int n);     /* fills at most n; returns how many there are, at most 128 */

/* weights. The first three are dequant.c's */
int lmk_dequant_row(int32_t type, const void *src, float *dst, int64_t n);  /* n elements; -1 for an unknown type */
int64_t lmk_type_block(int32_t type);              /* elements and bytes per block; -1 for an unknown type */
int64_t lmk_type_bytes(int32_t type);
int64_t lmk_packed_bytes(int32_t type, int64_t rows, int64_t cols, int64_t n_expert);  /* 0: type is not packed */
int lmk_pack(const lmk_weight *w, void *dst);      /* w->data -> dst (64-byte aligned, lmk_packed_bytes long) */

/* `count` strings of a GGUF header that begin at buf + pos (strings.c): where they end, or -1 if that is not within size. Then
 * the strings one behind the other in out, a zero byte behind each, out_bytes = end - pos - 7 * count in all; -1 if one of them
 * holds a zero byte, or if they have another length by now. */
int64_t lmk_strings_end(const void *buf, int64_t size, int64_t pos, int64_t count);
int lmk_strings_join(const void *buf, int64_t pos, int64_t count, char *out, int64_t out_bytes);

/* Some rows of a weight in a file's mapping: w.data has `bytes` bytes, and goes to dst. */
typedef struct lmk_slice {
    lmk_weight w;
    void *dst;
    int64_t bytes;
} lmk_slice;

int lmk_pack_slices(const lmk_slice *s, int64_t n); /* in turn; each one's pages are given back. load.c */

/* Experts that stay in the file (shelf.c): the system holds those that were used last, `budget` bytes of them. A bank is what
 * lmk_weight.data of unpacked experts points to, in a mapping of fd; `layer` names those that are multiplied together. */
typedef struct lmk_shelf lmk_shelf;
typedef struct lmk_shelf_numbers {
    int64_t budget, held;          /* bytes */
    int64_t used, hits;            /* experts of a weight, and those of them that were held already */
    int64_t read;                  /* bytes that were asked for */
} lmk_shelf_numbers;

lmk_shelf *lmk_shelf_new(int64_t budget);
int lmk_shelf_add(lmk_shelf *s, const void *base, int32_t n_expert, int64_t bytes, int32_t layer, int fd, int64_t offset);
void lmk_shelf_stats(const lmk_shelf *s, lmk_shelf_numbers *out);
void lmk_shelf_free(lmk_shelf *s);                 /* not while a product runs */

/* caches: bytes of one layer's and kv head's keys, or values, of `dim` elements, and of one vector of it in a file */
int64_t lmk_kv_bytes(int32_t dtype, int64_t dim, int keys, int64_t capacity);
int64_t lmk_kv_row_bytes(int32_t dtype, int64_t dim);

/* Rows [start, start + n), within the capacity, moved as they are. No call checks anything. */
void lmk_kv_copy(const lmk_kv *dst, const lmk_kv *src, int64_t n);  /* rows [0, n); equal geometry and dtype, any capacity */
void lmk_kv_read(const lmk_kv *kv, int64_t start, int64_t n, void *rows);  /* per layer: keys (n, n_kv, vector), values */
void lmk_kv_write(const lmk_kv *kv, int64_t start, int64_t n, const void *rows);
void lmk_kv_trim(const lmk_kv *kv, int64_t n_tokens);  /* anonymous memory only: frees whole pages behind n_tokens */

/* sampling */
typedef struct lmk_sampling {
    float temperature;             /* below 1e-4: the largest logit */
    int32_t top_k;                 /* 0 = no limit */
    float top_p, min_p;
    float repeat_penalty, presence_penalty, frequency_penalty;
} lmk_sampling;

double lmk_uniform(uint64_t seed, uint64_t index); /* in [0, 1): the draw of token `index` of a completion */

/* Draws one token from row (n_vocab). mask: one bit per id, 1 = allowed. pen_*: ids of the penalty window and how often
 * each occurs. scratch: 12 * n_vocab bytes. Returns 0, 1 when every id is masked, 2 when a logit is NaN or +inf. */
int lmk_sample(const float *row, int32_t n_vocab, const lmk_sampling *params, const uint32_t *mask, const int32_t *pen_id,
               const int32_t *pen_count, int32_t n_pen, const int32_t *bias_id, const float *bias, int32_t n_bias, double u,
               void *scratch, int32_t *token);

enum { LMK_MAX_TOP = 64 };         /* alternatives that lmk_logprobs can report */

/* Natural logarithms of the softmax of row: of `token`, and of the n_top <= LMK_MAX_TOP likeliest ids, best first, ties by
 * lower id; n_top <= n_vocab. Returns 0, or 2 when a logit is NaN or +inf. */
int lmk_logprobs(const float *row, int32_t n_vocab, int32_t token, int32_t n_top, double *logprob, int32_t *top, double *top_logprob);
