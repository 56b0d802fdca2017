/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "cases/moe/common/expand.h"
#include "core/status.h"

/* Layouts of scale factors:
 *   packed
 *   gap       3 elements between rows
 *   columns   column-major, column stride the rows rounded up to 4
 *   apart     column-major, 5 elements between columns
 *   steps     every third element of rows three times as long, backwards (inputs only) */
static tgl_status lay_out_sf(const char *layout, const int64_t shape[2], int64_t strides[2])
{
    strides[0] = shape[1], strides[1] = 1;
    if (!strcmp(layout, "gap")) strides[0] += 3;
    else if (!strcmp(layout, "columns")) strides[0] = 1, strides[1] = (shape[0] + 3) / 4 * 4;
    else if (!strcmp(layout, "apart")) strides[0] = 1, strides[1] = shape[0] + 5;
    else if (!strcmp(layout, "steps")) strides[0] = 3 * shape[1], strides[1] = -3;
    else if (strcmp(layout, "packed"))
        return tgl_fail(TGL_ERR_ARGUMENT, "sf_layout: is \"%s\", want packed, gap, columns, apart or steps", layout);
    return TGL_OK;
}

static tgl_status setup(case_problem *c)
{
    const int64_t npc = case_int(c, "num_per_channels"), pairs = case_int(c, "pairs");
    const tgl_dtype dtype = case_dtype(c, "sf_dtype");
    TGL_TRY(expand_setup(c));
    const int64_t width = c->tensors[TOKENS].shape[1] * (pairs ? 2 : 1);
    const int64_t num_factors = npc > 0 ? (width + npc - 1) / npc : 0;
    const int64_t num_sf = dtype == TGL_I32 ? (num_factors + 3) / 4 : num_factors;
    c->scalar = npc;
    const int64_t shape[2] = { c->tensors[TOKENS].shape[0], num_sf };
    const int64_t out_shape[2] = { c->tensors[EXPANDED].shape[0], num_sf };
    case_tensor *sf = case_add(c, TOKEN_SF, "x_sf", CASE_IN, dtype, 2, shape);
    case_tensor *out = case_add(c, EXPANDED_SF, "out_sf", expand_role_of_output(c), dtype, 2, out_shape);
    TGL_TRY(lay_out_sf(case_text(c, "sf_layout"), shape, sf->strides));
    return lay_out_sf(case_text(c, "out_sf_layout"), out_shape, out->strides);
}

static tgl_status run(const case_arguments *a)
{
    return tgl_moe_expand_to_fused_with_sf(a->arg[TOKENS], a->arg[TOKEN_SF], a->arg[TO_POS], a->arg[TO_EXPERT],
                                           a->arg[EXPANDED], a->arg[EXPANDED_SF], a->problem->scalar, a->stream);
}

static void oracle(case_problem *c)
{
    expand_rows(c, &c->tensors[TOKENS], &c->tensors[EXPANDED]);
    expand_rows(c, &c->tensors[TOKEN_SF], &c->tensors[EXPANDED_SF]);
}

