/* SPDX-License-Identifier: MIT
 * test_log_calls.c - every op traces its call: all tensors, each under its own name. The i-th tensor of a
 * call has i elements, so that no two can be mistaken for each other; no op takes any of them. */
#include "child.h"
#include "core/log.h"
#include "tegula/tegula.h"

enum { MAX_TENSORS = 12 };
static DLTensor tensors[MAX_TENSORS + 1];
static int64_t sizes[MAX_TENSORS + 1];
#define T(i) (&tensors[i])

static void make_tensors(void)
{
    for (int i = 0; i <= MAX_TENSORS; i++) {
        sizes[i] = i;
        tensors[i] = (DLTensor){ NULL, { (DLDeviceType)TGL_DL_CPU, 0 }, 1, { TGL_DL_COMPLEX, 64, 1 },
                                 &sizes[i], NULL, 0 };
    }
}

/* "op first second ...": the line must be there. */
static void check_line(const char *text, const char *call)
{
    char want[1024], word[128];
    int taken;
    REQUIRE(sscanf(call, "%127s%n", word, &taken) == 1);
    int used = snprintf(want, sizeof want, "tegula: %s(", word);
    for (int i = 1; sscanf(call += taken, "%127s%n", word, &taken) == 1; i++)
        used += snprintf(want + used, sizeof want - (size_t)used, "%s%s c64 [%d] on cpu", i > 1 ? ", " : "",
                         word, i);
    snprintf(want + used, sizeof want - (size_t)used, ")\n");
    CHECK_THAT(strstr(text, want), "want %sis %s", want, text);
}

static char text[CHILD_TEXT];

static bool transposes(void)
{
    make_tensors();
    CHECK_FAILS(tgl_transpose(T(1), T(2), NULL), TGL_ERR_ARGUMENT, NULL);
    return CHECK_FAILS(tgl_batched_transpose(T(1), T(2), NULL), TGL_ERR_ARGUMENT, NULL);
}

TEST(transpose)
{
    CHECK(in_child(ENVIRONMENT("TEGULA_LOG=call"), transposes, text));
    check_line(text, "tgl_transpose x out");
    check_line(text, "tgl_batched_transpose x out");
}

static bool routes(void)
{
    make_tensors();
    const tgl_moe_mapping mapping = { .pos_to_expert = T(2), .expert_start = T(3) };
    const tgl_moe_mapping of_route = { .pos_to_expert = T(10), .expert_start = T(11) };
#define REFUSED(...) CHECK_FAILS(__VA_ARGS__, TGL_ERR_ARGUMENT, NULL)
    REFUSED(tgl_moe_topk_gate(T(1), T(2), NULL));
    REFUSED(tgl_moe_topk_sum_and_topk_group_idx(T(1), T(2), 1, NULL));
    REFUSED(tgl_moe_mask_indices_by_tp(T(1), T(2), NULL, NULL));
    REFUSED(tgl_moe_normalize_weight(T(1), T(2), T(3), NULL));
    REFUSED(tgl_moe_inplace_unique_group_indices(T(1), 1, NULL));
    REFUSED(tgl_moe_top2_sum_gate(T(1), T(2), T(3), T(4), T(5), T(6), T(7), T(8), T(9), NULL, NULL));
    REFUSED(tgl_moe_hash_gate(T(1), T(2), T(3), T(4), T(5), T(6), T(7), T(8), T(9), NULL, NULL));
    REFUSED(tgl_moe_group_count(T(1), T(2), NULL, 0, NULL));
    REFUSED(tgl_moe_aux_fi(T(1), T(2), 1, NULL, 0, NULL));
    REFUSED(tgl_moe_get_fused_mapping(T(1), &mapping, 1, NULL, 0, NULL));
    REFUSED(tgl_moe_route(T(1), T(2), T(3), T(4), T(5), T(6), T(7), T(8), T(9), &of_route, 1, NULL, NULL, 0,
                          NULL));
    REFUSED(tgl_moe_expand_to_fused(T(1), T(2), T(3), T(4), NULL));
    REFUSED(tgl_moe_expand_to_fused_with_sf(T(1), T(2), T(3), T(4), T(5), T(6), 1, NULL));
    return REFUSED(tgl_moe_reduce_fused(T(1), T(2), T(3), T(4), T(5), T(6), NULL));
}

