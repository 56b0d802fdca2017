/* SPDX-License-Identifier: MIT
 * moe.h - routing of tokens to experts: choosing experts, their weights, bookkeeping, moving tokens to their
 * experts and back. docs/moe.md has formulas, examples and speed.
 *
 * Experts and groups are numbered from 0; a negative index is an empty slot, and so is one past the last
 * expert for ops that look experts up or count them. With TEGULA_LOG=call an op on the CPU says how many of
 * the indices it takes are past the last; on CUDA nothing is said of them. Where scores are ranked, higher is
 * better, the lower index wins a tie, -0 equals +0, and NaN counts as -inf. Experts and groups are fewer than
 * 2^31. */
#ifndef TEGULA_MOE_H
#define TEGULA_MOE_H

#include "tegula/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* tgl_moe_topk_gate() - the num_topk best experts of every token, best first
 *   scores    in   f32          [num_tokens, num_experts]   rows may be strided
 *   topk_idx  out  i64 or i32   [num_tokens, num_topk]      packed; 0 <= num_topk <= num_experts
 * All indices of a row are distinct, also where scores are -inf or NaN. Exact: CPU and CUDA agree bit for
 * bit. Since 0.1. */
TGL_API tgl_status tgl_moe_topk_gate(const DLTensor *scores, DLTensor *topk_idx, tgl_stream stream);

/* tgl_moe_topk_sum_and_topk_group_idx() - the best groups of experts of every token, best first; a group is
 * worth the sum of its num_topk_sum best scores, added in descending order
 *   scores     in   f32          [num_tokens, num_groups, experts_per_group]   experts packed, else strided
 *   group_idx  out  i64 or i32   [num_tokens, num_topk_groups]                 packed; at most num_groups
 * 1 <= num_topk_sum <= experts_per_group. Exact. Since 0.1. */
TGL_API tgl_status tgl_moe_topk_sum_and_topk_group_idx(const DLTensor *scores, DLTensor *group_idx,
                                                       int64_t num_topk_sum, tgl_stream stream);

/* tgl_moe_mask_indices_by_tp() - keeps the experts whose rank belongs to tensor-parallel rank tp_rank, and
 * renumbers them as if only those ranks existed
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
                                              const tgl_moe_mask_indices_by_tp_params *params,
                                              tgl_stream stream);

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
 * Negative values stay as they are. num_groups says which values may come, 0 .. num_groups - 1; larger ones
 * are compared like any other. Only changed elements are written. Exact. Since 0.1. */
TGL_API tgl_status tgl_moe_inplace_unique_group_indices(DLTensor *group_indices, int64_t num_groups,
                                                        tgl_stream stream);

/* ---- gates: from logits to experts and weights ---- */

/* How a logit x becomes a score, in f32. */
typedef enum tgl_moe_scoring {
    TGL_MOE_SIGMOID = 0,      /* 1 / (1 + exp(-x)) */
    TGL_MOE_SQRTSOFTPLUS = 1, /* sqrt(x > 20 ? x : log1p(exp(x))) */
    TGL_MOE_SOFTMAX = 2,      /* exp(x - m) / sum of exp(x - m) over all experts, m the largest x */
    TGL_MOE_IDENTITY = 3      /* x */
} tgl_moe_scoring;

