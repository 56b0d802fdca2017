/* SPDX-License-Identifier: MIT
 * best.h - on the CPU, the best of a row in order: a short sorted list of ranks (numerics/rank.h), filled in
 * one pass. Who wants more than a list holds takes several, each below the last rank of the one before. */
#ifndef TEGULA_MOE_BEST_H
#define TEGULA_MOE_BEST_H

#include "numerics/rank.h"

enum { TGL_BEST_MAX = 64 };
#define TGL_ALL_RANKS UINT64_MAX        /* a limit above every rank */

/* In descending order. ranks[size - 1] is the worst one that is kept: TGL_RANK_NONE while there is room. */
typedef struct { int size; uint64_t ranks[TGL_BEST_MAX]; } tgl_best;

/* An empty list for `size` ranks, at most TGL_BEST_MAX; returns its size. */
static inline int tgl_best_clear(tgl_best *b, int64_t size)
{
    b->size = size < TGL_BEST_MAX ? (int)size : TGL_BEST_MAX;
    for (int i = 0; i < b->size; i++) b->ranks[i] = TGL_RANK_NONE;
    return b->size;
}

/* Puts a rank that is above ranks[size - 1] in its place. */
static inline void tgl_best_insert(tgl_best *b, uint64_t rank)
{
    int i = b->size - 1;
    for (; i > 0 && b->ranks[i - 1] < rank; i--) b->ranks[i] = b->ranks[i - 1];
    b->ranks[i] = rank;
}

/* Fills the list with the best ranks below `limit` of scores[0 .. num_scores - 1]; there are as many. */
void tgl_best_of(tgl_best *b, uint64_t limit, const float *scores, int64_t num_scores);

#endif
