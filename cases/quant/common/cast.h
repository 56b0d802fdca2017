/* SPDX-License-Identifier: MIT
 * cast.h - for the cases of casts of values, or of codes with factors. */
#ifndef TEGULA_CASES_CAST_H
#define TEGULA_CASES_CAST_H

#include "quant.h"

enum { X, X_SF, GIVEN, OUT, SF, NUM_OF_CAST }; /* an op may lack some */

/* Adds x, and x_sf if x is quantised; a block of the output has one kind of values. */
tgl_status cast_add_x(case_problem *c, int64_t rows, int64_t cols, int64_t block_rows, int64_t block_cols);
void cast_add_out(case_problem *c, int64_t rows, int64_t cols, tgl_dtype pairs);

float cast_value(const case_problem *c, int64_t row, int64_t col);
const case_tensor *cast_or_null(const case_problem *c, int index);

/* For per_token_cast and per_block_cast, with computed or given factors. */
tgl_status cast_setup(case_problem *c, bool is_per_token, bool is_given);
void cast_oracle(case_problem *c);

#endif
