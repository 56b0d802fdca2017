/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "cases/moe/common/routing.h"

enum { INDICES, COUNTS };

static tgl_status setup(case_problem *c)
{
    routing r;
    const tgl_status status = routing_add_indices(c, "group_idx", &r);
    free(r.expert);
    case_add(c, COUNTS, "counts", CASE_OUT, TGL_I32, 1, &r.num_experts)->offset = case_int(c, "out_offset");
    return status;
}

static tgl_status run(const case_arguments *a)
{
    return tgl_moe_group_count(a->arg[INDICES], a->arg[COUNTS], a->workspace, a->workspace_bytes, a->stream);
}

static size_t workspace(const case_arguments *a)
{
    return tgl_moe_group_count_workspace_size(a->arg[INDICES], a->arg[COUNTS]);
}

static void oracle(case_problem *c)
{
    int64_t *count = routing_count(c, c->tensors[COUNTS].shape[0]);
    for (int64_t e = 0; e < c->tensors[COUNTS].shape[0]; e++)
        ((int32_t *)c->tensors[COUNTS].data)[e] = (int32_t)count[e];
    free(count);
}

// clang-format off: lines of cases
const case_op group_count_cases = {
    "moe_group_count",
    "num_tokens= num_topk= num_groups= num_ranks=1 routing=uniform dtype=i64 layout=packed offset=0 "
    "out_offset=0",
    setup, run, oracle, case_all_bytes, workspace,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=40 num_topk=2,6,8,9 num_groups=9,32,4 num_ranks=8 dtype=i64,i32",
        "num_tokens=0,1,2,31,32,33,127,129 num_topk=1,8 num_groups=72",
        "num_tokens=100 num_topk=8 num_groups=1,2,31,32,33,255,257,1024,4096,5000 routing=uniform,one",
        "num_tokens=100 num_topk=6 num_groups=1,9,256 routing=some_empty,empty,gaps,skewed,garbage "
        "dtype=i64,i32",
        "num_tokens=7 num_topk=0,1,3,32,33,100 num_groups=40 routing=some_empty dtype=i64,i32",
        "num_tokens=33 num_topk=5,6,8 num_groups=72 layout=half,gap,repeated offset=0,1 out_offset=0,1 "
        "dtype=i64,i32",
        "num_tokens=33 num_topk=8 num_groups=72 offset=2,3 dtype=i32",
        "num_tokens=1500 num_topk=5,6 num_groups=72 layout=gap dtype=i64,i32",    /* threads go on in rows with gaps */
        "num_tokens=1000,4097 num_topk=8 num_groups=4,256 routing=uniform,one",
        "num_tokens=40000 num_topk=8 num_groups=256 routing=skewed",
        "num_tokens=9 num_topk=8 num_groups=100000",
        "num_tokens=9,1100 num_topk=8 num_groups=8192,8193,100000 routing=ends",
        "num_tokens=5 num_topk=2 num_groups=0 routing=garbage"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=4001 num_topk=1,2,6,7,8,9 num_groups=9,32,4 num_ranks=8",
        "num_tokens=4001 num_topk=6,8 num_groups=5,36,288,384 num_ranks=1,8 "
        "routing=uniform,some_empty,one,garbage dtype=i64,i32",
        "num_tokens=1000000 num_topk=8 num_groups=1,4,256,4096,100000 routing=uniform,one,garbage",
        "num_tokens=9,1000000 num_topk=8 num_groups=2000000",
        "num_tokens=33000 num_topk=8 num_groups=256 layout=far dtype=i32"),   /* past 2^31 elements */
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=1,128,4096,32768 num_topk=8 num_groups=256",
        "num_tokens=8,64 num_topk=8 num_groups=256",
        "num_tokens=4096 num_topk=8 num_groups=32 num_ranks=8",
        "num_tokens=32768 num_topk=8 num_groups=4 routing=uniform,one"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_tokens=64 num_topk=8 num_groups=4,256,4096,20000,100000 dtype=i64,i32"),
    .models = CASE_LINES("num_tokens=4096 num_topk={num_topk} num_groups={num_experts}"),
};
// clang-format on
