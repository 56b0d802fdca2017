/* SPDX-License-Identifier: MIT
 * gate.c - what the gates share on the host (gate_host.h). */
#include "moe/common/gate_host.h"

#include <inttypes.h>

#include "core/cpu.h"
#include "core/math.h"

_Static_assert(TGL_SIGMOID == (int)TGL_MOE_SIGMOID && TGL_SQRTSOFTPLUS == (int)TGL_MOE_SQRTSOFTPLUS &&
                   TGL_SOFTMAX == (int)TGL_MOE_SOFTMAX && TGL_IDENTITY == (int)TGL_MOE_IDENTITY,
               "kernels use the values of tgl_moe_scoring");

#define FIELD(name) TGL_FIELD(tgl_moe_gate_params, name)
static const tgl_field FIELDS[] = {
    FIELD(scoring),
    FIELD(num_groups),
    FIELD(num_topk_groups),
    FIELD(num_shared_experts),
    FIELD(has_routed_scaling_factor),
    FIELD(routed_scaling_factor),
    FIELD(has_shared_weight),
    FIELD(shared_weight),
    FIELD(no_renormalize),
    FIELD(ep_rank),
    FIELD(num_ep_ranks),
    FIELD(num_tp_ranks),
    FIELD(tp_rank),
};
const tgl_params TGL_GATE_PARAMS = TGL_PARAMS(tgl_moe_gate_params, FIELDS);

tgl_status tgl_gate_of(const DLTensor *const *tensors, const tgl_moe_gate_params *params, tgl_gate *out)
{
    const DLTensor *logits = tensors[TGL_GATE_LOGITS], *map = tensors[TGL_GATE_TO_PHYSICAL_MAP];
    const DLTensor *unmapped = tensors[TGL_GATE_UNMAPPED_TOPK_IDX], *topk_idx = tensors[TGL_GATE_TOPK_IDX];
    const int64_t num_experts = logits->shape[1], num_shared = params->num_shared_experts;
    const int64_t num_physical = num_experts + (map ? map->shape[1] - 1 : 0); /* that indices name */
    const int64_t num_ep_ranks = tgl_max(params->num_ep_ranks, 1), num_tp_ranks = tgl_max(params->num_tp_ranks, 1);
    if (num_ep_ranks > num_physical)
        return tgl_fail(TGL_ERR_ARGUMENT, "num_ep_ranks: is %" PRId64 ", want <= %" PRId64 " (experts)", num_ep_ranks,
                        num_physical);
    const bool has_groups = params->num_topk_groups < params->num_groups; /* else no group is left out */
    const int64_t num_groups = has_groups ? params->num_groups : 1;
    *out = (tgl_gate){
        .logits = tgl_data(logits),
        .bias = tgl_data_or_null(tensors[TGL_GATE_BIAS]),
        .mask = tgl_data_or_null(tensors[TGL_GATE_MASK]),
        .fix_routing_mask = tgl_data_or_null(tensors[TGL_GATE_FIX_ROUTING_MASK]),
        .to_physical_map = tgl_data_or_null(map),
        .logical_count = tgl_data_or_null(tensors[TGL_GATE_LOGICAL_COUNT]),
        .unmapped_topk_idx = tgl_data_or_null(unmapped),
        .topk_idx = tgl_data(topk_idx),
        .topk_weights = tgl_data(tensors[TGL_GATE_TOPK_WEIGHTS]),
        .num_tokens = logits->shape[0],
        .logits_stride = tgl_step_of(logits, 0),
        .unmapped_stride = tgl_step_of(unmapped, 0),
        .ep_rank = params->ep_rank,
        .scoring = (int32_t)params->scoring,
        .index_bytes = tgl_dtype_bits(topk_idx->dtype) / 8,
        .num_experts = (uint32_t)num_experts,
        .num_topk = (uint32_t)(topk_idx->shape[1] - num_shared),
        .num_shared = (uint32_t)num_shared,
        .num_replicas = map ? (uint32_t)map->shape[1] : 0,
        .num_groups = (uint32_t)num_groups,
        .group_size = (uint32_t)(num_experts / num_groups),
        .num_topk_groups = has_groups ? (uint32_t)params->num_topk_groups : 1,
        .renormalize = !params->no_renormalize,
        .is_plain = !map && num_tp_ranks == 1,
        .routed_scaling_factor = params->has_routed_scaling_factor ? params->routed_scaling_factor : 1.0f,
        .shared_weight = params->has_shared_weight ? params->shared_weight : 1.0f,
        .tp_mask = tgl_tp_mask_of(num_physical / num_ep_ranks, num_tp_ranks, params->tp_rank),
    };
    const uint64_t begins = (uintptr_t)out->logits | (uintptr_t)out->bias | (uint64_t)out->logits_stride * 4 |
                            (uint64_t)out->group_size * 4;
    out->is_vector = begins % 16 == 0;
    return TGL_OK;
}

