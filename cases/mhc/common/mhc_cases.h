/* SPDX-License-Identifier: MIT
 * mhc_cases.h - what the cases of the mHC ops share: logits, and the arithmetic of docs/mhc.md once more. */
#ifndef TEGULA_CASES_MHC_H
#define TEGULA_CASES_MHC_H

#include "cases/case.h"
#include "core/status.h"
#include "tegula/mhc.h"

/* A parameter's value as a number: "1e-6". */
double mhc_number(case_problem *c, const char *name);

/* An element, and a store with the one NaN that ops write. */
float mhc_at(const case_tensor *t, const int64_t *index);
void mhc_put(case_tensor *t, const int64_t *index, double value);

float mhc_sum_as_tree(const float *values, int64_t count, int64_t step); /* padded with +0 */
float mhc_exp_of(float x);                                               /* numerics/exp.h's */
float mhc_sigmoid_of(float z);
float mhc_reciprocal(float x);
void mhc_sinkhorn_of(float *e, int64_t n, int64_t repeat, float eps); /* logits of a token to its matrix */
/* The gradient of a token's matrix to that of its logits. */
void mhc_sinkhorn_bwd_of(float *d, const float *logits, int64_t n, int64_t repeat, float eps);

/* Logits of gates, and of [num_tokens, n, n]:
 *   normal    mean 0, deviation 1
 *   wide      times 100
 *   huge      times 1e4
 *   equal     all of a token are the same
 *   masked    normal, but in every row one is -inf
 *   special   normal, but one in 50 is NaN, inf or -inf */
#define MHC_VALUES "normal wide huge equal masked special"
void mhc_fill_values(const case_problem *c, case_tensor *t, uint64_t seed);

#endif
