/* SPDX-License-Identifier: MIT
 * topk.cuh - exact selection by ranks (numerics/rank.h) for rows of any length: every thread holds the best
 * rank that is left of its own scores. A round takes the best of all threads; only the thread that had it
 * looks through its scores again. */
#ifndef TEGULA_MOE_TOPK_CUH
#define TEGULA_MOE_TOPK_CUH

#include "device/ptx.cuh"
#include "numerics/rank.h"

#define ALL_RANKS 0xffffffffffffffffull         /* a limit above every rank */

DEV u64 warp_max_u64(u64 v)
{
    const u32 high = warp_max_u32((u32)(v >> 32));
    const u32 low = warp_max_u32((u32)(v >> 32) == high ? (u32)v : 0);
    return (u64)high << 32 | low;
}

/* The best rank below `limit` among row[first], row[first + step], ...; TGL_RANK_NONE where there is none. */
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

#endif
