/* SPDX-License-Identifier: MIT
 * gate.c - what the gates share on the host (gate_host.h). */
#include "moe/common/gate_host.h"

#include <inttypes.h>
#include <string.h>

#include "core/cpu.h"
#include "core/math.h"

_Static_assert(TGL_SIGMOID == (int)TGL_MOE_SIGMOID && TGL_SQRTSOFTPLUS == (int)TGL_MOE_SQRTSOFTPLUS &&
               TGL_SOFTMAX == (int)TGL_MOE_SOFTMAX && TGL_IDENTITY == (int)TGL_MOE_IDENTITY,
               "kernels have the numbers of tgl_moe_scoring");

/* ---- checks ---- */

static int64_t or_one(int64_t n) { return n ? n : 1; }

static tgl_status expect_not_negative(const char *name, int64_t value)
{
    if (value >= 0) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT, "%s: is %" PRId64 ", want >= 0", name, value);
}

tgl_status tgl_gate_check_params(const tgl_moe_gate_params *p)
{
    if (!p) return tgl_fail(TGL_ERR_ARGUMENT, "params: is NULL, want a struct");
    TGL_TRY(tgl_expect_reserved(p->reserved));
    if ((int)p->scoring < TGL_SIGMOID || (int)p->scoring > TGL_IDENTITY)
        return tgl_fail(TGL_ERR_ARGUMENT, "scoring: is %d, want %d..%d", (int)p->scoring, TGL_SIGMOID,
                        TGL_IDENTITY);
    TGL_TRY(expect_not_negative("num_groups", p->num_groups));
    TGL_TRY(expect_not_negative("num_topk_groups", p->num_topk_groups));
    TGL_TRY(expect_not_negative("num_shared_experts", p->num_shared_experts));
    TGL_TRY(expect_not_negative("ep_rank", p->ep_rank));
    TGL_TRY(expect_not_negative("num_ep_ranks", p->num_ep_ranks));
    TGL_TRY(expect_not_negative("num_tp_ranks", p->num_tp_ranks));
    if (p->tp_rank < 0 || p->tp_rank >= or_one(p->num_tp_ranks))
        return tgl_fail(TGL_ERR_ARGUMENT, "tp_rank: is %" PRId64 ", want 0..%" PRId64, p->tp_rank,
                        or_one(p->num_tp_ranks) - 1);
    return TGL_OK;
}

/* All experts that an index may name, over all ranks. */
static int64_t num_physical(int64_t num_experts, const DLTensor *to_physical_map)
{
    return num_experts + (to_physical_map ? to_physical_map->shape[1] - 1 : 0);
}

static tgl_status check_map(const tgl_gate_tensors *x, const tgl_moe_gate_params *params)
{
    const int64_t num_experts = x->logits->shape[1], num_shared = params->num_shared_experts;
    const int64_t num_logical = num_experts + num_shared;
    if (x->to_physical_map && !x->logical_count)
        return tgl_fail(TGL_ERR_ARGUMENT, "logical_count: is NULL, want a tensor with to_physical_map");
    if (x->logical_count && !x->to_physical_map)
        return tgl_fail(TGL_ERR_ARGUMENT, "to_physical_map: is NULL, want a tensor with logical_count");
    if (num_shared > 0 && !x->to_physical_map)
        return tgl_fail(TGL_ERR_ARGUMENT, "to_physical_map: is NULL, want a tensor with num_shared_experts");
    if (x->to_physical_map) {
        const tgl_dim want[2] = { { num_logical, num_logical }, { num_shared + 1, INT32_MAX } };
        TGL_TRY(tgl_expect_shape("to_physical_map", x->to_physical_map, want));
        TGL_TRY(tgl_expect_shape("logical_count", x->logical_count, want));
    }
    const int64_t num_indices = num_physical(num_experts, x->to_physical_map);
    if (or_one(params->num_ep_ranks) > num_indices)
        return tgl_fail(TGL_ERR_ARGUMENT, "num_ep_ranks: is %" PRId64 ", want at most %" PRId64 " (experts)",
                        or_one(params->num_ep_ranks), num_indices);
    return TGL_OK;
}

