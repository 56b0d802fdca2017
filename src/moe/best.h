/* SPDX-License-Identifier: MIT
 * best.h - on the CPU, the best ranks (numerics/rank.h) of a row, in descending order. Who wants more than
 * TGL_BEST_MAX takes several lists, each below the last rank of the one before. */
#ifndef TEGULA_MOE_BEST_H
#define TEGULA_MOE_BEST_H

#include "numerics/rank.h"

enum { TGL_BEST_MAX = 1024 };
#define TGL_ALL_RANKS UINT64_MAX        /* a limit above every rank */

/* The best `size` ranks (1 .. TGL_BEST_MAX) below `limit` of scores[0 .. num_scores - 1]; it has as many. */
void tgl_best_of(uint64_t *best, int size, uint64_t limit, const float *scores, int64_t num_scores);

/* For short lists, rank by rank: clear one, then insert what is above best[size - 1]. */
static inline void tgl_best_clear(uint64_t *best, int size)
{
    for (int i = 0; i < size; i++) best[i] = TGL_RANK_NONE;
}
static inline void tgl_best_insert(uint64_t *best, int size, uint64_t rank)
{
    int i = size - 1;
    for (; i > 0 && best[i - 1] < rank; i--) best[i] = best[i - 1];
    best[i] = rank;
}

#endif
