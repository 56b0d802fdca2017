/* SPDX-License-Identifier: MIT
 * route.c - tgl_moe_route: top2_sum_gate and get_fused_mapping in one call, for few tokens in one launch. */
#include "moe/route.h"

#include <inttypes.h>

#include "core/math.h"
#include "cuda/op.h"
#include "moe/common/gate_host.h"
#include "moe/common/map_host.h"
#include "moe/get_fused_mapping.h"

typedef struct {
    route_args args;
    tgl_shape fused; /* the launch if the device has no room for clusters */
    tgl_other_launch otherwise;
} problem;

tgl_signature tgl_moe_route_signature =
    TGL_SIGNATURE("moe_route(" TOP2_INPUTS ") -> " GATE_OUTPUTS
                  ", " TGL_MAP_TEXT("num_topk + num_shared_experts") " where " TOP2_RULES ", " TGL_MAP_RULES,
                  &TGL_GATE_PARAMS);

/* ---- launch ---- */

_Static_assert(MAP_MAX_PAIRS >= ROUTE_MAX_TOKENS * GATE_MAX_SLOTS, "map_write() takes all pairs");

static bool has_one_launch(const route_args *a)
{
    tgl_macro macros[TGL_GATE_MACROS];
    return a->map.num_experts <= MAP_SMALL_EXPERTS && tgl_gate_macros(&a->gate, macros);
}

/* The number of tokens decides between one launch and two, so a plan has the kernels of both. Those of two
 * launches are launched by the two ops. */
enum { ALONE, CLUSTER, FUSED, OTHERS, NUM_KERNELS = OTHERS + TGL_GATE_KERNELS + TGL_MAP_KERNELS };
_Static_assert((int)NUM_KERNELS <= (int)TGL_MAX_PLAN, "a plan has room for all");
static int plan(const void *context, tgl_kernel *kernels)
{
    const tgl_gate *gate = &((const problem *)context)->args.gate;
    const tgl_map *map = &((const problem *)context)->args.map;
    const int num_gates = tgl_top2_sum_gate_op.plan(gate, kernels + OTHERS);
    kernels[FUSED] = kernels[OTHERS + TGL_GATE_FEW];
    kernels[FUSED].name = "moe/route";
    kernels[FUSED].macros[TGL_GATE_MACROS] = (tgl_macro){ "NUM_SLOTS", gate->num_topk + gate->num_shared };
    kernels[ALONE] = kernels[CLUSTER] = kernels[FUSED];
    kernels[ALONE].name = "moe/route_alone";
    kernels[CLUSTER].name = "moe/route_cluster";
    tgl_map_plan(gate->index_bytes, map->num_experts, kernels + OTHERS + num_gates);
    return OTHERS + num_gates + TGL_MAP_KERNELS;
}

/* Blocks that write the mapping, their threads and shared memory: the same in all three kernels. */
static tgl_shape map_shape(route_args *a, const tgl_target *target)
{
    int threads;
    const int64_t blocks = tgl_map_blocks(&a->map, target->num_sms, &a->owned_bits, &threads);
    const int64_t words = ROUTE_WORDS(a->gate.num_topk + a->gate.num_shared) * a->gate.num_tokens;
    return (tgl_shape){ { blocks },
                        .block = threads,
                        TGL_ARGS(*a),
                        .shared_bytes = MAP_SHARED(a->map.num_experts, a->owned_bits, a->map.num_pairs) + 16 * words };
}

/* So few tokens that one block does all, without a workspace. */
static bool is_alone(const void *context, const tgl_target *target)
{
    return ((const problem *)context)->args.gate.num_tokens <= ROUTE_ALONE;
}
static bool is_not_alone(const void *context, const tgl_target *target) { return !is_alone(context, target); }

static tgl_shape alone_shape(void *context, const tgl_target *target)
{
    return map_shape(&((problem *)context)->args, target);
}

static tgl_shape fused_shape(void *context, const tgl_target *target)
{
    route_args *a = &((problem *)context)->args;
    tgl_shape shape = map_shape(a, target);
    shape.block = 32 << a->owned_bits > ROUTE_MIN_THREADS ? ROUTE_THREADS : ROUTE_MIN_THREADS;
    shape.cooperative = true;
    return shape;
}

static uint32_t cluster_blocks(const problem *p)
{
    return p->args.gate.num_tokens > ROUTE_SMALL_CLUSTER_TOKENS ? ROUTE_CLUSTER : ROUTE_SMALL_CLUSTER;
}

static bool has_clusters(const void *context, const tgl_target *target)
{
    return !is_alone(context, target) && target->architecture >= 90 && target->num_sms >= (int)cluster_blocks(context);
}

