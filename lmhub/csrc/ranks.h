/* ranks.h: numbered values in descending order, ties by lower number, sorted only as far as somebody asks. */
#ifndef LMK_RANKS_H
#define LMK_RANKS_H

#include <stdint.h>
#include <string.h>

/* A value and its number as 64 bits, so that a larger key is a better one. */
static inline uint64_t key_of(float value, int32_t id)
{
    uint32_t bits;
    value += 0.0f;                 /* -0 and +0 are one value */
    memcpy(&bits, &value, 4);
    bits ^= bits >> 31 ? 0xffffffffu : 0x80000000u;
    return (uint64_t)bits << 32 | (0xffffffffu - (uint32_t)id);
}

static inline float logit_of(uint64_t key)
{
    uint32_t bits = (uint32_t)(key >> 32);
    float value;
    bits ^= bits >> 31 ? 0x80000000u : 0xffffffffu;
    memcpy(&value, &bits, 4);
    return value;
}

static inline int32_t id_of(uint64_t key)
{
    return (int32_t)(0xffffffffu - (uint32_t)key);
}

typedef struct ranks {
    uint64_t *keys;                /* [0, n) a heap, largest first; behind it what was taken, the latest in front */
    int32_t n, size;
} ranks;

static inline void sift_down(uint64_t *keys, int32_t n, int32_t at)
{
    const uint64_t key = keys[at];
    for (int32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && keys[child + 1] > keys[child]) child++;
        if (keys[child] <= key) break;
        keys[at] = keys[child];
    }
    keys[at] = key;
}

/* Takes the `size` keys that are there, in any order. */
static inline void rank(ranks *r)
{
    r->n = r->size;
    for (int32_t i = r->size / 2; i-- > 0;) sift_down(r->keys, r->size, i);
}

/* The key of rank i < size. */
static inline uint64_t ranked(ranks *r, int32_t i)
{
    while (i >= r->size - r->n) {
        const uint64_t best = r->keys[0];
        r->keys[0] = r->keys[--r->n];
        sift_down(r->keys, r->n, 0);
        r->keys[r->n] = best;
    }
    return r->keys[r->size - 1 - i];
}

#endif
