/* drafts.h: what drafts.c exports to Python: guesses at the tokens that come next. It is also the cdef. */
#include <stdint.h>

typedef struct lmk_drafts lmk_drafts;              /* a suffix automaton over one stream of tokens */

typedef struct lmk_draft_cursor {                  /* a place in an automaton that another stream follows; {0, 0}: none */
    uint32_t state, match;
} lmk_draft_cursor;

/* Ids from n_vocab on are sentinels. A stream of max_tokens goes on with its newer half; max_bytes 0 = no limit. NULL when
 * there is no memory. */
lmk_drafts *lmk_drafts_new(int32_t n_vocab, int64_t max_tokens, int64_t max_bytes);
void lmk_drafts_free(lmk_drafts *d);

/* Appends n ids. Returns the match: how many of the stream's last tokens also stand, in a row, further up in it; -1 once
 * memory has run out, from when on nothing is appended or drafted. */
int64_t lmk_drafts_feed(lmk_drafts *d, const int32_t *ids, int64_t n);
int64_t lmk_drafts_cut(lmk_drafts *d);             /* appends a new sentinel: no match reaches across it */

/* Up to n tokens that followed the match when it occurred last, none of them a sentinel. Returns how many. */
int64_t lmk_drafts_draft(const lmk_drafts *d, int32_t *out, int64_t n);
int64_t lmk_drafts_tokens(const lmk_drafts *d);
int64_t lmk_drafts_bytes(const lmk_drafts *d);

/* The same for another stream, which does not change the automaton; valid as long as nothing is appended to it. */
int64_t lmk_drafts_follow(const lmk_drafts *d, lmk_draft_cursor *cursor, const int32_t *ids, int64_t n);
int64_t lmk_drafts_draft_at(const lmk_drafts *d, const lmk_draft_cursor *cursor, int32_t *out, int64_t n);