static bool cluster_pays(const void *context, const tgl_target *target)
{
    return ((const problem *)context)->args.gate.num_tokens <= ROUTE_CLUSTER_TOKENS;
}

/* Whole clusters within the SMs, and a warp for every token of a block. */
static tgl_shape cluster_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const uint32_t size = p->args.cluster_blocks = cluster_blocks(p);
    p->fused = fused_shape(p, target);
    p->otherwise = (tgl_other_launch){ FUSED, &p->fused };
    tgl_shape shape = map_shape(&p->args, target);
    shape.grid[0] = tgl_min(tgl_ceil_div(shape.grid[0], size), target->num_sms / (int)size) * size;
    while (shape.block < ROUTE_THREADS && shape.block / 32 * size < p->args.gate.num_tokens) shape.block *= 2;
    shape.cluster = (int)size;
    shape.otherwise = &p->otherwise;
    return shape;
}

/* No CPU loop: the CPU runs the two ops. */
static const tgl_op OP = { NULL,
                           plan,
                           { [ALONE] = { is_alone, NULL, alone_shape },
                             [CLUSTER] = { has_clusters, cluster_pays, cluster_shape },
                             [FUSED] = { is_not_alone, NULL, fused_shape } } };

tgl_status tgl_moe_route(const DLTensor *logits, const DLTensor *bias, const DLTensor *mask,
                         const DLTensor *fix_routing_mask, const DLTensor *to_physical_map,
                         const DLTensor *logical_count, DLTensor *unmapped_topk_idx, DLTensor *topk_idx,
                         DLTensor *topk_weights, const tgl_moe_mapping *mapping, int64_t alignment,
                         const tgl_moe_gate_params *params, void *workspace, size_t workspace_bytes, tgl_stream stream)
{
    const DLTensor *tensors[TGL_GATE_TENSORS + TGL_MAP_TENSORS] = {
        logits, bias, mask, fix_routing_mask, to_physical_map, logical_count, unmapped_topk_idx, topk_idx, topk_weights
    };
    tgl_map_list(mapping, tensors + TGL_GATE_TENSORS);
    tgl_log_signature(&tgl_moe_route_signature, tensors);
    TGL_TRY(tgl_map_check_struct(mapping));
    TGL_TRY(tgl_check(&tgl_moe_route_signature, tensors, params, NULL));
    if (alignment < 1) return tgl_fail(TGL_ERR_ARGUMENT, "alignment: is %" PRId64 ", want >= 1", alignment);
    TGL_TRY(tgl_map_check_total(tgl_num_elements(topk_idx), mapping->expert_start->shape[0], alignment));
    problem p = { .args.workspace = workspace };
    TGL_TRY(tgl_gate_of(tensors, params, &p.args.gate));
    if (!tgl_on_cpu(logits)) {
        const size_t want = tgl_moe_route_workspace_size(logits, topk_idx, mapping);
        TGL_TRY(tgl_expect_workspace(workspace, workspace_bytes, want));
        TGL_TRY(tgl_map_of(topk_idx, mapping, alignment, stream, &p.args.map));
        const bool has_one = has_one_launch(&p.args);
        if (has_one && (p.args.gate.num_tokens <= ROUTE_MAX_TOKENS || tgl_preparing()))
            return tgl_run_on_cuda(&OP, &p, logits, stream);
        if (has_one) {
            tgl_kernel kernels[TGL_MAX_PLAN];
            TGL_TRY(tgl_load(kernels, plan(&p, kernels), logits, stream));
        }
    }
    TGL_TRY(tgl_moe_top2_sum_gate(logits, bias, mask, fix_routing_mask, to_physical_map, logical_count,
                                  unmapped_topk_idx, topk_idx, topk_weights, params, stream));
    return tgl_moe_get_fused_mapping(topk_idx, mapping, alignment, workspace, workspace_bytes, stream);
}

size_t tgl_moe_route_workspace_size(const DLTensor *logits, const DLTensor *topk_idx, const tgl_moe_mapping *mapping)
{
    if (!logits || !topk_idx || topk_idx->ndim != 2 || !topk_idx->shape || tgl_on_cpu(logits)) return 0;
    const int64_t tokens = tgl_min(topk_idx->shape[0], ROUTE_MAX_TOKENS);
    const int64_t slots = tgl_min(topk_idx->shape[1], GATE_MAX_SLOTS);
    const size_t one = tokens > ROUTE_ALONE ? (size_t)ROUTE_WORKSPACE(tokens, slots) : 0;
    const size_t two = tgl_moe_get_fused_mapping_workspace_size(topk_idx, mapping);
    return one > two ? one : two;
}
