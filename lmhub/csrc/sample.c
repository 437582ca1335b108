/* sample.c: from one row of logits to one token. Pure: the row is not changed, the only randomness is `u`.
 *
 * Order: bias, mask, penalties; then the largest logit when the temperature is zero; else temperature, top-k, top-p,
 * min-p, draw. Candidates are ordered by logit, ties by lower id. Only as much of the vocabulary is sorted as the draw
 * needs: ids within some distance of the best sit in a heap that gives them up one after the other, and the distance
 * grows when the heap runs out.
 */
#include "core.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define GREEDY_BELOW 1e-4f
#define LAST_RESORT -1e30f         /* the logit of what a bias bans: only taken where a mask leaves nothing else */
#define PIECE 512                  /* logits per call of the exp kernel */
#define FIRST_CUT 8.0f             /* first distance from the best logit, in units of the temperature: e^-8 of its p */

/* ---- draws ---- */

/* SplitMix64's output function (Steele, Lea, Flood 2014) one golden-ratio step after x */
static uint64_t mix(uint64_t x)
{
    uint64_t z = x + 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

double lmk_uniform(uint64_t seed, uint64_t index)
{
    return (double)(mix(mix(seed) ^ (index * 0xD1342543DE82EF95u + 1)) >> 11) * 0x1p-53;
}

/* ---- candidates: a 64-bit key each, so that a larger key is a better candidate ---- */

static uint64_t key_of(float logit, int32_t id)
{
    uint32_t bits;
    logit += 0.0f;                 /* -0 and +0 are one value */
    memcpy(&bits, &logit, 4);
    bits ^= bits >> 31 ? 0xffffffffu : 0x80000000u;
    return (uint64_t)bits << 32 | (0xffffffffu - (uint32_t)id);
}

static float logit_of(uint64_t key)
{
    uint32_t bits = (uint32_t)(key >> 32);
    float logit;
    bits ^= bits >> 31 ? 0x80000000u : 0xffffffffu;
    memcpy(&logit, &bits, 4);
    return logit;
}

static int32_t id_of(uint64_t key)
{
    return (int32_t)(0xffffffffu - (uint32_t)key);
}

/* ---- logits after bias, mask and penalties ---- */

/* 0, or 2 for a logit that is NaN or +inf. */
static int copy_row(float *logits, const float *row, int32_t n_vocab, const uint32_t *mask)
{
    int bad = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        bad |= !(row[i] < INFINITY);
        logits[i] = row[i];
    }
    if (mask)
        for (int32_t word = 0; word <= (n_vocab - 1) / 32; word++) {
            const uint32_t bits = mask[word];
            const int32_t first = 32 * word, n = (int32_t)lmk_min(32, n_vocab - first);
            if (bits == 0xffffffffu) continue;
            for (int32_t i = 0; i < n; i++) logits[first + i] = bits >> i & 1 ? logits[first + i] : -INFINITY;
        }
    return bad ? 2 : 0;
}

static void add_bias(float *logits, int32_t n_vocab, const int32_t *id, const float *bias, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        if (id[i] < 0 || id[i] >= n_vocab || logits[id[i]] == -INFINITY) continue;
        if (bias[i] <= -100.0f) logits[id[i]] = bias[i] == -INFINITY ? -INFINITY : LAST_RESORT;
        else logits[id[i]] += bias[i];
    }
}

static void penalise(float *logits, int32_t n_vocab, const lmk_sampling *s, const int32_t *id, const int32_t *count, int32_t n)
{
    if (s->repeat_penalty == 1.0f && s->presence_penalty == 0.0f && s->frequency_penalty == 0.0f) return;
    for (int32_t i = 0; i < n; i++) {
        if (id[i] < 0 || id[i] >= n_vocab || count[i] < 1 || logits[id[i]] == -INFINITY) continue;
        float *l = &logits[id[i]];
        *l = *l > 0.0f ? *l / s->repeat_penalty : *l * s->repeat_penalty;
        *l -= (float)count[i] * s->frequency_penalty + s->presence_penalty;
        *l = fmaxf(-FLT_MAX, fminf(*l, FLT_MAX)); /* a penalty near 0 divides to infinity */
    }
}

/* ---- candidates in descending order, on demand ---- */

typedef struct candidates {
    const lmk_kernels *kernels;
    const float *logits;           /* (n_vocab) */
    int32_t n_vocab;
    float top, temperature, cut;
    uint64_t *keys;                /* [0, n) a heap, largest first; behind it what was taken, the latest in front */
    int32_t n, size;
} candidates;

static void sift_down(uint64_t *keys, int32_t n, int32_t at)
{
    const uint64_t key = keys[at];
    for (int32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && keys[child + 1] > keys[child]) child++;
        if (keys[child] <= key) break;
        keys[at] = keys[child];
    }
    keys[at] = key;
}

/* Starts over with every id within `cut` temperatures of the best; with all that are possible once that stops paying. */
static void collect(candidates *c, float cut)
{
    const float least = cut > 100.0f ? -FLT_MAX : c->top - cut * c->temperature;
    c->cut = cut;
    c->size = 0;
    for (int32_t i = 0; i < c->n_vocab; i++)
        if (c->logits[i] >= least) c->keys[c->size++] = key_of(c->logits[i], i);
    for (int32_t i = c->size / 2; i-- > 0;) sift_down(c->keys, c->size, i);
    c->n = c->size;
}

