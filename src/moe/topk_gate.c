/* SPDX-License-Identifier: MIT
 * topk_gate.c - tgl_moe_topk_gate: the num_topk best experts of every token. */
#include "moe/topk_gate.h"

#include "core/log.h"
#include "core/math.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "moe/common/best.h"
#include "moe/common/index.h"
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
    const int64_t row_bytes = 4 * p->num_experts * scans + (int64_t)p->index_bytes * p->num_topk;
    return tgl_parallel_rows(p->num_tokens, row_bytes, run_rows, p);
}

/* ---- checks ---- */

static tgl_status check(const DLTensor *scores, const DLTensor *topk_idx)
{
    TGL_TRY(tgl_expect("scores", scores, TGL_F32, 2, TGL_ROWS));
    TGL_TRY(tgl_expect("topk_idx", topk_idx, TGL_I64 | TGL_I32, 2, TGL_PACKED));
    TGL_TRY(tgl_expect_same_device("topk_idx", topk_idx, scores));
    const int64_t num_tokens = scores->shape[0], num_experts = scores->shape[1];
    const tgl_dim sizes[2] = { { num_tokens, num_tokens }, { 0, INT32_MAX } };
    TGL_TRY(tgl_expect_shape("scores", scores, sizes));
    const tgl_dim want[2] = { { num_tokens, num_tokens }, { 0, num_experts } };
    TGL_TRY(tgl_expect_shape("topk_idx", topk_idx, want));
    return tgl_expect_no_overlap("topk_idx", topk_idx, "scores", scores);
}

/* ---- launch ---- */

/* The model fixes which of the two it is. */
enum { WARPS, WIDE, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro index = { "INDEX_BYTES", p->index_bytes };
    if (p->num_experts <= TOPK_GATE_MAX_EXPERTS && p->num_topk <= TOPK_GATE_MAX_TOPK) {
        kernels[WARPS] = (tgl_kernel){ "moe/topk_gate", { { "NUM_LISTS", tgl_ceil_div(p->num_experts, 128) },
                                                          { "NUM_TOPK", p->num_topk }, index } };
        return WARPS + 1;
    }
    kernels[WARPS].name = NULL;
    kernels[WIDE] = (tgl_kernel){ "moe/topk_gate_wide", { index } };
    return NUM_KERNELS;
}

static tgl_shape warps_shape(void *context, const tgl_target *target)
{
    (void)target;
    const problem *p = context;
    return tgl_shape_with(tgl_shape_of_tokens(p->num_tokens), p, sizeof *p);
}

static tgl_shape wide_shape(void *context, const tgl_target *target)
{
    (void)target;
    const problem *p = context;
    return tgl_shape_with(tgl_shape_of_blocks(p->num_tokens, TOPK_GATE_WIDE_THREADS), p, sizeof *p);
}

static const tgl_op OP = { cpu, plan, { [WARPS] = { .shape = warps_shape }, [WIDE] = { .shape = wide_shape } } };

tgl_status tgl_moe_topk_gate(const DLTensor *scores, DLTensor *topk_idx, tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_moe_topk_gate", "scores", scores, "topk_idx", topk_idx, NULL);
    TGL_TRY(check(scores, topk_idx));
    problem p = { tgl_data(scores), tgl_data(topk_idx), scores->shape[0], tgl_stride(scores, 0),
                  (uint32_t)scores->shape[1], (uint32_t)topk_idx->shape[1], tgl_dtype_bits(topk_idx->dtype) / 8 };
    if (p.num_topk == 0) return TGL_OK;                             /* no kernel either */
    if (p.num_tokens == 0 && !tgl_preparing()) return TGL_OK;       /* data may be NULL */
    return tgl_on_cpu(scores) ? cpu(&p) : tgl_run_on_cuda(&OP, &p, scores, stream);
}
