/* qwen3.h: a loaded qwen3 or qwen3moe model, and its forward pass. Read by C and by cffi alike: no preprocessor.
 *
 * d = n_embd, H = n_head, KV = n_kv, hd = head_dim, vd = value_dim, E = n_expert. An absent weight has data == NULL, an
 * absent vector is NULL. A layer has attn_qkv or the three beside it; ffn_gate_up or ffn_gate and ffn_up.
 */
typedef struct qwen3_layer {
    const float *attn_norm, *ffn_norm;                                    /* (d) */
    const float *attn_q_norm, *attn_k_norm;                               /* (hd), shared by all heads */
    lmk_weight attn_qkv;                                                  /* (H hd + KV hd + KV vd, d) */
    lmk_weight attn_q, attn_k, attn_v;                                    /* (H hd, d), (KV hd, d), (KV vd, d) */
    lmk_weight attn_output;                                               /* (d, H vd) */
    const float *attn_q_bias, *attn_k_bias, *attn_v_bias, *attn_output_bias;
    lmk_weight ffn_gate_inp;                                              /* (E, d), the router; absent when dense */
    lmk_weight ffn_gate_up;                                               /* E x (2 ff, d): gate rows, then up rows */
    lmk_weight ffn_gate, ffn_up;                                          /* (ff, d), or E x (ff, d) */
    lmk_weight ffn_down;                                                  /* (d, ff), or E x (d, ff) */
} qwen3_layer;

typedef struct qwen3_model {
    int32_t n_layer, n_embd, n_head, n_kv, head_dim, value_dim;
    int32_t n_expert_used;                                                /* per row */
    int32_t n_pairs;                                                      /* rotated pairs per head */
    float rms_eps;
    double rope_magnitude;                                                /* of cos and sin: YaRN's m */
    const double *inv_freq;                                               /* (n_pairs), radians per position */
    const qwen3_layer *layers;                                            /* (n_layer) */
    const float *output_norm;                                             /* (d) */
    lmk_weight token_embd, output;                                        /* (V, d); the same one where tied */
} qwen3_model;

/* One step: appends n tokens, the rows of all spans, to their caches. logits: (wanted rows, V), in row order.
 * Returns 0, -1 after lmk->fail, or LMK_ABORTED. */
int qwen3_forward(const qwen3_model *m, lmk_ctx *c, const lmk_span *spans, int32_t n_spans, const int32_t *tokens,
                  int32_t n, float *logits);
