/* SPDX-License-Identifier: MIT
 * reduce.cuh - sums over the lanes of a warp. Which lanes are added first is part of an op's result, so it is in the name. */
#ifndef TEGULA_REDUCE_CUH
#define TEGULA_REDUCE_CUH

#include "device/ptx.cuh"

/* The sum over LANES neighbours, in all of them (adding is commutative, so all have the same bits): first those next to
 * each other, last the two halves. */
template <int LANES> DEV float lanes_sum(float v)
{
#pragma unroll
    for (int d = 1; d < LANES; d *= 2) v += __shfl_xor_sync(FULL, v, d);
    return v;
}

/* The same, but first lane i of one half and lane i of the other, last those next to each other. */
template <int LANES> DEV float lanes_sum_by_halves(float v)
{
#pragma unroll
    for (int half = LANES / 2; half > 0; half /= 2) v += __shfl_xor_sync(FULL, v, half);
    return v;
}

/* Sums over the lanes of a warp, as trees of neighbours: of COUNT values, each lane ends with one, whose number is
 * returned, or -1. Each step adds half of the values for both lanes of a pair. */
template <int COUNT, int BIT> struct lane_trees {
    static __device__ __forceinline__ int run(float (&v)[COUNT], int lane, int first, int count, float &sum)
    {
        enum { HALF = (COUNT + 1) / 2 };
        const bool is_upper = lane >> BIT & 1;
        float kept[HALF];
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            const float upper = HALF + i < COUNT ? v[HALF + i < COUNT ? HALF + i : 0] : 0.0f;
            const float sent = is_upper ? v[i] : upper;
            kept[i] = (is_upper ? upper : v[i]) + __shfl_xor_sync(FULL, sent, 1 << BIT);
        }
        return lane_trees<HALF, BIT + 1>::run(kept, lane, is_upper ? first + HALF : first,
                                              is_upper ? count - HALF : min(count, (int)HALF), sum);
    }
};
template <int COUNT> struct lane_trees<COUNT, 5> {
    static __device__ __forceinline__ int run(float (&v)[COUNT], int lane, int first, int count, float &sum)
    {
        sum = v[0];
        return count > 0 ? first : -1;
    }
};
template <int COUNT> DEV int warp_trees(float (&v)[COUNT], int lane, float &sum)
{
    static_assert(COUNT <= 32, "a value per lane");
    return lane_trees<COUNT, 0>::run(v, lane, 0, COUNT, sum);
}

#endif
