/* SPDX-License-Identifier: MIT
 * moe.h - what the cases of the routing ops share: layouts of rows, values, indices, ranking.
 *
 * Layouts of a tensor's rows:
 *   packed
 *   half        the left half of a matrix twice as wide
 *   gap         rows 3 elements apart: alignment changes from row to row
 *   repeated    row stride 0: all tokens share a row (inputs only)
 *   far         row stride 65536, so that few tokens reach past 2^31 elements */
#ifndef TEGULA_CASES_MOE_H
#define TEGULA_CASES_MOE_H

#include "cases/case.h"
#include "tegula/moe.h"

/* Strides of [num_rows, num_cols]. */
tgl_status moe_lay_out(const char *layout, int64_t num_cols, int64_t strides[2]);

/* Choose the fill of parameter `values`, for floats and for indices below n. */
tgl_status moe_choose_fill(const case_problem *c, case_tensor *t);
tgl_status moe_choose_index_fill(const case_problem *c, case_tensor *t, int64_t n);

/* Every f32 element is a random one of `values`. */
void moe_fill_any_of(case_tensor *t, uint64_t seed, const float *values, size_t count);

/* An index in a two-dimensional tensor of i32 or i64. */
int64_t moe_index_at(const case_tensor *t, int64_t row, int64_t col);
void moe_put_index(const case_tensor *t, int64_t row, int64_t col, int64_t value);

/* The number of an expert on this rank, or -1 if it is on another. Subtracts the experts of the ranks in
 * between, where the ops count their own. Ranks of 0 mean 1. */
int64_t moe_number_on_rank(int64_t num_experts, int64_t num_ep_ranks, int64_t num_tp_ranks, int64_t tp_rank,
                           int64_t expert);

/* Ranking: qsort of all candidates. moe_ranked() turns NaN into -inf. */
typedef struct {
    float score;
    int64_t index;
} moe_candidate;
int moe_better_first(const void *a, const void *b);
float moe_ranked(float score);

#endif
