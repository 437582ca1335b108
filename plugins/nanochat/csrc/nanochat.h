/* nanochat.h: a loaded nanochat model, and its forward pass. Read by C and by cffi alike: no preprocessor.
 *
 * d = n_embd, H = n_head, KV = n_kv, hd = head_dim. An absent weight has data == NULL, an absent vector is NULL.
 */
typedef struct nanochat_layer {
    int64_t window;                             /* positions that attention sees, the own one included; 0: all */
    lmk_weight attn_q, attn_k, attn_v;          /* (H hd, d), (KV hd, d) twice */
    lmk_weight attn_output;                     /* (d, H hd) */
    lmk_weight value_embd;                      /* (V, KV hd), what a token adds to its own values; absent in most layers */
    lmk_weight value_gate;                      /* (KV, channels of the layer's input) */
    lmk_weight ffn_up, ffn_down;                /* (ff, d), (d, ff) */
} nanochat_layer;

typedef struct nanochat_model {
    int32_t n_layer, n_embd, n_head, n_kv, head_dim;
    float rms_eps, softcap, value_gate_scale;
    const double *inv_freq;                     /* (hd / 2), radians per position; negative: turned the other way */
    const float *ones;                          /* (d): no norm has a weight */
    const float *qk_norm;                       /* (hd), what normed queries and keys are multiplied by */
    const float *resid_lambdas, *x0_lambdas;    /* (n_layer), or NULL: ones, zeros */
    const float *smear_lambda;                  /* (1), or NULL: no smear, as for the next */
    lmk_weight smear_gate;                      /* (1, channels of the embedding) */
    const float *backout_lambda;                /* (1), or NULL */
    const nanochat_layer *layers;               /* (n_layer) */
    lmk_weight token_embd, output;              /* (V, d) */
} nanochat_model;

/* One step: appends n tokens, the rows of all spans, to their caches. before: (n_spans), the token before the first one of
 * each span, any where there is none; NULL without smear. logits: (wanted rows, V), in row order. Returns 0, -1 after
 * lmk->fail, or LMK_ABORTED. */
int nanochat_forward(const nanochat_model *m, lmk_ctx *c, const lmk_span *spans, int32_t n_spans, const int32_t *tokens,
                     int32_t n, const int32_t *before, float *logits);
