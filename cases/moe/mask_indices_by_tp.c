/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "cases/moe/common/moe.h"
#include "core/status.h"

enum { INDICES, MASKED };

static tgl_status setup(case_problem *c)
{
    const int64_t shape[2] = { case_int(c, "num_tokens"), case_int(c, "num_topk") };
    const tgl_moe_mask_indices_by_tp_params params = {
        .num_experts = case_int(c, "num_experts"),
        .num_ep_ranks = case_int(c, "num_ep_ranks"),
        .num_tp_ranks = case_int(c, "num_tp_ranks"),
        .tp_rank = case_int(c, "tp_rank"),
    };
    const bool in_place = case_int(c, "in_place") != 0;
    const tgl_dtype dtype = case_dtype(c, "dtype");
    memcpy(c->scalars, &params, sizeof params);
    case_tensor *indices =
        case_add(c, INDICES, in_place ? "out" : "indices", in_place ? CASE_INOUT : CASE_IN, dtype, 2, shape);
    indices->offset = case_int(c, "offset");
    if (!in_place) case_add(c, MASKED, "out", CASE_OUT, dtype, 2, shape)->offset = case_int(c, "out_offset");
    TGL_TRY(moe_choose_index_fill(c, indices, params.num_experts));
    return moe_lay_out(case_text(c, "layout"), shape[1], indices->strides);
}

static tgl_status run(const case_arguments *a)
{
    return tgl_moe_mask_indices_by_tp(a->arg[INDICES], a->arg[a->arg[MASKED] ? MASKED : INDICES],
                                      (const void *)a->problem->scalars, a->stream);
}

static void oracle_rows(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    tgl_moe_mask_indices_by_tp_params p;
    memcpy(&p, c->scalars, sizeof p);
    const case_tensor *indices = &c->tensors[INDICES];
    const case_tensor *out = c->num_tensors > MASKED ? &c->tensors[MASKED] : indices;
    for (int64_t t = begin; t < end; t++)
        for (int64_t k = 0; k < out->shape[1]; k++)
            moe_put_index(out, t, k,
                          moe_number_on_rank(p.num_experts, p.num_ep_ranks, p.num_tp_ranks, p.tp_rank,
                                             moe_index_at(indices, t, k)));
}

static void oracle(case_problem *c)
{
    case_parallel(c->tensors[INDICES].shape[0], 64 * c->tensors[INDICES].shape[1], oracle_rows, c);
}

static int64_t bytes(const case_problem *c) /* in place one tensor is read and written */
{
    return case_all_bytes(c) * (c->num_tensors > MASKED ? 1 : 2);
}

// clang-format off: lines of cases
const case_op mask_indices_by_tp_cases = {
    "moe_mask_indices_by_tp",
    "num_tokens= num_topk= num_experts= num_ep_ranks=0 num_tp_ranks=0 tp_rank=0 dtype=i64 "
    "values=some_empty "
    "in_place=0 layout=packed offset=0 out_offset=0",
    setup, run, oracle, bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=37 num_topk=2,6,8,9 num_experts=72,256 num_ep_ranks=8 num_tp_ranks=2,4,8 tp_rank=0,1 "
        "dtype=i64,i32",
        "num_tokens=37 num_topk=8 num_experts=256 num_ep_ranks=64 num_tp_ranks=2,8 tp_rank=1 "
        "values=valid,beyond,bits dtype=i64,i32",
        "num_tokens=40 num_topk=9 num_experts=8 num_ep_ranks=4 num_tp_ranks=2 tp_rank=0,1 "
        "values=some_empty,beyond",
        "num_tokens=40 num_topk=8 num_experts=8 num_ep_ranks=8 num_tp_ranks=4 "
        "tp_rank=0,1,2,3",     /* g = 1 */
        "num_tokens=40 num_topk=8 num_experts=75 num_ep_ranks=8 num_tp_ranks=3,8 tp_rank=2 "
        "values=valid,beyond,bits",
        "num_tokens=40 num_topk=8 num_experts=72 num_ep_ranks=0,1,8 "
        "values=some_empty,beyond,bits",  /* one rank */
        "num_tokens=37 num_topk=7,8 num_experts=72,5000000000 num_ep_ranks=8 num_tp_ranks=2 tp_rank=0,1 "
        "values=wild dtype=i64,i32 in_place=0,1",
        "num_tokens=5 num_topk=7 num_experts=7 num_ep_ranks=3 num_tp_ranks=1000003 "
        "tp_rank=0,1,1000002 values=bits",
        "num_tokens=5 num_topk=7 num_experts=5000000000 num_ep_ranks=3 num_tp_ranks=4 tp_rank=0,3 "
        "values=some_empty,beyond,bits dtype=i64",
        "num_tokens=5 num_topk=7 num_experts=5000000000 num_tp_ranks=4294967296 values=bits dtype=i64,i32",
        "num_tokens=0,1,2,3,127,128,129,255,257 num_topk=1,8 num_experts=256 num_ep_ranks=8 num_tp_ranks=2",
        /* threads take a second step */
        "num_tokens=40000 num_topk=7 num_experts=256 num_ep_ranks=8 num_tp_ranks=2 offset=1",
        "num_tokens=9 num_topk=0,1,2,3,5,33 num_experts=256 num_ep_ranks=8 num_tp_ranks=2 "
        "in_place=0,1 dtype=i64,i32",
        "num_tokens=65 num_topk=6,8 num_experts=256 num_ep_ranks=8 num_tp_ranks=2 layout=half,gap,repeated "
        "offset=0,1 out_offset=0,1 dtype=i64,i32",
        "num_tokens=65 num_topk=6,7,8 num_experts=256 num_ep_ranks=8 num_tp_ranks=2 offset=0,1,2,3 "
        "in_place=1 dtype=i64,i32"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=23000 num_topk=2,6,8,9 num_experts=72,256 num_ep_ranks=8 num_tp_ranks=2,4,8 "
        "tp_rank=0,1 values=some_empty,bits dtype=i64,i32 in_place=0,1",
        "num_tokens=32780 num_topk=9 num_experts=256 num_ep_ranks=8 num_tp_ranks=2 layout=far dtype=i32",
        "num_tokens=268435459 num_topk=8 num_experts=256 num_ep_ranks=8 num_tp_ranks=2 in_place=1 "
        "dtype=i32"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=1,128,4096,32768 num_topk=8 num_experts=256 num_ep_ranks=8 num_tp_ranks=2",
        "num_tokens=8,64 num_topk=8 num_experts=256 num_ep_ranks=8 num_tp_ranks=2",
        "num_tokens=32768 num_topk=8 num_experts=256 num_ep_ranks=8 num_tp_ranks=2 dtype=i32",
        "num_tokens=32768 num_topk=8 num_experts=256 num_ep_ranks=8 num_tp_ranks=2 in_place=1"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_tokens=64 num_topk=8 num_experts=256 num_ep_ranks=8 num_tp_ranks=2 dtype=i64,i32"),
    .models = CASE_LINES(
        "num_tokens=4096 num_topk={num_topk} num_experts={num_experts} num_ep_ranks=8 num_tp_ranks=2"),
};
// clang-format on
