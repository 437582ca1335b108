/* sample.c: from one row of logits to one token. Pure: the row is not changed, the only randomness is `u`.
 *
 * Order: bias, mask, penalties; then the largest logit when the temperature is zero; else temperature, top-k, top-p,
 * min-p, draw. Candidates are ordered by logit, ties by lower id.
 *
 * A vocabulary is some hundred thousand ids, of which a mask, a penalty or a bias changes few and a draw looks at few. So
 * the row is cut into pieces: only a piece that something changes is copied, and a piece whose largest logit is too
 * small is never looked at again. The best candidates sit in a heap that gives them up one after the other. A draw that
 * would need more of them than pieces can tell apart finds its place by mass instead, without sorting.
 */
#include "core.h"
#include "mass.h"
#include "ranks.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define GREEDY_BELOW 1e-4f
#define LAST_RESORT -1e30f         /* the logit of what a bias bans: only taken where a mask leaves nothing else */
#define MAX_PIECES 1024
#define PIECE 512                  /* ids per piece, as far as that makes no more than MAX_PIECES; a multiple of 32 */
#define FIRST_PIECES 16            /* whose best logits are surely among the candidates of the first collection */
#define MOST_PIECES 256            /* and the last, as far as going on by mass is possible */
#define STRIDE 64                  /* ids of a piece that are passed over at once */

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

/* ---- logits after bias, mask and penalties ---- */

typedef struct pieces {
    const lmk_kernels *kernels;
    const float *row;              /* (n_vocab) as the model made it */
    float *copy;                   /* (n_vocab): room for the pieces that differ from it */
    int32_t n_vocab, n, width;     /* piece i is the ids from i * width on */
    const float *at[MAX_PIECES];   /* each piece's logits */
    float max[MAX_PIECES];         /* the largest, -inf where nothing is possible */
    uint8_t stale[MAX_PIECES];     /* whether max must be found again */
} pieces;

static int32_t length_of(const pieces *p, int32_t i)
{
    return (int32_t)lmk_min(p->width, p->n_vocab - i * p->width);
}

/* 0, or 2 where a logit is NaN or +inf. */
static int cut_up(pieces *p)
{
    int bad = 0;
    p->width = PIECE * (1 + (p->n_vocab - 1) / (PIECE * MAX_PIECES));
    p->n = (p->n_vocab - 1) / p->width + 1;
    for (int32_t i = 0; i < p->n; i++) {
        p->at[i] = p->row + i * p->width;
        p->max[i] = p->kernels->checked_max(p->at[i], length_of(p, i));
        p->stale[i] = 0;
        bad |= isnan(p->max[i]);
    }
    return bad ? 2 : 0;
}

static float *own(pieces *p, int32_t i)
{
    float *mine = p->copy + i * p->width;
    if (p->at[i] != mine) memcpy(mine, p->at[i], (size_t)length_of(p, i) * sizeof(float));
    p->at[i] = mine;
    p->stale[i] = 1;
    return mine;
}

static float logit(const pieces *p, int32_t id)
{
    return p->max[id / p->width] == -INFINITY ? -INFINITY : p->at[id / p->width][id % p->width];
}

static void set_logit(pieces *p, int32_t id, float value)
{
    own(p, id / p->width)[id % p->width] = value;
}

static void refresh(pieces *p)
{
    for (int32_t i = 0; i < p->n; i++) {
        if (p->stale[i]) p->max[i] = p->kernels->max(p->at[i], length_of(p, i));
        p->stale[i] = 0;
    }
}

static void apply_mask(pieces *p, const uint32_t *mask)
{
    for (int32_t i = 0; i < p->n; i++, mask += p->width / 32) {
        const int32_t length = length_of(p, i);
        uint32_t any = 0, all = 0xffffffffu;
        for (int32_t word = 0; word <= (length - 1) / 32; word++) {
            const int32_t rest = length - 32 * word;
            const uint32_t beyond = rest < 32 ? 0xffffffffu << rest : 0;
            any |= mask[word] & ~beyond;
            all &= mask[word] | beyond;
        }
        if (all == 0xffffffffu) continue;
        if (!any) {
            p->max[i] = -INFINITY;
            continue;
        }
        float *logits = own(p, i);
        for (int32_t j = 0; j < length; j++) logits[j] = mask[j / 32] >> j % 32 & 1 ? logits[j] : -INFINITY;
    }
}

