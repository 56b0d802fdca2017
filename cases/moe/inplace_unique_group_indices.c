/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "cases/moe/common/moe.h"
#include "core/status.h"

static tgl_status setup(case_problem *c)
{
    const int64_t shape[2] = { case_int(c, "num_tokens"), case_int(c, "num_topk") };
    case_tensor *groups = case_add(c, 0, "group_indices", CASE_INOUT, case_dtype(c, "dtype"), 2, shape);
    groups->offset = case_int(c, "offset");
    c->scalar = case_int(c, "num_groups");
    TGL_TRY(moe_choose_index_fill(c, groups, c->scalar));
    return moe_lay_out(case_text(c, "layout"), shape[1], groups->strides);
}

static tgl_status run(const case_arguments *a)
{
    return tgl_moe_inplace_unique_group_indices(a->arg[0], a->problem->scalar, a->stream);
}

typedef struct { int64_t group, place; } occurrence;

static int by_group_and_place(const void *a, const void *b)
{
    const occurrence *x = a, *y = b;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

/* Sorts a row; all but the first of equal groups become -1. */
static void oracle_rows(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const case_tensor *groups = &c->tensors[0];
    const int64_t k = groups->shape[1];
    occurrence *row = malloc((size_t)k * sizeof *row);
    for (int64_t t = begin; t < end && row; t++) {
        for (int64_t i = 0; i < k; i++) row[i] = (occurrence){ moe_index_at(groups, t, i), i };
        qsort(row, (size_t)k, sizeof *row, by_group_and_place);
        for (int64_t i = 1; i < k; i++)
            if (row[i].group >= 0 && row[i].group == row[i - 1].group) moe_put_index(groups, t, row[i].place, -1);
    }
    free(row);
}

static void oracle(case_problem *c)
{
    if (c->tensors[0].shape[1] == 0) return;
    case_parallel(c->tensors[0].shape[0], 64 * c->tensors[0].shape[1], oracle_rows, c);
}

static int64_t bytes(const case_problem *c) { return 2 * case_tensor_bytes(&c->tensors[0]); }

// clang-format off: lines of cases
const case_op inplace_unique_group_indices_cases = {
    "moe_inplace_unique_group_indices",
    "num_tokens= num_topk= num_groups= dtype=i64 values=some_empty layout=packed offset=0",
    setup, run, oracle, bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=67 num_topk=2,6,8,9 num_groups=8,16,72 dtype=i64,i32",
        "num_tokens=67 num_topk=8 num_groups=1,63,64,65,127,128,129,1000 values=valid,some_empty "
        "dtype=i64,i32",
        "num_tokens=35 num_topk=0,1,2,3,4,5,7,8,15,16,17,31,32,33,63,64,65,100 num_groups=40 "
        "values=valid,some_empty",
        "num_tokens=35 num_topk=1,6,8,31,32,33,70 num_groups=128 values=same,distinct dtype=i64,i32",
        "num_tokens=35 num_topk=8,33 num_groups=1099511627776 dtype=i64",
        "num_tokens=35 num_topk=7,8,33 num_groups=9 values=wild dtype=i64,i32",
        "num_tokens=35 num_topk=8,33 num_groups=2147483647 dtype=i32",
        "num_tokens=3 num_topk=300,1025 num_groups=200",
        "num_tokens=0,1,2,3,4,5,31,32,33,127,128,129,257 num_topk=6,8 num_groups=8",
        "num_tokens=65 num_topk=1,6,8,9,33 num_groups=8 layout=half,gap offset=0,1 dtype=i64,i32"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=4001,30700 num_topk=1,2,6,7,8,9,33 num_groups=8,16,72,1000 dtype=i64,i32",
        "num_tokens=32780 num_topk=9 num_groups=8 layout=far dtype=i32",
        "num_tokens=268435459 num_topk=8 num_groups=8 dtype=i32"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=1,128,4096,32768 num_topk=8 num_groups=8",
        "num_tokens=8,64 num_topk=8 num_groups=8",
        "num_tokens=32768 num_topk=6,9 num_groups=8"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_tokens=64 num_topk=1,2,6,8,9,16,32,33 num_groups=8 dtype=i64,i32"),
    .models = CASE_LINES("num_tokens=4096 num_topk={num_topk} num_groups=8"),
};
// clang-format on
