/* SPDX-License-Identifier: MIT
 * test_log_indices.c - TEGULA_LOG=call: on the CPU, every op that takes indices logs how many are too large,
 * in the line after its call. Negative ones are empty slots and not counted. */
#include "child.h"
#include "tegula/engram.h"
#include "tegula/moe.h"

static char text[CHILD_TEXT];
typedef struct {
    DLTensor t;
    int64_t shape[2];
} tensor;

/* [rows, cols]; cols 0: [rows]. Up to 16 elements, those that are not given 0. */
static DLTensor *make(tensor *t, void *data, int code, int bits, int64_t rows, int64_t cols)
{
    *t = (tensor){ .shape = { rows, cols } };
    t->t = (DLTensor){
        data, { (DLDeviceType)TGL_DL_CPU, 0 }, cols > 0 ? 2 : 1, { (uint8_t)code, (uint8_t)bits, 1 }, t->shape, NULL, 0
    };
    return &t->t;
}
#define I64(rows, cols, ...) make(&(tensor){ 0 }, (int64_t[16]){ __VA_ARGS__ }, TGL_DL_INT, 64, rows, cols)
#define I32(rows, cols, ...) make(&(tensor){ 0 }, (int32_t[16]){ __VA_ARGS__ }, TGL_DL_INT, 32, rows, cols)
#define F32(rows, cols, ...) make(&(tensor){ 0 }, (float[16]){ __VA_ARGS__ }, TGL_DL_FLOAT, 32, rows, cols)
#define BOOL(rows, ...) make(&(tensor){ 0 }, (uint8_t[16]){ __VA_ARGS__ }, TGL_DL_BOOL, 8, rows, 0)

/* What is said beside the lines of calls. */
static void check_said(bool (*call)(void), const char *want)
{
    char said[CHILD_TEXT] = "";
    CHECK(in_child(ENVIRONMENT("TEGULA_LOG=call"), call, text));
    for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
        if (strncmp(line, "tegula: tgl_", 12)) strncat(said, line, (size_t)(end - line) + 1);
    CHECK_TEXT(said, want);
    CHECK(in_child(ENVIRONMENT("TEGULA_LOG=info"), call, text));
    CHECK_TEXT(text, "");
}

