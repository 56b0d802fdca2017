/* SPDX-License-Identifier: MIT
 * moe.h - routing of tokens to experts: choosing experts, their weights, bookkeeping. docs/moe.md has
 * formulas, examples and speed.
 *
 * Experts and groups are numbered from 0; a negative index is an empty slot. Where scores are ranked, higher
 * is better, the lower index wins a tie, -0 equals +0, and NaN counts as -inf. Experts and groups are fewer
 * than 2^31. */
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
 * denominator = ((1e-20f + w[0]) + w[1]) + ..., in this order, in f32; normalized = w / denominator. Exact.
 * Since 0.1. */
TGL_API tgl_status tgl_moe_normalize_weight(const DLTensor *topk_weights, DLTensor *denominator,
                                            DLTensor *normalized_weights, tgl_stream stream);

/* tgl_moe_inplace_unique_group_indices() - keeps the first occurrence of every group in a row; later ones
 * become -1
 *   group_indices  inout  i64 or i32   [num_tokens, num_topk]   rows may be strided, but not overlap
 * Negative values stay as they are; num_groups says which values may come (0 .. num_groups - 1) and limits
 * nothing else. Only changed elements are written. Exact. Since 0.1. */
TGL_API tgl_status tgl_moe_inplace_unique_group_indices(DLTensor *group_indices, int64_t num_groups,
                                                        tgl_stream stream);

#ifdef __cplusplus
}
#endif
#endif
