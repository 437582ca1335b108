/* mass.h: where in the order of candidates, best first, a given share of the probability is reached, without sorting them.
 *
 * Every probability p is relative to the best one, whose p is 1. Knows nothing of logits.
 */
#ifndef LMK_MASS_H
#define LMK_MASS_H

#include "core.h"
#include "ranks.h"

#define MASS_PIECE 512             /* p per call of the kernel: what is added up in floats */
#define MASS_BAND 512              /* candidates that are few enough to be sorted */

typedef struct masses {
    const lmk_kernels *kernels;
    const float *p;                /* (n) */
    int32_t n;
    uint64_t *keys;                /* (n) */
} masses;

/* mass[t] of all p that are at least least[t], t < 3 */
static inline void weigh(const masses *m, const float *least, double *mass)
{
    for (int t = 0; t < 3; t++) mass[t] = 0.0;
    for (int32_t i = 0; i < m->n; i += MASS_PIECE) {
        float part[3];
        m->kernels->sum_least(m->p + i, lmk_min(MASS_PIECE, m->n - i), least, part);
        for (int t = 0; t < 3; t++) mass[t] += (double)part[t];
    }
}

static inline double mass_from(const masses *m, float p)
{
    const float least[3] = { p, p, p };
    double mass[3];
    weigh(m, least, mass);
    return mass[0];
}

static inline uint32_t to_bits(float p)
{
    uint32_t bits;
    memcpy(&bits, &p, 4);
    return bits;
}

static inline float from_bits(uint32_t bits)
{
    float p;
    memcpy(&p, &bits, 4);
    return p;
}

/* id_at_mass among the p whose bits are in [low, high), with the mass of the better ones already `reached`. */
static inline int32_t walk_range(const masses *m, uint32_t low, uint32_t high, double target, double *reached)
{
    ranks found = { .keys = m->keys };
    for (int32_t i = 0; i < m->n; i++)
        if (to_bits(m->p[i]) - low < high - low) m->keys[found.size++] = key_of(m->p[i], i);
    const int alike = high - low == 1;                             /* then they are in order */
    if (!alike) rank(&found);
    int32_t id = -1;
    for (int32_t i = 0; i < found.size; i++) {
        id = id_of(alike ? m->keys[i] : ranked(&found, i));
        *reached += (double)m->p[id];
        if (*reached >= target) break;
    }
    return id;
}

/* The id at which the mass of the candidates, best first, reaches `target`, or the last; `reached`: the mass up to it.
 * Narrows the range of p, as bits, in which that id's p lies, until the ids in it are few or all alike. */
static inline int32_t id_at_mass(const masses *m, double target, double *reached)
{
    uint32_t low = 1, high = 0x3f800001;                           /* the range: at least low, below high; p <= 1 */
    double above = 0.0, all = mass_from(m, from_bits(low));        /* mass of what is not below high, not below low */
    if (target > all) target = all;                                /* the last digits of a sum depend on its order */
    while (all - above > MASS_BAND * (double)from_bits(low) && high - low > 1) {
        const uint32_t step = (high - low + 3) / 4;
        uint32_t bits[3];
        float least[3];
        double mass[3];
        for (int t = 0; t < 3; t++) {
            bits[t] = (uint32_t)lmk_min(low + (t + 1) * step, high - 1);
            least[t] = from_bits(bits[t]);
        }
        weigh(m, least, mass);
        int t = 2;
        while (t >= 0 && mass[t] < target) high = bits[t], above = mass[t], t--;
        if (t >= 0) low = bits[t], all = mass[t];
    }
    *reached = above;
    return walk_range(m, low, high, target, reached);
}

#endif
