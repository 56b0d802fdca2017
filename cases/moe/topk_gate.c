/* SPDX-License-Identifier: MIT
 * topk_gate.c - the oracle sorts all experts of a token, where the op selects. */
#include <stdlib.h>

#include "cases/moe/common/moe.h"
#include "core/status.h"

enum { SCORES, IDX };

static tgl_status setup(case_problem *c)
{
    const int64_t t = case_int(c, "num_tokens"), e = case_int(c, "num_experts"), k = case_int(c, "num_topk");
    case_tensor *scores = case_add(c, SCORES, "scores", CASE_IN, TGL_F32, 2, (int64_t[]){ t, e });
    case_tensor *idx = case_add(c, IDX, "topk_idx", CASE_OUT, case_dtype(c, "dtype"), 2, (int64_t[]){ t, k });
    scores->offset = case_int(c, "offset");
    idx->offset = case_int(c, "out_offset");
    TGL_TRY(moe_choose_fill(c, scores));
    return moe_lay_out(case_text(c, "layout"), e, scores->strides);
}

static tgl_status run(const case_arguments *a) { return tgl_moe_topk_gate(a->arg[SCORES], a->arg[IDX], a->stream); }

static void oracle_rows(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const case_tensor *scores = &c->tensors[SCORES], *idx = &c->tensors[IDX];
    const int64_t e = scores->shape[1], k = idx->shape[1];
    moe_candidate *row = malloc((size_t)e * sizeof *row);
    for (int64_t t = begin; t < end && row; t++) {
        for (int64_t i = 0; i < e; i++)
            row[i] = (moe_candidate){ moe_ranked(*(float *)case_element(scores, (int64_t[]){ t, i })), i };
        qsort(row, (size_t)e, sizeof *row, moe_better_first);
        for (int64_t i = 0; i < k; i++) moe_put_index(idx, t, i, row[i].index);
    }
    free(row);
}

static void oracle(case_problem *c)
{
    if (c->tensors[IDX].shape[1] == 0) return;
    case_parallel(c->tensors[IDX].shape[0], 64 * c->tensors[SCORES].shape[1], oracle_rows, c);
}

// clang-format off: lines of cases
const case_op topk_gate_cases = {
    "moe_topk_gate",
    "num_tokens= num_experts= num_topk= dtype=i64 values=normal layout=packed offset=0 out_offset=0",
    setup, run, oracle, case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=37 num_experts=72,32,64,96,16,36,108,128,144 num_topk=6",
        "num_tokens=33 num_experts=256 num_topk=8 values=normal,ties,equal,few_finite,special,bits "
        "dtype=i64,i32",
        "num_tokens=5 num_experts=384 num_topk=6 values=normal,ties,equal,few_finite,special",
        "num_tokens=9 num_experts=1,2,7,8,9,15,16,17,31,32,33,63,64,65 num_topk=1 values=ties,special",
        "num_tokens=3 num_experts=127,129,255,257,383,385,511,512,513,1000,1023,1024,1025 num_topk=8 "
        "values=normal,ties",
        "num_tokens=2 num_experts=1,2,31,32,33,65,256,300 num_topk=1 layout=gap,repeated offset=0,1",
        "num_tokens=37 num_experts=36,256,384,1000 num_topk=6,32 values=close,coarse",
        "num_tokens=3 num_experts=128,256,512,1024 num_topk=6 values=mirrored",
        "num_tokens=1 num_experts=4096,5000 num_topk=8,33 values=normal,few_finite,coarse",
        "num_tokens=7 num_experts=8 num_topk=0,1,2,7,8 values=ties,few_finite",
        "num_tokens=3 num_experts=33 num_topk=31,32,33 values=normal,ties,special",
        "num_tokens=2 num_experts=256 num_topk=32,33,255,256 values=normal,few_finite,special "
        "dtype=i64,i32",
        "num_tokens=1 num_experts=1024 num_topk=1024 values=ties",
        /* the last two: 4 and 8 warps a block, the last one not full */
        "num_tokens=0,1,2,3,4,5,8,9,31,32,33,65,129,515,2051 num_experts=64 num_topk=6",
        "num_tokens=9 num_experts=72,256 num_topk=6 layout=half,gap,repeated offset=0,1,2,3 out_offset=0,1 "
        "dtype=i64,i32",
        "num_tokens=9 num_experts=1 num_topk=0 values=special"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=4001,8001 num_experts=72,32,64,96,16,36,108,128,144 num_topk=6",
        "num_tokens=4001,8001,200000 num_experts=256 num_topk=8 values=normal,close,coarse,ties,special",
        "num_tokens=4001 num_experts=384,512,1000,4096 num_topk=6,8 values=normal,coarse,few_finite "
        "layout=packed,gap",
        "num_tokens=100 num_experts=1000 num_topk=1000 values=normal,ties",
        "num_tokens=3 num_experts=100000 num_topk=8,100 values=normal,ties",
        "num_tokens=32780 num_experts=16 num_topk=6 values=ties "
        "layout=far"),    /* scores past 2^31 elements */
    /* sizes published for other libraries, then decoding and other models */
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=1,128,4096,8192,32768 num_experts=256 num_topk=8",
        "num_tokens=1,128,4096,8192 num_experts=384 num_topk=6",
        "num_tokens=8,64 num_experts=256 num_topk=8",
        "num_tokens=4001,8001 num_experts=72 num_topk=6",
        "num_tokens=128,8192 num_experts=512 num_topk=10"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_tokens=64 num_experts=16,32,36,64,72,96,108,128,144 num_topk=6",
        "num_tokens=64 num_experts=256,384 num_topk=6,8 dtype=i64,i32",
        "num_tokens=64 num_experts=1,8,33,257,512,1000,1024,4096,5000 num_topk=1 dtype=i64,i32",
        "num_tokens=64 num_experts=256 num_topk=32,33,256"),
    .models = CASE_LINES("num_tokens=4096 num_experts={num_experts} num_topk={num_topk}"),
};
// clang-format on
