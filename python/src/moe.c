/* SPDX-License-Identifier: MIT
 * moe.c - tegula.moe: a row of text per op (grammar: parse.c), the ranges of its numbers, and a thunk into the C API.
 * In C sizes come from the outputs and 0 ranks mean 1; in Python both are arguments. */
#include "glue.h"
#include "row_args.h"
#include "moe/common/map_bound.h"
#include "tegula/moe.h"

/* ---- text that rows share ---- */

#define GATE                                                                              \
    "logits[T, E], bias[E]?, num_topk: int, num_topk_groups: int, num_groups: int, "      \
    "use_shared_as_routed: bool, num_shared_experts: int, routed_scaling_factor: float, " \
    "ep_rank: int, num_ep_ranks: int, tp_rank: int, num_tp_ranks: int, "                  \
    "scoring_func: {sigmoid|sqrtsoftplus|softmax}, "
#define GATE_TENSORS                                                              \
    "mask[T]?, fix_routing_mask[T]?, to_physical_map[L, R]?, logical_count[L]?, " \
    "unmapped_topk_idx[T, K]?!"
#define GATE_OUTPUTS(num_slots) "topk_idx: i64[T, " num_slots "], topk_weights: f32[T, " num_slots "]"
#define SHARED " + num_shared_experts * use_shared_as_routed"

#define MAPPING_ARGS "num_experts: int, num_expanded_tokens: int, alignment: int, "
#define MAPPING_OUTPUTS(num_slots)                                                            \
    "pos_to_expert: i32[num_expanded_tokens], pos_to_token: i32[num_expanded_tokens], "       \
    "pos_to_token_topk: i32[num_expanded_tokens], token_topk_to_pos: i32[T, " num_slots "], " \
    "expert_start: i32[num_experts], expert_end: i32[num_experts], "                          \
    "num_tokens_per_expert: i32[num_experts]"
#define PSUM_OUTPUTS ", count: i32[num_experts], psum_end: i32[num_experts]"

#define MAPPING "(topk_idx[T, K], " MAPPING_ARGS "num_tokens_per_expert_host[E]?! host) -> " MAPPING_OUTPUTS("K")
#define ROUTE \
    "(" GATE MAPPING_ARGS GATE_TENSORS ") -> " GATE_OUTPUTS("num_topk" SHARED) ", " MAPPING_OUTPUTS("num_topk" SHARED)

/* A row with a twin that has two more outputs, count and psum_end. Both use the functions of the twin, which read the
 * twin's struct; the row itself has NULL there. */
