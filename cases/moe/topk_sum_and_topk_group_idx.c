/* SPDX-License-Identifier: MIT
 * topk_sum_and_topk_group_idx.c - the oracle sorts, where the op selects. Scores have a layout beside those
 * of moe.h:
 *   interleaved  groups outermost, as in x.permute(1, 0, 2) */
#include <stdlib.h>
#include <string.h>

#include "cases/moe/common/moe.h"
#include "core/status.h"

enum { SCORES, IDX };

/* Strides of [num_tokens, num_groups, experts_per_group]. */
static tgl_status lay_out_groups(const char *layout, const int64_t shape[3], int64_t strides[3])
{
    strides[2] = 1;
    if (!strcmp(layout, "interleaved")) {
        strides[0] = shape[2], strides[1] = shape[0] * shape[2];
    } else {
        TGL_TRY(moe_lay_out(layout, shape[2], strides + 1));
        strides[0] = shape[1] * strides[1] + (!strcmp(layout, "gap") ? 5 : 0);
    }
    return TGL_OK;
}

static tgl_status setup(case_problem *c)
{
    const int64_t shape[3] = { case_int(c, "num_tokens"), case_int(c, "num_groups"), case_int(c, "experts_per_group") };
    const int64_t idx_shape[2] = { shape[0], case_int(c, "num_topk_groups") };
    case_tensor *scores = case_add(c, SCORES, "scores", CASE_IN, TGL_F32, 3, shape);
    case_tensor *idx = case_add(c, IDX, "group_idx", CASE_OUT, case_dtype(c, "dtype"), 2, idx_shape);
    scores->offset = case_int(c, "offset");
    idx->offset = case_int(c, "out_offset");
    c->scalar = case_int(c, "num_topk_sum");
    TGL_TRY(moe_choose_fill(c, scores));
    return lay_out_groups(case_text(c, "layout"), shape, scores->strides);
}

static tgl_status run(const case_arguments *a)
{
    return tgl_moe_topk_sum_and_topk_group_idx(a->arg[SCORES], a->arg[IDX], a->problem->scalar, a->stream);
}

/* The sum of the best scores, in descending order. Each addition in double, then rounded, equals one in
 * float: 53 bits are at least twice 24 plus 2. */
static float worth(moe_candidate *sorted, int64_t count)
{
    float sum = sorted[0].score;
    for (int64_t i = 1; i < count; i++) sum = (float)((double)sum + (double)sorted[i].score);
    return moe_ranked(sum);
}

static void oracle_rows(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const case_tensor *scores = &c->tensors[SCORES], *idx = &c->tensors[IDX];
    const int64_t g = scores->shape[1], p = scores->shape[2];
    moe_candidate *experts = malloc((size_t)p * sizeof *experts);
    moe_candidate *groups = malloc((size_t)g * sizeof *groups);
    for (int64_t t = begin; t < end && experts && groups; t++) {
        for (int64_t j = 0; j < g; j++) {
            for (int64_t i = 0; i < p; i++) {
                const float *score = case_element(scores, (int64_t[]){ t, j, i });
                experts[i] = (moe_candidate){ moe_ranked(*score), i };
            }
            qsort(experts, (size_t)p, sizeof *experts, moe_better_first);
            groups[j] = (moe_candidate){ worth(experts, c->scalar), j };
        }
        qsort(groups, (size_t)g, sizeof *groups, moe_better_first);
        for (int64_t i = 0; i < idx->shape[1]; i++) moe_put_index(idx, t, i, groups[i].index);
    }
    free(experts);
    free(groups);
}

static void oracle(case_problem *c)
{
    const case_tensor *scores = &c->tensors[SCORES];
    if (c->tensors[IDX].shape[1] == 0) return;
    case_parallel(scores->shape[0], 64 * scores->shape[1] * scores->shape[2], oracle_rows, c);
}

