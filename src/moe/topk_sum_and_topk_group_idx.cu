/* SPDX-License-Identifier: MIT
 * topk_sum_and_topk_group_idx.cu - the best groups of every token, a warp per token, in registers.
 *   computes  group_idx[t][r] = the group of r-th highest rank (numerics/rank.h), groups being ranked by
 *             the sum of their NUM_TOPK_SUM best scores
 *   launch    grid ceil(num_tokens / warps), block of 1 .. TOKEN_BLOCK_WARPS warps, no shared memory
 *   moves     num_tokens * (4 * num_groups * experts_per_group + INDEX_BYTES * num_topk_groups) bytes, each
 *             once
 *   macros    GROUP_LANES 1, 2, 4 ... 32, at most 32 / num_groups; LANE_VECTORS 1, 2, 4, 8;
 *             NUM_TOPK_SUM 1 or 2; INDEX_BYTES 4 or 8
 *
 * GROUP_LANES neighbouring lanes share a group. Each keeps the best two of its scores, with LANE_VECTORS
 * vectors of four in flight; shuffles merge them. A group's place is the number of groups above it: its lanes
 * compare it with different groups and add up. */
#include "device/reduce.cuh"
#include "moe/common/index.cuh"
#include "moe/common/topk.cuh"
#include "moe/topk_sum_and_topk_group_idx.h"

static_assert(GROUP_LANES >= 1 && 32 % GROUP_LANES == 0, "GROUP_LANES is 1, 2, 4 ... 32");
static_assert(LANE_VECTORS >= 1 && LANE_VECTORS <= GROUP_IDX_MAX_VECTORS, "LANE_VECTORS is 1, 2, 4 or 8");
static_assert(NUM_TOPK_SUM == 1 || NUM_TOPK_SUM == GROUP_IDX_MAX_TOPK_SUM, "NUM_TOPK_SUM is 1 or 2");

enum { MAX_GROUPS = 32 / GROUP_LANES };
#define MINUS_INFINITY __uint_as_float(0xff800000)

/* Of vectors part, part + GROUP_LANES, ... of the group. NaN and scores past the end are -inf. */
DEV two best_of_lane(const float *group, u32 size, bool is_vector, u32 part)
{
    two best[4]; /* of four independent chains */
#pragma unroll
    for (int j = 0; j < 4; j++) best[j] = { MINUS_INFINITY, MINUS_INFINITY };
#pragma unroll 1
    for (u32 begin = 4 * part; begin < size; begin += 4 * GROUP_LANES * LANE_VECTORS) {
        float x[LANE_VECTORS][4];
#pragma unroll
        for (int i = 0; i < LANE_VECTORS; i++) {
            const u32 e = begin + 4 * GROUP_LANES * i;
            if (is_vector) {
                float4 v = { MINUS_INFINITY, MINUS_INFINITY, MINUS_INFINITY, MINUS_INFINITY };
                if (e < size) v = *(const float4 *)(group + e);
                x[i][0] = v.x;
                x[i][1] = v.y;
                x[i][2] = v.z;
                x[i][3] = v.w;
            } else {
#pragma unroll
                for (u32 j = 0; j < 4; j++) x[i][j] = e + j < size ? group[e + j] : MINUS_INFINITY;
            }
        }
#pragma unroll
        for (int i = 0; i < LANE_VECTORS; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) best[j] = best_two(best[j], { fmaxf(x[i][j], MINUS_INFINITY), MINUS_INFINITY });
    }
    return best_two(best_two(best[0], best[1]), best_two(best[2], best[3]));
}

/* The group's key, in all its lanes. */
DEV u32 key_of_group(const float *group, u32 size, bool is_vector, u32 part)
{
    const two best = best_two_of_lanes<GROUP_LANES>(best_of_lane(group, size, is_vector, part));
    return tgl_rank_key(NUM_TOPK_SUM == 1 ? best.first : best.first + best.second);
}

extern "C" __global__ void __launch_bounds__(32 * TOKEN_BLOCK_WARPS, 4) topk_sum_and_topk_group_idx(group_idx_args a)
{
    const u32 lane = threadIdx.x % 32, group = lane / GROUP_LANES, part = lane % GROUP_LANES;
    const i64 t = (i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const bool is_vector =
        (((u64)a.scores | (u64)(a.token_stride | a.group_stride) * 4) & 15) == 0 && a.experts_per_group % 4 == 0;
    pdl_wait();
    if (t < a.num_tokens) {
        const bool exists = group < a.num_groups;
        const float *at = a.scores + t * a.token_stride + (exists ? group * a.group_stride : 0);
        const u32 some_key = key_of_group(at, exists ? a.experts_per_group : 0, is_vector, part);
        const u32 key = exists ? some_key : TGL_RANK_NONE;
        u32 rank = 0;
#pragma unroll
        for (u32 i = 0; i < MAX_GROUPS; i += GROUP_LANES) {
            const u32 other = i + part, other_key = __shfl_sync(FULL, key, other * GROUP_LANES % 32);
            rank += other < MAX_GROUPS && (other_key > key || (other_key == key && other < group));
        }
        rank = lanes_sum<GROUP_LANES>(rank);
        if (part == 0 && exists && rank < a.num_topk_groups)
            ((index_type *)a.group_idx)[t * a.num_topk_groups + rank] = (index_type)group;
    }
    pdl_trigger();
}
