/* gemma.h: a loaded gemma4 or gemma3 model, and its forward pass. Read by C and by cffi alike: no preprocessor.
 *
 * d = n_embd, H = n_head, KV = n_kv, hd = head_dim, E = n_expert, P = n_per_layer. An absent weight has data == NULL, an
 * absent vector is NULL.
 */
typedef struct gemma_rope {                     /* of all sliding layers, or of all full ones */
    int32_t n_pairs;                            /* per head; those that hardly turn are among them */
    const double *inv_freq;                     /* (n_pairs), radians per position */
    double magnitude;                           /* of cos and sin */
} gemma_rope;

typedef struct gemma_layer {
    int32_t n_head, n_kv, head_dim;
    int32_t group, cache;                       /* the span's cache that it reads, and the layer within it */
    int32_t is_full;                            /* which rotation it takes */
    int64_t window;                             /* positions it sees; 0: all */
    const float *attn_norm, *post_attention_norm, *ffn_norm, *post_ffw_norm;   /* (d) */
    const float *attn_q_norm, *attn_k_norm;     /* (hd), shared by all heads */
    lmk_weight attn_q, attn_k, attn_v;          /* (H hd, d), (KV hd, d) twice; no k: another layer's; no v: as k */
    lmk_weight attn_output;                     /* (d, H hd) */
    lmk_weight ffn_gate, ffn_up, ffn_down;      /* (ff, d) twice, (d, ff) */

    lmk_weight ffn_gate_inp;                    /* (E, d), the router; absent without experts, as all that follows */
    const float *router_norm;                   /* (d), of the router's input */
    const float *post_ffw_norm_1;               /* (d), of what the dense half gives */
    const float *pre_ffw_norm_2, *post_ffw_norm_2;                             /* (d), of what experts get and give */
    const float *expert_scale;                  /* (E), or NULL: all 1 */
    lmk_weight ffn_gate_up_exps;                /* E x (2 ff, d), gate rows before up rows, or the next two */
    lmk_weight ffn_gate_exps, ffn_up_exps;      /* E x (ff, d) */
    lmk_weight ffn_down_exps;                   /* E x (d, ff) */

    lmk_weight inp_gate, proj;                  /* (P, d), (d, P): of the layer's own input; absent without */
    const float *post_norm;                     /* (d) */
    float output_scale;                         /* of the whole residual stream behind the layer */
} gemma_layer;

typedef struct gemma_model {
    int32_t n_layer, n_embd, n_group;           /* groups: caches per span */
    int32_t first_shared;                       /* the layers from here on read what earlier ones have cached */
    int32_t n_expert_used, n_per_layer;         /* per row; 0: none */
    float rms_eps, attn_scale;
    float softcap;                              /* of the logits; 0: none */
    const float *value_norm;                    /* (largest hd), ones; NULL where values are taken as they are */
    gemma_rope rope[2];                         /* of sliding layers, of full ones */
    const gemma_layer *layers;                  /* (n_layer) */
    const float *output_norm;                   /* (d) */
    lmk_weight token_embd, output;              /* (V, d); the same one where tied */
    lmk_weight per_layer_token_embd;            /* (V, n_layer P) */
    lmk_weight per_layer_model_proj;            /* (n_layer P, d) */
    const float *per_layer_proj_norm;           /* (P) */
} gemma_model;

/* One step: appends n tokens, the rows of all spans, to their caches. logits: (wanted rows, V), in row order.
 * Returns 0, -1 after lmk->fail, or LMK_ABORTED. */
int gemma_forward(const gemma_model *m, lmk_ctx *c, const lmk_span *spans, int32_t n_spans, const int32_t *tokens,
                  int32_t n, float *logits);

/* Logits (n, V) of n rows h (n, d) that have passed the output norm */
int gemma_head(const gemma_model *m, lmk_ctx *c, const float *h, int64_t n, float *logits);

/* What a diffusion model mixes into the embeddings of a canvas: its own last guess of every position. */
typedef struct gemma_condition {
    const float *norm, *ones;                   /* (d) */
    lmk_weight gate, up, down;                  /* (ff, d) twice, (d, ff) */
} gemma_condition;

/* One pass over canvases, a span of equally many rows each. Their keys and values go behind the spans' positions, where
 * the caches must have room, and are overwritten by whatever comes there next. soft (n, d): the expected embedding of each
 * row under the last pass, zeros before the first one. hidden (n, d): behind the output norm.
 * Returns 0, -1 after lmk->fail, or LMK_ABORTED. */
int gemma_canvas(const gemma_model *m, const gemma_condition *w, lmk_ctx *c, const lmk_span *spans, int32_t n_spans,
                 const int32_t *tokens, int32_t n, const float *soft, float *hidden);
