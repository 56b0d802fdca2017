/* SPDX-License-Identifier: MIT
 * rows.c - every op, as Python sees it: a row of text and a thunk into the C API.
 *
 *   x[T, H]                  a tensor; names its dimensions
 *   x[T, H]?                 an optional one: None when absent; its default, unless a parameter without one
 *                            follows
 *   x[T, H]!                 one that the op changes in place; ?! if there is one
 *   group: int = 128         also float and bool; `?` after the kind allows None
 *   fmt: {e4m3|e5m2} = e4m3  one of some words
 *   -> fmt[T, H], f32[T, H / group; 1, T / 4 * 4 if col_major]
 *                            the outputs: dtype (a word below, a tensor's, or what a word argument says),
 * sizes and, after `;`, strides where they are not packed (or only `if` a bool argument is true). Sizes are
 * sums of products of dimension names, int and bool arguments and numbers; `/` rounds up; a product is taken
 * from left to right.
 *   -> None                  no output: the op works in place
 *
 * Every function with outputs also takes out=, a tensor or a tuple of them. Thunks take arguments in the
 * row's order. */
#include "glue.h"
#include "tegula/moe.h"
#include "tegula/transpose.h"

/* doc: thunk */
static tgl_status call_transpose(const frame *f)
{
    return tgl_transpose(f->arg[0].tensor, f->out[0], f->stream);
}
/* end */
static tgl_status call_batched_transpose(const frame *f)
{
    return tgl_batched_transpose(f->arg[0].tensor, f->out[0], f->stream);
}

static tgl_status call_topk_gate(const frame *f)
{
    return tgl_moe_topk_gate(f->arg[0].tensor, f->out[0], f->stream);
}
static tgl_status call_topk_sum_and_topk_group_idx(const frame *f)
{
    return tgl_moe_topk_sum_and_topk_group_idx(f->arg[0].tensor, f->out[0], f->arg[1].i, f->stream);
}
static tgl_status call_mask_indices_by_tp(const frame *f)
{
    const tgl_moe_mask_indices_by_tp_params params = { .num_experts = f->arg[1].i,
                                                       .num_ep_ranks = f->arg[2].i,
                                                       .num_tp_ranks = f->arg[4].i,
                                                       .tp_rank = f->arg[3].i };
    return tgl_moe_mask_indices_by_tp(f->arg[0].tensor, f->out[0], &params, f->stream);
}
static tgl_status call_normalize_weight(const frame *f)
{
    return tgl_moe_normalize_weight(f->arg[0].tensor, f->out[0], f->out[1], f->stream);
}
static tgl_status call_inplace_unique_group_indices(const frame *f)
{
    DLTensor group_indices = *f->arg[0].tensor;
    return tgl_moe_inplace_unique_group_indices(&group_indices, f->arg[1].i, f->stream);
}

/* What top2_sum_gate and route have alike: their first 13 arguments. */
static tgl_moe_gate_params gate_params(const value *arg)
{
    return (tgl_moe_gate_params){
        .num_topk_groups = arg[3].i, .num_groups = arg[4].i,
        .num_shared_experts = arg[5].i ? arg[6].i : 0,
        .has_routed_scaling_factor = true, .routed_scaling_factor = (float)arg[7].f,
        .ep_rank = arg[8].i, .num_ep_ranks = arg[9].i, .tp_rank = arg[10].i, .num_tp_ranks = arg[11].i,
        .scoring = (tgl_moe_scoring)arg[12].i,
    };
}
/* An optional tensor that is written to. */
static DLTensor *written(const value *v, DLTensor *copy)
{
    if (!v->tensor) return NULL;
    *copy = *v->tensor;
    return copy;
}
/* The outputs of a mapping, in the order of its struct; the last two where the row has them. */
static tgl_moe_mapping mapping(DLTensor *const *out, bool has_psum)
{
    return (tgl_moe_mapping){
        .pos_to_expert = out[0], .pos_to_token = out[1], .pos_to_token_topk = out[2],
        .token_topk_to_pos = out[3],
        .expert_start = out[4], .expert_end = out[5], .num_tokens_per_expert = out[6],
        .count = has_psum ? out[7] : NULL, .psum_end = has_psum ? out[8] : NULL,
    };
}

