/* SPDX-License-Identifier: MIT
 * moe.h - routing of tokens to experts: choosing experts and their weights, counting, and moving tokens to
 * their experts and back. docs/moe.md has formulas, examples and speed.
 *
 * Experts and groups are numbered from 0. A negative index is an empty slot; so is an index past the last
 * expert, for ops that look experts up or count them. With TEGULA_LOG=call, ops on the CPU log how many of
 * their indices are past the last; on CUDA indices are not checked. When scores are ranked, higher is better,
 * the lower index wins a tie, -0 equals +0, and NaN counts as -inf. There are fewer than 2^31 experts and
 * groups. */
#ifndef TEGULA_MOE_H
#define TEGULA_MOE_H

#include "tegula/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* tgl_moe_topk_gate() - the num_topk best experts of every token, best first
 *   scores    in   f32          [num_tokens, num_experts]   rows may be strided
 *   topk_idx  out  i64 or i32   [num_tokens, num_topk]      packed; 0 <= num_topk <= num_experts
 * All indices of a row are distinct, even if scores are -inf or NaN. Exact: CPU and CUDA agree bit for
 * bit. Since 0.1. */
TGL_API tgl_status tgl_moe_topk_gate(const DLTensor *scores, DLTensor *topk_idx, tgl_stream stream);

/* tgl_moe_topk_sum_and_topk_group_idx() - the best groups of experts of every token, best first; a group's
 * score is the sum of its num_topk_sum best scores, added in descending order
 *   scores     in   f32          [num_tokens, num_groups, experts_per_group]   experts packed, else strided
 *   group_idx  out  i64 or i32   [num_tokens, num_topk_groups]                 packed; at most num_groups
 * 1 <= num_topk_sum <= experts_per_group. Exact. Since 0.1. */
TGL_API tgl_status tgl_moe_topk_sum_and_topk_group_idx(const DLTensor *scores, DLTensor *group_idx,
                                                       int64_t num_topk_sum, tgl_stream stream);

/* tgl_moe_mask_indices_by_tp() - keeps the experts of tensor-parallel rank tp_rank, and renumbers them as if
 * there were no others
 *   indices  in   i64 or i32   [num_tokens, num_topk]   rows may be strided
 *   out      out  indices'     [num_tokens, num_topk]   packed; may be indices itself
 * With g = num_experts / num_ep_ranks, rounded down, and q = v / g: out = -1 if v < 0 or
 * q % num_tp_ranks != tp_rank, else q / num_tp_ranks * g + v % g. Exact. Since 0.1. */
typedef struct tgl_moe_mask_indices_by_tp_params {
    int64_t num_experts;  /* over all ranks; at least num_ep_ranks, has no default */
    int64_t num_ep_ranks; /* 0: 1 */
    int64_t num_tp_ranks; /* 0: 1 */
    int64_t tp_rank;      /* 0 .. num_tp_ranks - 1 */
    uint64_t reserved[8]; /* zero */
} tgl_moe_mask_indices_by_tp_params;
TGL_API tgl_status tgl_moe_mask_indices_by_tp(const DLTensor *indices, DLTensor *out,
                                              const tgl_moe_mask_indices_by_tp_params *params, tgl_stream stream);

/* tgl_moe_normalize_weight() - every row divided by its sum
 *   topk_weights        in   f32   [num_tokens, num_topk]   rows may be strided
 *   denominator         out  f32   [num_tokens]             packed
 *   normalized_weights  out  f32   [num_tokens, num_topk]   packed; may be topk_weights itself
 * denominator = ((1e-20f + w[0]) + w[1]) + ..., in this order, in f32; normalized = w / denominator. A
 * NaN has all bits set but its sign. Exact. Since 0.1. */
TGL_API tgl_status tgl_moe_normalize_weight(const DLTensor *topk_weights, DLTensor *denominator,
                                            DLTensor *normalized_weights, tgl_stream stream);

/* tgl_moe_inplace_unique_group_indices() - keeps the first occurrence of every group in a row; later ones
 * become -1
 *   group_indices  inout  i64 or i32   [num_tokens, num_topk]   rows may be strided, but not overlap
 * Negative values are not changed. Values should be below num_groups; larger ones are compared like any
 * other. Only changed elements are written. Exact. Since 0.1. */
TGL_API tgl_status tgl_moe_inplace_unique_group_indices(DLTensor *group_indices, int64_t num_groups, tgl_stream stream);

/* ---- gates: from logits to experts and weights ---- */

/* How a logit x becomes a score, in f32. */
typedef enum tgl_moe_scoring {
    TGL_MOE_SIGMOID = 0,      /* 1 / (1 + exp(-x)) */
    TGL_MOE_SQRTSOFTPLUS = 1, /* sqrt(x > 20 ? x : log1p(exp(x))) */
    TGL_MOE_SOFTMAX = 2,      /* exp(x - m) / sum of exp(x - m) over all experts, m = max x */
    TGL_MOE_IDENTITY = 3      /* x */
} tgl_moe_scoring;

