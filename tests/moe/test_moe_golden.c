/* SPDX-License-Identifier: MIT
 * The routing ops against recorded data. */
#include "golden.h"
#include "support.h"

static tgl_status topk_gate(const golden_call *c)
{
    return tgl_moe_topk_gate(golden_arg(c, "scores"), golden_arg(c, "topk_idx"), c->call->stream);
}

static tgl_status topk_sum_and_topk_group_idx(const golden_call *c)
{
    return tgl_moe_topk_sum_and_topk_group_idx(golden_arg(c, "scores"), golden_arg(c, "group_idx"),
                                               golden_int(c->golden, "num_topk_sum"), c->call->stream);
}

static tgl_status mask_indices_by_tp(const golden_call *c)
{
    const tgl_moe_mask_indices_by_tp_params params = {
        .num_experts = golden_int(c->golden, "n"),
        .num_ep_ranks = golden_int(c->golden, "num_ep_ranks"),
        .num_tp_ranks = golden_int(c->golden, "num_tp_ranks"),
        .tp_rank = golden_int(c->golden, "tp_rank"),
    };
    return tgl_moe_mask_indices_by_tp(golden_arg(c, "indices"), golden_arg(c, "out"), &params,
                                      c->call->stream);
}

static tgl_status normalize_weight(const golden_call *c)
{
    return tgl_moe_normalize_weight(golden_arg(c, "topk_weights"), golden_arg(c, "denominator"),
                                    golden_arg(c, "normalized_weights"), c->call->stream);
}

static tgl_status inplace_unique_group_indices(const golden_call *c)
{
    return tgl_moe_inplace_unique_group_indices(golden_arg(c, "group_indices_after"),
                                                golden_int(c->golden, "num_groups"), c->call->stream);
}

static tgl_status top2_sum_gate(const golden_call *c)
{
    static const char *const functions[] = { "sigmoid", "sqrtsoftplus", "softmax" };
    const golden_case *g = c->golden;
    tgl_moe_gate_params params = {
        .num_groups = golden_int(g, "num_groups"),
        .num_topk_groups = golden_int(g, "num_topk_groups"),
        .num_shared_experts =
            golden_bool(g, "use_shared_as_routed") ? golden_int(g, "num_shared_experts") : 0,
        .has_routed_scaling_factor = true,
        .routed_scaling_factor = (float)golden_double(g, "routed_scaling_factor"),
        .ep_rank = golden_int(g, "ep_rank"),
        .num_ep_ranks = golden_int(g, "num_ep_ranks"),
        .tp_rank = golden_int(g, "tp_rank"),
        .num_tp_ranks = golden_int(g, "num_tp_ranks"),
    };
    int scoring = 0;
    while (scoring < 2 && strcmp(functions[scoring], golden_text(g, "scoring_func"))) scoring++;
    CHECK_TEXT(functions[scoring], golden_text(g, "scoring_func"));
    params.scoring = (tgl_moe_scoring)scoring;
    return tgl_moe_top2_sum_gate(golden_arg(c, "logits"), golden_arg(c, "bias"), golden_arg(c, "mask"),
                                 golden_arg(c, "fix_routing_mask"), golden_arg(c, "to_physical_map"),
                                 golden_arg(c, "logical_count"), golden_arg(c, "unmapped_topk_idx_after"),
                                 golden_arg(c, "topk_idx"), golden_arg(c, "topk_weights"), &params,
                                 c->call->stream);
}

static tgl_status group_count(const golden_call *c)
{
    return tgl_moe_group_count(golden_arg(c, "group_idx"), golden_arg(c, "count"), c->call->workspace,
                               c->call->workspace_bytes, c->call->stream);
}

static size_t group_count_workspace(const golden_call *c)
{
    return tgl_moe_group_count_workspace_size(golden_arg(c, "group_idx"), golden_arg(c, "count"));
}

static tgl_status aux_fi(const golden_call *c)
{
    return tgl_moe_aux_fi(golden_arg(c, "topk_idx"), golden_arg(c, "f"),
                          golden_int(c->golden, "num_aux_topk"), c->call->workspace, c->call->workspace_bytes,
                          c->call->stream);
}

static size_t aux_fi_workspace(const golden_call *c)
{
    return tgl_moe_aux_fi_workspace_size(golden_arg(c, "topk_idx"), golden_arg(c, "f"));
}

