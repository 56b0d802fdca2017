/* SPDX-License-Identifier: MIT
 * gate.h - what the cases of top2_sum_gate, hash_gate and route share. The oracles sort all experts and
 * compute scores step by step in double.
 *
 * exp and log1p differ in their last bits between libraries, so a choice that depends on those bits has no
 * oracle. In every row of logits here the choice is decided: competing keys are far enough apart, or equal
 * because they come from equal numbers, or exact in any library. Random rows are redrawn until they are
 * decided. If one remains undecided, the oracle says so: a mistake in a listed case; a random case is
 * redrawn.
 *
 * Values of logits, beside those of moe.h:
 *   normal      drawn again until the choice is decided
 *   near        a permutation of numbers 2^-15 apart: scores that a rough approximation cannot tell apart
 *   exact       with exact scores of sigmoid and sqrtsoftplus; with bias=near these decide
 *   saturated   scores of 0 and 1
 *   branch      around 20, where sqrtsoftplus switches formulas
 *   deep        scores around 1e-20, the initial value of the divisor
 *   descending  the same in every row, best expert first
 *   high_last   exact for sqrtsoftplus, and 100 for the last expert: too much for the filter, not for a large bias
 * Values of bias:
 *   none, zero, small (normal / 8), large (normal * 100), near (1 and up to 1e-3 more, in steps of an ulp),
 *   disabled (-inf for two of three experts), few (for all but one of 32), special
 *
 * Parameter `excluded`: the logits of masked and fixed tokens, which are not chosen by score and must not
 * matter.
 *   alike       like the others
 *   zeros, ties, nan, inf, denormal
 *   wild        any bits
 * In all but the first, some entries of unmapped_topk_idx and input_ids are wild: those of masked tokens, and
 * every other one of fixed tokens. */
#ifndef TEGULA_CASES_GATE_H
#define TEGULA_CASES_GATE_H

#include "moe.h"

#define GATE_SIZES "num_tokens= num_experts= num_topk= "
#define GATE_GROUPS "num_groups=0 num_topk_groups=0 "
#define GATE_REST                                                                                         \
    "scoring=sigmoid num_shared_experts=0 replicas=0 map=random ep_rank=0 num_ep_ranks=0 num_tp_ranks=0 " \
    "tp_rank=0 factor=1.5 shared_weight=none renormalize=1 values=normal mask=none unmapped=none "        \
    "fixed=valid excluded=alike dtype=i64 layout=packed offset=0 out_offset=0"
#define GATE_CHOICE " bias=small fix=none"
#define GATE_EXCLUDED "excluded=zeros,ties,nan,inf,denormal,wild"

/* Tensors are filled in this order: bias and masks first, as the fills of logits and indices read them. */
enum { BIAS, MASK, FIX, LOGITS, MAP, COUNT, UNMAPPED, IDX, WEIGHTS, NUM_OF_GATE };

static inline const tgl_moe_gate_params *gate_params_of(const case_problem *c)
{
    return (const tgl_moe_gate_params *)(const void *)c->scalars;
}
static inline bool gate_is_given(const case_problem *c, int i) { return i < c->num_tensors && c->tensors[i].name; }
static inline bool gate_is_masked(const case_problem *c, int64_t t)
{
    return gate_is_given(c, MASK) && !c->tensors[MASK].data[t];
}
static inline bool gate_is_fixed(const case_problem *c, int64_t t)
{
    return gate_is_given(c, FIX) && c->tensors[FIX].data[t];
}
static inline int64_t gate_num_topk(const case_problem *c)
{
    return c->tensors[IDX].shape[1] - gate_params_of(c)->num_shared_experts;
}
static inline float gate_logit(const case_problem *c, int64_t row, int64_t expert)
{
    return *(const float *)case_element(&c->tensors[LOGITS], (int64_t[]){ row, expert });
}

/* ---- gate_choice.c ---- */

/* Each step in double, then rounded: for a sum, quotient or root of floats that equals the step in float. */
float gate_score(tgl_moe_scoring scoring, float logit);

/* The key of an expert, and its bounds in any library whose scores are accurate to 2^-20. */
typedef struct { float key, low, high, logit, bias; } gate_rank;

/* Chooses the experts of a row. */
typedef struct {
    const case_problem *c;
    gate_rank *keys;                /* of all experts */
    moe_candidate *sorted, *groups; /* experts by key; groups by sum */
    float *low, *high;              /* bounds of a group's sum */
    int64_t *best;                  /* a group's two best experts */
    bool *is_kept;
} gate_chooser;
gate_chooser gate_open_chooser(const case_problem *c);
void gate_close_chooser(gate_chooser *h);

/* Leaves the chosen experts in h->sorted. True if the choice is the same with any exp and log1p. */
bool gate_choose(gate_chooser *h, int64_t row);

/* ---- gate_inputs.c ---- */

tgl_status gate_choose_logits(const case_problem *c, case_tensor *t);
int64_t gate_wild_index(int64_t num_experts, uint64_t bits); /* mostly out of range */
void gate_fill_bias(const case_problem *c, case_tensor *t, uint64_t seed);
void gate_fill_flags(const case_problem *c, case_tensor *t, uint64_t seed);
void gate_fill_map(const case_problem *c, case_tensor *t, uint64_t seed);
void gate_fill_counts(const case_problem *c, case_tensor *t, uint64_t seed);
void gate_fill_unmapped(const case_problem *c, case_tensor *t, uint64_t seed);

/* ---- gate.c ---- */

/* gate_setup_common is for all gates; the others are for top2_sum_gate and route. */
tgl_status gate_setup_common(case_problem *c);
tgl_status gate_setup(case_problem *c);
tgl_status gate_run(const case_arguments *a);
void gate_oracle(case_problem *c);
int64_t gate_bytes(const case_problem *c);

/* Write the slots of a masked token; of a token with these chosen experts (-1: none) and the shared ones.
 * `scores` is memory for num_topk floats. */
void gate_put_masked(const case_problem *c, int64_t t);
void gate_put_token(const case_problem *c, int64_t t, const int64_t *chosen, int64_t num_topk, float *scores);

int64_t gate_bytes_of(const case_problem *c, int i);
int64_t gate_bytes_of_map(const case_problem *c); /* only what is looked up */

#endif