/* ---- CUDA ---- */

bool tgl_gate_macros(const tgl_gate *gate, tgl_macro macros[TGL_GATE_MACROS])
{
    const int64_t num_slots = (int64_t)gate->num_topk + gate->num_shared;
    if (gate->num_topk == 0 || num_slots > GATE_MAX_SLOTS) return false;
    if (gate->num_experts > GATE_MAX_EXPERTS || gate->num_groups > GATE_MAX_GROUPS) return false;
    int64_t group_lanes = 32;
    while (group_lanes * gate->num_groups > 32) group_lanes /= 2;
    const int64_t lane_group = 4 * group_lanes, num_lists = tgl_ceil_div(gate->group_size, lane_group);
    if (num_lists > GATE_MAX_LISTS) return false; /* groups would leave half of the lanes idle */
    macros[0] = (tgl_macro){ "SCORING", gate->scoring };
    macros[1] = (tgl_macro){ "NUM_TOPK", gate->num_topk };
    macros[2] = (tgl_macro){ "INDEX_BYTES", gate->index_bytes };
    macros[3] = (tgl_macro){ "GROUP_LANES", group_lanes };
    macros[4] = (tgl_macro){ "NUM_LISTS", num_lists };
    return true;
}

/* ---- CPU ---- */

static int64_t slots_of(const tgl_gate *gate) { return (int64_t)gate->num_topk + gate->num_shared; }

static bool is_expert(const tgl_gate *gate, int64_t e) { return e >= 0 && e < gate->num_experts; }

static void score(int scoring, float *x, int64_t count, tgl_softmax row)
{
    for (int64_t i = 0; i < count; i++) x[i] = tgl_raw_score(scoring, x[i], row);
}

void tgl_gate_score(int scoring, float *x, int64_t count, tgl_softmax row)
{
    TGL_CHOOSE(score, tgl_gate_score)(scoring, x, count, row);
}

/* TGL_SOFTMAX_SUMS independent sums, so that additions overlap. */
static tgl_softmax softmax(const float *x, int64_t num_experts)
{
    tgl_softmax all = { -INFINITY, 0 };
    float sums[TGL_SOFTMAX_SUMS] = { 0 };
    for (int64_t e = 0; e < num_experts; e++) all.max = x[e] > all.max ? x[e] : all.max;
    for (int64_t e = 0; e < num_experts; e++)
        if (!isnan(x[e])) sums[e % TGL_SOFTMAX_SUMS] += tgl_score_exp(x[e] - all.max);
    for (int i = 0; i < TGL_SOFTMAX_SUMS; i++) all.sum += sums[i];
    return all;
}

static const float *row_of(const tgl_gate *gate, int64_t t) { return gate->logits + t * gate->logits_stride; }

static void mask_token(const tgl_gate *gate, int64_t t)
{
    for (int64_t k = 0; k < slots_of(gate); k++) {
        tgl_index_put(gate->topk_idx, t * slots_of(gate) + k, gate->index_bytes, -1);
        gate->topk_weights[t * slots_of(gate) + k] = 0;
    }
    if (gate->unmapped_topk_idx)
        for (int64_t k = 0; k < gate->num_topk; k++)
            tgl_index_put(gate->unmapped_topk_idx, t * gate->unmapped_stride + k, gate->index_bytes, -1);
}

/* Writes the logits of chosen experts where their weights will be; other slots get any number. True if every
 * chosen slot has an expert. */
