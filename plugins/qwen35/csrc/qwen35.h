/* qwen35.h: a loaded qwen35 or qwen35moe model, and its forward pass. Read by C and by cffi alike: no preprocessor. */
typedef struct qwen35_model {
    int32_t n_layer, n_embd;
} qwen35_model;

/* One step: appends n tokens, the rows of all spans, to their states. logits: (wanted rows, V), in row order.
 * Returns 0, -1 after lmk->fail, or LMK_ABORTED. */
int qwen35_forward(const qwen35_model *m, lmk_ctx *c, const lmk_span *spans, int32_t n_spans, const int32_t *tokens,
                   int32_t n, float *logits);
