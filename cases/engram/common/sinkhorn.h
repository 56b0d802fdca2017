/* SPDX-License-Identifier: MIT
 * sinkhorn.h - what the cases of the sinkhorn ops share. */
#ifndef TEGULA_CASES_SINKHORN_H
#define TEGULA_CASES_SINKHORN_H

#include "cases/case.h"
#include "tegula/engram.h"

/* Writes an element, f32 or bf16; every NaN becomes the same one. */
void sinkhorn_put(const case_tensor *t, const int64_t *index, float value);

/* The scaled matrix, tensors 0 to 2, and parameters with defaults:
 *   gap     columns between rows       offset   of the matrix
 *   values  normal
 *           sparse   half of the elements are 0, and a third of the rows
 *           bits     any; scales too
 *   eps     tiny (1e-20), half (0.5), zero */
#define SINKHORN_MATRIX "num_rows= dim= values=normal eps=tiny gap=0 offset=0"
enum { SINKHORN_ROW_SCALE = 1, SINKHORN_COL_SCALE, SINKHORN_NUM_TENSORS };
tgl_status sinkhorn_add_matrix(case_problem *c, case_role matrix, case_role row_scale);
float sinkhorn_eps(const case_problem *c);

/* Steps in f32: two floats in double, rounded. */
static inline float sinkhorn_times(float a, float b) { return (float)((double)a * (double)b); }
static inline float sinkhorn_plus(float a, float b) { return (float)((double)a + (double)b); }

/* Row i of the scaled matrix, and the root of the sum of its squares. */
void sinkhorn_row(const case_problem *c, int64_t i, float *x);
float sinkhorn_norm(const float *x, int64_t dim);

#endif
