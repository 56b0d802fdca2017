/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>

#include "cases/moe/common/routing.h"

enum { INDICES, FI };

static tgl_status setup(case_problem *c)
{
    routing r;
    const tgl_status status = routing_add_indices(c, "topk_idx", &r);
    free(r.expert);
    c->scalar = case_int(c, "num_aux_topk");
    case_add(c, FI, "fi", CASE_OUT, TGL_F32, 1, &r.num_experts)->offset = case_int(c, "out_offset");
    return status;
}

static tgl_status run(const case_arguments *a)
{
    return tgl_moe_aux_fi(a->arg[INDICES], a->arg[FI], a->problem->scalar, a->workspace, a->workspace_bytes, a->stream);
}

static size_t workspace(const case_arguments *a) { return tgl_moe_aux_fi_workspace_size(a->arg[INDICES], a->arg[FI]); }

/* The float nearest to a whole number: its upper 24 bits, rounded by the bits below. */
static double nearest_float(__int128 value)
{
    int shift = 0;
    while (value >> shift >= (__int128)1 << 24) shift++;
    const __int128 half = shift ? (__int128)1 << (shift - 1) : 0, rest = value - (value >> shift << shift);
    int64_t upper = (int64_t)(value >> shift);
    if (shift && (rest > half || (rest == half && upper % 2))) upper++;
    return ldexp((double)upper, shift);
}

/* A quotient in double, rounded to float, equals one division in float: 53 bits are more than twice 24. */
static void oracle(case_problem *c)
{
    const int64_t e = c->tensors[FI].shape[0], tokens = c->tensors[INDICES].shape[0];
    int64_t *count = routing_count(c, e);
    for (int64_t i = 0; i < e; i++) {
        const double over = nearest_float((__int128)tokens * c->scalar);
        const double quotient = tokens ? nearest_float((__int128)count[i] * e) / over : 0;
        case_encode(TGL_F32, quotient, c->tensors[FI].data + 4 * i);
    }
    free(count);
}

// clang-format off: lines of cases
const case_op aux_fi_cases = {
    "moe_aux_fi", ROUTING_PARAMS "num_aux_topk=8 dtype=i64 layout=packed offset=0 out_offset=0",
    setup, run, oracle, case_all_bytes, workspace,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=40 num_topk=6,9 num_experts=9,32,4 num_ranks=8 num_aux_topk=1,6 dtype=i64,i32",
        "num_tokens=0,1,2,31,32,33,127,129 num_topk=1,8 num_experts=72 num_aux_topk=1,3",
        "num_tokens=100 num_topk=8 num_experts=1,2,31,33,257,1024,4096,5000 routing=uniform,one",
        "num_tokens=100 num_topk=6 num_experts=1,9,256 routing=some_empty,empty,gaps,skewed,garbage "
        "dtype=i64,i32",
        "num_tokens=7 num_topk=0,1,3,33 num_experts=40 routing=some_empty num_aux_topk=1,7,1000003",
        "num_tokens=33 num_topk=5,8 num_experts=72 layout=half,gap,repeated offset=0,1 out_offset=0,1 "
        "dtype=i64,i32",
        /* count * num_experts, num_tokens * num_aux_topk past 2^31 and past 2^32 */
        "num_tokens=3000 num_topk=8 num_experts=100000,200000 routing=one "
        "num_aux_topk=8,1000000,3000000000",
        "num_tokens=3000 num_topk=8 num_experts=100003 routing=skewed num_aux_topk=3000000007",
        "num_tokens=40000 num_topk=8 num_experts=256 routing=skewed",
        "num_tokens=9,1100 num_topk=8 num_experts=8192,8193 routing=ends",
        "num_tokens=5 num_topk=2 num_experts=0 routing=garbage"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=4001 num_topk=1,2,6,7,8,9 num_experts=9,32,4 num_ranks=8 num_aux_topk=1,8",
        "num_tokens=1048576 num_topk=8 num_experts=512 routing=one,skewed",
        "num_tokens=33000 num_topk=8 num_experts=256 layout=far dtype=i32"),   /* past 2^31 elements */
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=1,128,4096,32768 num_topk=8 num_experts=256",
        "num_tokens=8,64 num_topk=8 num_experts=256",
        "num_tokens=4096 num_topk=8 num_experts=32 num_ranks=8"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_tokens=64 num_topk=8 num_experts=4,256,4096,20000,100000 dtype=i64,i32"),
    .models = CASE_LINES("num_tokens=4096 num_topk={num_topk} num_experts={num_experts}"),
};
// clang-format on
