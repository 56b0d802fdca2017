/* SPDX-License-Identifier: MIT
 * transpose.h - for the cases of transpose and batched_transpose.
 *
 * Layouts of x, [num_batches, num_rows, num_cols]:
 *   packed
 *   half             the left half of a matrix twice as wide, as a slice x[:, :n] gives it
 *   gap              3 elements between rows, 5 more between matrices: alignment changes from row to row
 *   transposed       a transposed view: the op is a copy
 *   interleaved      a row of every matrix in turn, as x.permute(1, 0, 2) gives it
 *   steps            every second column
 *   reversed         all strides negative
 *   repeated_rows, repeated_cols, repeated_batches, repeated       that stride is 0, or all of them */
#ifndef TEGULA_CASES_TRANSPOSE_H
#define TEGULA_CASES_TRANSPOSE_H

#include "cases/case.h"
#include "tegula/transpose.h"

enum { X, OUT };

/* Strides of [num_batches, num_rows, num_cols]. */
tgl_status transpose_lay_out(const char *layout, int64_t b, int64_t m, int64_t n, int64_t strides[3]);

/* For one matrix, or a batch. */
void transpose_oracle(case_problem *c);

#endif
