/* SPDX-License-Identifier: MIT */
#include "cases/moe/common/expand.h"

static tgl_status run(const case_arguments *a)
{
    return tgl_moe_expand_to_fused(a->arg[TOKENS], a->arg[TO_POS], a->arg[TO_EXPERT], a->arg[EXPANDED], a->stream);
}

static void oracle(case_problem *c) { expand_rows(c, &c->tensors[TOKENS], &c->tensors[EXPANDED]); }

// clang-format off: lines of cases
const case_op expand_to_fused_cases = {
    "moe_expand_to_fused",
    ROUTING_PARAMS "hidden= alignment= num_positions=exact slots=mapped dtype=bf16 layout=packed offset=0 "
    "out_offset=0",
    expand_setup, run, oracle, case_all_bytes, NULL,
    .may_write_twice = true,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=9 num_topk=2,6,8,9 num_experts=9,4 num_ranks=8 hidden=576,2048 alignment=16",
        "num_tokens=6 num_topk=3 num_experts=5 hidden=1,2,7,8,64,576 alignment=3 "
        "dtype=e4m3,bf16,f32,i64,c128 routing=some_empty",
        "num_tokens=6 num_topk=3 num_experts=5 hidden=24 alignment=3 "
        "dtype=bool,i8,u8,i16,u16,f16,i32,u32,u64,f64,c64,e5m2,ue8m0,e2m1x2",
        "num_tokens=5 num_topk=8 num_experts=32 hidden=7168 alignment=16 dtype=e4m3,bf16,f32",
        "num_tokens=6 num_topk=3 num_experts=5 hidden=64,65 alignment=4 layout=half,gap,repeated "
        "dtype=e4m3,bf16,f32,c128",
        "num_tokens=6 num_topk=3 num_experts=5 hidden=64 alignment=4 offset=0,1,2,3,4,8 "
        "out_offset=0,1,2,4,8 dtype=e4m3,bf16",
        "num_tokens=6 num_topk=3 num_experts=5 hidden=64 alignment=4 offset=0,1,2 out_offset=0,1,2 "
        "dtype=f32,i64,c128",
        /* far more positions than tokens */
        "num_tokens=40 num_topk=3 num_experts=30 hidden=16 alignment=300",
        /* a row in many chunks, in several trips with TEGULA_TEST_GRID */
        "num_tokens=6 num_topk=3 num_experts=5 hidden=1001 alignment=3 dtype=e4m3",
        "num_tokens=9 num_topk=1 num_experts=4 hidden=40 alignment=16",
        "num_tokens=9 num_topk=0 num_experts=4 hidden=40 alignment=16 num_positions=5",
        "num_tokens=0 num_topk=2 num_experts=4 hidden=40 alignment=16 num_positions=0,1,37",
        "num_tokens=9 num_topk=3 num_experts=4 hidden=0 alignment=16",
        "num_tokens=9 num_topk=3 num_experts=4 hidden=72 alignment=16 "
        "num_positions=none,less,more,bound,500",
        "num_tokens=9 num_topk=3 num_experts=4 hidden=72 alignment=16 routing=empty,one,gaps,garbage "
        "num_positions=exact,more",
        "num_tokens=20 num_topk=3 num_experts=4 hidden=7,72 alignment=5 slots=lost,wild "
        "dtype=e4m3,bf16,f32 num_positions=exact,less,more routing=some_empty",
        "num_tokens=20 num_topk=3 num_experts=4 hidden=2048 alignment=5 slots=lost,wild routing=some_empty",
        "num_tokens=20 num_topk=3 num_experts=4 hidden=7,72 alignment=5 slots=padded "
        "num_positions=exact,less",
        "num_tokens=1200 num_topk=8 num_experts=40 hidden=72 alignment=16 slots=padded",
        "num_tokens=3 num_topk=33,70 num_experts=128 hidden=136 alignment=1",
        "num_tokens=700 num_topk=4 num_experts=16 hidden=9 alignment=16",
        "num_tokens=300,1100 num_topk=8 num_experts=40 hidden=72 alignment=16 slots=mapped,lost "
        "routing=some_empty",
        "num_tokens=3000 num_topk=2 num_experts=40 hidden=72,4104 alignment=16 routing=some_empty",
        /* rows are loaded only once they are known to have a position; more blocks than gridDim.y allows */
        "num_tokens=600 num_topk=1 num_experts=4 hidden=9,72,4104 alignment=1 num_positions=less "
        "routing=some_empty slots=mapped,lost",
        "num_tokens=66000 num_topk=1 num_experts=4 hidden=8 alignment=16"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=4001 num_topk=2,6,8,9 num_experts=9,32,4 num_ranks=8 hidden=576,2560,7168 alignment=16",
        "num_tokens=8001 num_topk=6 num_experts=9,4 num_ranks=8,64 hidden=2048,3072,4096,6144 alignment=16",
        "num_tokens=4001 num_topk=8 num_experts=256 hidden=7168 alignment=16 dtype=e4m3,bf16,f32 "
        "routing=uniform,some_empty",
        /* past 2^31 elements: x, out, and where rows of out start */
        "num_tokens=33000 num_topk=2 num_experts=4 hidden=16 alignment=16 dtype=e4m3 layout=far",
        "num_tokens=64 num_topk=8 num_experts=32 hidden=7168 alignment=128 dtype=e4m3 num_positions=300000",
        "num_tokens=64 num_topk=4 num_experts=8 hidden=7168 alignment=45000 dtype=e4m3"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=1,128,4096 num_topk=8 num_experts=256 hidden=7168 alignment=16",
        "num_tokens=4096,8192 num_topk=8 num_experts=32 num_ranks=8 hidden=7168 alignment=128",
        "num_tokens=4096 num_topk=6 num_experts=384 hidden=4096 alignment=16",
        "num_tokens=8,64 num_topk=8 num_experts=256 hidden=7168 alignment=16",
        "num_tokens=4096 num_topk=8 num_experts=256 hidden=7168 alignment=16 dtype=e4m3",
        "num_tokens=1024 num_topk=2 num_experts=9 num_ranks=8 hidden=2048 alignment=16",
        "num_tokens=1024 num_topk=9 num_experts=9 num_ranks=8 hidden=576,2048,6144 alignment=16"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_tokens=64 num_topk=1,6,8,33 num_experts=256 hidden=7,576,7168 alignment=16 "
        "dtype=e4m3,bf16,f32,i64,c128"),
    .models = CASE_LINES(
        "num_tokens=64 num_topk={num_topk} num_experts={experts_per_rank} hidden={hidden} alignment=1"),
};
// clang-format on
