/* SPDX-License-Identifier: MIT
 * rows_cases.h - what the cases of ops on the residual share. */
#ifndef TEGULA_CASES_MHC_ROWS_H
#define TEGULA_CASES_MHC_ROWS_H

#include "cases/mhc/common/mhc_cases.h"

/*   layout   packed
 *            gaps     every row is `gap` elements longer than it need be
 *            outside  streams lie outside of tokens
 *            same     all streams of an input are one row
 *   values   normal
 *            special  one element in 100 is an infinity, a NaN, a zero of either sign, a subnormal or very large */
#define ROWS_CASE "num_tokens= num_streams=4 hidden= layout=packed gap=3 offset=0 values=normal"
case_tensor *rows_add(case_problem *c, int index, const char *name, case_role role, bool has_streams); /* bf16 */
case_tensor *rows_add_of(case_problem *c, int index, const char *name, case_role role, bool has_streams,
                         tgl_dtype dtype);
case_tensor *rows_add_mix(case_problem *c, int index, const char *name, case_role role, int ndim);
tgl_status rows_check(const case_problem *c);

float rows_at(const case_tensor *t, int64_t token, int64_t stream, int64_t i);
/* Has an input an element of a magnitude above `limit`, an infinity or a NaN? Bounds of errors then say nothing. */
bool rows_is_wild(const case_tensor *t, double limit);
/* The sum over columns of a[token][i] * b[token][o], as docs/mhc.md says. */
float rows_dot(const case_tensor *a, int64_t i, const case_tensor *b, int64_t o, int64_t token);

#endif
