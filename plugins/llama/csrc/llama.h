/* llama.h: a loaded llama model, and its forward pass. Read by C and by cffi alike: no preprocessor.
 *
 * d = n_embd, H = n_head, KV = n_kv, hd = head_dim, vd = value_dim, E = n_expert. An absent weight has data == NULL, an
 * absent vector is NULL.
 */
typedef struct llama_layer {
    const float *attn_norm, *ffn_norm;                                    /* (d) */
    lmk_weight attn_q, attn_k, attn_v;                                    /* (H hd, d), (KV hd, d), (KV vd, d) */
    lmk_weight attn_output;                                               /* (d, H vd) */
    const float *attn_q_bias, *attn_k_bias, *attn_v_bias, *attn_output_bias;
    lmk_weight ffn_gate_inp;                                              /* (E, d), the router; absent when dense */
    lmk_weight ffn_gate, ffn_up;                                          /* (ff, d), or E x (ff, d) */
    lmk_weight ffn_down;                                                  /* (d, ff), or E x (d, ff) */
} llama_layer;

typedef struct llama_model {
    int32_t n_layer, n_embd, n_head, n_kv, head_dim, value_dim;
    int32_t n_expert_used;                                                /* per row */
    int32_t n_pairs;                                                      /* rotated pairs per head */
    float rms_eps;
    int64_t window;                                                       /* positions that attention sees; 0: all */
    double rope_magnitude;                                                /* of cos and sin */
    const double *inv_freq;                                               /* (n_pairs), radians per position */
    const llama_layer *layers;                                            /* (n_layer) */
    const float *output_norm;                                             /* (d) */
    lmk_weight token_embd, output;                                        /* (V, d); the same one where tied */
} llama_model;

/* One step: appends n tokens, the rows of all spans, to their caches. logits: (wanted rows, V), in row order.
 * Returns 0, -1 after lmk->fail, or LMK_ABORTED. */
int llama_forward(const llama_model *m, lmk_ctx *c, const lmk_span *spans, int32_t n_spans, const int32_t *tokens,
                  int32_t n, float *logits);
