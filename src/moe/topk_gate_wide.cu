/* SPDX-License-Identifier: MIT
 * topk_gate_wide.cu - topk_gate for more experts or picks than fit in a warp's registers: a block per token.
 *   computes  topk_idx[t][k] = the expert of k-th highest rank (numerics/rank.h) in scores[t]
 *   launch    grid num_tokens in x and y, block TOPK_GATE_WIDE_THREADS
 *   moves     num_tokens * (4 * num_experts + INDEX_BYTES * num_topk) bytes; a round reads
 *             num_experts / TOPK_GATE_WIDE_THREADS scores again, from L1 or L2
 *   macros    INDEX_BYTES 4 or 8 */
#include "moe/common/index.cuh"
#include "moe/common/topk.cuh"
#include "moe/topk_gate.h"

enum { THREADS = TOPK_GATE_WIDE_THREADS, WARPS = THREADS / 32 };

extern "C" __global__ void __launch_bounds__(THREADS) topk_gate_wide(topk_gate_args a)
{
    SHARED(u64[2][WARPS], best_of_warp);
    const i64 t = block_index();
    const float *row = a.scores + t * a.row_stride;
    index_type *out = (index_type *)a.topk_idx + t * a.num_topk;
    pdl_wait();
    if (t >= a.num_tokens) return;
    u64 best = best_below(ALL_RANKS, row, a.num_experts, threadIdx.x, THREADS);
#pragma unroll 1
    for (u32 k = 0; k < a.num_topk; k++) {
        const u64 rank = block_max_u64(best_of_warp[k % 2], best);
        if (threadIdx.x == 0) out[k] = (index_type)tgl_rank_index(rank);
        if (best == rank) best = best_below(rank, row, a.num_experts, threadIdx.x, THREADS);
    }
    pdl_trigger();
}
