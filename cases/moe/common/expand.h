/* SPDX-License-Identifier: MIT
 * expand.h - what the cases of expand_to_fused and expand_to_fused_with_sf share. */
#ifndef TEGULA_CASES_EXPAND_H
#define TEGULA_CASES_EXPAND_H

#include "routing.h"

enum { TO_POS, TO_EXPERT, TOKENS, EXPANDED, TOKEN_SF, EXPANDED_SF };

tgl_status expand_setup(case_problem *c);

/* Rows that no pair leads to keep what they had: where there are such, an output starts with values. */
case_role expand_role_of_output(const case_problem *c);

/* The oracle, of rows or of their factors. */
void expand_rows(const case_problem *c, const case_tensor *from, const case_tensor *to);

#endif