void tgl_gate_names(const tgl_gate_tensors *x, tgl_named out[TGL_GATE_TENSORS])
{
    const tgl_named all[TGL_GATE_TENSORS] = {
        { "logits", x->logits },
        { "bias", x->bias },
        { "mask", x->mask },
        { "fix_routing_mask", x->fix_routing_mask },
        { "to_physical_map", x->to_physical_map },
        { "logical_count", x->logical_count },
        { "unmapped_topk_idx", x->unmapped_topk_idx },
        { "topk_idx", x->topk_idx },
        { "topk_weights", x->topk_weights },
    };
    memcpy(out, all, sizeof all);
}

enum { NUM_INPUTS = 6 };                        /* which come first */
static const struct { tgl_dtype dtypes; int ndim; tgl_layout layout; bool is_optional; }
    KINDS[TGL_GATE_TENSORS] = {
        { TGL_F32, 2, TGL_ROWS, false },
        { TGL_F32, 1, TGL_PACKED, true },
        { TGL_BOOL, 1, TGL_PACKED, true },
        { TGL_BOOL, 1, TGL_PACKED, true },
        { TGL_I32, 2, TGL_PACKED, true },
        { TGL_I32, 1, TGL_PACKED, true },
        { TGL_I64 | TGL_I32, 2, TGL_ROWS, true },
        { TGL_I64 | TGL_I32, 2, TGL_PACKED, false },
        { TGL_F32, 2, TGL_PACKED, false },
    };

static tgl_status check_shapes(const tgl_gate_tensors *x, const tgl_moe_gate_params *params, tgl_dim num_topk)
{
    const int64_t num_tokens = x->logits->shape[0], num_experts = x->logits->shape[1];
    const int64_t num_shared = params->num_shared_experts;
    const tgl_dim tokens = { num_tokens, num_tokens }, experts = { num_experts, num_experts };
    if (num_shared >= INT32_MAX)
        return tgl_fail(TGL_ERR_ARGUMENT, "num_shared_experts: is %" PRId64 ", want fewer than 2^31",
                        num_shared);
    const tgl_dim sizes[2] = { tokens, { 0, INT32_MAX - num_shared } };
    TGL_TRY(tgl_expect_shape("logits", x->logits, sizes));
    if (x->bias) TGL_TRY(tgl_expect_shape("bias", x->bias, &experts));
    if (x->mask) TGL_TRY(tgl_expect_shape("mask", x->mask, &tokens));
    if (x->fix_routing_mask) TGL_TRY(tgl_expect_shape("fix_routing_mask", x->fix_routing_mask, &tokens));
    const tgl_dim slots[2] = { tokens, { num_shared + num_topk.low, num_shared + num_topk.high } };
    TGL_TRY(tgl_expect_shape("topk_idx", x->topk_idx, slots));
    const int64_t num_slots = x->topk_idx->shape[1];
    const tgl_dim weights[2] = { tokens, { num_slots, num_slots } };
    TGL_TRY(tgl_expect_shape("topk_weights", x->topk_weights, weights));
    if (x->unmapped_topk_idx) {
        const DLTensor *unmapped = x->unmapped_topk_idx;
        const tgl_dim chosen[2] = { tokens, { num_slots - num_shared, num_slots - num_shared } };
        TGL_TRY(tgl_expect_same_dtype("unmapped_topk_idx", unmapped, "topk_idx", x->topk_idx));
        TGL_TRY(tgl_expect_shape("unmapped_topk_idx", unmapped, chosen));
        if (num_tokens > 1 && !tgl_is_empty(unmapped) && tgl_stride(unmapped, 0) < unmapped->shape[1])
            return tgl_fail(TGL_ERR_ARGUMENT, "unmapped_topk_idx: strides are [%" PRId64 ", 1], want >= %"
                            PRId64 " between rows", tgl_stride(unmapped, 0), unmapped->shape[1]);
    } else if (x->fix_routing_mask) {
        return tgl_fail(TGL_ERR_ARGUMENT, "unmapped_topk_idx: is NULL, want a tensor with fix_routing_mask");
    }
    return TGL_OK;
}