/* A block that makes calls and checks what is logged beside the calls themselves. */
#define LOGS(name, want)                          \
    static bool call_##name(void);                \
    TEST(name) { check_said(call_##name, want); } \
    static bool call_##name(void)

LOGS(mask_indices_by_tp, "tegula: indices: 2 of 4 indices are out of range: [1, 0] is 6, want < 6\n")
{
    const tgl_moe_mask_indices_by_tp_params params = { .num_experts = 6, .num_ep_ranks = 2 };
    return CHECK_OK(tgl_moe_mask_indices_by_tp(I64(2, 2, 5, -1, 6, 7), I64(2, 2, 0), &params, NULL));
}

LOGS(inplace_unique_group_indices, "tegula: group_indices: 1 of 4 indices are out of range: [1, 1] is 4, want < 4\n")
{
    return CHECK_OK(tgl_moe_inplace_unique_group_indices(I32(2, 2, 3, 3, -2, 4), 4, NULL));
}

/* Of unmapped_topk_idx, rows 0 and 2 are outputs, and row 3 is masked: nothing is said of what they hold. */
LOGS(top2_sum_gate, "tegula: unmapped_topk_idx: 1 of 2 indices are out of range: [1, 1] is 4, want < 4\n")
{
    DLTensor *fixed = I64(4, 2, 9, 9, 2, 4, 9, 9, 9, 9);
    return CHECK_OK(tgl_moe_top2_sum_gate(F32(4, 4, 0), NULL, BOOL(4, 1, 1, 1, 0), BOOL(4, 0, 1, 0, 1), NULL, NULL,
                                          fixed, I64(4, 2, 0), F32(4, 2, 0), &(tgl_moe_gate_params){ 0 }, NULL));
}

LOGS(without_fixed_routing, "")
{
    return CHECK_OK(tgl_moe_top2_sum_gate(F32(1, 4, 0), NULL, NULL, NULL, NULL, NULL, I64(1, 2, 9, 9), I64(1, 2, 0),
                                          F32(1, 2, 0), &(tgl_moe_gate_params){ 0 }, NULL));
}

/* The whole table is checked, and the ids of tokens that are not masked. */
LOGS(hash_gate, "tegula: input_ids: 1 of 2 indices are out of range: [1, 0] is 2, want < 2\n"
                "tegula: tid2eid: 1 of 4 indices are out of range: [1, 0] is 5, want < 4\n")
{
    return CHECK_OK(tgl_moe_hash_gate(F32(3, 4, 0), I64(3, 0, 8, 2, 1), I32(2, 2, 0, 3, 5, -1), BOOL(3, 0, 1, 1), NULL,
                                      NULL, NULL, I64(3, 2, 0), F32(3, 2, 0), &(tgl_moe_gate_params){ 0 }, NULL));
}

LOGS(group_count_and_aux_fi, "tegula: group_idx: 1 of 2 indices are out of range: [0, 1] is 3, want < 3\n"
                             "tegula: topk_idx: 2 of 2 indices are out of range: [0, 0] is 4, want < 3\n")
{
    CHECK_OK(tgl_moe_group_count(I64(1, 2, 2, 3), I32(3, 0, 0), NULL, 0, NULL));
    return CHECK_OK(tgl_moe_aux_fi(I64(1, 2, 4, 3), F32(3, 0, 0), 1, NULL, 0, NULL));
}

LOGS(get_fused_mapping, "tegula: topk_idx: 1 of 2 indices are out of range: [0, 1] is 1, want < 1\n")
{
    const tgl_moe_mapping mapping = {
        .pos_to_expert = I32(2, 0, 0),
        .pos_to_token = I32(2, 0, 0),
        .pos_to_token_topk = I32(2, 0, 0),
        .token_topk_to_pos = I32(1, 2, 0),
        .expert_start = I32(1, 0, 0),
        .expert_end = I32(1, 0, 0),
        .num_tokens_per_expert = I32(1, 0, 0),
    };
    return CHECK_OK(tgl_moe_get_fused_mapping(I64(1, 2, 0, 1), &mapping, 1, NULL, 0, NULL));
}

#define LINE "tegula: token_topk_to_pos: 1 of 4 indices are out of range: [0, 1] is 3, want < 3\n"
LOGS(expand_and_reduce, LINE LINE LINE)
{
    DLTensor *positions = I32(2, 2, 0, 3, -1, 2), *rows = F32(2, 1, 1, 2), *buffer = F32(3, 1, 0);
    DLTensor *experts = I32(3, 0, 0, -1, 0);
    CHECK_OK(tgl_moe_expand_to_fused(rows, positions, experts, buffer, NULL));
    CHECK_OK(tgl_moe_expand_to_fused_with_sf(rows, F32(2, 1, 1, 1), positions, experts, buffer, F32(3, 1, 0), 1, NULL));
    return CHECK_OK(tgl_moe_reduce_fused(buffer, NULL, NULL, positions, NULL, rows, NULL));
}

LOGS(engram_lookup, "tegula: indices: 2 of 4 are foreign, not in 10..13\n") /* negative ones, too */
{
    int64_t shape[] = { 2, 2, 3 };
    float data[12];
    DLTensor out = { data, { (DLDeviceType)TGL_DL_CPU, 0 }, 3, { TGL_DL_FLOAT, 32, 1 }, shape, NULL, 0 };
    const tgl_engram_lookup_params params = { .row_begin = 10 };
    return CHECK_OK(tgl_engram_lookup(F32(4, 3, 0), NULL, I64(2, 2, 13, -1, 9, 10), &out, NULL, &params, NULL));
}

LOGS(engram_lookup_far_rows, "tegula: indices: 2 of 3 are foreign, not in 9223372036854775805..9223372036854775807\n")
{
    int64_t shape[] = { 1, 3, 3 };
    float data[9] = { 0 };
    DLTensor out = { data, { (DLDeviceType)TGL_DL_CPU, 0 }, 3, { TGL_DL_FLOAT, 32, 1 }, shape, NULL, 0 };
    const tgl_engram_lookup_params params = { .row_begin = INT64_MAX - 2 };
    const float one[] = { 1, 1, 1 }, zero[] = { 0, 0, 0 };
    return CHECK_OK(tgl_engram_lookup(F32(4, 3, 1, 1, 1), NULL, I64(1, 3, INT64_MAX - 2, INT64_MIN, INT64_MAX - 3),
                                      &out, NULL, &params, NULL)) &&
           CHECK(!memcmp(data, one, sizeof one) && !memcmp(data + 3, zero, sizeof zero) &&
                 !memcmp(data + 6, zero, sizeof zero));
}

LOGS(strided, "tegula: indices: 1 of 4 are foreign, not in 0..3\n") /* columns lie apart: 0 2, 1 9 */
{
    int64_t shape[] = { 2, 2, 3 }, strides[] = { 1, 2 };
    float data[12];
    DLTensor out = { data, { (DLDeviceType)TGL_DL_CPU, 0 }, 3, { TGL_DL_FLOAT, 32, 1 }, shape, NULL, 0 };
    DLTensor *indices = I64(2, 2, 0, 1, 2, 9, 9, 9, 9);
    indices->strides = strides;
    return CHECK_OK(tgl_engram_lookup(F32(4, 3, 0), NULL, indices, &out, NULL, &(tgl_engram_lookup_params){ 0 }, NULL));
}

LOGS(prepared, "") /* no data is touched */
{
    int64_t shape[] = { 1, 1, 3 };
    DLTensor out = { (void *)256, { (DLDeviceType)TGL_DL_CPU, 0 }, 3, { TGL_DL_FLOAT, 32, 1 }, shape, NULL, 0 };
    DLTensor *table = F32(4, 3, 0), *indices = I64(1, 1, 9);
    table->data = (void *)512, indices->data = (void *)1024;
    if (!CHECK_OK(tgl_prepare_begin(0, "sm_90a"))) return false;
    const tgl_engram_lookup_params params = { 0 };
    const bool is_good = CHECK_OK(tgl_engram_lookup(table, NULL, indices, &out, NULL, &params, NULL));
    return CHECK_OK(tgl_prepare_end()) && is_good;
}

LOGS(engram_lookup_bwd, "tegula: indices: 2 of 4 are foreign, not in 10..13\n")
{
    int64_t shape[] = { 2, 2, 3 };
    float data[12] = { 0 };
    DLTensor grad = { data, { (DLDeviceType)TGL_DL_CPU, 0 }, 3, { TGL_DL_FLOAT, 32, 1 }, shape, NULL, 0 };
    const tgl_engram_lookup_params params = { .row_begin = 10 };
    return CHECK_OK(tgl_engram_lookup_bwd(&grad, I64(2, 2, 13, -1, 9, 10), F32(4, 3, 0), NULL, NULL, NULL, &params,
                                          NULL, 0, NULL));
}
