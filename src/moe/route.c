/* SPDX-License-Identifier: MIT
 * route.c - tgl_moe_route: top2_sum_gate and get_fused_mapping in one call, of few tokens in one launch. */
#include "moe/route.h"

#include "core/log.h"
#include "core/math.h"
#include "cuda/launch.h"
#include "moe/common/gate_host.h"
#include "moe/get_fused_mapping.h"
#include "moe/common/map_check.h"

/* ---- checks ---- */

/* A block writes its part of the mapping while others still read. */
static tgl_status check_overlaps(const tgl_gate_tensors *x, const tgl_moe_mapping *mapping)
{
    tgl_named outputs[TGL_MAP_TENSORS], others[TGL_GATE_TENSORS];
    tgl_map_tensors(mapping, outputs);
    tgl_gate_names(x, others);
    for (int i = 0; i < TGL_MAP_TENSORS; i++)
        for (int j = 0; j < TGL_GATE_TENSORS; j++)
            if (outputs[i].t && others[j].t)
                TGL_TRY(tgl_expect_no_overlap(outputs[i].name, outputs[i].t, others[j].name, others[j].t));
    return TGL_OK;
}

/* ---- launch ---- */

_Static_assert(ROUTE_MAX_TOKENS * GATE_MAX_SLOTS <= MAP_MAX_PAIRS, "map_write() takes all pairs");

/* One launch or two: the number of tokens chooses, so the kernels of both ways are one configuration. Without
 * a kernel for one launch, 0. */
enum { FUSED, ALONE, CLUSTER, OTHERS, NUM_KERNELS = OTHERS + TGL_GATE_KERNELS + TGL_MAP_KERNELS };
static int plan(const tgl_gate *gate, int64_t num_experts, tgl_kernel kernels[NUM_KERNELS])
{
    bool is_wide;
    const int num_gates = tgl_top2_sum_gate_plan(gate, kernels + OTHERS, &is_wide);
    if (is_wide) return 0;
    kernels[FUSED] = kernels[OTHERS];
    kernels[FUSED].name = "moe/route";
    kernels[FUSED].macros[TGL_GATE_MACROS] = (tgl_macro){ "NUM_SLOTS", gate->num_topk + gate->num_shared };
    kernels[ALONE] = kernels[CLUSTER] = kernels[FUSED];
    kernels[ALONE].name = "moe/route_alone";
    kernels[CLUSTER].name = "moe/route_cluster";
    tgl_map_plan(gate->index_bytes, num_experts, kernels + OTHERS + num_gates);
    return OTHERS + num_gates + TGL_MAP_KERNELS;
}

static tgl_status run_fused(tgl_gate *gate, tgl_map *map, void *workspace, const tgl_kernel *kernels,
                            int num_kernels, const DLTensor *on, tgl_stream stream)
{
    tgl_target target;
    TGL_TRY(tgl_target_of(on, &target));
    const int64_t slots = gate->num_topk + gate->num_shared;
    int32_t owned_bits;
    int threads;
    const int64_t blocks = tgl_map_blocks(map, target.num_sms, &owned_bits, &threads);
    const int64_t tokens = gate->num_tokens, bytes = 16 * ROUTE_WORDS(slots) * tokens;
    const int64_t shared_bytes = MAP_SHARED(map->num_experts, owned_bits, map->num_pairs) + bytes;
    if (tokens <= ROUTE_ALONE) {
        const tgl_shape shape = { { blocks }, .block = threads, .shared_bytes = shared_bytes };
        void *args[] = { gate, map, &owned_bits };
        return tgl_launch(kernels, num_kernels, ALONE, on, &shape, stream, args);
    }
    const int block = 32 << owned_bits > ROUTE_MIN_THREADS ? ROUTE_THREADS : ROUTE_MIN_THREADS;
    const tgl_shape shape = { { blocks }, .block = block, .shared_bytes = shared_bytes, .cooperative = true };
    void *args[] = { gate, map, &workspace, &owned_bits };
    /* whole clusters, as many as there may be blocks, and a warp for every token of a block */
    uint32_t size = tokens > ROUTE_SMALL_CLUSTER_TOKENS ? ROUTE_CLUSTER : ROUTE_SMALL_CLUSTER;
    const int64_t wanted = tgl_ceil_div(blocks, size), most = target.num_sms / size;
    if (tokens > ROUTE_CLUSTER_TOKENS || target.architecture < 90 || most == 0)
        return tgl_launch(kernels, num_kernels, FUSED, on, &shape, stream, args);
    const tgl_other_launch fused = { FUSED, &shape, args };
    tgl_shape clusters = { { (wanted < most ? wanted : most) * size }, .block = threads, .cluster = (int)size,
                           .shared_bytes = shared_bytes, .otherwise = &fused };
    while (clusters.block < ROUTE_THREADS && clusters.block / 32 * size < tokens) clusters.block *= 2;
    void *cluster_args[] = { gate, map, &owned_bits, &size };
    return tgl_launch(kernels, num_kernels, CLUSTER, on, &clusters, stream, cluster_args);
}

