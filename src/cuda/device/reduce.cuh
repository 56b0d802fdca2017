/* SPDX-License-Identifier: MIT
 * reduce.cuh - sums over the lanes of a warp. Which lanes are added first is part of an op's result, so it is in the name.
 * Names of parameters end in _, since those of a kernel's macros do not. */
#ifndef TEGULA_REDUCE_CUH
#define TEGULA_REDUCE_CUH

#include "device/ptx.cuh"

/* The sum over LANES_ neighbours, in all of them (adding is commutative, so all have the same bits): first those next to
 * each other, last the two halves. */
template <int LANES_, class T_> DEV T_ lanes_sum(T_ v)
{
#pragma unroll
    for (int d = 1; d < LANES_; d *= 2) v += __shfl_xor_sync(FULL, v, d);
    return v;
}

/* The same, but first lane i of one half and lane i of the other, last those next to each other. */
template <int LANES_, class T_> DEV T_ lanes_sum_by_halves(T_ v)
{
#pragma unroll
    for (int half = LANES_ / 2; half > 0; half /= 2) v += __shfl_xor_sync(FULL, v, half);
    return v;
}

/* Sums over the lanes of a warp, as trees of neighbours: of COUNT_ values, each lane ends with one, whose number is
 * returned, or -1. Each step adds half of the values for both lanes of a pair. */
template <int COUNT_, int BIT_> struct lane_trees {
    static __device__ __forceinline__ int run(float (&v)[COUNT_], int lane, int first, int count, float &sum)
    {
        enum { HALF_ = (COUNT_ + 1) / 2 };
        const bool is_upper = lane >> BIT_ & 1;
        float kept[HALF_];
#pragma unroll
        for (int i = 0; i < HALF_; i++) {
            const float upper = HALF_ + i < COUNT_ ? v[HALF_ + i < COUNT_ ? HALF_ + i : 0] : 0.0f;
            const float sent = is_upper ? v[i] : upper;
            kept[i] = (is_upper ? upper : v[i]) + __shfl_xor_sync(FULL, sent, 1 << BIT_);
        }
        return lane_trees<HALF_, BIT_ + 1>::run(kept, lane, is_upper ? first + HALF_ : first,
                                                is_upper ? count - HALF_ : min(count, (int)HALF_), sum);
    }
};
template <int COUNT_> struct lane_trees<COUNT_, 5> {
    static __device__ __forceinline__ int run(float (&v)[COUNT_], int lane, int first, int count, float &sum)
    {
        sum = v[0];
        return count > 0 ? first : -1;
    }
};
template <int COUNT_> DEV int warp_trees(float (&v)[COUNT_], int lane, float &sum)
{
    static_assert(COUNT_ <= 32, "a value per lane");
    return lane_trees<COUNT_, 0>::run(v, lane, 0, COUNT_, sum);
}

#endif