static void add_bias(pieces *p, const int32_t *id, const float *bias, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        if (id[i] < 0 || id[i] >= p->n_vocab) continue;
        const float l = logit(p, id[i]);
        if (l == -INFINITY) continue;
        set_logit(p, id[i], bias[i] > -100.0f ? l + bias[i] : bias[i] == -INFINITY ? -INFINITY : LAST_RESORT);
    }
}

static void penalise(pieces *p, const lmk_sampling *s, const int32_t *id, const int32_t *count, int32_t n)
{
    if (s->repeat_penalty == 1.0f && s->presence_penalty == 0.0f && s->frequency_penalty == 0.0f) return;
    for (int32_t i = 0; i < n; i++) {
        if (id[i] < 0 || id[i] >= p->n_vocab || count[i] < 1) continue;
        float l = logit(p, id[i]);
        if (l == -INFINITY) continue;
        l = l > 0.0f ? l / s->repeat_penalty : l * s->repeat_penalty;
        l -= (float)count[i] * s->frequency_penalty + s->presence_penalty;
        set_logit(p, id[i], fmaxf(-FLT_MAX, fminf(l, FLT_MAX))); /* a penalty near 0 divides to infinity */
    }
}

/* ---- candidates in descending order, on demand ---- */

typedef struct candidates {
    pieces *pieces;
    float top, temperature;
    ranks by_max;                  /* the pieces: key_of(max, piece) */
    ranks best;                    /* the ids collected so far: no other is better than any of them */
    int32_t n_taken;               /* pieces whose max is surely among those */
    int complete;                  /* whether that is all that are possible */
} candidates;

static void collect_piece(candidates *c, int32_t piece, float least)
{
    const float *logits = c->pieces->at[piece];
    const int32_t first = piece * c->pieces->width, length = length_of(c->pieces, piece);
    for (int32_t i = 0; i < length; i++) {
        if (i % STRIDE == 0 && c->pieces->kernels->max(logits + i, lmk_min(STRIDE, length - i)) < least) i += STRIDE - 1;
        else if (logits[i] >= least) c->best.keys[c->best.size++] = key_of(logits[i], first + i);
    }
}

/* Starts over with every id that is at least as good as the best of each of the n_taken best pieces; once these are all
 * pieces that have any, the next call takes all ids. */
static void collect_more(candidates *c)
{
    const int32_t n = c->by_max.size;
    c->complete = c->n_taken >= n;
    c->n_taken = (int32_t)lmk_min(c->n_taken ? 4 * c->n_taken : FIRST_PIECES, n);
    const float least = c->complete ? -FLT_MAX : logit_of(ranked(&c->by_max, c->n_taken - 1));
    c->best.size = 0;
    for (int32_t i = 0; i < n; i++) {
        const uint64_t key = ranked(&c->by_max, i);
        if (logit_of(key) < least) break;
        collect_piece(c, id_of(key), least);
    }
    rank(&c->best);
}

/* Whether there is a candidate of rank i; without `all`, whether there is one that is cheap to find. */
static int has(candidates *c, int32_t i, int all)
{
    const int32_t most = all ? INT32_MAX : (int32_t)lmk_min(c->by_max.size, MOST_PIECES);
    while (i >= c->best.size && !c->complete && c->n_taken < most) collect_more(c);
    return i < c->best.size;
}

/* ---- the distribution: p relative to the best candidate, whose p is 1 ---- */

static double probability(candidates *c, int32_t i)
{
    float p = logit_of(ranked(&c->best, i));
    c->pieces->kernels->exp_sum(&p, &p, 1, c->top, 1.0f / c->temperature);
    return (double)p;
}

/* Draws from the n best candidates; `total` is the mass that top_p refers to. Two walks over the same keys: one to find
 * how many are kept and their mass, one to draw. -1 when what `has` finds without `all` is not enough. */
