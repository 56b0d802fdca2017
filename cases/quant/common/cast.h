/* SPDX-License-Identifier: MIT
 * cast.h - what the cases of casts share whose input is values, or codes with factors. */
#ifndef TEGULA_CASES_CAST_H
#define TEGULA_CASES_CAST_H

#include "quant.h"

enum { X, X_SF, GIVEN, OUT, SF, NUM_OF_CAST };  /* of all casts: those that an op lacks are not given */

/* Adds x, and x_sf where x is quantised; kinds of values last for a block of the output. */
tgl_status cast_add_x(case_problem *c, int64_t rows, int64_t cols, int64_t block_rows, int64_t block_cols);
void cast_add_out(case_problem *c, int64_t rows, int64_t cols, tgl_dtype pairs);

float cast_value(const case_problem *c, int64_t row, int64_t col);
const case_tensor *cast_or_null(const case_problem *c, int index);

/* All of a per_token_cast or a per_block_cast, with factors that are computed or given. */
tgl_status cast_setup(case_problem *c, bool is_per_token, bool is_given);
void cast_oracle(case_problem *c);

#endif