#define HAS_TWIN_WITH_PSUM(op, last_output, last_argument)                                                 \
    _Static_assert(sizeof(op##_args) == sizeof(op##_with_psum_args) &&                                     \
                       offsetof(op##_args, last_output) == offsetof(op##_with_psum_args, last_output) &&   \
                       offsetof(op##_args, last_argument) == offsetof(op##_with_psum_args, last_argument), \
                   #op)
HAS_TWIN_WITH_PSUM(get_fused_mapping, num_tokens_per_expert, num_tokens_per_expert_host);
HAS_TWIN_WITH_PSUM(route, num_tokens_per_expert, unmapped_topk_idx);

/* ---- choosing ---- */

/* A count that must fit in an i32. */
static bool is_count(const char *name, int64_t is)
{
    if (is <= INT32_MAX) return is_within(name, is, 0, INT64_MAX);
    PyErr_Format(PyExc_ValueError, "%s: is %lld, want < 2^31", name, (long long)is);
    return false;
}
static bool are_ranks(int64_t num_ep_ranks, int64_t num_tp_ranks)
{
    return is_within("num_ep_ranks", num_ep_ranks, 1, INT64_MAX) &&
           is_within("num_tp_ranks", num_tp_ranks, 1, INT64_MAX);
}

CHECK(topk_gate) { return is_within("num_topk", a->num_topk, 0, a->scores->shape[1]); }
THUNK(topk_gate) { return tgl_moe_topk_gate(a->scores, a->topk_idx, a->stream); }

CHECK(topk_sum_and_topk_group_idx) { return is_within("num_topk_groups", a->num_topk_groups, 0, a->scores->shape[1]); }
THUNK(topk_sum_and_topk_group_idx)
{
    return tgl_moe_topk_sum_and_topk_group_idx(a->scores, a->group_idx, a->num_topk_sum, a->stream);
}

CHECK(mask_indices_by_tp)
{
    return are_ranks(a->num_ep_ranks, a->num_tp_ranks) && is_within("n", a->n, a->num_ep_ranks, INT64_MAX);
}
THUNK(mask_indices_by_tp)
{
    const tgl_moe_mask_indices_by_tp_params params = {
        .num_experts = a->n, .num_ep_ranks = a->num_ep_ranks, .num_tp_ranks = a->num_tp_ranks, .tp_rank = a->tp_rank
    };
    return tgl_moe_mask_indices_by_tp(a->indices, a->out, &params, a->stream);
}

THUNK(normalize_weight)
{
    return tgl_moe_normalize_weight(a->topk_weights, a->denominator, a->normalized_weights, a->stream);
}

THUNK(inplace_unique_group_indices)
{
    return tgl_moe_inplace_unique_group_indices(a->group_indices, a->num_groups, a->stream);
}

/* ---- gates ---- */

/* The parameters of every gate; CHOICE_PARAMS adds those of rows that begin with GATE. */
#define GATE_PARAMS(a)                                                                                      \
    .has_routed_scaling_factor = true, .routed_scaling_factor = (float)(a)->routed_scaling_factor,          \
    .scoring = (tgl_moe_scoring)(a)->scoring_func,                                                          \
    .num_shared_experts = (a)->use_shared_as_routed ? (a)->num_shared_experts : 0, .ep_rank = (a)->ep_rank, \
    .num_ep_ranks = (a)->num_ep_ranks, .tp_rank = (a)->tp_rank, .num_tp_ranks = (a)->num_tp_ranks
#define CHOICE_PARAMS(a) { GATE_PARAMS(a), .num_topk_groups = (a)->num_topk_groups, .num_groups = (a)->num_groups }

static bool check_gate(const DLTensor *logits, int64_t num_topk, const tgl_moe_gate_params *p)
{
    const int64_t num_experts = logits->shape[1], num_groups = p->num_groups;
    const bool has_groups = p->num_topk_groups > 0 && p->num_topk_groups < num_groups && num_experts % num_groups == 0;
    const int64_t limit = has_groups ? num_experts / num_groups * p->num_topk_groups : num_experts;
    return are_ranks(p->num_ep_ranks, p->num_tp_ranks) && is_within("num_topk", num_topk, 0, limit) &&
           is_count("num_shared_experts", p->num_shared_experts);
}
CHECK(top2_sum_gate)
{
    const tgl_moe_gate_params params = CHOICE_PARAMS(a);
    return check_gate(a->logits, a->num_topk, &params);
}
THUNK(top2_sum_gate)
{
    const tgl_moe_gate_params params = CHOICE_PARAMS(a);
    return tgl_moe_top2_sum_gate(a->logits, a->bias, a->mask, a->fix_routing_mask, a->to_physical_map, a->logical_count,
                                 a->unmapped_topk_idx, a->topk_idx, a->topk_weights, &params, a->stream);
}

CHECK(hash_gate)
{
    return are_ranks(a->num_ep_ranks, a->num_tp_ranks) &&
           (!a->use_shared_as_routed || is_count("num_shared_experts", a->num_shared_experts));
}
THUNK(hash_gate)
{
    const tgl_moe_gate_params params = { GATE_PARAMS(a), .no_renormalize = !a->renormalize, .has_shared_weight = true,
                                         .shared_weight = (float)a->shared_weight };
    return tgl_moe_hash_gate(a->logits, a->input_ids, a->tid2eid, a->mask, a->to_physical_map, a->logical_count,
                             a->unmapped_topk_idx, a->topk_idx, a->topk_weights, &params, a->stream);
}

/* ---- counts ---- */

CHECK(group_count) { return is_count("num_groups", a->num_groups); }
THUNK(group_count) { return tgl_moe_group_count(a->group_idx, a->counts, a->workspace, a->workspace_bytes, a->stream); }
WORKSPACE(group_count) { return tgl_moe_group_count_workspace_size(a->group_idx, a->counts); }

CHECK(aux_fi) { return is_count("num_experts", a->num_experts); }
THUNK(aux_fi)
{
    return tgl_moe_aux_fi(a->topk_idx, a->fi, a->num_aux_topk, a->workspace, a->workspace_bytes, a->stream);
}
WORKSPACE(aux_fi) { return tgl_moe_aux_fi_workspace_size(a->topk_idx, a->fi); }

/* ---- mappings ---- */

static bool check_mapping(int64_t num_tokens, int64_t num_topk, int64_t num_experts, int64_t num_expanded_tokens,
                          int64_t alignment)
{
    int64_t num_pairs;
    if (!is_count("num_experts", num_experts) || !is_within("alignment", alignment, 1, INT64_MAX)) return false;
    if (__builtin_mul_overflow(num_tokens, num_topk, &num_pairs)) num_pairs = INT64_MAX;
    const int64_t total = tgl_map_max_positions(num_pairs, num_experts, alignment);
    if (total <= INT32_MAX) return is_count("num_expanded_tokens", num_expanded_tokens);
    PyErr_Format(PyExc_ValueError, TGL_MAP_TOO_LARGE(total));
    return false;
}

/* For a row whose outputs are MAPPING_OUTPUTS. */
#define MAPPING_OF(a)                                                                         \
    .pos_to_expert = (a)->pos_to_expert, .pos_to_token = (a)->pos_to_token,                   \
    .pos_to_token_topk = (a)->pos_to_token_topk, .token_topk_to_pos = (a)->token_topk_to_pos, \
    .expert_start = (a)->expert_start, .expert_end = (a)->expert_end,                         \
    .num_tokens_per_expert = (a)->num_tokens_per_expert, .count = (a)->count, .psum_end = (a)->psum_end

CHECK(get_fused_mapping_with_psum)
{
    const int64_t *shape = a->topk_idx->shape;
    return check_mapping(shape[0], shape[1], a->num_experts, a->num_expanded_tokens, a->alignment);
}
THUNK(get_fused_mapping_with_psum)
{
    const tgl_moe_mapping mapping = { MAPPING_OF(a), .num_tokens_per_expert_host = a->num_tokens_per_expert_host };
    return tgl_moe_get_fused_mapping(a->topk_idx, &mapping, a->alignment, a->workspace, a->workspace_bytes, a->stream);
}
WORKSPACE(get_fused_mapping_with_psum)
{
    const tgl_moe_mapping mapping = { MAPPING_OF(a) };
    return tgl_moe_get_fused_mapping_workspace_size(a->topk_idx, &mapping);
}

CHECK(route_with_psum)
{
    const tgl_moe_gate_params params = CHOICE_PARAMS(a);
    return check_gate(a->logits, a->num_topk, &params) &&
           check_mapping(a->logits->shape[0], a->num_topk + params.num_shared_experts, a->num_experts,
                         a->num_expanded_tokens, a->alignment);
}
THUNK(route_with_psum)
{
    const tgl_moe_gate_params params = CHOICE_PARAMS(a);
    const tgl_moe_mapping mapping = { MAPPING_OF(a) };
    return tgl_moe_route(a->logits, a->bias, a->mask, a->fix_routing_mask, a->to_physical_map, a->logical_count,
                         a->unmapped_topk_idx, a->topk_idx, a->topk_weights, &mapping, a->alignment, &params,
                         a->workspace, a->workspace_bytes, a->stream);
}
WORKSPACE(route_with_psum)
{
    const tgl_moe_mapping mapping = { MAPPING_OF(a) };
    return tgl_moe_route_workspace_size(a->logits, a->topk_idx, &mapping);
}

/* ---- moving tokens ---- */

THUNK(expand_to_fused)
{
    return tgl_moe_expand_to_fused(a->x, a->token_topk_to_pos, a->pos_to_expert, a->out, a->stream);
}
THUNK(expand_to_fused_with_sf)
{
    return tgl_moe_expand_to_fused_with_sf(a->x, a->x_sf, a->token_topk_to_pos, a->pos_to_expert, a->out, a->out_sf,
                                           a->num_per_channels, a->stream);
}
THUNK(reduce_fused)
{
    return tgl_moe_reduce_fused(a->x, a->x_sf, a->topk_weights, a->token_topk_to_pos, NULL, a->out, a->stream);
}
THUNK(reduce_fused_e4m3)
{
    return tgl_moe_reduce_fused(a->x, a->x_sf, a->topk_weights, a->token_topk_to_pos, a->sf, a->out, a->stream);
}

static op_row rows[] = {
    { .text = "topk_gate(scores[T, E], num_topk: int) -> topk_idx: i64[T, num_topk]",
      .doc = "The num_topk best experts of every token, best first. The lower index wins a tie; NaN counts "
             "as -inf.",
      .check = check_topk_gate,
      .call = call_topk_gate },
    { .text = "topk_sum_and_topk_group_idx(scores[T, G, P], num_topk_sum: int, num_topk_groups: int) -> "
              "group_idx: i64[T, num_topk_groups]",
      .doc = "The best groups of experts of every token, best first; a group is worth the sum of its "
             "num_topk_sum best scores.",
      .check = check_topk_sum_and_topk_group_idx,
      .call = call_topk_sum_and_topk_group_idx },
    { .text = "mask_indices_by_tp(indices[T, K], n: int, num_ep_ranks: int, tp_rank: int, num_tp_ranks: int) "
              "-> out: indices[T, K]",
      .doc = "Of n experts on num_ep_ranks ranks, keeps and renumbers those whose rank belongs to tp_rank; the "
             "others become -1.",
      .check = check_mask_indices_by_tp,
      .call = call_mask_indices_by_tp },
    { .text = "normalize_weight(topk_weights[T, K]) -> denominator: f32[T], normalized_weights: f32[T, K]",
      .doc = "(denominator, normalized_weights): 1e-20 plus a row's sum, and the row divided by it.",
      .call = call_normalize_weight },
    { .text = "inplace_unique_group_indices(group_indices[T, K]!, num_groups: int) -> None",
      .doc = "Keeps the first occurrence of every group in a row; later ones become -1, in place.",
      .call = call_inplace_unique_group_indices },
    { .text = "top2_sum_gate(" GATE GATE_TENSORS ") -> " GATE_OUTPUTS("num_topk" SHARED),
      .doc = "(topk_idx, topk_weights): the num_topk best experts of every token by score + bias, best "
             "first, and their normalised scores; then the shared experts, the physical map and the "
             "tensor-parallel mask. The chosen experts before the map are written to unmapped_topk_idx.",
      .check = check_top2_sum_gate,
      .call = call_top2_sum_gate },
    { .text = "hash_gate(logits[T, E], input_ids[T], tid2eid[V, K], routed_scaling_factor: float, "
              "scoring_func: {sigmoid|sqrtsoftplus|softmax|identity} = sqrtsoftplus, "
              "renormalize: bool = True, mask[T]?, use_shared_as_routed: bool = False, "
              "num_shared_experts: int = 0, ep_rank: int = 0, num_ep_ranks: int = 1, tp_rank: int = 0, "
              "num_tp_ranks: int = 1, to_physical_map[L, R]?, logical_count[L]?, unmapped_topk_idx[T, K]?!, "
              "shared_weight: float = 1.0) -> " GATE_OUTPUTS("K" SHARED),
      .doc = "(topk_idx, topk_weights): as top2_sum_gate, but a token's experts are the row of the table tid2eid "
             "for its id.",
      .check = check_hash_gate,
      .call = call_hash_gate },
    { .text = "group_count(group_idx[T, K], num_groups: int) -> counts: i32[num_groups]",
      .doc = "How often each group occurs. Indices outside 0 .. num_groups - 1 are not counted.",
      .check = check_group_count,
      .call = call_group_count,
      .workspace = workspace_group_count },
    { .text = "aux_fi(topk_idx[T, K], num_experts: int, num_aux_topk: int) -> fi: f32[num_experts]",
      .doc = "Each expert's share of the tokens: count * num_experts / (num_tokens * num_aux_topk).",
      .check = check_aux_fi,
      .call = call_aux_fi,
      .workspace = workspace_aux_fi },
    { .text = "get_fused_mapping" MAPPING,
      .doc = "tegula.moe.get_fused_mapping without its list. The lengths of the experts' segments are also "
             "written to num_tokens_per_expert_host, which for CUDA is pinned memory.",
      .check = check_get_fused_mapping_with_psum,
      .is_wrapped = true,
      .call = call_get_fused_mapping_with_psum,
      .workspace = workspace_get_fused_mapping_with_psum },
    { .text = "get_fused_mapping_with_psum" MAPPING PSUM_OUTPUTS,
      .doc = "get_fused_mapping, then count and psum_end.",
      .check = check_get_fused_mapping_with_psum,
      .is_wrapped = true,
      .call = call_get_fused_mapping_with_psum,
      .workspace = workspace_get_fused_mapping_with_psum },
    { .text = "route" ROUTE,
      .doc = "tegula.moe.route.",
      .check = check_route_with_psum,
      .is_wrapped = true,
      .call = call_route_with_psum,
      .workspace = workspace_route_with_psum },
    { .text = "route_with_psum" ROUTE PSUM_OUTPUTS,
      .doc = "route, then count and psum_end.",
      .check = check_route_with_psum,
      .is_wrapped = true,
      .call = call_route_with_psum,
      .workspace = workspace_route_with_psum },
    { .text = "expand_to_fused(x[T, H], token_topk_to_pos[T, K], pos_to_expert[N]) -> out: x[N, H]",
      .doc = "Copies every token's row to its positions; rows of padding are zero.",
      .call = call_expand_to_fused },
    { .text = "expand_to_fused_with_sf(x[T, H], x_sf[T, S], num_per_channels: int, token_topk_to_pos[T, K], "
              "pos_to_expert[N], use_tma_aligned_col_major_sf: bool = False) -> out: x[N, H], "
              "out_sf: x_sf[N, S; 1, N / 4 * 4 if use_tma_aligned_col_major_sf]",
      .face = "x & x_sf, num_per_channels, token_topk_to_pos, pos_to_expert, use_tma_aligned_col_major_sf",
      .doc = "(out, out_sf): copies every token's row, and its scale factors, to its positions; rows of "
             "padding are zero. x is the pair (data, sf), one factor per num_per_channels values in float32, "
             "or four of them packed in an int32. With use_tma_aligned_col_major_sf, out_sf is column-major; its "
             "columns are padded with zeros to a multiple of 4.",
      .zeroes_ends = true,
      .call = call_expand_to_fused_with_sf },
    { .text = "reduce_fused(x[N, H], x_sf[N]?, topk_weights[T, K]?, token_topk_to_pos[T, K]) -> out: x[T, H]",
      .doc = "tegula.moe.reduce_fused with the pair as two arguments.",
      .is_wrapped = true,
      .call = call_reduce_fused },
    { .text = "reduce_fused_e4m3(x[N, H], x_sf[N]?, topk_weights[T, K]?, token_topk_to_pos[T, K], sf[One]?) "
              "-> out: e4m3[T, H]",
      .doc = "reduce_fused, times sf, in e4m3.",
      .is_wrapped = true,
      .call = call_reduce_fused_e4m3 },
};
DOMAIN(moe);
