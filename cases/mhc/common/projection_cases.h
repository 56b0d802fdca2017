/* SPDX-License-Identifier: MIT
 * projection_cases.h - what the cases of ops with a projection share. */
#ifndef TEGULA_CASES_MHC_PROJECTION_H
#define TEGULA_CASES_MHC_PROJECTION_H

#include "cases/mhc/common/rows_cases.h"

/* x of 1 and 3 with either sign, fn in steps of 1/512: all sums are exact. */
void projection_fill_exact(const case_problem *c, case_tensor *t, uint64_t seed);
/* A token's sum of squares, in its order, and its reciprocal root; the factor's bits say nothing if it is tiny. */
float projection_squares(const case_tensor *x, int64_t token);
float projection_factor(float squares, int64_t columns, float eps);
double projection_tf32(double x);       /* to nearest, ties away from zero, of a float */
/* A token's product with row j of fn, in double. The weight may have no name: none. */
double projection_product(const case_tensor *x, const case_tensor *fn, const case_tensor *weight, int64_t token,
                          int64_t j);
/* The same as parts: subtrees of the sums. */
void projection_squares_in_parts(const case_tensor *x, int64_t token, int64_t splits, float *parts);
void projection_product_in_parts(const case_tensor *x, const case_tensor *fn, const case_tensor *weight, int64_t token,
                                 int64_t j, int64_t splits, double *parts);

#endif