// clang-format off: lines of cases
const case_op topk_sum_and_topk_group_idx_cases = {
    "moe_topk_sum_and_topk_group_idx",
    "num_tokens= num_groups= experts_per_group= num_topk_sum=2 num_topk_groups= dtype=i64 values=normal "
    "layout=packed offset=0 out_offset=0",
    setup, run, oracle, case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=19 num_groups=4 experts_per_group=18,64 num_topk_sum=1,2 num_topk_groups=2,4",
        "num_tokens=19 num_groups=8 experts_per_group=9,32 num_topk_sum=1,2 num_topk_groups=2,4",
        "num_tokens=19 num_groups=12 experts_per_group=6 num_topk_sum=1,2 num_topk_groups=2,4",
        "num_tokens=19 num_groups=16 experts_per_group=16 num_topk_sum=1,2 num_topk_groups=2,4",
        "num_tokens=17 num_groups=8 experts_per_group=32 num_topk_groups=4 "
        "values=ties,equal,few_finite,special,magnitudes,bits dtype=i64,i32",
        "num_tokens=17 num_groups=8,12 experts_per_group=6,32 num_topk_sum=1,2,3 num_topk_groups=4 "
        "values=close,coarse",
        "num_tokens=5 num_groups=1,3,31,32,33,64,65 experts_per_group=5 num_topk_groups=1 "
        "values=normal,ties",
        "num_tokens=5 num_groups=32,64,100 experts_per_group=7 num_topk_groups=32 values=ties,few_finite",
        /* sums that shared memory has no room for */
        "num_tokens=1 num_groups=9000 experts_per_group=1 num_topk_sum=1 num_topk_groups=8",
        "num_tokens=5 num_groups=8,40 experts_per_group=6 num_topk_sum=2,3 num_topk_groups=8 dtype=i32",
        "num_tokens=5 num_groups=7 experts_per_group=1 num_topk_sum=1 num_topk_groups=0,1,7 "
        "values=ties,special",
        "num_tokens=5 num_groups=9 experts_per_group=2 num_topk_sum=1,2 num_topk_groups=3,9 "
        "values=ties,special",
        "num_tokens=5 num_groups=6 experts_per_group=13,31,33,97 num_topk_sum=2,3,5,13 num_topk_groups=3 "
        "values=normal,magnitudes,special",
        "num_tokens=3 num_groups=4 experts_per_group=8 num_topk_sum=1,2,3,4,5,6,7,8 num_topk_groups=4 "
        "values=normal,magnitudes,few_finite",
        "num_tokens=2 num_groups=2 experts_per_group=128,300,1000 num_topk_sum=1,2,40 num_topk_groups=2",
        /* the last two: 4 and 8 warps a block, the last one not full */
        "num_tokens=0,1,2,3,4,5,8,9,33,65,515,2051 num_groups=8 experts_per_group=32 num_topk_groups=4",
        "num_tokens=5 num_groups=8 experts_per_group=9,32 num_topk_sum=1,2 num_topk_groups=4 "
        "layout=half,gap,interleaved,repeated offset=0,1,2 out_offset=0,1"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=4001,8001 num_groups=4 experts_per_group=18,64 num_topk_sum=1,2 num_topk_groups=2,4",
        "num_tokens=4001,8001 num_groups=8 experts_per_group=9,32 num_topk_sum=1,2 num_topk_groups=2,4 "
        "values=normal,ties,special",
        "num_tokens=4001,8001 num_groups=12 experts_per_group=6 num_topk_sum=1,2 num_topk_groups=2,4",
        "num_tokens=4001,8001 num_groups=16 experts_per_group=16 num_topk_sum=1,2 num_topk_groups=2,4",
        "num_tokens=200000 num_groups=8 experts_per_group=32 num_topk_groups=4",
        "num_tokens=100 num_groups=1000 experts_per_group=3 num_topk_sum=1,2,3 num_topk_groups=1000 "
        "values=ties",
        "num_tokens=8200 num_groups=4 experts_per_group=8 num_topk_groups=2 values=ties layout=far"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=1,128,4096,32768 num_groups=8 experts_per_group=32 num_topk_groups=4",
        "num_tokens=8,64 num_groups=8 experts_per_group=32 num_topk_groups=4",
        "num_tokens=8001 num_groups=12 experts_per_group=6 num_topk_sum=1,2 num_topk_groups=4"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_tokens=64 num_groups=4 experts_per_group=18,64 num_topk_sum=1,2 num_topk_groups=2,4",
        "num_tokens=64 num_groups=8 experts_per_group=9,32 num_topk_sum=1,2 num_topk_groups=2,4 "
        "dtype=i64,i32",
        "num_tokens=64 num_groups=12 experts_per_group=6 num_topk_sum=1,2 num_topk_groups=2,4",
        "num_tokens=64 num_groups=16 experts_per_group=16 num_topk_sum=1,2 num_topk_groups=2,4",
        "num_tokens=64 num_groups=1,33,64 experts_per_group=5,100 num_topk_sum=1,2,5 num_topk_groups=1",
        "num_tokens=64 num_groups=33 experts_per_group=5 num_topk_groups=1 dtype=i32"),
    .models = CASE_LINES(
        "num_tokens=4096 num_groups={num_groups} experts_per_group={experts_per_group} num_topk_sum=2 "
        "num_topk_groups={num_topk_groups}"),
};
// clang-format on