tgl_status tgl_gate_check(const tgl_gate_tensors *x, const tgl_moe_gate_params *params, tgl_dim num_topk)
{
    tgl_named all[TGL_GATE_TENSORS];
    tgl_gate_names(x, all);
    for (int i = 0; i < TGL_GATE_TENSORS; i++)
        if (all[i].t || !KINDS[i].is_optional)
            TGL_TRY(tgl_expect(all[i].name, all[i].t, KINDS[i].dtypes, KINDS[i].ndim, KINDS[i].layout));
    TGL_TRY(check_shapes(x, params, num_topk));
    TGL_TRY(check_map(x, params));
    return tgl_expect_apart(all, NUM_INPUTS, TGL_GATE_TENSORS);
}

tgl_status tgl_gate_check_input(const tgl_gate_tensors *x, const char *name, const DLTensor *input)
{
    const tgl_named all[] = { { "logits", x->logits }, { name, input },
                              { "unmapped_topk_idx", x->unmapped_topk_idx }, { "topk_idx", x->topk_idx },
                              { "topk_weights", x->topk_weights } };
    return tgl_expect_apart(all, 2, 5);
}

static const void *data_of(const DLTensor *optional) { return optional ? tgl_data(optional) : NULL; }
static int64_t row_stride_of(const DLTensor *optional)      /* that of an empty tensor may be anything */
{
    return optional && !tgl_is_empty(optional) ? tgl_stride(optional, 0) : 0;
}

tgl_gate tgl_gate_of(const tgl_gate_tensors *x, const tgl_moe_gate_params *params)
{
    const int64_t num_experts = x->logits->shape[1], num_shared = params->num_shared_experts;
    const int64_t num_indices = num_physical(num_experts, x->to_physical_map);
    return (tgl_gate){
        .logits = tgl_data(x->logits), .bias = data_of(x->bias), .mask = data_of(x->mask),
        .fix_routing_mask = data_of(x->fix_routing_mask), .to_physical_map = data_of(x->to_physical_map),
        .logical_count = data_of(x->logical_count),
        .unmapped_topk_idx = x->unmapped_topk_idx ? tgl_data(x->unmapped_topk_idx) : NULL,
        .topk_idx = tgl_data(x->topk_idx), .topk_weights = tgl_data(x->topk_weights),
        .num_tokens = x->logits->shape[0], .logits_stride = row_stride_of(x->logits),
        .unmapped_stride = row_stride_of(x->unmapped_topk_idx),
        .ep_rank = params->ep_rank, .scoring = (int32_t)params->scoring,
        .index_bytes = tgl_dtype_bits(x->topk_idx->dtype) / 8, .num_experts = (uint32_t)num_experts,
        .num_topk = (uint32_t)(x->topk_idx->shape[1] - num_shared), .num_shared = (uint32_t)num_shared,
        .num_replicas = x->to_physical_map ? (uint32_t)x->to_physical_map->shape[1] : 0,
        .num_groups = 1, .group_size = (uint32_t)num_experts, .num_topk_groups = 1,
        .renormalize = !params->no_renormalize,
        .is_plain = !x->to_physical_map && or_one(params->num_tp_ranks) == 1,
        .routed_scaling_factor = params->has_routed_scaling_factor ? params->routed_scaling_factor : 1.0f,
        .shared_weight = params->has_shared_weight ? params->shared_weight : 1.0f,
        .tp_mask = tgl_tp_mask_of(num_indices / or_one(params->num_ep_ranks), or_one(params->num_tp_ranks),
                                  params->tp_rank),
    };
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
    if (num_lists > GATE_MAX_LISTS) return false;       /* half of the lanes would be idle */
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

#define INLINE static inline __attribute__((always_inline))     /* index_bytes is a constant */

static void score(int scoring, float *x, int64_t count, tgl_softmax row)
{
    for (int64_t i = 0; i < count; i++) x[i] = tgl_raw_score(scoring, x[i], row);
}

void tgl_gate_score(int scoring, float *x, int64_t count, tgl_softmax row)
{
    TGL_CHOOSE(score, tgl_gate_score)(scoring, x, count, row);
}

/* TGL_SOFTMAX_SUMS sums, so that additions need not wait for each other. */
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
        tgl_gate_put(gate->topk_idx, t * slots_of(gate) + k, gate->index_bytes, -1);
        gate->topk_weights[t * slots_of(gate) + k] = 0;
    }
    if (gate->unmapped_topk_idx)
        for (int64_t k = 0; k < gate->num_topk; k++)
            tgl_gate_put(gate->unmapped_topk_idx, t * gate->unmapped_stride + k, gate->index_bytes, -1);
}

