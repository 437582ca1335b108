/* canvas.h: what a diffusion model does with the logits of a canvas. Read by C and by cffi alike: no preprocessor. */

/* What one request asks of its logits. Ids in `ids` get `bias` added, -inf forbids them. */
typedef struct canvas_wish {
    double temperature;
    int32_t n_bias;
    const int32_t *ids;                         /* (n_bias) */
    const float *bias;                          /* (n_bias) */
} canvas_wish;

/* Turns n rows of logits z (n, V) into probabilities at a temperature, in place, and reads off each row: the likeliest
 * token, one drawn by inverting the distribution function at u in [0, 1), and the entropy in nats. Always 0. */
int canvas_read(lmk_ctx *c, const canvas_wish *w, float *z, int64_t n, int64_t V, const double *u, int32_t *best,
                int32_t *drawn, double *entropy);

/* soft (n, d) = p table, without probabilities up to `least`: the expected row of the table. p (n, V), table (V, d).
 * Returns 0, or -1 after lmk->fail. */
int canvas_expect(lmk_ctx *c, const lmk_weight *table, const float *p, int64_t n, float least, float *soft);