static int32_t draw_by_rank(candidates *c, int32_t n, double total, const lmk_sampling *params, double u, int all)
{
    double kept = total;
    int32_t n_kept = n;
    if (params->top_p < 1.0f || params->min_p > 0.0f) {
        const double enough = (double)params->top_p * total, least = (double)params->min_p;
        kept = 0.0;
        for (n_kept = 0; n_kept < n;) {
            if (!has(c, n_kept, all)) {
                if (!all) return -1;
                break;
            }
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
        if (!has(c, i, all)) {
            if (!all) return -1;
            break;
        }
        const double p = probability(c, i);
        if (i && p <= 0.0) break;
        sum += p;
        last = i;
        if (sum >= target) break;
    }
    return id_of(ranked(&c->best, last));
}

/* ---- by mass: for draws from more candidates than are worth sorting ---- */

/* draw_by_rank from all candidates. Takes the keys and the copy of the pieces. */
static int32_t draw_by_mass(candidates *c, double total, const lmk_sampling *params, double u)
{
    const pieces *p = c->pieces;
    const masses m = { p->kernels, p->copy, p->n_vocab, c->best.keys };
    for (int32_t i = 0; i < p->n; i++) {
        float *mine = p->copy + i * p->width;
        if (p->max[i] == -INFINITY) memset(mine, 0, (size_t)length_of(p, i) * sizeof(float));
        else p->kernels->exp_sum(mine, p->at[i], length_of(p, i), c->top, 1.0f / c->temperature);
    }
    double kept = total;
    if (params->top_p < 1.0f) (void)id_at_mass(&m, (double)params->top_p * total, &kept);
    if (params->min_p > 0.0f) kept = fmin(kept, mass_from(&m, params->min_p));
    return id_at_mass(&m, u * kept, &kept);
}

/* ---- all of it ---- */

static double total_of_all(const candidates *c)
{
    const pieces *p = c->pieces;
    float part[PIECE];
    double total = 0.0;
    for (int32_t i = 0; i < p->n; i++)
        for (int32_t j = 0; j < length_of(p, i) && p->max[i] > -INFINITY; j += PIECE)
            total += (double)p->kernels->exp_sum(part, p->at[i] + j, lmk_min(PIECE, length_of(p, i) - j), c->top,
                                                 1.0f / c->temperature);
    return total;
}

static int32_t greedy(const pieces *p, float top)
{
    int32_t i = 0, j = 0;
    while (p->max[i] != top) i++;
    while (p->at[i][j] != top) j++;
    return i * p->width + j;
}

int lmk_sample(const float *row, int32_t n_vocab, const lmk_sampling *params, const uint32_t *mask, const int32_t *pen_id,
               const int32_t *pen_count, int32_t n_pen, const int32_t *bias_id, const float *bias, int32_t n_bias, double u,
               void *scratch, int32_t *token)
{
    uint64_t *keys = scratch, piece_keys[MAX_PIECES];
    pieces p = { .kernels = lmk_kernels_for(NULL), .row = row, .copy = (float *)(keys + n_vocab), .n_vocab = n_vocab };
    if (cut_up(&p)) return 2;
    if (mask) apply_mask(&p, mask);
    refresh(&p);
    add_bias(&p, bias_id, bias, n_bias);
    penalise(&p, params, pen_id, pen_count, n_pen);
    refresh(&p);

    candidates c = { .pieces = &p, .temperature = params->temperature, .by_max.keys = piece_keys, .best.keys = keys };
    c.top = p.kernels->max(p.max, p.n);
    if (c.top == -INFINITY) return 1;
    if (c.temperature < GREEDY_BELOW) {
        *token = greedy(&p, c.top);
        return 0;
    }
    for (int32_t i = 0; i < p.n; i++)
        if (p.max[i] > -INFINITY) piece_keys[c.by_max.size++] = key_of(p.max[i], i);
    rank(&c.by_max);
    if (params->top_k > 0 && params->top_k < n_vocab) {
        double total = 0.0;
        for (int32_t i = 0; i < params->top_k && has(&c, i, 1); i++) total += probability(&c, i);
        *token = draw_by_rank(&c, params->top_k, total, params, u, 1);
    } else {
        const double total = total_of_all(&c);
        *token = draw_by_rank(&c, n_vocab, total, params, u, 0);
        if (*token < 0) *token = draw_by_mass(&c, total, params, u);
    }
    return 0;
}