/* In the place of weights, the logits of chosen experts; of other slots any number. Are all chosen ones
 * experts? */
INLINE bool gather_token(const tgl_gate *gate, int64_t t, bool is_routed, int index_bytes)
{
    const int64_t first = t * slots_of(gate);
    bool are_experts = true;
    for (int64_t k = 0; k < slots_of(gate); k++) {
        const bool is_chosen = is_routed && k < gate->num_topk;
        const int64_t e = is_chosen ? tgl_gate_get(gate->topk_idx, first + k, index_bytes) : -1;
        are_experts &= is_expert(gate, e) || k >= gate->num_topk;
        gate->topk_weights[first + k] = is_expert(gate, e) ? row_of(gate, t)[e] : 0.0f;
    }
    return are_experts;
}

/* From raw scores to weights. */
INLINE void weigh_token(const tgl_gate *gate, int64_t t, bool are_experts, int index_bytes)
{
    float *weights = gate->topk_weights + t * slots_of(gate), sum = GATE_EPSILON;
    const char *indices = (const char *)gate->topk_idx + t * slots_of(gate) * index_bytes;
    for (int64_t k = 0; k < gate->num_topk; k++) {
        const bool is_score = are_experts || is_expert(gate, tgl_gate_get(indices, k, index_bytes));
        weights[k] = is_score && weights[k] == weights[k] ? weights[k] : 0.0f;              /* NaN is 0 */
        sum += weights[k];
    }
    if (are_experts)        /* vector code */
        for (int64_t k = 0; k < gate->num_topk; k++) weights[k] = tgl_gate_weight(gate, weights[k], sum);
    else
        for (int64_t k = 0; k < gate->num_topk; k++)
            weights[k] = is_expert(gate, tgl_gate_get(indices, k, index_bytes))
                             ? tgl_gate_weight(gate, weights[k], sum) : 0.0f;
    for (int64_t k = gate->num_topk; k < slots_of(gate); k++) weights[k] = gate->shared_weight;
}

/* From experts to indices. */
INLINE void map_token(const tgl_gate *gate, int64_t t, int index_bytes)
{
    char *indices = (char *)gate->topk_idx + t * slots_of(gate) * index_bytes;
    for (int64_t k = 0; k < slots_of(gate); k++) {
        const int64_t e = k < gate->num_topk ? tgl_gate_get(indices, k, index_bytes)
                                             : gate->num_experts + (k - gate->num_topk);
        const bool is_there = k >= gate->num_topk || is_expert(gate, e);
        tgl_gate_put(indices, k, index_bytes, is_there ? tgl_gate_index(gate, t, (uint32_t)e) : -1);
    }
}

INLINE void finish(const tgl_gate *all, int64_t begin, int64_t end, const bool *is_routed, int index_bytes)
{
    const tgl_gate copy = *all, *gate = &copy;  /* which stores cannot change */
    const int64_t slots = slots_of(gate);
    bool are_experts[TGL_GATE_TOKENS];
    for (int64_t t = begin; t < end; t++)
        are_experts[t - begin] = gather_token(gate, t, is_routed[t - begin], index_bytes);
    if (gate->scoring != TGL_SOFTMAX)
        tgl_gate_score(gate->scoring, gate->topk_weights + begin * slots, (end - begin) * slots,
                       (tgl_softmax){ 0 });
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