/* Parameters of the gates. */
typedef struct tgl_moe_gate_params {
    tgl_moe_scoring scoring;
    int64_t num_groups;         /* experts are chosen from the best num_topk_groups of num_groups groups; */
    int64_t num_topk_groups;    /* equal, or both 0: from all experts. 0 for hash_gate */
    int64_t num_shared_experts; /* slots appended to each token: experts num_experts, num_experts + 1, ... */
    bool has_routed_scaling_factor;
    float routed_scaling_factor; /* multiplies the weights of chosen experts; 1 if has_... is false */
    bool has_shared_weight;
    float shared_weight;  /* the weight of a shared slot; 1 if has_... is false */
    bool no_renormalize;  /* do not divide scores by their sum */
    int64_t ep_rank;      /* >= 0; shifts the choice of a replica, see to_physical_map */
    int64_t num_ep_ranks; /* 0: 1 */
    int64_t num_tp_ranks; /* 0: 1 */
    int64_t tp_rank;      /* 0 .. num_tp_ranks - 1 */
    uint64_t reserved[8]; /* zero */
} tgl_moe_gate_params;

/* tgl_moe_top2_sum_gate() - the experts of every token and their weights
 *   logits             in     f32          [num_tokens, num_experts]         rows may be strided
 *   bias               in     f32          [num_experts]                     packed; NULL: none
 *   mask               in     bool         [num_tokens]                      packed; NULL: all true
 *   fix_routing_mask   in     bool         [num_tokens]                      packed; NULL: all false
 *   to_physical_map    in     i32          [num_experts + shared, replicas]  packed; NULL: none
 *   logical_count      in     i32          [num_experts + shared]            packed; given with the map
 *   unmapped_topk_idx  inout  topk_idx's   [num_tokens, num_topk]            rows may be strided; NULL: none
 *   topk_idx           out    i64 or i32   [num_tokens, num_topk + shared]   packed
 *   topk_weights       out    f32          [num_tokens, num_topk + shared]   packed
 * A token:
 *   mask false          indices -1 (unmapped_topk_idx too), weights 0
 *   score s, key b      b = s + bias; for softmax b = logit + bias. A NaN logit has score 0 and key -inf.
 *                       A NaN score (softmax of a row with +inf) counts as 0
 *   groups              chosen as by topk_sum_and_topk_group_idx, by the sum of the min(2, size) best keys
 *   experts             the num_topk best keys of these groups, best first; they are written to
 *                       unmapped_topk_idx. If fix_routing_mask is true, instead those in unmapped_topk_idx,
 *                       which is not changed (an index out of range: -1, weight 0, not summed)
 *   weights             s / d * routed_scaling_factor, d = 1e-20f + s[0] + s[1] + ..., in this order; shared
 *                       slots have shared_weight
 *   physical            index = to_physical_map[e][(ep_rank + t * 23333) % logical_count[e]] for expert e of
 *                       token t, in 64 bits; counts are clamped to 1 .. replicas
 *   tensor parallel     as mask_indices_by_tp, of num_experts + replicas - 1 experts; weights stay
 * num_topk is the number of columns of topk_idx without the shared slots, at most the experts of
 * num_topk_groups groups. num_experts is a multiple of num_groups. Shared experts need a map with more
 * replicas than there are shared experts. fix_routing_mask needs unmapped_topk_idx. Exact for identity;
 * otherwise indices depend on the last bits of exp and log1p only if keys are nearly equal. Since 0.1. */
TGL_API tgl_status tgl_moe_top2_sum_gate(const DLTensor *logits, const DLTensor *bias, const DLTensor *mask,
                                         const DLTensor *fix_routing_mask, const DLTensor *to_physical_map,
                                         const DLTensor *logical_count, DLTensor *unmapped_topk_idx, DLTensor *topk_idx,
                                         DLTensor *topk_weights, const tgl_moe_gate_params *params, tgl_stream stream);

/* tgl_moe_hash_gate() - experts by a table of token ids, weights by score
 *   logits             in   f32          [num_tokens, num_experts]         rows may be strided
 *   input_ids          in   i64 or i32   [num_tokens]                      packed
 *   tid2eid            in   i64 or i32   [vocabulary, num_topk]            packed
 *   mask               in   bool         [num_tokens]                      packed; NULL: all true
 *   to_physical_map    in   i32          [num_experts + shared, replicas]  packed; NULL: none
 *   logical_count      in   i32          [num_experts + shared]            packed; given with the map
 *   unmapped_topk_idx  out  topk_idx's   [num_tokens, num_topk]            rows may be strided; NULL: none
 *   topk_idx           out  i64 or i32   [num_tokens, num_topk + shared]   packed
 *   topk_weights       out  f32          [num_tokens, num_topk + shared]   packed
 * As top2_sum_gate with every token's experts fixed to tid2eid[input_ids[t]]. unmapped_topk_idx gets the
 * table's entries, -1 for an entry that its dtype cannot hold. A token whose id is not in the table counts
 * as masked. Since 0.1. */
