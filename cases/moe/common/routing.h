/* SPDX-License-Identifier: MIT
 * routing.h - where tokens go, and the mapping to expert-major order that follows: what the cases of counts,
 * of the mapping, of moving rows by it and of route share. Pairs are sorted where the ops count and scan.
 *
 * Where tokens go, parameter `routing`:
 *   uniform     num_topk experts of all, each as likely, none twice in a row while there are enough
 *   some_empty  any expert, repeats too; every fourth slot is empty, by any negative number
 *   empty       no slot is taken
 *   one         all slots go to one expert
 *   gaps        every other expert of the middle half: none of the first, of the last, of some between
 *   skewed      low experts far more often than high ones
 *   ends        the first expert and the last in turn
 *   garbage     any bits in every other slot, and numbers just outside of what is allowed
 * With num_ranks > 1 all of that happens to num_tokens tokens on each of so many ranks, with num_experts
 * experts on each; what is left are the slots of the first rank, -1 for those of others, in the rows of
 * tokens that have a slot here.
 *
 * How many positions there are, parameter `num_positions`: exact (as many as the mapping fills), more, less,
 * none, bound (what is enough for any routing), or a number.
 *
 * What token_topk_to_pos and pos_to_expert say as inputs, parameter `slots`:
 *   mapped  what get_fused_mapping writes
 *   lost    some pairs are missing, whose positions still belong to an expert
 *   wild    empty slots lead to any place outside of the positions, experts are any numbers of their sign
 *   padded  some positions that a pair leads to belong to no expert */
#ifndef TEGULA_CASES_ROUTING_H
#define TEGULA_CASES_ROUTING_H

#include "moe.h"

#define ROUTING_PARAMS "num_tokens= num_topk= num_experts= num_ranks=1 routing=uniform "

/* ---- where tokens go ---- */

typedef struct {
    int64_t num_tokens, num_topk, num_experts;
    int64_t *expert;                            /* [num_tokens, num_topk]; to be freed */
} routing;

static inline bool routing_has(const routing *r, int64_t expert)
{
    return expert >= 0 && expert < r->num_experts;
}

/* Parameters that make sense, before memory is taken for them: ROUTING_SIZES("hidden", NULL). */
#define ROUTING_SIZES(...) (const char *const[]){ "num_tokens", "num_topk", "num_ranks", __VA_ARGS__ }
tgl_status routing_check_sizes(case_problem *c, const char *const *names);

/* Of the parameters of a case; of a tensor as the op sees it. */
routing routing_make(case_problem *c);
routing routing_read(const case_tensor *indices, int64_t num_experts);

/* Parameter num_positions as a number. */
int64_t routing_num_positions(case_problem *c, const routing *r);

/* Adds tensor 0, the experts of every token, and says what is in it. */
tgl_status routing_add_indices(case_problem *c, const char *name, routing *r);

/* How often each expert is in tensor 0; to be freed. */
int64_t *routing_count(const case_problem *c, int64_t num_experts);

/* ---- the mapping ---- */

typedef struct {
    int64_t num_tokens, num_topk, num_experts, num_positions, num_pairs;
    int32_t *token_topk_to_pos, *pos_to_expert, *pos_to_token, *pos_to_token_topk;
    int32_t *start, *end, *count;
} mapping;

mapping mapping_make(const routing *r, int64_t alignment, int64_t num_positions);
mapping mapping_of_case(case_problem *c);       /* as parameter `slots` wants it */
void mapping_free(mapping *m);

/* Fills of inputs: token_topk_to_pos and pos_to_expert of the case. */
void mapping_fill_to_pos(const case_problem *c, case_tensor *t, uint64_t seed);
void mapping_fill_to_expert(const case_problem *c, case_tensor *t, uint64_t seed);

/* The mapping as outputs: the tensors of a tgl_moe_mapping, numbered from `first` on. */
enum {
    POS_TO_EXPERT, POS_TO_TOKEN, POS_TO_TOKEN_TOPK, TOKEN_TOPK_TO_POS, EXPERT_START, EXPERT_END,
    NUM_TOKENS_PER_EXPERT, PAIRS_PER_EXPERT, PSUM_END, NUM_TOKENS_PER_EXPERT_HOST, NUM_OF_MAPPING
};
typedef struct {
    int64_t num_tokens, num_topk, num_experts, num_positions, offset;
    bool has_counts, has_host;          /* count and psum_end; num_tokens_per_expert_host */
} mapping_sizes;
void mapping_add(case_problem *c, int first, const mapping_sizes *sizes);
tgl_moe_mapping mapping_of(const case_arguments *a, int first);
/* Writes what the tensors have to be for these experts of tokens. */
void mapping_answer(case_problem *c, int first, const case_tensor *indices, int64_t alignment);

#endif