static tgl_moe_mapping mapping_of(const golden_call *c)
{
    return (tgl_moe_mapping){
        .pos_to_expert = golden_arg(c, "pos_to_expert"),
        .pos_to_token = golden_arg(c, "pos_to_token"),
        .pos_to_token_topk = golden_arg(c, "pos_to_token_topk"),
        .token_topk_to_pos = golden_arg(c, "token_topk_to_pos"),
        .expert_start = golden_arg(c, "expert_start"),
        .expert_end = golden_arg(c, "expert_end"),
        .num_tokens_per_expert = golden_arg(c, "num_tokens_per_expert"),
    };
}

static tgl_status get_fused_mapping(const golden_call *c)
{
    const tgl_moe_mapping m = mapping_of(c);
    return tgl_moe_get_fused_mapping(golden_arg(c, "topk_idx"), &m, golden_int(c->golden, "alignment"),
                                     c->call->workspace, c->call->workspace_bytes, c->call->stream);
}

static size_t get_fused_mapping_workspace(const golden_call *c)
{
    const tgl_moe_mapping m = mapping_of(c);
    return tgl_moe_get_fused_mapping_workspace_size(golden_arg(c, "topk_idx"), &m);
}

static tgl_status expand_to_fused(const golden_call *c)
{
    return tgl_moe_expand_to_fused(golden_arg(c, "x"), golden_arg(c, "token_topk_to_pos"),
                                   golden_arg(c, "pos_to_expert"), golden_arg(c, "out"), c->call->stream);
}

static tgl_status expand_to_fused_with_sf(const golden_call *c)
{
    return tgl_moe_expand_to_fused_with_sf(golden_arg(c, "x"), golden_arg(c, "x_sf"),
                                           golden_arg(c, "token_topk_to_pos"), golden_arg(c, "pos_to_expert"),
                                           golden_arg(c, "out"), golden_arg(c, "out_sf"),
                                           golden_int(c->golden, "num_per_channels"), c->call->stream);
}

static tgl_status reduce_fused(const golden_call *c)
{
    return tgl_moe_reduce_fused(golden_arg(c, "x"), golden_arg(c, "x_sf"), golden_arg(c, "topk_weights"),
                                golden_arg(c, "token_topk_to_pos"), golden_arg(c, "sf"), golden_arg(c, "out"),
                                c->call->stream);
}

static void check_recorded_with(const char *op, golden_run run, golden_workspace workspace, int want_count)
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

static void check_recorded(const char *op, golden_run run, int want_count)
{
    check_recorded_with(op, run, NULL, want_count);
}

TEST(topk_gate) { check_recorded("topk_gate", topk_gate, 8); }
TEST(topk_sum_and_topk_group_idx)
{
    check_recorded("topk_sum_and_topk_group_idx", topk_sum_and_topk_group_idx, 7);
}
TEST(mask_indices_by_tp) { check_recorded("mask_indices_by_tp", mask_indices_by_tp, 6); }
TEST(normalize_weight) { check_recorded("normalize_weight", normalize_weight, 6); }
TEST(inplace_unique_group_indices)
{
    check_recorded("inplace_unique_group_indices", inplace_unique_group_indices, 6);
}
TEST(top2_sum_gate) { check_recorded("top2_sum_gate", top2_sum_gate, 8); }
TEST(group_count) { check_recorded_with("group_count", group_count, group_count_workspace, 6); }
TEST(aux_fi) { check_recorded_with("aux_fi", aux_fi, aux_fi_workspace, 6); }
TEST(get_fused_mapping)
{
    check_recorded_with("get_fused_mapping", get_fused_mapping, get_fused_mapping_workspace, 7);
}
TEST(expand_to_fused) { check_recorded("expand_to_fused", expand_to_fused, 4); }
TEST(expand_to_fused_with_sf) { check_recorded("expand_to_fused_with_sf", expand_to_fused_with_sf, 4); }
TEST(reduce_fused) { check_recorded("reduce_fused", reduce_fused, 8); }

TEST(nothing_is_left_out)
{
    int recorded = 0;
    while (golden_at("moe", NULL, recorded)) recorded++;
    CHECK_INT(recorded, 76);        /* the sum of the counts above */
}
