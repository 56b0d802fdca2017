/* SPDX-License-Identifier: MIT
 * parts_cases.h - what the cases of ops on parts of a projection share. */
#ifndef TEGULA_CASES_MHC_PARTS_H
#define TEGULA_CASES_MHC_PARTS_H

#include "cases/mhc/common/projection_cases.h"

/* out_mul_parts [num_splits, num_tokens, rows] and sqrsum_parts [num_splits, num_tokens]. */
void parts_add(case_problem *c, int out_mul, int sqrsum, int64_t rows);
/* The parts of row j of a token, or of its squares, added up. */
float parts_sum(const case_tensor *parts, int64_t token, int64_t j);

#endif
