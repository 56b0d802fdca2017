/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "cases/moe/common/routing.h"
#include "core/status.h"

enum { INDICES, MAPPING }; /* MAPPING: the first tensor of mapping_add() */

static tgl_status setup(case_problem *c)
{
    TGL_TRY(routing_check_sizes(c, ROUTING_SIZES("num_experts", "alignment", "num_positions", NULL)));
    routing r;
    const tgl_status status = routing_add_indices(c, "topk_idx", &r);
    c->scalar = case_int(c, "alignment");
    mapping_add(c, MAPPING,
                &(mapping_sizes){
                    .num_tokens = r.num_tokens,
                    .num_topk = r.num_topk,
                    .num_experts = r.num_experts,
                    .num_positions = status == TGL_OK ? routing_num_positions(c, &r) : 0,
                    .offset = case_int(c, "out_offset"),
                    .has_counts = case_int(c, "counts") != 0,
                    .has_host = case_int(c, "host") != 0,
                });
    free(r.expert);
    return status;
}

static tgl_status run(const case_arguments *a)
{
    const tgl_moe_mapping m = mapping_of(a, MAPPING);
    return tgl_moe_get_fused_mapping(a->arg[INDICES], &m, a->problem->scalar, a->workspace, a->workspace_bytes,
                                     a->stream);
}

static size_t workspace(const case_arguments *a)
{
    const tgl_moe_mapping m = mapping_of(a, MAPPING);
    return tgl_moe_get_fused_mapping_workspace_size(a->arg[INDICES], &m);
}

static void oracle(case_problem *c) { mapping_answer(c, MAPPING, &c->tensors[INDICES], c->scalar); }

