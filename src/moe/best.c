/* SPDX-License-Identifier: MIT */
#include "moe/best.h"

#include <string.h>

enum {
    BLOCK = 32,
    SHORT = 64,                     /* up to here insertion does better, for scores in random order */
    POOL = 2 * TGL_BEST_MAX
};

/* Is one of the block above `bound`? Without a branch inside, so that it becomes vector code. */
static int has_above(const float *scores, float bound)
{
    int found = 0;
    for (int i = 0; i < BLOCK; i++) found |= scores[i] > bound;
    return found;
}

static void short_list(uint64_t *best, int size, uint64_t limit, const float *scores, int64_t num_scores)
{
    const uint64_t *worst = &best[size - 1];
    int64_t e = 0;
    tgl_best_clear(best, size);
    for (; e < num_scores && *worst == TGL_RANK_NONE; e++) {
        const uint64_t rank = tgl_rank(scores[e], (uint32_t)e);
        if (rank < limit) tgl_best_insert(best, size, rank);
    }
    /* The list is full. Of equal scores the first stays, so only higher ones get in; NaN is above nothing. */
    while (e < num_scores) {
        const int64_t end = num_scores - e < BLOCK ? num_scores : e + BLOCK;
        if (end - e == BLOCK && !has_above(scores + e, tgl_rank_value(*worst))) e = end;
        for (; e < end; e++) {
            if (!(scores[e] > tgl_rank_value(*worst))) continue;
            const uint64_t rank = tgl_rank(scores[e], (uint32_t)e);
            if (rank < limit) tgl_best_insert(best, size, rank);
        }
    }
}

/* Merges two neighbouring runs in descending order. */
static void merge(uint64_t *out, const uint64_t *runs, int middle, int end)
{
    int i = 0, j = middle, k = 0;
    while (i < middle && j < end) {
        const uint64_t a = runs[i], b = runs[j];
        const int first = a > b;                        /* added, not branched on: it cannot be predicted */
        out[k++] = first ? a : b;
        i += first;
        j += 1 - first;
    }
    memcpy(out + k, runs + i, (size_t)(middle - i) * sizeof *runs);
    memcpy(out + k + middle - i, runs + j, (size_t)(end - j) * sizeof *runs);
}

static void sort(uint64_t *ranks, int num_ranks)
{
    enum { RUN = 8 };
    uint64_t spare[POOL], *from = ranks, *to = spare;
    for (int begin = 0; begin < num_ranks; begin += RUN)
        for (int i = begin + 1; i < num_ranks && i < begin + RUN; i++)
            tgl_best_insert(ranks + begin, i - begin + 1, ranks[i]);
    for (int run = RUN; run < num_ranks; run *= 2) {
        for (int begin = 0; begin < num_ranks; begin += 2 * run) {
            const int left = num_ranks - begin, end = left < 2 * run ? left : 2 * run;
            merge(to + begin, from + begin, end < run ? end : run, end);
        }
        uint64_t *const swap = from;
        from = to;
        to = swap;
    }
    if (from != ranks) memcpy(ranks, from, (size_t)num_ranks * sizeof *ranks);
}

/* Whatever may get in is gathered; when the pool is full, it is sorted and all but the best go. A pool of
 * four lists is seldom full and quickly sorted. */
static void long_list(uint64_t *best, int size, uint64_t limit, const float *scores, int64_t num_scores)
{
    uint64_t pool[POOL], worst = TGL_RANK_NONE;
    const int capacity = 4 * size < POOL ? 4 * size : POOL;
    int num_ranks = 0;
    for (int64_t e = 0; e < num_scores;) {
        const int64_t end = num_scores - e < BLOCK ? num_scores : e + BLOCK;
        const int may_skip = worst != TGL_RANK_NONE && end - e == BLOCK;
        if (may_skip && !has_above(scores + e, tgl_rank_value(worst))) e = end;
        for (; e < end; e++) {
            const uint64_t rank = tgl_rank(scores[e], (uint32_t)e);
            pool[num_ranks] = rank;
            num_ranks += rank < limit && rank > worst;
            if (num_ranks == capacity) {
                sort(pool, capacity);
                num_ranks = size;
                worst = pool[size - 1];
            }
        }
    }
    sort(pool, num_ranks);
    memcpy(best, pool, (size_t)size * sizeof *best);
}

void tgl_best_of(uint64_t *best, int size, uint64_t limit, const float *scores, int64_t num_scores)
{
    if (size <= SHORT) short_list(best, size, limit, scores, num_scores);
    else long_list(best, size, limit, scores, num_scores);
}
