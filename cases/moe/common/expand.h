/* SPDX-License-Identifier: MIT
 * expand.h - what the cases of expand_to_fused and expand_to_fused_with_sf share. */
#ifndef TEGULA_CASES_EXPAND_H
#define TEGULA_CASES_EXPAND_H

#include "routing.h"

enum { TO_POS, TO_EXPERT, TOKENS, EXPANDED, TOKEN_SF, EXPANDED_SF };

tgl_status expand_setup(case_problem *c);

/* Rows without a pair keep their contents: if there are any, an output has initial values. */
case_role expand_role_of_output(const case_problem *c);

/* The oracle, for rows or for their factors. */
void expand_rows(const case_problem *c, const case_tensor *from, const case_tensor *to);

#endif
