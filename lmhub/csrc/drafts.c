/* drafts.c: where speculative decoding gets its guesses from: a suffix automaton (Blumer et al. 1985) over the tokens of a
 * conversation.
 *
 * Every state stands for the substrings that end at the same places, `len` is the longest of them, and `link` leads to
 * the longest suffix that ends at more places. So the link of the state of the whole stream is the longest suffix that has
 * occurred before, and what followed it then is the draft. `sample` is one end of the state's substrings, a recent one.
 *
 * Memory: most states have one outgoing edge, which stands in the state; the others are in a pool, chained per state and
 * found by a hash over (state, token). 60 to 100 bytes per token in all.
 */
#include "core.h"
#include "drafts.h"

#include <stdlib.h>
#include <string.h>

#define ROOT 0u
#define NONE UINT32_MAX

typedef struct state {
    uint32_t link, len, sample;
    uint32_t token, target;        /* the first edge; target ROOT = none, because no edge leads there */
    uint32_t more;                 /* the newest further edge, by its number from 1; 0 = none */
} state;

typedef struct edge {
    uint32_t from, token, target;
    uint32_t next;                 /* of the same state, by its number from 1 */
} edge;

struct lmk_drafts {
    uint32_t n_vocab, sentinel;    /* the next sentinel */
    int64_t max_tokens, max_bytes;
    uint32_t *tokens;
    state *states;                 /* [0] is the root */
    edge *edges;
    uint32_t *slots;               /* hash: numbers of edges from 1; 0 = empty */
    int64_t n_tokens, n_states, n_edges;
    int64_t cap_tokens, cap_states, cap_edges, n_slots;  /* n_slots is 0 or a power of two */
    uint32_t last;                 /* the state of the whole stream */
    int degraded;
};

int64_t lmk_drafts_tokens(const lmk_drafts *d)
{
    return d->n_tokens;
}

int64_t lmk_drafts_bytes(const lmk_drafts *d)
{
    return (int64_t)sizeof *d + d->cap_tokens * (int64_t)sizeof *d->tokens + d->cap_states * (int64_t)sizeof *d->states +
           d->cap_edges * (int64_t)sizeof *d->edges + d->n_slots * (int64_t)sizeof *d->slots;
}

/* ---- memory ---- */

static int may_add(const lmk_drafts *d, int64_t bytes)
{
    return !d->max_bytes || lmk_drafts_bytes(d) + bytes <= d->max_bytes;
}

/* `array`, or a larger one, with room for n elements; NULL, and `array` as it was, when there is none. */
static void *grown(const lmk_drafts *d, void *array, int64_t *cap, int64_t n, size_t size)
{
    if (n <= *cap) return array;
    const int64_t larger = lmk_max(64, *cap + *cap / 2);
    if (larger >= NONE || !may_add(d, (larger - *cap) * (int64_t)size)) return NULL;
    void *moved = realloc(array, (size_t)larger * size);
    if (moved) *cap = larger;
    return moved;
}

static uint64_t place_of(const lmk_drafts *d, uint32_t from, uint32_t token)
{
    uint64_t h = ((uint64_t)from << 32 | token) * 0x9E3779B97F4A7C15u;
    return (h ^ h >> 32) & (uint64_t)(d->n_slots - 1);
}

static void enter(lmk_drafts *d, int64_t number)
{
    const edge *e = &d->edges[number - 1];
    uint64_t at = place_of(d, e->from, e->token);
    while (d->slots[at]) at = (at + 1) & (uint64_t)(d->n_slots - 1);
    d->slots[at] = (uint32_t)number;
}

static int rehash(lmk_drafts *d)
{
    const int64_t n = lmk_max(64, 2 * d->n_slots);
    if (!may_add(d, (n - d->n_slots) * (int64_t)sizeof *d->slots)) return -1;
    uint32_t *slots = calloc((size_t)n, sizeof *slots);
    if (!slots) return -1;
    free(d->slots);
    d->slots = slots;
    d->n_slots = n;
    for (int64_t number = 1; number <= d->n_edges; number++) enter(d, number);
    return 0;
}

