/* SPDX-License-Identifier: MIT */
#include "moe/common/best.h"

/* The list is always sorted, and padded with TGL_RANK_NONE. */
static void add(tgl_best *best, const float *scores, int64_t num_scores, uint32_t first)
{
    uint64_t *ranks = best->ranks;
    for (int64_t e = 0; e < num_scores; e++) {
        const uint64_t rank = tgl_rank(scores[e], first + (uint32_t)e);
        int i = best->size - 1;
        if (rank >= best->limit || rank <= ranks[i]) continue;
        for (; i > 0 && ranks[i - 1] < rank; i--) ranks[i] = ranks[i - 1];
        ranks[i] = rank;
    }
}
static void end(tgl_best *best) { }

void tgl_best_begin(tgl_best *best, int size, uint64_t limit)
{
    best->size = size;
    best->limit = limit;
    best->worst = TGL_RANK_NONE;
    best->num_ranks = 0;
    for (int i = 0; i < size; i++) best->ranks[i] = TGL_RANK_NONE;
}

void tgl_best_add(tgl_best *best, const float *scores, int64_t num_scores, uint32_t first)
{
    TGL_CHOOSE(add, tgl_best_add)(best, scores, num_scores, first);
}

void tgl_best_end(tgl_best *best) { TGL_CHOOSE(end, tgl_best_end)(best); }

void tgl_best_of(tgl_best *best, int size, uint64_t limit, const float *scores, int64_t num_scores)
{
    tgl_best_begin(best, size, limit);
    tgl_best_add(best, scores, num_scores, 0);
    tgl_best_end(best);
}

static void two_add(tgl_best_two *best, const float *scores, int64_t num_scores)
{
    for (int64_t e = 0; e < num_scores; e++) {
        if (scores[e] > best->first) *best = (tgl_best_two){ scores[e], best->first };
        else if (scores[e] > best->second) best->second = scores[e];
    }
}

void tgl_best_two_add(tgl_best_two *best, const float *scores, int64_t num_scores)
{
    TGL_CHOOSE(two_add, tgl_best_two_add)(best, scores, num_scores);
}
