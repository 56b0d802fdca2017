/* SPDX-License-Identifier: MIT
 * topk_sum_and_topk_group_idx_wide.cu - topk_sum_and_topk_group_idx for any number of groups and any sum: a
 * block per token, a warp per group.
 *   computes  group_idx[t][r] = the group of r-th highest rank (numerics/rank.h), groups being ranked by
 *             the sum of their num_topk_sum best scores, added in descending order
 *   launch    grid num_tokens in x and y, block GROUP_IDX_WIDE_THREADS
 *   moves     num_tokens * (4 * num_groups * experts_per_group + INDEX_BYTES * num_topk_groups) bytes; again,
 *             from L1 or L2: a lane's scores after each of its picks, and in every round those of groups
 *             beyond
 *             GROUP_IDX_WIDE_KEPT
 *   macros    INDEX_BYTES 4 or 8 */
#include "moe/common/index.cuh"
#include "moe/common/topk.cuh"
#include "moe/topk_sum_and_topk_group_idx.h"

enum { THREADS = GROUP_IDX_WIDE_THREADS, WARPS = THREADS / 32, KEPT = GROUP_IDX_WIDE_KEPT };

/* By a whole warp; the result is in all lanes. */
DEV float sum_of_best(const float *group, u32 experts_per_group, u32 num_topk_sum)
{
    const u32 lane = threadIdx.x % 32;
    u64 best = best_below(ALL_RANKS, group, experts_per_group, lane, 32);
    float sum = 0;
#pragma unroll 1
    for (u32 i = 0; i < num_topk_sum; i++) {
        const u64 rank = warp_max_u64(best);
        sum += tgl_rank_value(rank);
        if (best == rank) best = best_below(rank, group, experts_per_group, lane, 32);
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) topk_sum_and_topk_group_idx_wide(group_idx_args a)
{
    SHARED(float[KEPT], sums);
    SHARED(u64[2][WARPS], best_of_warp);
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i64 t = block_index();
    const float *groups = a.scores + t * a.token_stride;
    index_type *out = (index_type *)a.group_idx + t * a.num_topk_groups;
    const u32 num_kept = min(a.num_groups, (u32)KEPT);
    pdl_wait();
    if (t >= a.num_tokens) return;
    for (u32 g = warp; g < num_kept; g += WARPS) {
        const float sum = sum_of_best(groups + g * a.group_stride, a.experts_per_group, a.num_topk_sum);
        if (lane == 0) sums[g] = sum;
    }
    __syncthreads();
    u64 last = ALL_RANKS;
#pragma unroll 1
    for (u32 r = 0; r < a.num_topk_groups; r++) {
        u64 best = TGL_RANK_NONE;
        for (u32 g = threadIdx.x; g < num_kept; g += THREADS) {
            const u64 rank = tgl_rank(sums[g], g);
            if (rank < last && rank > best) best = rank;
        }
#pragma unroll 1
        for (u32 g = num_kept + warp; g < a.num_groups; g += WARPS) {
            const float sum = sum_of_best(groups + g * a.group_stride, a.experts_per_group, a.num_topk_sum);
            const u64 rank = tgl_rank(sum, g);
            if (rank < last && rank > best) best = rank;
        }
        last = block_max_u64(best_of_warp[r % 2], best);
        if (threadIdx.x == 0) out[r] = (index_type)tgl_rank_index(last);
    }
    pdl_trigger();
}