TGL_API tgl_status tgl_moe_hash_gate(const DLTensor *logits, const DLTensor *input_ids, const DLTensor *tid2eid,
                                     const DLTensor *mask, const DLTensor *to_physical_map,
                                     const DLTensor *logical_count, DLTensor *unmapped_topk_idx, DLTensor *topk_idx,
                                     DLTensor *topk_weights, const tgl_moe_gate_params *params, tgl_stream stream);

/* ---- counts ----
 * On CUDA these two need a workspace (core.h); on the CPU none, so the size is 0. */

/* tgl_moe_group_count() - how often each group occurs
 *   group_idx  in   i64 or i32   [num_tokens, num_topk]   rows may be strided
 *   counts     out  i32          [num_groups]             packed
 * Exact while every count is below 2^31; no more than 2^48 indices. Since 0.1. */
TGL_API tgl_status tgl_moe_group_count(const DLTensor *group_idx, DLTensor *counts, void *workspace,
                                       size_t workspace_bytes, tgl_stream stream);
TGL_API size_t tgl_moe_group_count_workspace_size(const DLTensor *group_idx, const DLTensor *counts);

/* tgl_moe_aux_fi() - each expert's share of the tokens, for the load-balancing loss
 *   topk_idx  in   i64 or i32   [num_tokens, num_topk]   rows may be strided
 *   fi        out  f32          [num_experts]            packed
 * fi = (float)(count * num_experts) / (float)(num_tokens * num_aux_topk), products in 64 bits; 0 if there are
 * no tokens. num_aux_topk >= 1. Exact. Since 0.1. */
TGL_API tgl_status tgl_moe_aux_fi(const DLTensor *topk_idx, DLTensor *fi, int64_t num_aux_topk, void *workspace,
                                  size_t workspace_bytes, tgl_stream stream);
TGL_API size_t tgl_moe_aux_fi_workspace_size(const DLTensor *topk_idx, const DLTensor *fi);

/* ---- from token-major to expert-major and back ---- */

/* The mapping between pairs (token t, slot k) and positions of a buffer that is sorted by expert: each
 * expert has a segment of its pairs, in ascending order of t * num_topk + k, padded to a multiple of
 * `alignment`. All i32, packed.
 *   pos_to_expert          [num_positions]          the expert whose pair is at a position; -1: padding
 *   pos_to_token           [num_positions]          its token; or -1
 *   pos_to_token_topk      [num_positions]          t * num_topk + k; or -1
 *   token_topk_to_pos      [num_tokens, num_topk]   the position of a pair; -1: empty slot
 *   expert_start           [num_experts]            where an expert's segment starts
 *   expert_end             [num_experts]            where it ends, padding included
 *   num_tokens_per_expert  [num_experts]            its length, padding included
 *   count                  [num_experts]            its pairs; NULL: not wanted
 *   psum_end               [num_experts]            expert_start + count; NULL: not wanted
 *   num_tokens_per_expert_host   [num_experts]      the lengths again, in memory that the host can read once
 *                          the stream is done: on CUDA page-locked, on the CPU any; NULL: not wanted
 * num_positions should be at least the sum of all lengths; num_tokens * num_topk + (alignment - 1) *
 * num_experts is always enough. If it is less, nothing past it is written, pairs that would lie there get
 * position -1, and the per-expert arrays still describe the whole layout: expert_end[num_experts - 1] >
 * num_positions. num_positions is below 2^31. */
typedef struct tgl_moe_mapping {
    DLTensor *pos_to_expert, *pos_to_token, *pos_to_token_topk;
    DLTensor *token_topk_to_pos;
    DLTensor *expert_start, *expert_end, *num_tokens_per_expert;
    DLTensor *count, *psum_end;
    DLTensor *num_tokens_per_expert_host;
    uint64_t reserved[8]; /* zero */
} tgl_moe_mapping;

/* tgl_moe_get_fused_mapping() - the mapping of a choice of experts
 *   topk_idx  in   i64 or i32   [num_tokens, num_topk]   rows may be strided
 * alignment >= 1; num_tokens * num_topk + (alignment - 1) * num_experts is below 2^31. Exact. Since 0.1. */
TGL_API tgl_status tgl_moe_get_fused_mapping(const DLTensor *topk_idx, const tgl_moe_mapping *mapping,
                                             int64_t alignment, void *workspace, size_t workspace_bytes,
                                             tgl_stream stream);
