/* SPDX-License-Identifier: MIT
 * transpose.h - what the cases of transpose and batched_transpose share.
 *
 * Layouts of x, [num_batches, num_rows, num_cols]:
 *   packed
 *   half             the left half of a matrix twice as wide, as a slice x[:, :n] gives it
 *   gap              rows 3 elements apart, matrices 5 more: alignment changes from row to row
 *   transposed       a transposed view, so that the op is a copy
 *   interleaved      a row of every matrix in turn, as x.permute(1, 0, 2) gives it
 *   steps            every second column
 *   reversed         all strides negative
 *   repeated_rows, repeated_cols, repeated_batches, repeated       that stride, or all of them, is 0 */
#ifndef TEGULA_CASES_TRANSPOSE_H
#define TEGULA_CASES_TRANSPOSE_H

#include "cases/case.h"
#include "tegula/transpose.h"

enum { X, OUT };

/* Strides of [num_batches, num_rows, num_cols]. */
tgl_status transpose_lay_out(const char *layout, int64_t b, int64_t m, int64_t n, int64_t strides[3]);

/* Of one matrix, or of a batch. */
void transpose_oracle(case_problem *c);

#endif
