/* attend_wide.h: attend_rows.h for many pairs, at levels that multiply pairs of 16 bits. To widen a line takes as long as to
 * multiply it for two pairs. So 16 keys, or 16 columns of values, are widened once for up to MOST pairs, into scratch that
 * stays in the first-level cache. The sums are the same integers.
 */

#define WIDE_LINE 64               /* integers of 32 bits that a pair of lines becomes: as in cache_line */

ALWAYS void widen(int32_t *wide, const char *line, const char *ahead, const int keys)
{
    const cache_line l = load_line(line, keys);
    fetch_line(ahead);
    i_store(wide, l.whole_even);
    i_store(wide + 16, l.whole_odd);
    i_store(wide + 32, l.even);
    i_store(wide + 48, l.odd);
}

/* sum (n) += n_lines lines times n pairs: the planes of a line are `plane` apart, lines `line` and pairs `step` */
ALWAYS void add_wide(i16x *sum, const int32_t *wide, int n_lines, const int32_t *x, int64_t line, int64_t plane, int64_t step,
                     const int n)
{
    for (int d = 0; d < n_lines; d++, wide += WIDE_LINE, x += line)
#pragma GCC unroll 4
        for (int p = 0; p < 4; p++) {
            const i16x l = i_load(wide + 16 * p);
#pragma GCC unroll 4
            for (int i = 0; i < n; i++) {
                sum[i] = i_dot(sum[i], l, i_set((uint32_t)x[i * step + p * plane]));
                KEEP(sum[i]);
            }
        }
}

/* Scores of n pairs, which have the slots from `slot` on, and the 16 keys of vector c */
ALWAYS void score_wide(const attend_work *w, const int32_t *wide, int64_t pair, int slot, int c, const int n)
{
    const int64_t step = QUERY_BYTES(w) / 4;
    i16x sum[4];
#pragma GCC unroll 4
    for (int i = 0; i < n; i++) sum[i] = i_set(0);
    add_wide(sum, wide, (int)w->key_pairs, (const int32_t *)(const void *)w->q + pair * step, 4, 1, step, n);
#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
        v_store(w->t + (slot + i) * STRETCH + c * LANES,
                scored(sum[i], v_load(w->unit_k + c * LANES), v_set(w->unit_q[pair + i]), v_load(w->log_v + c * LANES)));
}

/* acc = acc * before + dot(p, v) / 256 * now, for the same pairs, columns d to d + 15 and blocks [first, end) */
ALWAYS void mix_wide(const attend_work *w, const int32_t *wide, const int *n_lines, int64_t pair, int slot, int64_t d, int first,
                     int end, const int n)
{
    i16x sum[4];
#pragma GCC unroll 4
    for (int i = 0; i < n; i++) sum[i] = i_set(0);
    for (int b = first; b < end; b++) {
        const int32_t *p = (const int32_t *)(const void *)(w->p + (slot * BLOCKS + b) * WEIGHTS_BYTES);
        add_wide(sum, wide + b * LANES * WIDE_LINE, n_lines[b], p, 1, LANES, BLOCKS * WEIGHTS_BYTES / 4, n);
    }
#pragma GCC unroll 4
    for (int i = 0; i < n; i++) {
        float *acc = w->part.acc + (pair + i) * w->vp + d;
        v_store(acc, mixed(v_load(acc), sum[i], w->before[slot + i], w->now[slot + i]));
    }
}

/* n pairs, MOST at most */
static void many_pairs(const lmk_attend_task *t, const attend_work *w, const attend_stretch *s, int64_t pair, int n)
{
    int32_t *wide = (int32_t *)(void *)w->row;
    int lowest, highest, first[MOST], end[MOST];   /* vectors that any pair sees, and any of the four from each fourth on */
    int n_lines[BLOCKS];
    sight_of(t, s, pair / t->heads, (pair + n - 1) / t->heads, &lowest, &highest);
    for (int i = 0; i < n; i += 4)
        sight_of(t, s, (pair + i) / t->heads, (pair + lmk_min(i + 4, n) - 1) / t->heads, &first[i], &end[i]);
    for (int c = lowest; c < highest; c++) {
        const char *k = s->k[c / 4] + LMK_LINE + c % 4 * w->key_pairs * 2 * LMK_LINE, *ahead = s->v[0] + LMK_LINE;
        if (c + 1 < highest) ahead = s->k[(c + 1) / 4] + LMK_LINE + (c + 1) % 4 * w->key_pairs * 2 * LMK_LINE;
        for (int64_t d = 0; d < w->key_pairs; d++)
            widen(wide + d * WIDE_LINE, k + d * 2 * LMK_LINE, ahead + d * 2 * LMK_LINE, 1);
        for (int i = 0; i < n; i += 4) {
            if (c < first[i] || c >= end[i]) continue;
            if (n - i >= 4) score_wide(w, wide, pair + i, i, c, 4);
            else for (int j = i; j < n; j++) score_wide(w, wide, pair + j, j, c, 1);
        }
    }
    for (int i = 0; i < n; i++) LAYOUT(weigh_pair)(t, w, s, pair + i, i, first[i / 4 * 4], end[i / 4 * 4]);
    rebase(w, pair, 0, n);
    for (int64_t d = 0; d < w->vp; d += LANES) {
        for (int b = lowest / 4; b < (highest + 3) / 4; b++) {
            const char *v = s->v[b] + LMK_LINE + d * 2 * LMK_LINE;
            n_lines[b] = (int)lmk_min(LANES, s->n - b * LMK_TILE);
            for (int j = 0; j < n_lines[b]; j++)
                widen(wide + (b * LANES + j) * WIDE_LINE, v + j * 2 * LMK_LINE, v + (LANES + j) * 2 * LMK_LINE, 0);
        }
        for (int i = 0; i < n; i += 4) {
            const int from = first[i] / 4, to = (end[i] + 3) / 4;
            if (n - i >= 4) mix_wide(w, wide, n_lines, pair + i, i, d, from, to, 4);
            else for (int j = i; j < n; j++) mix_wide(w, wide, n_lines, pair + j, j, d, from, to, 1);
        }
    }
}
