/* SPDX-License-Identifier: MIT
 * gates_cases.h - what the cases of pre_split_mixes and head_compute_mix share. */
#ifndef TEGULA_CASES_MHC_GATES_H
#define TEGULA_CASES_MHC_GATES_H

#include "cases/mhc/common/mhc_cases.h"

/* `gap`: rows of mixes are longer by so many columns. */
#define GATES_CASE "num_tokens= num_streams=4 values=normal gap=0 offset=0"
#define GATES_SPLIT_CASE GATES_CASE " comb=1 post_mult=2"
enum { GATES_MIXES, GATES_SCALE, GATES_BASE, GATES_GRAD_PRE, GATES_GRAD_POST, GATES_GRAD_COMB, GATES_FIRST_OUTPUT };
enum { GATES_PRE_MIX = GATES_FIRST_OUTPUT, GATES_POST_MIX, GATES_COMB };
enum { GATES_GRAD_MIXES = GATES_FIRST_OUTPUT, GATES_GRAD_SCALE, GATES_GRAD_BASE };

/* groups: 1 for a head, otherwise that of parameter `comb`; fills c->scalars. */
tgl_status gates_add_inputs(case_problem *c, bool is_head);
/* Outputs of the forward; or, `wanted`, the gradients that arrive: those of pre (a), post (b), comb (c). */
tgl_status gates_add_outputs(case_problem *c, const char *wanted);
tgl_status gates_add_grads(case_problem *c);
float gates_logit(const case_problem *c, int64_t t, int64_t j); /* of token t, column j: mix * scale + base */
void gates_oracle_fwd(case_problem *c);
void gates_oracle_bwd(case_problem *c);

#endif
