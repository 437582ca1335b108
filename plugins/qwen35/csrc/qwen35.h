/* qwen35.h: a loaded qwen35 or qwen35moe model, and its forward pass. Read by C and by cffi alike: no preprocessor.
 *
 * d = n_embd, H = n_head, KV = n_kv, hd = head_dim; of delta-net layers S = state_dim, the size of a head's key and value,
 * QK = 2 n_k S, all queries and keys of a row, V = n_v S, all its values. An absent weight has data == NULL, an absent
 * vector is NULL. A layer is recurrent where it has ssm_a.
 */
typedef struct qwen35_layer {
    const float *attn_norm, *post_attention_norm;                         /* (d): of the mixer, of the feed-forward */

    int32_t cache;                              /* which layer of the sequence's cache is this one's */
    lmk_weight attn_q, attn_k, attn_v;          /* (H 2 hd, d): of each head the query, then the gate; (KV hd, d) twice */
    const float *attn_q_norm, *attn_k_norm;     /* (hd), shared by all heads */
    lmk_weight attn_output;                     /* (d, H hd) */

    int64_t memory;                             /* where this layer's floats begin: convolutions, then heads */
    lmk_weight attn_qkv, attn_gate;             /* (QK + V, d), (V, d) */
    lmk_weight ssm_alpha, ssm_beta;             /* (n_v, d) */
    const float *conv_qk, *conv_v;              /* (taps, QK), (taps, V) */
    const float *dt_bias, *ssm_a;               /* (n_v) */
    const float *ssm_norm;                      /* (S), shared by all heads */
    lmk_weight ssm_out;                         /* (d, V) */

    lmk_weight ffn_gate, ffn_up, ffn_down;      /* (ff, d) twice, (d, ff), or E of each */
    lmk_weight ffn_gate_up;                     /* E x (2 ff, d): gate rows, then up rows, in place of the first two */
    lmk_weight ffn_gate_inp;                    /* (E, d), the router; absent when dense, as all that follows */
    lmk_weight ffn_gate_inp_shexp;              /* (1, d), the gate of the shared expert */
    lmk_weight ffn_gate_shexp, ffn_up_shexp, ffn_down_shexp;              /* (ffs, d) twice, (d, ffs) */
} qwen35_layer;

typedef struct qwen35_model {
    int32_t n_layer, n_embd, n_head, n_kv, head_dim;
    int32_t taps, n_k, n_v, state_dim, grouped; /* grouped: see lmk_delta */
    int32_t n_expert_used;                      /* per row */
    int32_t n_pairs;                            /* rotated pairs per head */
    float rms_eps, attn_scale;
    double rope_magnitude;                      /* of cos and sin */
    const double *inv_freq;                     /* (n_pairs), radians per position */
    const float *unit;                          /* (S), all 1 / sqrt(S): turns an RMS norm into one of length 1 */
    const qwen35_layer *layers;                 /* (n_layer) */
    const float *output_norm;                   /* (d) */
    lmk_weight token_embd, output;              /* (n_vocab, d); the same one where tied */
} qwen35_model;

/* One step: appends n tokens, the rows of all spans, to their states. logits: (wanted rows, n_vocab), in row order.
 * Returns 0, -1 after lmk->fail, or LMK_ABORTED. */
int qwen35_forward(const qwen35_model *m, lmk_ctx *c, const lmk_span *spans, int32_t n_spans, const int32_t *tokens,
                   int32_t n, float *logits);