/* What the gates share. */
typedef struct tgl_moe_gate_params {
    tgl_moe_scoring scoring;
    int64_t num_groups;          /* groups of experts, of which only the best num_topk_groups are left to */
    int64_t num_topk_groups;     /* choose from; equal, or both 0: all experts. 0 for hash_gate */
    int64_t num_shared_experts;  /* slots appended to every token's, of experts num_experts, + 1, ... */
    bool has_routed_scaling_factor;
    float routed_scaling_factor; /* of the weights of chosen experts; 1 unless it is had */
    bool has_shared_weight;
    float shared_weight;         /* the weight of a shared slot; 1 unless it is had */
    bool no_renormalize;         /* weights are the scores, not divided by their sum */
    int64_t ep_rank;             /* >= 0; shifts the choice of a replica, see to_physical_map */
    int64_t num_ep_ranks;        /* 0: 1 */
    int64_t num_tp_ranks;        /* 0: 1 */
    int64_t tp_rank;             /* 0 .. num_tp_ranks - 1 */
    uint64_t reserved[8];        /* zero */
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
 *   score s, key b      b = s + bias, but for softmax b = logit + bias; a NaN logit has score 0 and key -inf,
 *                       and a score that comes out as NaN (softmax of a row with +inf) counts as 0
 *   groups              those that topk_sum_and_topk_group_idx chooses by the sum of min(2, size) best keys
 *   experts             the num_topk best keys of these groups, best first; or, where fix_routing_mask is
 *                       true, those in unmapped_topk_idx (one out of range: index -1, weight 0, not summed).
 *                       They are written to unmapped_topk_idx, where fixed ones stay as they are
 *   weights             s / d * routed_scaling_factor, d = 1e-20f + s[0] + s[1] + ..., in this order; shared
 *                       slots have shared_weight
 *   physical            index = to_physical_map[e][(ep_rank + t * 23333) % logical_count[e]] for expert e of
 *                       token t, in 64 bits; counts are held to 1 .. replicas
 *   tensor parallel     as mask_indices_by_tp, of num_experts + replicas - 1 experts; weights stay
 * num_topk is what topk_idx has beyond the shared slots, at most the experts of num_topk_groups groups.
 * num_experts is a multiple of num_groups. Shared experts need a map with more replicas than there are shared
 * experts. unmapped_topk_idx is needed where fix_routing_mask is given. Exact for identity; else indices
 * depend on the last bits of exp and log1p only where keys are nearly equal. Since 0.1. */
TGL_API tgl_status tgl_moe_top2_sum_gate(const DLTensor *logits, const DLTensor *bias, const DLTensor *mask,
                                         const DLTensor *fix_routing_mask, const DLTensor *to_physical_map,
                                         const DLTensor *logical_count, DLTensor *unmapped_topk_idx,
                                         DLTensor *topk_idx, DLTensor *topk_weights,
                                         const tgl_moe_gate_params *params, tgl_stream stream);

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
 * As top2_sum_gate where every token's experts are fixed to tid2eid[input_ids[t]]; unmapped_topk_idx gets the
 * table's entries, -1 for one that its dtype cannot hold. A token whose id is not in the table counts as
 * masked. Since 0.1. */
TGL_API tgl_status tgl_moe_hash_gate(const DLTensor *logits, const DLTensor *input_ids,
                                     const DLTensor *tid2eid, const DLTensor *mask,
                                     const DLTensor *to_physical_map, const DLTensor *logical_count,
                                     DLTensor *unmapped_topk_idx, DLTensor *topk_idx, DLTensor *topk_weights,
                                     const tgl_moe_gate_params *params, tgl_stream stream);

/* ---- counts ----
 * On CUDA these two want a workspace (core.h); on the CPU none, and its size is 0. */

/* tgl_moe_group_count() - how often each group occurs
 *   group_idx  in   i64 or i32   [num_tokens, num_topk]   rows may be strided
 *   counts     out  i32          [num_groups]             packed
 * Exact while every count is below 2^31; no more than 2^48 indices. Since 0.1. */
TGL_API tgl_status tgl_moe_group_count(const DLTensor *group_idx, DLTensor *counts, void *workspace,
                                       size_t workspace_bytes, tgl_stream stream);
TGL_API size_t tgl_moe_group_count_workspace_size(const DLTensor *group_idx, const DLTensor *counts);

/* tgl_moe_aux_fi() - each expert's share of the tokens, for the auxiliary loss of load balance
 *   topk_idx  in   i64 or i32   [num_tokens, num_topk]   rows may be strided
 *   fi        out  f32          [num_experts]            packed
 * fi = (float)(count * num_experts) / (float)(num_tokens * num_aux_topk), products in 64 bits; 0 where there
 * are no tokens. num_aux_topk >= 1. Exact. Since 0.1. */
TGL_API tgl_status tgl_moe_aux_fi(const DLTensor *topk_idx, DLTensor *fi, int64_t num_aux_topk,
                                  void *workspace, size_t workspace_bytes, tgl_stream stream);
TGL_API size_t tgl_moe_aux_fi_workspace_size(const DLTensor *topk_idx, const DLTensor *fi);

/* ---- from token-major to expert-major and back ---- */

/* The mapping between pairs (token t, slot k) and positions of a buffer in which the pairs of each expert lie
 * together, in ascending order of t * num_topk + k, experts in order, each one's segment padded to a multiple
 * of `alignment`. All i32, packed.
 *   pos_to_expert          [num_positions]          the expert whose pair is at a position; -1: none is
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
 * num_positions is at least the sum of all lengths, for which num_tokens * num_topk + (alignment - 1) *
 * num_experts is enough. Where it is less, nothing past it is written and pairs that would lie there get
 * position -1, while the per-expert arrays tell the whole layout: expert_end[num_experts - 1] is above
 * num_positions. Positions are fewer than 2^31. */
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
TGL_API size_t tgl_moe_get_fused_mapping_workspace_size(const DLTensor *topk_idx,
                                                        const tgl_moe_mapping *mapping);

/* tgl_moe_route() - top2_sum_gate and get_fused_mapping of its topk_idx, in one launch up to 256 tokens where
 * a warp can hold what a token has (32 slots; 1024 experts, fewer where groups do not fill its lanes evenly)
 * and the mapping has up to 8192 experts; beyond that, in two. The same bits as the two ops. Tensors and
 * params are theirs. Since 0.1. */
TGL_API tgl_status tgl_moe_route(const DLTensor *logits, const DLTensor *bias, const DLTensor *mask,
                                 const DLTensor *fix_routing_mask, const DLTensor *to_physical_map,
                                 const DLTensor *logical_count, DLTensor *unmapped_topk_idx,
                                 DLTensor *topk_idx, DLTensor *topk_weights, const tgl_moe_mapping *mapping,
                                 int64_t alignment, const tgl_moe_gate_params *params, void *workspace,
                                 size_t workspace_bytes, tgl_stream stream);
TGL_API size_t tgl_moe_route_workspace_size(const DLTensor *logits, const DLTensor *topk_idx,
                                            const tgl_moe_mapping *mapping);

/* tgl_moe_expand_to_fused() - copies every token's row to its positions, and zeroes the padding
 *   x                  in   any, 1 to 16 bytes   [num_tokens, hidden]      rows may be strided
 *   token_topk_to_pos  in   i32                  [num_tokens, num_topk]    packed
 *   pos_to_expert      in   i32                  [num_positions]           packed
 *   out                out  x's                  [num_positions, hidden]   packed
 * out[p] = 0 where pos_to_expert[p] < 0, even if a token is sent there; else x[t] where
 * token_topk_to_pos[t][k] = p; other rows are left as they are. No position occurs twice; those past the last
 * are passed over. Bits are copied. Since 0.1. */
TGL_API tgl_status tgl_moe_expand_to_fused(const DLTensor *x, const DLTensor *token_topk_to_pos,
                                           const DLTensor *pos_to_expert, DLTensor *out, tgl_stream stream);

/* tgl_moe_expand_to_fused_with_sf() - the same for quantised rows and their scale factors
 *   x       in   any, 1 to 16 bytes   [num_tokens, hidden]         rows may be strided
 *   x_sf    in   f32 or i32           [num_tokens, num_sf]         any strides
 *   token_topk_to_pos, pos_to_expert                               as above
 *   out     out  x's                  [num_positions, hidden]      packed
 *   out_sf  out  x_sf's               [num_positions, num_sf]      packed, or column-major: strides (1, at
 *                                                                  least num_positions)
 * i32 is four packed UE8M0 factors, copied as they are. num_sf = ceil(hidden / num_per_channels), for i32 a
 * quarter of it, rounded up; hidden counts pairs of values for e2m1x2, and may do so for i8 and u8: then
 * num_sf follows 2 * hidden. Memory between the columns of out_sf is not written. Since 0.1. */
TGL_API tgl_status tgl_moe_expand_to_fused_with_sf(const DLTensor *x, const DLTensor *x_sf,
                                                   const DLTensor *token_topk_to_pos,
                                                   const DLTensor *pos_to_expert, DLTensor *out,
                                                   DLTensor *out_sf, int64_t num_per_channels,
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
 * saturating at 448. Where sf or x_sf is NULL nothing is multiplied. A NaN has all bits set but its sign.
 * Exact. Since 0.1. */
TGL_API tgl_status tgl_moe_reduce_fused(const DLTensor *x, const DLTensor *x_sf, const DLTensor *topk_weights,
                                        const DLTensor *token_topk_to_pos, const DLTensor *sf, DLTensor *out,
                                        tgl_stream stream);

#ifdef __cplusplus
}
#endif
#endif