static tgl_status call_top2_sum_gate(const frame *f)
{
    const value *a = f->arg;
    const tgl_moe_gate_params params = gate_params(a);
    DLTensor unmapped;
    return tgl_moe_top2_sum_gate(a[0].tensor, a[1].tensor, a[13].tensor, a[14].tensor, a[15].tensor,
                                 a[16].tensor, written(&a[17], &unmapped), f->out[0], f->out[1], &params,
                                 f->stream);
}
static tgl_status call_hash_gate(const frame *f)
{
    const value *a = f->arg;
    const tgl_moe_gate_params params = {
        .has_routed_scaling_factor = true, .routed_scaling_factor = (float)a[3].f,
        .scoring = (tgl_moe_scoring)a[4].i, .no_renormalize = !a[5].i,
        .num_shared_experts = a[7].i ? a[8].i : 0,
        .ep_rank = a[9].i, .num_ep_ranks = a[10].i, .tp_rank = a[11].i, .num_tp_ranks = a[12].i,
        .has_shared_weight = true, .shared_weight = (float)a[16].f,
    };
    DLTensor unmapped;
    return tgl_moe_hash_gate(a[0].tensor, a[1].tensor, a[2].tensor, a[6].tensor, a[13].tensor, a[14].tensor,
                             written(&a[15], &unmapped), f->out[0], f->out[1], &params, f->stream);
}

static tgl_status call_group_count(const frame *f)
{
    return tgl_moe_group_count(f->arg[0].tensor, f->out[0], f->workspace, f->workspace_bytes, f->stream);
}
static size_t group_count_workspace(const frame *f)
{
    return tgl_moe_group_count_workspace_size(f->arg[0].tensor, f->out[0]);
}
static tgl_status call_aux_fi(const frame *f)
{
    return tgl_moe_aux_fi(f->arg[0].tensor, f->out[0], f->arg[2].i, f->workspace, f->workspace_bytes,
                          f->stream);
}
static size_t aux_fi_workspace(const frame *f)
{
    return tgl_moe_aux_fi_workspace_size(f->arg[0].tensor, f->out[0]);
}

static tgl_status map(const frame *f, bool has_psum)
{
    DLTensor host;
    tgl_moe_mapping m = mapping(f->out, has_psum);
    m.num_tokens_per_expert_host = written(&f->arg[4], &host);
    return tgl_moe_get_fused_mapping(f->arg[0].tensor, &m, f->arg[3].i, f->workspace, f->workspace_bytes,
                                     f->stream);
}
static size_t map_workspace(const frame *f)
{
    const tgl_moe_mapping m = mapping(f->out, false);
    return tgl_moe_get_fused_mapping_workspace_size(f->arg[0].tensor, &m);
}
static tgl_status call_get_fused_mapping(const frame *f) { return map(f, false); }
static tgl_status call_get_fused_mapping_with_psum(const frame *f) { return map(f, true); }

static tgl_status call_route(const frame *f)
{
    const value *a = f->arg;
    const tgl_moe_gate_params params = gate_params(a);
    const tgl_moe_mapping m = mapping(f->out + 2, false);
    DLTensor unmapped;
    return tgl_moe_route(a[0].tensor, a[1].tensor, a[16].tensor, a[17].tensor, a[18].tensor, a[19].tensor,
                         written(&a[20], &unmapped), f->out[0], f->out[1], &m, a[15].i, &params, f->workspace,
                         f->workspace_bytes, f->stream);
}
static size_t route_workspace(const frame *f)
{
    const tgl_moe_mapping m = mapping(f->out + 2, false);
    return tgl_moe_route_workspace_size(f->arg[0].tensor, f->out[0], &m);
}

static tgl_status call_expand_to_fused(const frame *f)
{
    return tgl_moe_expand_to_fused(f->arg[0].tensor, f->arg[1].tensor, f->arg[2].tensor, f->out[0],
                                   f->stream);
}
static tgl_status call_expand_to_fused_with_sf(const frame *f)
{
    const value *a = f->arg;
    return tgl_moe_expand_to_fused_with_sf(a[0].tensor, a[1].tensor, a[3].tensor, a[4].tensor, f->out[0],
                                           f->out[1], a[2].i, f->stream);
}
static tgl_status call_reduce_fused(const frame *f)
{
    const value *a = f->arg;
    return tgl_moe_reduce_fused(a[0].tensor, a[1].tensor, a[2].tensor, a[3].tensor, NULL, f->out[0],
                                f->stream);
}
static tgl_status call_reduce_fused_e4m3(const frame *f)
{
    const value *a = f->arg;
    return tgl_moe_reduce_fused(a[0].tensor, a[1].tensor, a[2].tensor, a[3].tensor, a[4].tensor, f->out[0],
                                f->stream);
}

