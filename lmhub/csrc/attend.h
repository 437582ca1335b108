/* attend.h: one task of attention over f16 and q8_0 caches (attend_float.h). Defines LAYOUT(attend) out of the products
 * that attend_rows.h or attend_tiles.h has defined with the same LAYOUT.
 */

/* Queries become planes; the sums of a query that is not finite start, and stay, at NaN. */
static void LAYOUT(begin_pairs)(const lmk_attend_task *t, const attend_work *w)
{
    const float factor = t->scale * 1.44269504088896341f;
    for (int64_t pair = 0; pair < w->pairs; pair++) {
        const float *q = t->q + pair / t->heads * t->q_step + pair % t->heads * t->k_dim;
        int8_t *high = (int8_t *)w->q + pair * QUERY_BYTES(w), *low = high + w->kp;
        if (pair + AHEAD < w->pairs) {
            const float *ahead = t->q + (pair + AHEAD) / t->heads * t->q_step + (pair + AHEAD) % t->heads * t->k_dim;
            for (int64_t i = 0; i < t->k_dim; i += LANES) __builtin_prefetch(ahead + i, 0, 3);
        }
        const int e = exponent_of(q, t->k_dim), usable = e >= LEAST_KEY && e < LMK_NOT_FINITE;
        const v16 inverse = usable ? inverse_unit(e, LMK_KEY_BITS) : v_set(0.0f);
        memset(w->row, 0, (size_t)w->kp * sizeof(float));
        if (usable) memcpy(w->row, q, (size_t)t->k_dim * sizeof(float));
        for (int64_t i = 0; i < w->kp; i += LANES) split_key(high + i, low + i, v_load(w->row + i), inverse);
        LAYOUT(lay_planes)(w, pair);
        w->unit_q[pair] = usable ? factor * 128.0f * power_of_two(e - LMK_KEY_BITS) : 0.0f;
        w->start[pair] = e == LMK_NOT_FINITE ? NAN : 0.0f;
    }
}

/* The sums of one part, up to the last position that the rows see */
static void LAYOUT(attend_part)(const lmk_attend_task *t, const attend_work *w, int64_t part)
{
    const int64_t last = t->position + t->n_rows - 1, end = lmk_min((part + 1) * LMK_PART, last + 1);
    const int64_t seen = t->window > 0 ? lmk_max(0, t->position - t->window + 1) : 0;
    begin_sums(&w->part, w->pairs, w->vp, w->start);
    attend_stretch s = { .position = lmk_max(part * LMK_PART, seen / STRETCH * STRETCH) };
    for (; s.position < end; s.position += STRETCH) {
        s.n = (int)lmk_min(STRETCH, last + 1 - s.position);
        /* Rows [first, behind) see something of the stretch. */
        const int64_t first = lmk_max(0, s.position - t->position);
        const int64_t behind = t->window > 0 ? lmk_min(t->n_rows, s.position + STRETCH - 1 + t->window - t->position) : t->n_rows;
        if (first >= behind) continue;
        begin_stretch(t, w, &s);
        LAYOUT(all_pairs)(t, w, &s, first * t->heads, behind * t->heads);
    }
}

static void LAYOUT(attend)(const lmk_attend_task *t)
{
    attend_work w = lay_out(t);
    const int64_t size = lmk_sums_size(w.pairs, t->v_dim);
    LAYOUT(begin_pairs)(t, &w);
    const attend_sums part = w.part;
    for (int64_t i = t->first_part; i < t->end_part; i++) {
        if (t->parts) w.part = lay_sums(t->parts + (i - t->first_part) * size, w.pairs, t->v_dim);
        else w.part = i == t->first_part ? w.whole : part;
        LAYOUT(attend_part)(t, &w, i);
        if (!t->parts && i > t->first_part) join_part(&w.whole, &w.part, w.pairs, w.vp);
    }
    if (!t->parts) end_pairs(t, &w.whole, w.pairs, w.vp);
}