tgl_status tgl_moe_route(const DLTensor *logits, const DLTensor *bias, const DLTensor *mask,
                         const DLTensor *fix_routing_mask, const DLTensor *to_physical_map,
                         const DLTensor *logical_count, DLTensor *unmapped_topk_idx, DLTensor *topk_idx,
                         DLTensor *topk_weights, const tgl_moe_mapping *mapping, int64_t alignment,
                         const tgl_moe_gate_params *params, void *workspace, size_t workspace_bytes,
                         tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_moe_route", "logits", logits, "bias", bias, "mask", mask, "fix_routing_mask",
                     fix_routing_mask, "to_physical_map", to_physical_map, "logical_count", logical_count,
                     "unmapped_topk_idx", unmapped_topk_idx, "topk_idx", topk_idx, "topk_weights",
                     topk_weights, "pos_to_expert", mapping ? mapping->pos_to_expert : NULL, "expert_start",
                     mapping ? mapping->expert_start : NULL, NULL);
    const tgl_gate_tensors x = { logits, bias, mask, fix_routing_mask, to_physical_map, logical_count,
                                 unmapped_topk_idx, topk_idx, topk_weights };
    tgl_gate gate;
    tgl_map map;
    TGL_TRY(tgl_top2_sum_gate_of(&x, params, &gate));
    TGL_TRY(tgl_map_check(topk_idx, mapping, alignment));
    TGL_TRY(check_overlaps(&x, mapping));
    if (!tgl_on_cpu(logits)) {
        const size_t want = tgl_moe_route_workspace_size(logits, topk_idx, mapping);
        TGL_TRY(tgl_expect_workspace(workspace, workspace_bytes, want));
        TGL_TRY(tgl_map_of(topk_idx, mapping, alignment, stream, &map));
        tgl_kernel kernels[NUM_KERNELS];
        const int num_kernels = topk_idx->shape[1] > 0 && map.num_experts <= MAP_SMALL_EXPERTS
                                    ? plan(&gate, map.num_experts, kernels) : 0;
        if (num_kernels > 0 && (gate.num_tokens <= ROUTE_MAX_TOKENS || tgl_preparing()))
            return run_fused(&gate, &map, workspace, kernels, num_kernels, logits, stream);
        if (num_kernels > 0) TGL_TRY(tgl_load(kernels, num_kernels, logits, stream));
    }
    TGL_TRY(tgl_moe_top2_sum_gate(logits, bias, mask, fix_routing_mask, to_physical_map, logical_count,
                                  unmapped_topk_idx, topk_idx, topk_weights, params, stream));
    return tgl_moe_get_fused_mapping(topk_idx, mapping, alignment, workspace, workspace_bytes, stream);
}

size_t tgl_moe_route_workspace_size(const DLTensor *logits, const DLTensor *topk_idx,
                                    const tgl_moe_mapping *mapping)
{
    if (!logits || !topk_idx || topk_idx->ndim != 2 || !topk_idx->shape || tgl_on_cpu(logits)) return 0;
    const int64_t tokens = topk_idx->shape[0] < ROUTE_MAX_TOKENS ? topk_idx->shape[0] : ROUTE_MAX_TOKENS;
    const int64_t slots = topk_idx->shape[1] < GATE_MAX_SLOTS ? topk_idx->shape[1] : GATE_MAX_SLOTS;
    const size_t one = tokens > ROUTE_ALONE ? (size_t)ROUTE_WORKSPACE(tokens, slots) : 0;
    const size_t two = tgl_moe_get_fused_mapping_workspace_size(topk_idx, mapping);
    return one > two ? one : two;
}
