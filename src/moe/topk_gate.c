/* SPDX-License-Identifier: MIT
 * topk_gate.c - tgl_moe_topk_gate: the num_topk best experts of every token. */
#include "moe/topk_gate.h"

#include "core/log.h"
#include "core/math.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "cuda/launch.h"
#include "moe/common/best.h"
#include "tegula/moe.h"

typedef struct {
    const float *scores;
    void *topk_idx;
    int index_bytes;
    int64_t num_tokens, num_experts, num_topk, row_stride;
} problem;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- CPU ---- */

static void run_rows(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t t = begin; t < end; t++) {
        uint64_t limit = TGL_ALL_RANKS;
        for (int64_t k = 0; k < p->num_topk;) {
            tgl_best best;
            const int size = (int)least(p->num_topk - k, TGL_BEST_MAX);
            tgl_best_of(&best, size, limit, p->scores + t * p->row_stride, p->num_experts);
            for (int i = 0; i < size; i++, k++) {
                const uint32_t expert = tgl_rank_index(best.ranks[i]);
                if (p->index_bytes == 8) ((int64_t *)p->topk_idx)[t * p->num_topk + k] = expert;
                else ((int32_t *)p->topk_idx)[t * p->num_topk + k] = (int32_t)expert;
            }
            limit = best.ranks[size - 1];
        }
    }
}

static tgl_status run_on_cpu(const problem *p)
{
    const int64_t scans = tgl_ceil_div(p->num_topk, TGL_BEST_MAX);
    const int64_t row_bytes = 4 * p->num_experts * scans + p->index_bytes * p->num_topk;
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

static tgl_status launch_wide(problem *p, const DLTensor *on, tgl_stream stream)
{
    const tgl_kernel kernel = { "moe/topk_gate_wide", { { "INDEX_BYTES", p->index_bytes } } };
    const tgl_shape shape = tgl_shape_of_blocks(p->num_tokens, TOPK_GATE_WIDE_THREADS);
    uint32_t num_experts = (uint32_t)p->num_experts, num_topk = (uint32_t)p->num_topk;
    void *args[] = { &p->scores, &p->topk_idx, &p->num_tokens, &p->row_stride, &num_experts, &num_topk };
    return tgl_launch(&kernel, 1, 0, on, &shape, stream, args);
}

static tgl_status run_on_cuda(problem *p, const DLTensor *on, tgl_stream stream)
{
    if (p->num_experts > TOPK_GATE_MAX_EXPERTS || p->num_topk > TOPK_GATE_MAX_TOPK)
        return launch_wide(p, on, stream);
    const tgl_kernel kernel = { "moe/topk_gate",
                                { { "NUM_LISTS", tgl_ceil_div(p->num_experts, 128) },
                                  { "NUM_TOPK", p->num_topk },
                                  { "INDEX_BYTES", p->index_bytes } } };
    /* Few tokens spread over all SMs; many are limited by how fast blocks start. H200, 256 experts. */
    const int warps = p->num_tokens <= 512 ? 1 : p->num_tokens <= 2048 ? 4 : TOPK_GATE_WARPS;
    const tgl_shape shape = { { tgl_ceil_div(p->num_tokens, warps) }, .block = 32 * warps };
    uint32_t num_experts = (uint32_t)p->num_experts;
    void *args[] = { &p->scores, &p->topk_idx, &p->num_tokens, &p->row_stride, &num_experts };
    return tgl_launch(&kernel, 1, 0, on, &shape, stream, args);
}

tgl_status tgl_moe_topk_gate(const DLTensor *scores, DLTensor *topk_idx, tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_moe_topk_gate", "scores", scores, "topk_idx", topk_idx, NULL);
    TGL_TRY(check(scores, topk_idx));
    problem p = { .scores = tgl_data(scores), .topk_idx = tgl_data(topk_idx),
                  .index_bytes = tgl_dtype_bits(topk_idx->dtype) / 8, .num_tokens = scores->shape[0],
                  .num_experts = scores->shape[1], .num_topk = topk_idx->shape[1],
                  .row_stride = tgl_stride(scores, 0) };
    if (p.num_topk == 0) return TGL_OK;                             /* no kernel either */
    if (p.num_tokens == 0 && !tgl_preparing()) return TGL_OK;       /* data may be NULL */
    return tgl_on_cpu(scores) ? run_on_cpu(&p) : run_on_cuda(&p, scores, stream);
}