TGL_ALWAYS_INLINE bool gather_token(const tgl_gate *gate, int64_t t, bool is_routed, int index_bytes)
{
    const int64_t first = t * slots_of(gate);
    bool are_experts = true;
    for (int64_t k = 0; k < slots_of(gate); k++) {
        const bool is_chosen = is_routed && k < gate->num_topk;
        const int64_t e = is_chosen ? tgl_index_get(gate->topk_idx, first + k, index_bytes) : -1;
        are_experts &= is_expert(gate, e) || k >= gate->num_topk;
        gate->topk_weights[first + k] = is_expert(gate, e) ? row_of(gate, t)[e] : 0.0f;
    }
    return are_experts;
}

/* Raw scores become weights. */
TGL_ALWAYS_INLINE void weigh_token(const tgl_gate *gate, int64_t t, bool are_experts, int index_bytes)
{
    float *weights = gate->topk_weights + t * slots_of(gate), sum = GATE_EPSILON;
    const char *indices = (const char *)gate->topk_idx + t * slots_of(gate) * index_bytes;
    for (int64_t k = 0; k < gate->num_topk; k++) {
        const bool is_score = are_experts || is_expert(gate, tgl_index_get(indices, k, index_bytes));
        weights[k] = is_score && weights[k] == weights[k] ? weights[k] : 0.0f; /* NaN is 0 */
        sum += weights[k];
    }
    if (are_experts) /* vector code */
        for (int64_t k = 0; k < gate->num_topk; k++) weights[k] = tgl_gate_weight(gate, weights[k], sum);
    else
        for (int64_t k = 0; k < gate->num_topk; k++)
            weights[k] =
                is_expert(gate, tgl_index_get(indices, k, index_bytes)) ? tgl_gate_weight(gate, weights[k], sum) : 0.0f;
    for (int64_t k = gate->num_topk; k < slots_of(gate); k++) weights[k] = gate->shared_weight;
}

/* Logical experts become indices. */
TGL_ALWAYS_INLINE void map_token(const tgl_gate *gate, int64_t t, int index_bytes)
{
    char *indices = (char *)gate->topk_idx + t * slots_of(gate) * index_bytes;
    for (int64_t k = 0; k < slots_of(gate); k++) {
        const int64_t e =
            k < gate->num_topk ? tgl_index_get(indices, k, index_bytes) : gate->num_experts + (k - gate->num_topk);
        const bool is_there = k >= gate->num_topk || is_expert(gate, e);
        tgl_index_put(indices, k, index_bytes, is_there ? tgl_gate_index(gate, t, (uint32_t)e) : -1);
    }
}

TGL_ALWAYS_INLINE void finish(const tgl_gate *all, int64_t begin, int64_t end, const bool *is_routed, int index_bytes)
{
    const tgl_gate copy = *all, *gate = &copy; /* which stores cannot alias */
    const int64_t slots = slots_of(gate);
    bool are_experts[TGL_GATE_TOKENS];
    for (int64_t t = begin; t < end; t++)
        are_experts[t - begin] = gather_token(gate, t, is_routed[t - begin], index_bytes);
    if (gate->scoring != TGL_SOFTMAX)
        tgl_gate_score(gate->scoring, gate->topk_weights + begin * slots, (end - begin) * slots, (tgl_softmax){ 0 });
    for (int64_t t = begin; t < end; t++) {
        if (!is_routed[t - begin]) {
            mask_token(gate, t);
            continue;
        }
        if (gate->scoring == TGL_SOFTMAX && gate->num_topk)
            tgl_gate_score(TGL_SOFTMAX, gate->topk_weights + t * slots, gate->num_topk,
                           TGL_CHOOSE(softmax, tgl_gate_softmax)(row_of(gate, t), gate->num_experts));
        weigh_token(gate, t, are_experts[t - begin], index_bytes);
        if (!gate->is_plain || !are_experts[t - begin]) map_token(gate, t, index_bytes);
    }
}

void tgl_gate_finish(const tgl_gate *gate, int64_t begin, int64_t end, const bool *is_routed)
{
    if (gate->index_bytes == 4) finish(gate, begin, end, is_routed, 4);
    else finish(gate, begin, end, is_routed, 8);
}

int64_t tgl_gate_token_bytes(const tgl_gate *gate, int64_t num_scores)
{
    enum { SCORE_BYTES = 32 };
    return SCORE_BYTES * num_scores + slots_of(gate) * (gate->index_bytes + 4);
}
