/* SPDX-License-Identifier: MIT
 * best.h - on the CPU, the best ranks (numerics/rank.h) of a row, in descending order. For more than
 * TGL_BEST_MAX, make several lists, each limited by the last rank of the one before. */
#ifndef TEGULA_MOE_BEST_H
#define TEGULA_MOE_BEST_H

#include <math.h>
#include <stdbool.h>

#include "core/cpu.h"
#include "numerics/rank.h"

enum { TGL_BEST_MAX = 1024, TGL_BEST_POOL = 2 * TGL_BEST_MAX, TGL_BEST_BLOCK = 32 };
#define TGL_ALL_RANKS UINT64_MAX /* a limit above every rank */

typedef struct {
    uint64_t ranks[TGL_BEST_POOL + TGL_BEST_BLOCK]; /* at the end the sorted list, then garbage */
    uint64_t limit, worst;                          /* only ranks between these get in */
    int size, num_ranks;                            /* worst and num_ranks: only best_fast.c, long lists */
} tgl_best;

/* The best `size` ranks (1 .. TGL_BEST_MAX) below `limit` of scores[0 .. num_scores - 1]. There must be
 * that many. */
void tgl_best_of(tgl_best *best, int size, uint64_t limit, const float *scores, int64_t num_scores);

/* The same over several runs of scores, in ascending order of index; a run's indices begin at `first`. */
void tgl_best_begin(tgl_best *best, int size, uint64_t limit);
void tgl_best_add(tgl_best *best, const float *scores, int64_t num_scores, uint32_t first);
void tgl_best_end(tgl_best *best);

/* The best two scores of several runs, initially -inf. Equal scores may be both of them. NaN is ignored. */
typedef struct { float first, second; } tgl_best_two;
#define TGL_BEST_TWO_NONE ((tgl_best_two){ -INFINITY, -INFINITY })
void tgl_best_two_add(tgl_best_two *best, const float *scores, int64_t num_scores);

TGL_DECLARE_FAST(void, tgl_best_add, tgl_best *best, const float *scores, int64_t num_scores, uint32_t first);
TGL_DECLARE_FAST(void, tgl_best_end, tgl_best *best);
TGL_DECLARE_FAST(void, tgl_best_two_add, tgl_best_two *best, const float *scores, int64_t num_scores);

#endif
