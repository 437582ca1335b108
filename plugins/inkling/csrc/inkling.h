/* inkling.h: a loaded inkling model, and its forward pass. Read by C and by cffi alike: no preprocessor.
 *
 * d = n_embd, H = n_head, KV = n_kv, hd = head_dim, R = d_rel, E = n_expert, S = n_shared, K = n_taps. An absent weight has
 * data == NULL and packed == NULL.
 */
typedef struct inkling_layer {
    int32_t n_kv;
    int32_t group, cache;                       /* the span's cache that it reads, and the layer within it */
    int64_t window;                             /* positions it sees; 0: all, with scores that cool as positions grow */
    int64_t memory;                             /* where its part of a sequence's memory begins, in floats: K - 1 rows of */
    const float *conv_k, *conv_v;               /* KV hd, KV hd, d and d inputs. Taps: (K, KV hd), */
    const float *conv_attn, *conv_mlp;          /* (K, d); the last, of the row itself, is greater by one than the file's */
    const float *attn_norm, *ffn_norm;          /* (d) */
    const float *attn_q_norm, *attn_k_norm;     /* (hd), shared by all heads */
    lmk_weight attn_q, attn_k, attn_v;          /* (H hd, d), (KV hd, d) twice */
    lmk_weight attn_r;                          /* (H R, d) */
    lmk_weight rel;                             /* (extent, R), floats: a row for each distance, 0 last */
    lmk_weight attn_output;                     /* (d, H hd) */
    float ffn_scale;                            /* of what the feed-forward gives */

    lmk_weight ffn_gate, ffn_up, ffn_down;      /* (ff, d) twice, (d, ff); absent where there are experts */
    lmk_weight ffn_gate_inp;                    /* (E + S, d), the router; absent without, as all that follows */
    const float *selection;                     /* (E), added where experts are chosen, and nowhere else */
    lmk_weight ffn_gate_exps, ffn_up_exps, ffn_down_exps;      /* E x (ff, d) twice, E x (d, ff) */
    lmk_weight ffn_gate_shexp, ffn_up_shexp, ffn_down_shexp;   /* the same of the S that every row goes to */
} inkling_layer;

typedef struct inkling_model {
    int32_t n_layer, n_embd, n_head, head_dim, d_rel, n_taps, n_group;
    int32_t n_expert_used, n_shared;
    int32_t n_vocab;                            /* rows of the head that are tokens: the first ones */
    float rms_eps, route_scale;
    float cool_from, cool_by;                   /* from which position on, and by how much per e-fold; by 0: never */
    const inkling_layer *layers;                /* (n_layer) */
    const float *token_embd_norm, *output_norm; /* (d); the latter divided by the logits' denominator */
    lmk_weight token_embd, output;              /* (V, d) */
} inkling_model;

/* One step: appends n tokens, the rows of all spans, to their states. logits: (wanted rows, n_vocab), in row order.
 * Returns 0, -1 after lmk->fail, or LMK_ABORTED; then no state has changed. */
int inkling_forward(const inkling_model *m, lmk_ctx *c, const lmk_span *spans, int32_t n_spans, const int32_t *tokens,
                    int32_t n, float *logits);