// clang-format off: lines of cases
const case_op expand_to_fused_with_sf_cases = {
    "moe_expand_to_fused_with_sf",
    ROUTING_PARAMS "hidden= alignment= num_positions=exact slots=mapped dtype=e4m3 layout=packed offset=0 "
    "out_offset=0 "
    "num_per_channels=128 sf_dtype=f32 pairs=0 sf_layout=packed out_sf_layout=packed",
    setup, run, oracle, case_all_bytes, NULL,
    .may_write_twice = true,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=9 num_topk=2,8 num_experts=9,4 num_ranks=8 hidden=576,2048 alignment=16 "
        "num_per_channels=32,128",
        "num_tokens=9 num_topk=2,8 num_experts=9,4 num_ranks=8 hidden=576,2048 alignment=16 "
        "num_per_channels=32,128 sf_dtype=i32 out_sf_layout=columns",
        "num_tokens=7 num_topk=3 num_experts=5 hidden=256 alignment=1,3 "
        "num_per_channels=1,32,100,128,256,1000 sf_dtype=f32,i32 out_sf_layout=packed,columns,apart",
        "num_tokens=7 num_topk=3 num_experts=5 hidden=256 alignment=1 num_per_channels=32 sf_dtype=f32,i32 "
        "sf_layout=gap,columns,apart,steps out_sf_layout=packed,columns",
        "num_tokens=7 num_topk=3 num_experts=5 hidden=1,7,576 alignment=3 num_per_channels=1,32 "
        "dtype=e4m3,bf16,f32,c128 out_sf_layout=packed,columns",
        "num_tokens=7 num_topk=3 num_experts=5 hidden=96 alignment=3 num_per_channels=32 dtype=i8,u8 "
        "pairs=0,1 sf_dtype=f32,i32",
        "num_tokens=7 num_topk=3 num_experts=5 hidden=96 alignment=3 num_per_channels=32 dtype=e2m1x2 "
        "pairs=1 sf_dtype=f32,i32",
        "num_tokens=5 num_topk=8 num_experts=32 hidden=7168 alignment=16 sf_dtype=f32,i32 "
        "out_sf_layout=packed,columns",
        "num_tokens=7 num_topk=3 num_experts=5 hidden=256 alignment=4 num_per_channels=64 "
        "layout=half,gap,repeated offset=0,1 out_offset=0,1 out_sf_layout=packed,columns",
        "num_tokens=9 num_topk=1 num_experts=4 hidden=256 alignment=16 out_sf_layout=packed,columns",
        "num_tokens=0 num_topk=2 num_experts=4 hidden=256 alignment=16 num_positions=0,1,37 "
        "out_sf_layout=packed,apart",
        "num_tokens=9 num_topk=3 num_experts=4 hidden=0 alignment=16",
        "num_tokens=9 num_topk=3 num_experts=4 hidden=256 alignment=16 "
        "num_positions=none,less,more,bound,501 out_sf_layout=packed,columns",
        "num_tokens=9 num_topk=3 num_experts=4 hidden=256 alignment=16 routing=empty,one,gaps,garbage "
        "num_positions=exact,more out_sf_layout=packed,apart",
        "num_tokens=20 num_topk=3 num_experts=4 hidden=7,256 alignment=5 slots=lost,wild "
        "num_per_channels=2 num_positions=exact,less,more routing=some_empty out_sf_layout=packed,apart",
        "num_tokens=700 num_topk=4 num_experts=16 hidden=9 alignment=16 num_per_channels=4 "
        "out_sf_layout=packed,columns",
        "num_tokens=300 num_topk=8 num_experts=40 hidden=144 alignment=16 num_per_channels=1 "
        "slots=mapped,lost routing=some_empty out_sf_layout=packed,columns",
        "num_tokens=3000 num_topk=2 num_experts=40 hidden=144 alignment=16 num_per_channels=1 "
        "routing=some_empty out_sf_layout=packed,columns",
        "num_tokens=1200 num_topk=8 num_experts=40 hidden=144 alignment=16 num_per_channels=8 "
        "slots=mapped,lost,wild sf_layout=packed,columns out_sf_layout=columns,apart",
        "num_tokens=1200 num_topk=8 num_experts=40 hidden=144 alignment=16 num_per_channels=8 "
        "slots=padded out_sf_layout=columns",
        "num_tokens=1800 num_topk=8 num_experts=40 hidden=144 alignment=16 num_per_channels=8 "
        "slots=wild routing=some_empty out_sf_layout=columns",
        "num_tokens=20 num_topk=3 num_experts=4 hidden=7,256 alignment=5 slots=padded "
        "num_per_channels=2 out_sf_layout=packed,apart",
        "num_tokens=40 num_topk=3 num_experts=30 hidden=16 alignment=1200 num_per_channels=1 "
        "out_sf_layout=columns",
        "num_tokens=1000 num_topk=8 num_experts=4 num_ranks=8 hidden=144 alignment=16 num_per_channels=8 "
        "slots=mapped,lost out_sf_layout=columns",
        "num_tokens=4200 num_topk=1 num_experts=8 hidden=8320 alignment=16 "
        "sf_dtype=f32,i32 out_sf_layout=columns",
        "num_tokens=600 num_topk=1 num_experts=4 hidden=144 alignment=1 num_per_channels=1,16 "
        "num_positions=less routing=some_empty slots=mapped,lost out_sf_layout=packed,columns"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=4001 num_topk=2,8 num_experts=9,32,4 num_ranks=8 hidden=576,2560,7168 alignment=16 "
        "num_per_channels=32,128",
        "num_tokens=4001 num_topk=2,8 num_experts=9,32,4 num_ranks=8 hidden=576,2560,7168 alignment=16 "
        "num_per_channels=32,128 sf_dtype=i32 out_sf_layout=columns",
        "num_tokens=8001 num_topk=6 num_experts=9,4 num_ranks=8,64 hidden=2048,3072,4096,6144 "
        "alignment=16 out_sf_layout=packed,columns",
        "num_tokens=33000 num_topk=2 num_experts=4 hidden=16 alignment=16 layout=far num_per_channels=4",
        "num_tokens=64 num_topk=4 num_experts=8 hidden=7168 alignment=45000 out_sf_layout=packed,columns",
        /* out_sf past 2^31 elements */
        "num_tokens=64 num_topk=4 num_experts=8 hidden=1792 alignment=155000 num_per_channels=1 "
        "out_sf_layout=packed,columns"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=1,128,4096 num_topk=8 num_experts=256 hidden=7168 alignment=16",
        "num_tokens=128 num_topk=8 num_experts=256 hidden=7168 alignment=16 sf_dtype=i32 "
        "out_sf_layout=columns",
        "num_tokens=4096,8192 num_topk=8 num_experts=32 num_ranks=8 hidden=7168 alignment=128",
        "num_tokens=4096 num_topk=8 num_experts=32 num_ranks=8 hidden=7168 alignment=128 sf_dtype=i32 "
        "out_sf_layout=columns",
        "num_tokens=4096 num_topk=6 num_experts=384 hidden=4096 alignment=16",
        "num_tokens=4096 num_topk=8 num_experts=256 hidden=7168 alignment=16 out_sf_layout=columns",
        "num_tokens=1024 num_topk=9 num_experts=9 num_ranks=8 hidden=576,2048,6144 alignment=16"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_tokens=64 num_topk=1,6,8,33 num_experts=256 hidden=7,576,7168 alignment=16 "
        "dtype=e4m3,bf16,f32,i64,c128",
        "num_tokens=64 num_topk=8 num_experts=256 hidden=512,4096 alignment=16 sf_dtype=f32,i32 "
        "out_sf_layout=packed,columns"),
    .models = CASE_LINES(
        "num_tokens=64 num_topk={num_topk} num_experts={experts_per_rank} hidden={hidden} alignment=1"),
};
// clang-format on
