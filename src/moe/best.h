/* SPDX-License-Identifier: MIT
 * best.h - on the CPU, the best ranks (numerics/rank.h) of a row, in descending order. Who wants more than
 * TGL_BEST_MAX takes several lists, each below the last rank of the one before. */
#ifndef TEGULA_MOE_BEST_H
#define TEGULA_MOE_BEST_H

#include <math.h>

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

/* Inserts the ranks below `limit` of a run of scores, whose indices begin at `first`; those of later runs are
 * higher. */
void tgl_best_add(uint64_t *best, int size, uint64_t limit, const float *scores, int64_t num_scores,
                  uint32_t first);

/* The best score, -inf if there is none. NaN is above nothing, here and below. */
float tgl_best_value(const float *scores, int64_t num_scores);

/* The best two scores of several runs, -inf before the first one. One that comes twice may be both. */
typedef struct { float first, second; } tgl_best_two;
#define TGL_BEST_TWO_NONE ((tgl_best_two){ -INFINITY, -INFINITY })
void tgl_best_two_add(tgl_best_two *best, const float *scores, int64_t num_scores);

#endif
