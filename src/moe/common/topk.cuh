/* SPDX-License-Identifier: MIT
 * topk.cuh - exact selection by ranks (numerics/rank.h) for rows of any length: every thread holds the best
 * remaining rank of its own scores. A round takes the best of all threads; only the winner scans its scores
 * again. Also the best two scores, which groups of experts are ranked by. */
#ifndef TEGULA_MOE_TOPK_CUH
#define TEGULA_MOE_TOPK_CUH

#include "device/ptx.cuh"
#include "numerics/rank.h"

#define ALL_RANKS 0xffffffffffffffffull /* a limit above every rank */

DEV u64 warp_max_u64(u64 v)
{
    const u32 high = warp_max_u32((u32)(v >> 32));
    const u32 low = warp_max_u32((u32)(v >> 32) == high ? (u32)v : 0);
    return (u64)high << 32 | low;
}

/* The max over a block of WARPS warps, in all threads. `bests` is shared memory; callers alternate between
 * two, so that a warp may run one call ahead. */
template <int WARPS> DEV u64 block_max_u64(u64 (&bests)[WARPS], u64 v)
{
    const u64 mine = warp_max_u64(v);
    if (threadIdx.x % 32 == 0) bests[threadIdx.x / 32] = mine;
    __syncthreads();
    u64 best = bests[0];
#pragma unroll
    for (int w = 1; w < WARPS; w++) best = max(best, bests[w]);
    return best;
}

/* The best rank below `limit` among row[first], row[first + step], ..., or TGL_RANK_NONE. */
DEV u64 best_below(u64 limit, const float *row, u32 size, u32 first, u32 step)
{
    u64 best = TGL_RANK_NONE;
#pragma unroll 4
    for (u32 e = first; e < size; e += step) {
        const u64 rank = tgl_rank(row[e], e);
        if (rank < limit && rank > best) best = rank;
    }
    return best;
}

typedef struct { float first, second; } two; /* first >= second */

/* The best two of two pairs. */
DEV two best_two(two a, two b)
{
    return { fmaxf(a.first, b.first), fmaxf(fmaxf(a.second, b.second), fminf(a.first, b.first)) };
}

/* Over LANES neighbouring lanes, a power of two. */
template <int LANES> DEV two best_two_of_lanes(two best)
{
#pragma unroll
    for (int d = 1; d < LANES; d *= 2)
        best = best_two(best, { __shfl_xor_sync(FULL, best.first, d), __shfl_xor_sync(FULL, best.second, d) });
    return best;
}

#endif
