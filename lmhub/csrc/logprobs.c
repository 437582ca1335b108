/* logprobs.c: what a row of logits says of a token and of the likeliest ones, as natural logarithms. Pure. */
#include "core.h"
#include "ranks.h"

#include <math.h>

#define PIECE 512                  /* logits per call of a kernel */

/* Fills best (n_top), descending; few enough to be kept in order by insertion. */
static int32_t find_best(const lmk_kernels *kernels, const float *row, int32_t n_vocab, int32_t n_top, uint64_t *best)
{
    int32_t n = 0;
    for (int32_t first = 0; first < n_vocab && n_top; first += PIECE) {
        const int32_t end = (int32_t)lmk_min(first + PIECE, n_vocab);
        /* Of two that are equal the earlier one stays. */
        if (n == n_top && kernels->max(row + first, end - first) <= logit_of(best[n - 1])) continue;
        for (int32_t i = first; i < end; i++) {
            const uint64_t key = key_of(row[i], i);
            if (n == n_top && key < best[n - 1]) continue;
            int32_t at = n < n_top ? n++ : n - 1;
            for (; at > 0 && best[at - 1] < key; at--) best[at] = best[at - 1];
            best[at] = key;
        }
    }
    return n;
}

int lmk_logprobs(const float *row, int32_t n_vocab, int32_t token, int32_t n_top, double *logprob, int32_t *top, double *top_logprob)
{
    const lmk_kernels *kernels = lmk_kernels_for(NULL);
    const float max = kernels->checked_max(row, n_vocab);
    float p[PIECE];
    double total = 0.0;
    for (int32_t i = 0; i < n_vocab; i += PIECE)
        total += (double)kernels->exp_sum(p, row + i, lmk_min(PIECE, n_vocab - i), max, 1.0f);
    const double norm = (double)max + log(total);
    if (!(fabs(norm) < INFINITY)) return 2;
    *logprob = (double)row[token] - norm;

    uint64_t best[LMK_MAX_TOP];
    const int32_t n = find_best(kernels, row, n_vocab, n_top, best);
    for (int32_t i = 0; i < n; i++) {
        top[i] = id_of(best[i]);
        top_logprob[i] = (double)row[top[i]] - norm;
    }
    return 0;
}
