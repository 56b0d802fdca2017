/* SPDX-License-Identifier: MIT
 * The routing ops against recorded data. */
#include "golden.h"
#include "support.h"

/* Arguments of a recorded call `c`. */
#define ARG(name) golden_arg(c, #name)
#define INT(name) golden_int(c->golden, #name)
#define STREAM c->call->stream
#define WORKSPACE c->call->workspace, c->call->workspace_bytes

/* An op and the test of its `count` records. */
#define RECORDED(op, count, ...)                                                     \
    static tgl_status op(const golden_call *c) { return tgl_moe_##op(__VA_ARGS__); } \
    TEST(op) { check_recorded(#op, op, NULL, count); }
#define RECORDED_WITH_WORKSPACE(op, count, sizes, ...)                                                 \
    static tgl_status op(const golden_call *c) { return tgl_moe_##op(__VA_ARGS__); }                   \
    static size_t op##_workspace(const golden_call *c) { return tgl_moe_##op##_workspace_size sizes; } \
    TEST(op) { check_recorded(#op, op, op##_workspace, count); }

static void check_recorded(const char *op, golden_run run, golden_workspace workspace, int want_count)
{
    int count = 0;
    for (const golden_case *g; (g = golden_at("moe", op, count)); count++)
        FOR_BACKENDS(b) {
            case_report report;
            golden_check_with_workspace(g, run, workspace, b, &report);
            CHECK_THAT(report.result == CASE_PASSED, "%s: %s %s: %s", b->name, g->op, g->name, report.text);
        }
    CHECK_INT(count, want_count);
}

static const void *mask_params(const golden_call *c)
{
    static tgl_moe_mask_indices_by_tp_params params;
    params = (tgl_moe_mask_indices_by_tp_params){ INT(n), INT(num_ep_ranks), INT(num_tp_ranks), INT(tp_rank), { 0 } };
    return &params;
}

static const void *gate_params(const golden_call *c)
{
    static const char *const functions[] = { "sigmoid", "sqrtsoftplus", "softmax" };
    static tgl_moe_gate_params params;
    const golden_case *g = c->golden;
    int scoring = 0;
    while (scoring < 2 && strcmp(functions[scoring], golden_text(g, "scoring_func"))) scoring++;
    CHECK_TEXT(functions[scoring], golden_text(g, "scoring_func"));
    params = (tgl_moe_gate_params){
        .scoring = (tgl_moe_scoring)scoring,
        .num_groups = INT(num_groups),
        .num_topk_groups = INT(num_topk_groups),
        .num_shared_experts = golden_bool(g, "use_shared_as_routed") ? INT(num_shared_experts) : 0,
        .has_routed_scaling_factor = true,
        .routed_scaling_factor = (float)golden_double(g, "routed_scaling_factor"),
        .ep_rank = INT(ep_rank),
        .num_ep_ranks = INT(num_ep_ranks),
        .tp_rank = INT(tp_rank),
        .num_tp_ranks = INT(num_tp_ranks),
    };
    return &params;
}

static const tgl_moe_mapping *mapping_of(const golden_call *c)
{
    static tgl_moe_mapping mapping;
    mapping = (tgl_moe_mapping){
        ARG(pos_to_expert),
        ARG(pos_to_token),
        ARG(pos_to_token_topk),
        ARG(token_topk_to_pos),
        ARG(expert_start),
        ARG(expert_end),
        .num_tokens_per_expert = ARG(num_tokens_per_expert),
    };
    return &mapping;
}

RECORDED(topk_gate, 8, ARG(scores), ARG(topk_idx), STREAM)
RECORDED(topk_sum_and_topk_group_idx, 7, ARG(scores), ARG(group_idx), INT(num_topk_sum), STREAM)
RECORDED(mask_indices_by_tp, 6, ARG(indices), ARG(out), mask_params(c), STREAM)
RECORDED(normalize_weight, 6, ARG(topk_weights), ARG(denominator), ARG(normalized_weights), STREAM)
RECORDED(inplace_unique_group_indices, 6, ARG(group_indices_after), INT(num_groups), STREAM)
RECORDED(top2_sum_gate, 8, ARG(logits), ARG(bias), ARG(mask), ARG(fix_routing_mask), ARG(to_physical_map),
         ARG(logical_count), ARG(unmapped_topk_idx_after), ARG(topk_idx), ARG(topk_weights), gate_params(c), STREAM)
RECORDED_WITH_WORKSPACE(group_count, 6, (ARG(group_idx), ARG(count)), ARG(group_idx), ARG(count), WORKSPACE, STREAM)
RECORDED_WITH_WORKSPACE(aux_fi, 6, (ARG(topk_idx), ARG(f)), ARG(topk_idx), ARG(f), INT(num_aux_topk), WORKSPACE, STREAM)
RECORDED_WITH_WORKSPACE(get_fused_mapping, 7, (ARG(topk_idx), mapping_of(c)), ARG(topk_idx), mapping_of(c),
                        INT(alignment), WORKSPACE, STREAM)
RECORDED(expand_to_fused, 4, ARG(x), ARG(token_topk_to_pos), ARG(pos_to_expert), ARG(out), STREAM)
RECORDED(expand_to_fused_with_sf, 4, ARG(x), ARG(x_sf), ARG(token_topk_to_pos), ARG(pos_to_expert), ARG(out),
         ARG(out_sf), INT(num_per_channels), STREAM)
RECORDED(reduce_fused, 8, ARG(x), ARG(x_sf), ARG(topk_weights), ARG(token_topk_to_pos), ARG(sf), ARG(out), STREAM)

TEST(nothing_is_left_out)
{
    int recorded = 0;
    while (golden_at("moe", NULL, recorded)) recorded++;
    CHECK_INT(recorded, 76); /* the sum of the counts above */
}
