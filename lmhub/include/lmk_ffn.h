/* lmk_ffn.h: feed-forwards that several families have, each some calls of the table of lmk.h.
 *
 * h (n, d) is the normed input of the block. What is allocated here lives until the caller releases it.
 */
#ifndef LMK_FFN_H
#define LMK_FFN_H

#include "lmk.h"

/* y (n, d) = W_down(silu(W_gate h) * W_up h); y may be h */
static inline int lmk_swiglu(lmk_ctx *c, float *y, const lmk_weight *gate, const lmk_weight *up, const lmk_weight *down,
                             const float *h, int64_t n)
{
    float *wide = lmk_floats(c, n * down->cols);
    if (!wide) return lmk_no_memory(n);
    if (lmk->linear_gated(c, wide, gate, up, LMK_SILU, h, n)) return -1;
    return lmk->linear(c, y, down, wide, n);
}

/* x (n, d) += W_down(silu(W_gate h) * W_up h) */
static inline int lmk_add_swiglu(lmk_ctx *c, float *x, const lmk_weight *gate, const lmk_weight *up, const lmk_weight *down,
                                 const float *h, int64_t n)
{
    float *wide = lmk_floats(c, n * down->cols);
    if (!wide) return lmk_no_memory(n);
    if (lmk->linear_gated(c, wide, gate, up, LMK_SILU, h, n)) return -1;
    return lmk->linear_add(c, x, down, NULL, wide, n);
}

typedef struct lmk_mixture {       /* a layer's experts */
    const lmk_weight *router;      /* (E, d) */
    const lmk_weight *gate, *up;   /* (E, ff, d) each, or in their place */
    const lmk_weight *gate_up;     /* (E, 2 ff, d), an expert's gate before its up; NULL or without data where not */
    const lmk_weight *down;        /* (E, d, ff) */
    int32_t k;                     /* experts per row */
} lmk_mixture;

/* x (n, d) += sum over the k experts e of each row: w_e W_down,e(silu(W_gate,e h) * W_up,e h) */
static inline int lmk_add_experts(lmk_ctx *c, float *x, const lmk_mixture *e, const float *h, int64_t n)
{
    const int64_t E = e->router->rows, d = e->down->rows, ff = e->down->cols, slots = n * e->k;
    lmk_route r = { .n = n, .k = e->k };
    r.expert = lmk->alloc(c, (size_t)slots * sizeof(int32_t));
    r.weight = lmk_floats(c, slots);
    float *logits = lmk_floats(c, n * E), *act = lmk_floats(c, slots * ff), *y = lmk_floats(c, slots * d);
    if (!r.expert || !r.weight || !logits || !act || !y) return lmk_no_memory(n);

    if (lmk->linear(c, logits, e->router, h, n)) return -1;
    if (lmk->route(c, &r, logits, E)) return -1;
    if (e->gate_up && e->gate_up->data) {
        float *wide = lmk_floats(c, slots * 2 * ff);
        if (!wide) return lmk_no_memory(n);
        if (lmk->linear_experts(c, wide, e->gate_up, h, 0, &r)) return -1;
        lmk->silu_mul(c, act, wide, wide + ff, slots, ff, 2 * ff);
    } else if (lmk->linear_experts_gated(c, act, e->gate, e->up, LMK_SILU, h, 0, &r)) {
        return -1;
    }
    if (lmk->linear_experts(c, y, e->down, act, 1, &r)) return -1;
    lmk->moe_sum(c, x, y, &r, d);
    return 0;
}

#endif
