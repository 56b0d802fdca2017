/* SPDX-License-Identifier: MIT
 * routing.h - the experts of tokens and the mapping to expert-major order, for the cases of counts, the
 * mapping, moving rows by it, and route. Pairs are sorted, where the ops count and scan.
 *
 * Parameter `routing`, the experts of tokens:
 *   uniform     num_topk of all experts, equally likely, distinct within a token if there are enough
 *   some_empty  any experts, with repeats; every fourth slot is a negative number
 *   empty       all slots are -1
 *   one         all slots go to one expert
 *   gaps        every other expert of the middle half
 *   skewed      low experts far more often than high ones
 *   ends        the first expert and the last in turn
 *   garbage     half of the slots have any bits or numbers just out of range
 * With num_ranks > 1 there are num_tokens tokens and num_experts experts on each rank; the case has the
 * tokens that have a slot on the first rank, with -1 for the slots of other ranks.
 *
 * Parameter `num_positions`: exact (as many as the mapping fills), more, less, none, bound (enough for any
 * routing), or a number.
 *
 * Parameter `slots`, the inputs token_topk_to_pos and pos_to_expert:
 *   mapped  what get_fused_mapping writes
 *   lost    some pairs are missing, but their positions still have an expert
 *   wild    empty slots are any numbers outside the positions, experts any numbers of the same sign
 *   padded  some positions of pairs have no expert */
#ifndef TEGULA_CASES_ROUTING_H
#define TEGULA_CASES_ROUTING_H

#include "moe.h"

#define ROUTING_PARAMS "num_tokens= num_topk= num_experts= num_ranks=1 routing=uniform "

/* ---- where tokens go ---- */

typedef struct {
    int64_t num_tokens, num_topk, num_experts;
    int64_t *expert; /* [num_tokens, num_topk]; to be freed */
} routing;

static inline bool routing_has(const routing *r, int64_t expert) { return expert >= 0 && expert < r->num_experts; }

/* Checks parameters before memory is allocated for them: ROUTING_SIZES("hidden", NULL). */
#define ROUTING_SIZES(...) \
    (const char *const[]) { "num_tokens", "num_topk", "num_ranks", __VA_ARGS__ }
tgl_status routing_check_sizes(case_problem *c, const char *const *names);

/* From the parameters of a case; from a tensor as the op sees it. */
routing routing_make(case_problem *c);
routing routing_read(const case_tensor *indices, int64_t num_experts);

/* Parameter num_positions as a number. */
int64_t routing_num_positions(case_problem *c, const routing *r);

/* Adds tensor 0, the experts of every token, and returns its contents. */
tgl_status routing_add_indices(case_problem *c, const char *name, routing *r);

/* How often each expert occurs in tensor 0; to be freed. */
int64_t *routing_count(const case_problem *c, int64_t num_experts);

/* ---- the mapping ---- */

/* The tensors of a tgl_moe_mapping, in its order. */
enum {
    POS_TO_EXPERT,
    POS_TO_TOKEN,
    POS_TO_TOKEN_TOPK,
    TOKEN_TOPK_TO_POS,
    EXPERT_START,
    EXPERT_END,
    NUM_TOKENS_PER_EXPERT,
    PAIRS_PER_EXPERT,
    PSUM_END,
    NUM_TOKENS_PER_EXPERT_HOST,
    NUM_OF_MAPPING
};
typedef struct {
    int64_t num_tokens, num_topk, num_experts, num_positions;
    int32_t *at[NUM_OF_MAPPING];
} mapping;

mapping mapping_make(const routing *r, int64_t alignment, int64_t num_positions);
mapping mapping_of_case(case_problem *c); /* by parameter `slots` */
void mapping_free(mapping *m);

/* Fills of inputs: token_topk_to_pos and pos_to_expert of the case. */
void mapping_fill_to_pos(const case_problem *c, case_tensor *t, uint64_t seed);
void mapping_fill_to_expert(const case_problem *c, case_tensor *t, uint64_t seed);

/* The mapping as outputs, tensors numbered from `first` on. */
typedef struct {
    int64_t num_tokens, num_topk, num_experts, num_positions, offset;
    bool has_counts, has_host; /* count and psum_end; num_tokens_per_expert_host */
} mapping_sizes;
void mapping_add(case_problem *c, int first, const mapping_sizes *sizes);
tgl_moe_mapping mapping_of(const case_arguments *a, int first);
/* Writes the expected mapping of these indices. */
void mapping_answer(case_problem *c, int first, const case_tensor *indices, int64_t alignment);

#endif
