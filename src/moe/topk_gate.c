/* SPDX-License-Identifier: MIT
 * topk_gate.c - tgl_moe_topk_gate: the num_topk best experts of every token. */
#include "moe/topk_gate.h"

#include "core/index.h"
#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "moe/common/best.h"
#include "moe/common/shape.h"
#include "tegula/moe.h"

typedef topk_gate_args problem;

/* ---- CPU ---- */

static void run_rows(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t t = begin; t < end; t++) {
        uint64_t limit = TGL_ALL_RANKS;
        for (int64_t k = 0; k < p->num_topk;) {
            tgl_best best;
            const int size = (int)tgl_min(p->num_topk - k, TGL_BEST_MAX);
            tgl_best_of(&best, size, limit, p->scores + t * p->row_stride, p->num_experts);
            for (int i = 0; i < size; i++, k++)
                tgl_index_put(p->topk_idx, t * p->num_topk + k, p->index_bytes, tgl_rank_index(best.ranks[i]));
            limit = best.ranks[size - 1];
        }
    }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const int64_t scans = tgl_ceil_div(p->num_topk, TGL_BEST_MAX);
    const int64_t row_bytes = (int64_t)4 * p->num_experts * scans + (int64_t)p->index_bytes * p->num_topk;
    return tgl_parallel_rows(p->num_tokens, row_bytes, run_rows, p);
}

tgl_signature tgl_moe_topk_gate_signature = TGL_SIGNATURE("moe_topk_gate(scores: f32[num_tokens, num_experts] rows)"
                                                          " -> topk_idx: i64|i32[num_tokens, num_topk]"
                                                          " where num_experts < 2^31, num_topk <= num_experts",
                                                          NULL);

/* ---- launch ---- */

/* The model decides which. */
enum { WARPS, WIDE, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro index = { "INDEX_BYTES", p->index_bytes };
    if (p->num_topk == 0) return 0;
    if (p->num_experts <= TOPK_GATE_MAX_EXPERTS && p->num_topk <= TOPK_GATE_MAX_TOPK) {
        kernels[WARPS] =
            (tgl_kernel){ "moe/topk_gate",
                          { { "NUM_LISTS", tgl_ceil_div(p->num_experts, 128) }, { "NUM_TOPK", p->num_topk }, index } };
        return WARPS + 1;
    }
    kernels[WARPS].name = NULL;
    kernels[WIDE] = (tgl_kernel){ "moe/topk_gate_wide", { index } };
    return NUM_KERNELS;
}

TGL_TOKEN_SHAPES(problem, TOPK_GATE_WIDE_THREADS)

static const tgl_op OP = { cpu, plan, { [WARPS] = { .shape = warps_shape }, [WIDE] = { .shape = wide_shape } } };

tgl_status tgl_moe_topk_gate(const DLTensor *scores, DLTensor *topk_idx, tgl_stream stream)
{
    const DLTensor *tensors[] = { scores, topk_idx };
    TGL_TRY(tgl_take(&tgl_moe_topk_gate_signature, tensors, NULL, NULL));
    problem p = { tgl_data(scores),
                  tgl_data(topk_idx),
                  scores->shape[0],
                  tgl_stride(scores, 0),
                  (uint32_t)scores->shape[1],
                  (uint32_t)topk_idx->shape[1],
                  tgl_dtype_bits(topk_idx->dtype) / 8 };
    return tgl_run(&tgl_moe_topk_gate_signature, &OP, tensors, &p, stream);
}