op_row rows[] = {
    /* doc: row */
    { .module = "transpose",
      .text = "transpose(x[M, N]) -> x[N, M]",
      .doc =
          "out[j, i] = x[i, j], packed. Any dtype of 1, 2, 4, 8 or 16 bytes, any strides; bits are copied.",
      .call = call_transpose,
      .is_differentiable = true },
    /* end */
    { .module = "transpose",
      .text = "batched_transpose(x[B, M, N]) -> x[B, N, M]",
      .doc = "out[b, j, i] = x[b, i, j], packed, in one launch. Any dtype of 1, 2, 4, 8 or 16 bytes, any "
             "strides.",
      .call = call_batched_transpose,
      .is_differentiable = true },
    { .module = "moe",
      .text = "topk_gate(scores[T, E], num_topk: int) -> i64[T, num_topk]",
      .doc = "The num_topk best experts of every token, best first. The lower index wins a tie; NaN counts "
             "as -inf.",
      .call = call_topk_gate },
    { .module = "moe",
      .text = "topk_sum_and_topk_group_idx(scores[T, G, P], num_topk_sum: int, num_topk_groups: int) -> "
              "i64[T, num_topk_groups]",
      .doc = "The best groups of experts of every token, best first; a group is worth the sum of its "
             "num_topk_sum best scores.",
      .call = call_topk_sum_and_topk_group_idx },
    { .module = "moe",
      .text = "mask_indices_by_tp(indices[T, K], n: int, num_ep_ranks: int, tp_rank: int, num_tp_ranks: int) "
              "-> indices[T, K]",
      .doc = "Keeps the experts, of n on num_ep_ranks, whose rank belongs to tp_rank, renumbered; the others "
             "become -1.",
      .call = call_mask_indices_by_tp },
    { .module = "moe",
      .text = "normalize_weight(topk_weights[T, K]) -> f32[T], f32[T, K]",
      .doc = "(denominator, normalized_weights): 1e-20 plus a row's sum, and the row divided by it.",
      .call = call_normalize_weight },
    { .module = "moe",
      .text = "inplace_unique_group_indices(group_indices[T, K]!, num_groups: int) -> None",
      .doc = "Keeps the first occurrence of every group in a row; later ones become -1, in place.",
      .call = call_inplace_unique_group_indices },
    { .module = "moe",
      .text = "top2_sum_gate(logits[T, E], bias[E]?, num_topk: int, num_topk_groups: int, num_groups: int, "
              "use_shared_as_routed: bool, num_shared_experts: int, routed_scaling_factor: float, "
              "ep_rank: int, num_ep_ranks: int, tp_rank: int, num_tp_ranks: int, "
              "scoring_func: {sigmoid|sqrtsoftplus|softmax}, mask[T]?, fix_routing_mask[T]?, "
              "to_physical_map[L, R]?, logical_count[L]?, unmapped_topk_idx[T, K]?!) -> "
              "i64[T, num_topk + num_shared_experts * use_shared_as_routed], "
              "f32[T, num_topk + num_shared_experts * use_shared_as_routed]",
      .doc = "(topk_idx, topk_weights): the num_topk best experts of every token by score + bias, best "
             "first, and their normalised scores; then the shared experts, the physical map and the "
             "tensor-parallel mask. The chosen experts before the map are written to unmapped_topk_idx.",
      .call = call_top2_sum_gate },
    { .module = "moe",
      .text = "hash_gate(logits[T, E], input_ids[T], tid2eid[V, K], routed_scaling_factor: float, "
              "scoring_func: {sigmoid|sqrtsoftplus|softmax|identity} = sqrtsoftplus, "
              "renormalize: bool = True, mask[T]?, use_shared_as_routed: bool = False, "
              "num_shared_experts: int = 0, ep_rank: int = 0, num_ep_ranks: int = 1, tp_rank: int = 0, "
              "num_tp_ranks: int = 1, to_physical_map[L, R]?, logical_count[L]?, unmapped_topk_idx[T, K]?!, "
              "shared_weight: float = 1.0) -> "
              "i64[T, K + num_shared_experts * use_shared_as_routed], "
              "f32[T, K + num_shared_experts * use_shared_as_routed]",
      .doc = "(topk_idx, topk_weights): as top2_sum_gate, but the experts of a token are those that the "
             "table tid2eid has for its id.",
      .call = call_hash_gate },
    { .module = "moe",
      .text = "group_count(group_idx[T, K], num_groups: int) -> i32[num_groups]",
      .doc = "How often each group occurs. Indices that are no group are not counted.",
      .call = call_group_count,
      .workspace = group_count_workspace },
    { .module = "moe",
      .text = "aux_fi(topk_idx[T, K], num_experts: int, num_aux_topk: int) -> f32[num_experts]",
      .doc = "Each expert's share of the tokens: count * num_experts / (num_tokens * num_aux_topk).",
      .call = call_aux_fi,
      .workspace = aux_fi_workspace },
    { .module = "moe",
      .text = "get_fused_mapping(topk_idx[T, K], num_experts: int, num_expanded_tokens: int, alignment: int, "
              "num_tokens_per_expert_host[E]?!) -> i32[num_expanded_tokens], i32[num_expanded_tokens], "
              "i32[num_expanded_tokens], i32[T, K], i32[num_experts], i32[num_experts], i32[num_experts]",
      .doc = "tegula.moe.get_fused_mapping without its list. The lengths of the experts' segments are also "
             "written to num_tokens_per_expert_host, which for CUDA is pinned memory.",
      .call = call_get_fused_mapping,
      .workspace = map_workspace },
    { .module = "moe",
      .text = "get_fused_mapping_with_psum(topk_idx[T, K], num_experts: int, num_expanded_tokens: int, "
              "alignment: int, num_tokens_per_expert_host[E]?!) -> i32[num_expanded_tokens], "
              "i32[num_expanded_tokens], i32[num_expanded_tokens], i32[T, K], i32[num_experts], "
              "i32[num_experts], i32[num_experts], i32[num_experts], i32[num_experts]",
      .doc = "The same, then count and psum_end.",
      .call = call_get_fused_mapping_with_psum,
      .workspace = map_workspace },
    { .module = "moe",
      .text = "route(logits[T, E], bias[E]?, num_topk: int, num_topk_groups: int, num_groups: int, "
              "use_shared_as_routed: bool, num_shared_experts: int, routed_scaling_factor: float, "
              "ep_rank: int, num_ep_ranks: int, tp_rank: int, num_tp_ranks: int, "
              "scoring_func: {sigmoid|sqrtsoftplus|softmax}, num_experts: int, num_expanded_tokens: int, "
              "alignment: int, mask[T]?, fix_routing_mask[T]?, to_physical_map[L, R]?, logical_count[L]?, "
              "unmapped_topk_idx[T, K]?!) -> "
              "i64[T, num_topk + num_shared_experts * use_shared_as_routed], "
              "f32[T, num_topk + num_shared_experts * use_shared_as_routed], "
              "i32[num_expanded_tokens], i32[num_expanded_tokens], i32[num_expanded_tokens], "
              "i32[T, num_topk + num_shared_experts * use_shared_as_routed], "
              "i32[num_experts], i32[num_experts], i32[num_experts]",
      .doc = "(topk_idx, topk_weights) of top2_sum_gate, then the seven tensors of get_fused_mapping for "
             "them, for num_experts experts: in one launch for few tokens.",
      .call = call_route,
      .workspace = route_workspace },
    { .module = "moe",
      .text = "expand_to_fused(x[T, H], token_topk_to_pos[T, K], pos_to_expert[N]) -> x[N, H]",
      .doc = "Copies every token's row to its positions; rows of padding are zero.",
      .call = call_expand_to_fused },
    { .module = "moe",
      .text = "expand_to_fused_with_sf(x[T, H], x_sf[T, S], num_per_channels: int, token_topk_to_pos[T, K], "
              "pos_to_expert[N], use_tma_aligned_col_major_sf: bool = False) -> x[N, H], "
              "x_sf[N, S; 1, N / 4 * 4 if use_tma_aligned_col_major_sf]",
      .doc = "tegula.moe.expand_to_fused_with_sf with the pair as two arguments.",
      .call = call_expand_to_fused_with_sf },
    { .module = "moe",
      .text = "reduce_fused(x[N, H], x_sf[N]?, topk_weights[T, K]?, token_topk_to_pos[T, K]) -> x[T, H]",
      .doc = "tegula.moe.reduce_fused with the pair as two arguments.",
      .call = call_reduce_fused },
    { .module = "moe",
      .text = "reduce_fused_e4m3(x[N, H], x_sf[N]?, topk_weights[T, K]?, token_topk_to_pos[T, K], sf[One]?) "
              "-> e4m3[T, H]",
      .doc = "The same, times sf, in e4m3.",
      .call = call_reduce_fused_e4m3 },
};
const int num_rows = sizeof rows / sizeof rows[0];