/* ---- edges ---- */

/* Where the edge of `from` under `token` leads, to be read or redirected; NULL if there is none. */
static uint32_t *target_of(const lmk_drafts *d, uint32_t from, uint32_t token)
{
    state *s = &d->states[from];
    if (s->target == ROOT) return NULL;
    if (s->token == token) return &s->target;
    if (!s->more) return NULL;
    for (uint64_t at = place_of(d, from, token); d->slots[at]; at = (at + 1) & (uint64_t)(d->n_slots - 1)) {
        edge *e = &d->edges[d->slots[at] - 1];
        if (e->from == from && e->token == token) return &e->target;
    }
    return NULL;
}

static int add_edge(lmk_drafts *d, uint32_t from, uint32_t token, uint32_t target)
{
    state *s = &d->states[from];
    if (s->target == ROOT) {
        s->token = token;
        s->target = target;
        return 0;
    }
    edge *edges = grown(d, d->edges, &d->cap_edges, d->n_edges + 1, sizeof *edges);
    if (!edges) return -1;
    d->edges = edges;
    if (4 * (d->n_edges + 1) > 3 * d->n_slots && rehash(d)) return -1;
    edges[d->n_edges++] = (edge){ .from = from, .token = token, .target = target, .next = s->more };
    s->more = (uint32_t)d->n_edges;
    enter(d, d->n_edges);
    return 0;
}

static int copy_edges(lmk_drafts *d, uint32_t to, uint32_t from)
{
    if (d->states[from].target == ROOT) return 0;
    if (add_edge(d, to, d->states[from].token, d->states[from].target)) return -1;
    for (uint32_t number = d->states[from].more; number; number = d->edges[number - 1].next)
        if (add_edge(d, to, d->edges[number - 1].token, d->edges[number - 1].target)) return -1;
    return 0;
}

/* ---- the stream ---- */

/* A new state without edges; NONE when there is no memory. */
static uint32_t new_state(lmk_drafts *d, uint32_t link, uint32_t len, uint32_t sample)
{
    state *states = grown(d, d->states, &d->cap_states, d->n_states + 1, sizeof *states);
    if (!states) return NONE;
    d->states = states;
    states[d->n_states] = (state){ .link = link, .len = len, .sample = sample };
    return (uint32_t)d->n_states++;
}

/* The state of the first len + 1 tokens of q, which end at more places than the rest of q: split off, with q's edges. From
 * p on up, what led to q under `token` leads there. */
static uint32_t split(lmk_drafts *d, uint32_t q, uint32_t p, uint32_t token, uint32_t end)
{
    const uint32_t part = new_state(d, d->states[q].link, d->states[p].len + 1, d->states[q].sample);
    if (part == NONE || copy_edges(d, part, q)) return NONE;
    for (uint32_t *target; p != NONE && (target = target_of(d, p, token)) && *target == q; p = d->states[p].link) {
        *target = part;
        if (p != ROOT) d->states[p].sample = end;
    }
    d->states[q].link = part;
    return part;
}

static int extend(lmk_drafts *d, uint32_t token)
{
    uint32_t *tokens = grown(d, d->tokens, &d->cap_tokens, d->n_tokens + 1, sizeof *tokens);
    if (!tokens) return -1;
    d->tokens = tokens;
    const uint32_t i = (uint32_t)d->n_tokens, end = i - 1;  /* where the stream has ended so far */
    /* Only now may the match be found at its newest place: a draft from there would have copied itself. */
    const uint32_t match = d->last == ROOT ? ROOT : d->states[d->last].link;
    if (match != ROOT) d->states[match].sample = end;

    const uint32_t whole = new_state(d, ROOT, d->states[d->last].len + 1, i);
    if (whole == NONE) return -1;
    uint32_t p = d->last, *target = NULL;
    for (; p != NONE && !(target = target_of(d, p, token)); p = d->states[p].link) {
        if (add_edge(d, p, token, whole)) return -1;
        if (p != ROOT) d->states[p].sample = end;
    }
    if (p != NONE) {
        uint32_t q = *target;
        if (d->states[q].len != d->states[p].len + 1 && (q = split(d, q, p, token, end)) == NONE) return -1;
        d->states[whole].link = q;
    }
    d->last = whole;
    tokens[d->n_tokens++] = token;
    return 0;
}