/* The key of rank i, from 0 and below the number of ids that are possible. */
static uint64_t ranked(candidates *c, int32_t i)
{
    while (i >= c->size) collect(c, 2.0f * c->cut);
    while (i >= c->size - c->n) {
        const uint64_t best = c->keys[0];
        c->keys[0] = c->keys[--c->n];
        sift_down(c->keys, c->n, 0);
        c->keys[c->n] = best;
    }
    return c->keys[c->size - 1 - i];
}

/* ---- the distribution: p relative to the best candidate, whose p is 1 ---- */

static double total_of_all(const candidates *c)
{
    float p[PIECE];
    double total = 0.0;
    for (int32_t i = 0; i < c->n_vocab; i += PIECE)
        total += (double)c->kernels->exp_sum(p, c->logits + i, lmk_min(PIECE, c->n_vocab - i), c->top, 1.0f / c->temperature);
    return total;
}

static double probability(candidates *c, int32_t rank)
{
    float p = logit_of(ranked(c, rank));
    c->kernels->exp_sum(&p, &p, 1, c->top, 1.0f / c->temperature);
    return (double)p;
}

/* Draws from the n best candidates; `total` is the mass that top_p refers to. Two walks over the same keys: one to find
 * how many are kept and their mass, one to draw. */
static int32_t draw(candidates *c, int32_t n, double total, const lmk_sampling *params, double u)
{
    double kept = total;
    int32_t n_kept = n;
    if (params->top_p < 1.0f || params->min_p > 0.0f) {
        const double enough = (double)params->top_p * total, least = (double)params->min_p;
        kept = 0.0;
        for (n_kept = 0; n_kept < n;) {
            const double p = probability(c, n_kept);
            if (n_kept && (p <= 0.0 || p < least)) break;
            kept += p;
            n_kept++;
            if (params->top_p < 1.0f && kept >= enough) break;
        }
    }
    const double target = u * kept;
    double sum = 0.0;
    int32_t last = 0;
    for (int32_t i = 0; i < n_kept; i++) {
        const double p = probability(c, i);
        if (i && p <= 0.0) break;
        sum += p;
        last = i;
        if (sum >= target) break;
    }
    return id_of(ranked(c, last));
}

int lmk_sample(const float *row, int32_t n_vocab, const lmk_sampling *params, const uint32_t *mask, const int32_t *pen_id,
               const int32_t *pen_count, int32_t n_pen, const int32_t *bias_id, const float *bias, int32_t n_bias, double u,
               void *scratch, int32_t *token)
{
    uint64_t *keys = scratch;
    float *logits = (float *)(keys + n_vocab);
    if (copy_row(logits, row, n_vocab, mask)) return 2;
    add_bias(logits, n_vocab, bias_id, bias, n_bias);
    penalise(logits, n_vocab, params, pen_id, pen_count, n_pen);

    candidates c = { .kernels = lmk_kernels_for(NULL), .logits = logits, .n_vocab = n_vocab, .keys = keys };
    c.top = c.kernels->max(logits, n_vocab);
    c.temperature = params->temperature;
    if (c.top == -INFINITY) return 1;
    if (c.temperature < GREEDY_BELOW) {
        for (*token = 0; logits[*token] != c.top;) ++*token;
        return 0;
    }
    collect(&c, FIRST_CUT);
    int32_t n_possible = 0;
    for (int32_t i = 0; i < n_vocab; i++) n_possible += logits[i] > -INFINITY;
    int32_t n = n_possible;
    double total = 0.0;
    if (params->top_k > 0 && params->top_k < n_vocab) {
        n = (int32_t)lmk_min(params->top_k, n_possible);
        for (int32_t i = 0; i < n; i++) total += probability(&c, i);
    } else {
        total = total_of_all(&c);
    }
    *token = draw(&c, n, total, params, u);
    return 0;
}

/* ---- log probabilities ---- */

int lmk_logprobs(const float *row, int32_t n_vocab, int32_t token, int32_t n_top, double *logprob, int32_t *top, double *top_logprob)
{
    const lmk_kernels *kernels = lmk_kernels_for(NULL);
    const float max = kernels->max(row, n_vocab);
    float p[PIECE];
    double total = 0.0;
    for (int32_t i = 0; i < n_vocab; i += PIECE)
        total += (double)kernels->exp_sum(p, row + i, lmk_min(PIECE, n_vocab - i), max, 1.0f);
    const double norm = (double)max + log(total);
    if (!(fabs(norm) < INFINITY)) return 2;
    *logprob = (double)row[token] - norm;

    uint64_t best[LMK_MAX_TOP];    /* descending; few enough to be kept in order by insertion */
    int32_t n = 0;
    for (int32_t i = 0; i < n_vocab && n_top; i++) {
        const uint64_t key = key_of(row[i], i);
        if (n == n_top && key < best[n - 1]) continue;
        int32_t at = n < n_top ? n++ : n - 1;
        for (; at > 0 && best[at - 1] < key; at--) best[at] = best[at - 1];
        best[at] = key;
    }
    for (int32_t i = 0; i < n; i++) {
        top[i] = id_of(best[i]);
        top_logprob[i] = (double)row[top[i]] - norm;
    }
    return 0;
}
