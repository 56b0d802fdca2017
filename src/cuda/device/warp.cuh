/* SPDX-License-Identifier: MIT
 * warp.cuh - masks of a warp's lanes, and scans over its lanes. */
#ifndef TEGULA_WARP_CUH
#define TEGULA_WARP_CUH

#include "device/ptx.cuh"

/* Removes the lowest lane from a mask that is not 0, and returns it. */
DEV int take_lane(u32 &lanes)
{
    const int lane = __ffs(lanes) - 1;
    lanes &= lanes - 1;
    return lane;
}

/* Exclusive scan: the sum of v over the lanes before this one; `total` is the sum over all lanes. */
DEV u32 warp_exclusive_scan(u32 v, int lane, u32 &total)
{
    u32 sum = v;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const u32 other = __shfl_up_sync(FULL, sum, d);
        if (lane >= d) sum += other;
    }
    total = __shfl_sync(FULL, sum, 31);
    return sum - v;
}

/* The same for v < 1 << BITS, with one vote per bit: votes are independent, the steps of a scan are not. */
template <int BITS> DEV u32 warp_exclusive_scan_by_votes(u32 v)
{
    u32 sum = 0;
#pragma unroll
    for (int i = 0; i < BITS; i++) sum += __popc(__ballot_sync(FULL, v >> i & 1) & lanes_below()) << i;
    return sum;
}

#endif
