/* SPDX-License-Identifier: MIT
 * score.cuh - scores in kernels: SCORING is one of TGL_SIGMOID .. TGL_IDENTITY (score.h). */
#ifndef TEGULA_MOE_SCORE_CUH
#define TEGULA_MOE_SCORE_CUH

#include "device/reduce.cuh"
#include "moe/common/score.h"
#include "numerics/rank.h"

static_assert(SCORING >= TGL_SIGMOID && SCORING <= TGL_IDENTITY, "SCORING is 0 .. 3");

/* By a whole warp; the result is in all lanes. A lane has every 32nd vector of four, as in gate.cuh, so that
 * the bits are the same. */
DEV tgl_softmax softmax_of_row(const float *row, u32 num_experts, u32 lane)
{
    u32 best = tgl_rank_key(__uint_as_float(0xff800000));
#pragma unroll 4
    for (u32 e = lane; e < num_experts; e += 32) best = max(best, tgl_rank_key(row[e]));
    tgl_softmax s = { tgl_rank_value((u64)warp_max_u32(best) << 32), 0.0f };
#pragma unroll 1
    for (u32 first = 4 * lane; first < num_experts; first += 128)
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const float x = first + j < num_experts ? row[first + j] : __uint_as_float(0x7fffffff);
            s.sum += x == x ? expf(x - s.max) : 0.0f;
        }
    s.sum = lanes_sum_by_halves<32>(s.sum);
    return s;
}

/* Only if SCORING needs it. */
DEV tgl_softmax softmax_if_wanted(const float *row, u32 num_experts, u32 lane)
{
    if (SCORING == TGL_SOFTMAX) return softmax_of_row(row, num_experts, lane);
    return { 0.0f, 1.0f };
}

#endif
