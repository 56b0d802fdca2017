/* SPDX-License-Identifier: MIT */
#include "moe/best.h"

enum { BLOCK = 32 };

/* Is one of the block above `bound`? Without a branch inside, so that it becomes vector code. */
static int has_above(const float *scores, float bound)
{
    int found = 0;
    for (int i = 0; i < BLOCK; i++) found |= scores[i] > bound;
    return found;
}

void tgl_best_of(tgl_best *b, uint64_t limit, const float *scores, int64_t num_scores)
{
    const uint64_t *worst = &b->ranks[b->size - 1];
    int64_t e = 0;
    for (; e < num_scores && *worst == TGL_RANK_NONE; e++) {
        const uint64_t rank = tgl_rank(scores[e], (uint32_t)e);
        if (rank < limit) tgl_best_insert(b, rank);
    }
    /* The list is full. Of equal scores the first stays, so only higher ones get in; NaN is above nothing. */
    while (e < num_scores) {
        if (num_scores - e >= BLOCK && !has_above(scores + e, tgl_rank_value(*worst))) {
            e += BLOCK;
            continue;
        }
        const int64_t end = num_scores - e < BLOCK ? num_scores : e + BLOCK;
        for (; e < end; e++) {
            if (!(scores[e] > tgl_rank_value(*worst))) continue;
            const uint64_t rank = tgl_rank(scores[e], (uint32_t)e);
            if (rank < limit) tgl_best_insert(b, rank);
        }
    }
}
