/* SPDX-License-Identifier: MIT
 * projection_cases.h - what the cases of ops with a projection share. */
#ifndef TEGULA_CASES_MHC_PROJECTION_H
#define TEGULA_CASES_MHC_PROJECTION_H

#include "cases/mhc/common/rows_cases.h"

enum { PROJECTION_X, PROJECTION_FN, PROJECTION_WEIGHT };
/* The residual, fn of so many rows and, with weight=1, a gain; sums=exact fills them so that sums are. */
void projection_add(case_problem *c, int64_t rows);
bool projection_is_exact(case_problem *c); /* sums are exact, and no gain is rounded into fn */
/* An oracle for ranges of tokens, `c` its context; bounds of errors say nothing if one of the first `inputs` tensors is
 * wild. */
void projection_oracle(case_problem *c, int inputs, void (*tokens)(void *c, int64_t begin, int64_t end));

/* x of 1 and 3 with either sign, fn in steps of 1/512: all sums are exact. */
void projection_fill_exact(const case_problem *c, case_tensor *t, uint64_t seed);
/* A token's sum of squares, in its order, and its reciprocal root; the factor's bits say nothing if it is tiny. */
float projection_squares(const case_tensor *x, int64_t token);
float projection_factor(float squares, int64_t columns, float eps);
double projection_tf32(double x); /* to nearest, ties away from zero, of a float */
/* A token's product with row j of fn, in double. The weight may have no name: none. */
double projection_product(const case_tensor *x, const case_tensor *fn, const case_tensor *weight, int64_t token,
                          int64_t j);
/* The same as parts: subtrees of the sums. */
void projection_squares_in_parts(const case_tensor *x, int64_t token, int64_t splits, float *parts);
void projection_product_in_parts(const case_tensor *x, const case_tensor *fn, const case_tensor *weight, int64_t token,
                                 int64_t j, int64_t splits, double *parts);

#endif