static int start(lmk_drafts *d)
{
    d->n_tokens = d->n_states = d->n_edges = 0;
    if (d->slots) memset(d->slots, 0, (size_t)d->n_slots * sizeof *d->slots);
    d->last = ROOT;
    return new_state(d, NONE, 0, 0) == NONE ? -1 : 0;
}

/* Starts over with the newer half. */
static int halve(lmk_drafts *d)
{
    const int64_t n = d->n_tokens / 2, first = d->n_tokens - n;
    uint32_t *tokens = d->tokens;  /* has room for all of them, and so stays where it is */
    if (start(d)) return -1;
    for (int64_t i = 0; i < n; i++)
        if (extend(d, tokens[first + i])) return -1;
    return 0;
}

static int64_t match_of(const lmk_drafts *d)
{
    if (d->degraded) return -1;
    return d->last == ROOT ? 0 : d->states[d->states[d->last].link].len;
}

static void append(lmk_drafts *d, uint32_t token)
{
    if (d->degraded) return;
    d->degraded = (d->n_tokens >= d->max_tokens && halve(d)) || extend(d, token);
}

lmk_drafts *lmk_drafts_new(int32_t n_vocab, int64_t max_tokens, int64_t max_bytes)
{
    lmk_drafts *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->n_vocab = d->sentinel = (uint32_t)n_vocab;
    d->max_tokens = lmk_max(max_tokens, 2);
    d->max_bytes = max_bytes;
    d->degraded = start(d) != 0;
    return d;
}

void lmk_drafts_free(lmk_drafts *d)
{
    if (!d) return;
    free(d->tokens);
    free(d->states);
    free(d->edges);
    free(d->slots);
    free(d);
}

int64_t lmk_drafts_feed(lmk_drafts *d, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++) append(d, (uint32_t)ids[i]);
    return match_of(d);
}

int64_t lmk_drafts_cut(lmk_drafts *d)
{
    append(d, d->sentinel++);
    return match_of(d);
}

static int64_t copied(const lmk_drafts *d, uint32_t from, int32_t *out, int64_t n)
{
    int64_t done = 0;
    for (int64_t i = d->states[from].sample + 1; done < n && i < d->n_tokens && d->tokens[i] < d->n_vocab; i++)
        out[done++] = (int32_t)d->tokens[i];
    return done;
}

int64_t lmk_drafts_draft(const lmk_drafts *d, int32_t *out, int64_t n)
{
    return match_of(d) > 0 ? copied(d, d->states[d->last].link, out, n) : 0;
}

int64_t lmk_drafts_follow(const lmk_drafts *d, lmk_draft_cursor *cursor, const int32_t *ids, int64_t n)
{
    if (d->degraded) return -1;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t *target;
        while (!(target = target_of(d, cursor->state, (uint32_t)ids[i])) && cursor->state != ROOT) {
            cursor->state = d->states[cursor->state].link;
            cursor->match = d->states[cursor->state].len;
        }
        if (!target) continue;
        cursor->state = *target;
        cursor->match++;
    }
    return cursor->match;
}

int64_t lmk_drafts_draft_at(const lmk_drafts *d, const lmk_draft_cursor *cursor, int32_t *out, int64_t n)
{
    return !d->degraded && cursor->match ? copied(d, cursor->state, out, n) : 0;
}