TEST(moe)
{
    CHECK(in_child(ENVIRONMENT("TEGULA_LOG=call"), routes, text));
    check_line(text, "tgl_moe_topk_gate scores topk_idx");
    check_line(text, "tgl_moe_topk_sum_and_topk_group_idx scores group_idx");
    check_line(text, "tgl_moe_mask_indices_by_tp indices out");
    check_line(text, "tgl_moe_normalize_weight topk_weights denominator normalized_weights");
    check_line(text, "tgl_moe_inplace_unique_group_indices group_indices");
    check_line(text, "tgl_moe_top2_sum_gate logits bias mask fix_routing_mask to_physical_map logical_count "
                     "unmapped_topk_idx topk_idx topk_weights");
    check_line(text, "tgl_moe_hash_gate logits input_ids tid2eid mask to_physical_map logical_count "
                     "unmapped_topk_idx topk_idx topk_weights");
    check_line(text, "tgl_moe_group_count group_idx counts");
    check_line(text, "tgl_moe_aux_fi topk_idx fi");
    check_line(text, "tgl_moe_get_fused_mapping topk_idx pos_to_expert expert_start");
    check_line(text, "tgl_moe_route logits bias mask fix_routing_mask to_physical_map logical_count "
                     "unmapped_topk_idx topk_idx topk_weights pos_to_expert expert_start");
    check_line(text, "tgl_moe_expand_to_fused x token_topk_to_pos pos_to_expert out");
    check_line(text, "tgl_moe_expand_to_fused_with_sf x x_sf token_topk_to_pos pos_to_expert out out_sf");
    check_line(text, "tgl_moe_reduce_fused x x_sf topk_weights token_topk_to_pos sf out");
}

static bool casts(void)
{
    make_tensors();
    REFUSED(tgl_quant_per_token_cast(T(1), T(2), T(3), T(4), NULL, NULL));
    REFUSED(tgl_quant_per_token_cast_with_precomputed_sf(T(1), T(2), T(3), T(4), NULL, NULL));
    REFUSED(tgl_quant_per_block_cast(T(1), T(2), T(3), NULL, NULL));
    REFUSED(tgl_quant_per_block_cast_with_precomputed_sf(T(1), T(2), T(3), NULL, NULL));
    REFUSED(tgl_quant_per_block_cast_lossless(T(1), T(2), T(3), T(4), T(5), NULL, NULL));
    REFUSED(tgl_quant_per_channel_cast(T(1), T(2), T(3), T(4), T(5), NULL, NULL));
    REFUSED(tgl_quant_per_channel_cast_and_transpose(T(1), T(2), T(3), NULL, NULL));
    REFUSED(tgl_quant_cast_back(T(1), T(2), T(3), NULL, NULL));
    REFUSED(tgl_quant_unpack_from_e2m1fn_x2(T(1), T(2), NULL));
    REFUSED(tgl_quant_swiglu_forward_and_per_token_cast(T(1), T(2), T(3), T(4), T(5), T(6), T(7), NULL,
                                                        NULL));
    REFUSED(tgl_quant_swiglu_forward_and_per_channel_cast_and_transpose(T(1), T(2), T(3), NULL, NULL));
    return REFUSED(tgl_quant_swiglu_backward_and_per_token_cast(T(1), T(2), T(3), T(4), T(5), T(6), T(7),
                                                                T(8), T(9), T(10), T(11), NULL, NULL));
}

TEST(quant)
{
    CHECK(in_child(ENVIRONMENT("TEGULA_LOG=call"), casts, text));
    check_line(text, "tgl_quant_per_token_cast x x_sf out out_sf");
    check_line(text, "tgl_quant_per_token_cast_with_precomputed_sf x x_sf sf out");
    check_line(text, "tgl_quant_per_block_cast x out out_sf");
    check_line(text, "tgl_quant_per_block_cast_with_precomputed_sf x sf out");
    check_line(text, "tgl_quant_per_block_cast_lossless x x_sf out out_sf inexact");
    check_line(text, "tgl_quant_per_channel_cast x x_sf pos_to_token out out_sf");
    check_line(text, "tgl_quant_per_channel_cast_and_transpose x out out_sf");
    check_line(text, "tgl_quant_cast_back x x_sf out");
    check_line(text, "tgl_quant_unpack_from_e2m1fn_x2 x out");
    check_line(text, "tgl_quant_swiglu_forward_and_per_token_cast x pos_to_token_topk topk_weights "
                     "pos_to_expert clamped_count out out_sf");
    check_line(text, "tgl_quant_swiglu_forward_and_per_channel_cast_and_transpose x out out_sf");
    check_line(text, "tgl_quant_swiglu_backward_and_per_token_cast x x_sf grad_out weight pos_to_token_topk "
                     "token_topk_to_pos out x_grad_fp8 x_grad_sf x_grad weight_grad");
}