TGL_API size_t tgl_moe_get_fused_mapping_workspace_size(const DLTensor *topk_idx, const tgl_moe_mapping *mapping);

/* tgl_moe_route() - top2_sum_gate, then get_fused_mapping of its topk_idx, with the same bits and the same
 * arguments. One launch for up to 256 tokens, if a token fits in a warp (32 slots; 1024 experts, fewer if
 * groups do not fill the lanes evenly) and the mapping has at most 8192 experts; otherwise two. Since 0.1. */
TGL_API tgl_status tgl_moe_route(const DLTensor *logits, const DLTensor *bias, const DLTensor *mask,
                                 const DLTensor *fix_routing_mask, const DLTensor *to_physical_map,
                                 const DLTensor *logical_count, DLTensor *unmapped_topk_idx, DLTensor *topk_idx,
                                 DLTensor *topk_weights, const tgl_moe_mapping *mapping, int64_t alignment,
                                 const tgl_moe_gate_params *params, void *workspace, size_t workspace_bytes,
                                 tgl_stream stream);
TGL_API size_t tgl_moe_route_workspace_size(const DLTensor *logits, const DLTensor *topk_idx,
                                            const tgl_moe_mapping *mapping);

/* tgl_moe_expand_to_fused() - copies every token's row to its positions, and zeroes the padding
 *   x                  in   any, 1 to 16 bytes   [num_tokens, hidden]      rows may be strided
 *   token_topk_to_pos  in   i32                  [num_tokens, num_topk]    packed
 *   pos_to_expert      in   i32                  [num_positions]           packed
 *   out                out  x's                  [num_positions, hidden]   packed
 * out[p] = 0 if pos_to_expert[p] < 0, even if a token is sent there; otherwise x[t] with
 * token_topk_to_pos[t][k] = p. Other rows are not written. No position may occur twice; positions past the
 * last are ignored. Bits are copied. Since 0.1. */
TGL_API tgl_status tgl_moe_expand_to_fused(const DLTensor *x, const DLTensor *token_topk_to_pos,
                                           const DLTensor *pos_to_expert, DLTensor *out, tgl_stream stream);

/* tgl_moe_expand_to_fused_with_sf() - the same for quantised rows and their scale factors
 *   x       in   any, 1 to 16 bytes   [num_tokens, hidden]         rows may be strided
 *   x_sf    in   f32 or i32           [num_tokens, num_sf]         any strides
 *   token_topk_to_pos, pos_to_expert                               as above
 *   out     out  x's                  [num_positions, hidden]      packed
 *   out_sf  out  x_sf's               [num_positions, num_sf]      packed, or column-major: strides (1,
 *                                                                  >= num_positions)
 * An i32 is four packed UE8M0 factors, which are copied. num_sf = ceil(hidden / num_per_channels); for i32
 * a quarter of that, rounded up. hidden counts pairs of values for e2m1x2, and may do so for i8 and u8:
 * num_sf is then computed from 2 * hidden. Gaps between the columns of out_sf are not written. Since 0.1. */
TGL_API tgl_status tgl_moe_expand_to_fused_with_sf(const DLTensor *x, const DLTensor *x_sf,
                                                   const DLTensor *token_topk_to_pos, const DLTensor *pos_to_expert,
                                                   DLTensor *out, DLTensor *out_sf, int64_t num_per_channels,
                                                   tgl_stream stream);

/* tgl_moe_reduce_fused() - every token's rows, weighted and added
 *   x                  in   f32, bf16, f16 or e4m3   [num_positions, hidden]   rows may be strided
 *   x_sf               in   f32                      [num_positions]           packed; NULL: all 1
 *   topk_weights       in   f32                      [num_tokens, num_topk]    rows may be strided; NULL: 1
 *   token_topk_to_pos  in   i32                      [num_tokens, num_topk]    packed
 *   sf                 in   f32                      [1]                       NULL: 1
 *   out                out  f32, bf16, f16 or e4m3   [num_tokens, hidden]      rows may be strided
 * From 0, for k = 0, 1, ... with p = token_topk_to_pos[t][k] in 0 .. num_positions - 1:
 * acc = fma(x[p], topk_weights[t][k] * x_sf[p], acc); then out = acc * sf, rounded to nearest even, e4m3
 * saturating at 448. A NULL sf or x_sf is not multiplied. A NaN has all bits set but its sign.
 * Exact. Since 0.1. */
TGL_API tgl_status tgl_moe_reduce_fused(const DLTensor *x, const DLTensor *x_sf, const DLTensor *topk_weights,
                                        const DLTensor *token_topk_to_pos, const DLTensor *sf, DLTensor *out,
                                        tgl_stream stream);

#ifdef __cplusplus
}
#endif
#endif
