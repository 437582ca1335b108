/* store.h: how products reach y: as they are, or tile by tile joined with something else while both are in cache. */
#ifndef LMK_STORE_H
#define LMK_STORE_H

#include "core.h"

#define LMK_TILE_COLS (2 * LMK_GROUP)      /* outputs of a task, at most */

/* What becomes of the products of one weight with the rows of all slots: y, or what is in `tile` for now, or both */
typedef struct lmk_store {
    float **y;                     /* (n_slots) rows of the result */
    float **tile;                  /* NULL, or where the products go: for each thread the rows of its task, `most` at most */
    int64_t most;
    lmk_join join;                 /* NULL, or what makes them y, together with ... */
    float **with;                  /* ... another weight's `tile`; NULL: what y has */
    const float *bias;             /* (rows of the weight), added to the products before; or NULL */
} lmk_store;

typedef struct lmk_ending {        /* the same for a task */
    lmk_place to;                  /* where its products go */
    lmk_place y, with;
    lmk_join join;
    const lmk_kernels *kernels;
    const float *bias;
    int n_out;
} lmk_ending;

/* Of the task of slots [first, ...) and outputs [i0, i0 + n_out) */
static inline lmk_ending lmk_ending_of(const lmk_store *s, const lmk_kernels *k, int64_t first, int64_t i0, int n_out, int thread)
{
    const lmk_place y = { s->y + first, i0 };
    lmk_ending e = { .to = y, .y = y, .with = y, .join = s->join, .kernels = k, .bias = s->bias ? s->bias + i0 : NULL, .n_out = n_out };
    if (s->tile) e.to = (lmk_place){ s->tile + thread * s->most, 0 };
    if (s->with) e.with = (lmk_place){ s->with + thread * s->most, 0 };
    return e;
}

static inline lmk_place lmk_from_row(lmk_place p, int64_t j) { return (lmk_place){ p.row + j, p.at }; }

/* The products of rows [j, j + n) are where they go. */
static inline void lmk_end(const lmk_ending *e, int64_t j, int64_t n)
{
    if (!e->join) return;
    const lmk_place to = lmk_from_row(e->to, j);
    for (int64_t i = 0; e->bias && i < n; i++) {
        float *product = to.row[i] + to.at;
        e->kernels->add(product, product, e->bias, e->n_out);
    }
    e->join(lmk_from_row(e->y, j), lmk_from_row(e->with, j), to, n, e->n_out);
}

#endif