// clang-format off: lines of cases
const case_op get_fused_mapping_cases = {
    "moe_get_fused_mapping",
    ROUTING_PARAMS "alignment= num_positions=exact counts=0 host=0 dtype=i64 layout=packed offset=0 "
    "out_offset=0",
    setup, run, oracle, case_all_bytes, workspace,
    .uses_all_sms = true,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=40 num_topk=2,6,8,9 num_experts=9,32,4 num_ranks=8 alignment=64,128",
        "num_tokens=37 num_topk=8 num_experts=32 alignment=1,3,16,64,128,256 dtype=i64,i32",
        "num_tokens=33 num_topk=8 num_experts=1,2,9,31,32,33,256,257,385,1023,1024 alignment=3 counts=1",
        "num_tokens=20 num_topk=8 num_experts=1025,2048,2049,8192,10000 alignment=16",
        "num_tokens=7 num_topk=0,1,2,31,32,33 num_experts=64 alignment=16 routing=some_empty counts=1",
        "num_tokens=0,1,31,32,33 num_topk=1 num_experts=9,256 alignment=16 host=1",
        "num_tokens=0,1,3,4,5 num_topk=8 num_experts=9 alignment=16 num_positions=none,more,bound",
        "num_tokens=127,128,129 num_topk=8 num_experts=256 alignment=128 dtype=i64,i32",
        "num_tokens=255,256,257,511,512,513,1025 num_topk=8 num_experts=256 alignment=128",
        "num_tokens=60 num_topk=6 num_experts=1,9,385 alignment=16 "
        "routing=some_empty,empty,one,gaps,skewed,garbage",
        "num_tokens=60 num_topk=6 num_experts=2,40 alignment=1 routing=some_empty,one,garbage dtype=i32",
        "num_tokens=60 num_topk=6 num_experts=2048 alignment=16 routing=one,gaps,garbage counts=1",
        "num_tokens=45 num_topk=7 num_experts=9,300 alignment=16 num_positions=none,less,more,bound,1 "
        "routing=garbage counts=1 host=1",
        "num_tokens=45 num_topk=7 num_experts=9 alignment=1 num_positions=less,bound",
        "num_tokens=45 num_topk=7 num_experts=1500 alignment=16 num_positions=none,less,more counts=1",
        "num_tokens=33 num_topk=5,8 num_experts=72 alignment=16 layout=half,gap,repeated offset=0,1 "
        "dtype=i64,i32",
        "num_tokens=300 num_topk=8 num_experts=72 alignment=16 num_positions=bound offset=0,1,2,3 "
        "out_offset=1,2,3 dtype=i32 counts=1 host=1",
        "num_tokens=300 num_topk=33 num_experts=72 alignment=16 layout=gap routing=some_empty",
        "num_tokens=1030 num_topk=8 num_experts=48 alignment=1 num_positions=less layout=gap dtype=i32",
        /* several tiles per block on the emulated device */
        "num_tokens=6000 num_topk=8 num_experts=256 alignment=128 counts=1 host=1",
        "num_tokens=3000 num_topk=8 num_experts=9 alignment=1 routing=one,garbage",
        "num_tokens=3000 num_topk=8 num_experts=32 alignment=128 routing=some_empty",
        "num_tokens=5 num_topk=2 num_experts=0 alignment=8 num_positions=0,9 routing=garbage",
        /* on many SMs a block past those of the experts */
        "num_tokens=1 num_topk=6 num_experts=256 alignment=1 num_positions=131073",
        "num_tokens=1 num_topk=1 num_experts=3 alignment=1000000 num_positions=exact,less",
        "num_tokens=1030 num_topk=8 num_experts=3,7,48,400,1000 alignment=16 dtype=i32",
        "num_tokens=60,1030 num_topk=8 num_experts=9,256,1025,2049,10000 alignment=16 routing=ends counts=1",
        "num_tokens=2100 num_topk=2 num_experts=0,1,2,5,16,17,31,33 alignment=3 routing=garbage counts=1 "
        "host=1"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=100000 num_topk=8 num_experts=1,9,31 alignment=16 routing=some_empty dtype=i32",
        "num_tokens=4001 num_topk=1,2,6,7,8,9 num_experts=9,32,4 num_ranks=8 alignment=64,128",
        "num_tokens=4001 num_topk=2,6,8,9 num_experts=1,4,36,72,256,288,384 alignment=64,128 "
        "num_positions=exact,bound counts=1 host=1",
        "num_tokens=4001 num_topk=8 num_experts=9,256,1024,2048,8192 alignment=1,16 "
        "routing=some_empty,empty,one,gaps,skewed,garbage dtype=i64,i32 num_positions=bound,less counts=1",
        "num_tokens=1000000 num_topk=8 num_experts=4,256,2048 alignment=128 routing=uniform,one,garbage",
        "num_tokens=40000 num_topk=8 num_experts=256,385 alignment=128 num_positions=bound dtype=i64,i32",
        "num_tokens=40000 num_topk=8 num_experts=9,32 alignment=128 routing=some_empty,one,garbage",
        "num_tokens=33000 num_topk=8 num_experts=256 alignment=128 layout=far dtype=i32"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=1,128,4096,8192,32768 num_topk=8 num_experts=256 alignment=128",
        "num_tokens=128,4096 num_topk=8 num_experts=256 alignment=128 host=1",
        "num_tokens=128,4096 num_topk=6 num_experts=384 alignment=128",
        "num_tokens=4096 num_topk=8 num_experts=32 num_ranks=8 alignment=128",
        "num_tokens=8,16,64,256 num_topk=8 num_experts=256 alignment=128",
        "num_tokens=64,256 num_topk=6 num_experts=384 alignment=128",
        "num_tokens=128,4096 num_topk=8 num_experts=256 alignment=128 num_positions=bound counts=1",
        /* sizes of the TileKernels tests: 72 experts on 8 ranks, 256 on 64 */
        "num_tokens=4001 num_topk=2,9 num_experts=9 num_ranks=8 alignment=128",
        "num_tokens=4001 num_topk=8 num_experts=4 num_ranks=64 alignment=128"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_tokens=64,4096,65536 num_topk=8 num_experts=4,32,256,384,1024,2048,8192,10000 alignment=128 "
        "dtype=i64,i32",
        "num_tokens=64 num_topk=1,6,33 num_experts=256 alignment=128 counts=1 host=1"),
    .models = CASE_LINES(
        "num_tokens=4096 num_topk={num_topk} num_experts={experts_per_rank},{num_experts} alignment=128"),
};
// clang-format on
