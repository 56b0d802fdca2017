/* SPDX-License-Identifier: MIT
 * sort.cuh - a stable sort by a whole grid: radix sort, the lowest digit first. Blocks have equal parts of the entries,
 * warps equal parts of these. In a pass, every warp counts its digits; counts are scanned over warps, blocks and digits;
 * then every warp stores its entries in their order. */
#ifndef TEGULA_SORT_CUH
#define TEGULA_SORT_CUH

#include "device/grid.cuh"
#include "device/warp.cuh"

#define SORT_MAX_BITS 10            /* of a digit */
#define SORT_BINS (1 << SORT_MAX_BITS)
#define SORT_PASS_BARRIERS 3

/* Words of counts, totals and barriers are 0 before the first pass; the caller clears what it needs again. */
typedef struct {
    u32 *counts, *totals, *barriers;    /* SORT_BINS * gridDim.x; SORT_BINS; SORT_PASS_BARRIERS a pass */
    u32 begin, end;                     /* this block's entries; all blocks have as many, but the last */
    u32 bits;                           /* of a digit: 1 .. SORT_MAX_BITS */
} sort_work;

DEV u64 sort_key(uint4 entry) { return (u64)entry.y << 32 | entry.x; }

/* Digit `pass` of entries read(i), which are (key, two more words); they go to `to`. `own` is shared memory of
 * THREADS / 32 << bits words. */
template <int THREADS, class READ> DEV void sort_pass(const sort_work &s, u32 pass, uint4 *to, READ read, u32 *own)
{
    constexpr u32 WARPS = THREADS / 32;
    static_assert(2 * THREADS >= SORT_BINS, "a thread has two bins");
    SHARED(u32[32], sums);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, bins = 1u << s.bits, shift = pass * s.bits;
    const u32 span = (s.end - s.begin + THREADS - 1) / THREADS * 32;
    const u32 first = min(s.begin + warp * span, s.end), last = min(first + span, s.end);
    u32 *const mine = own + warp * bins, *const barriers = s.barriers + SORT_PASS_BARRIERS * pass;

    for (u32 i = threadIdx.x; i < WARPS * bins; i += THREADS) own[i] = 0;
    __syncthreads();
#pragma unroll 1
    for (u32 at = first; at < last; at += 32) {
        const bool is_there = at + lane < last;
        const u32 digit = is_there ? (u32)(sort_key(read(at + lane)) >> shift) & (bins - 1) : bins;
        const u32 same = __match_any_sync(FULL, digit);
        if (is_there && !(same & lanes_below())) mine[digit] += (u32)__popc(same);
        __syncwarp();
    }
    __syncthreads();
    for (u32 bin = threadIdx.x; bin < bins; bin += THREADS) {
        u32 sum = 0;
#pragma unroll 1
        for (u32 w = 0; w < WARPS; w++) {
            const u32 count = own[w * bins + bin];
            own[w * bins + bin] = sum;
            sum += count;
        }
        store_relaxed_u32(s.counts + (u64)bin * gridDim.x + blockIdx.x, sum);
    }
    grid_barrier(barriers);

#pragma unroll 1
    for (u32 bin = blockIdx.x * WARPS + warp; bin < bins; bin += gridDim.x * WARPS) {
        u32 *const of_blocks = s.counts + (u64)bin * gridDim.x;
        u32 sum = 0, total;
#pragma unroll 1
        for (u32 b = lane; b - lane < gridDim.x; b += 32) {
            const u32 count = b < gridDim.x ? load_relaxed_u32(of_blocks + b) : 0;
            const u32 below = warp_exclusive_scan(count, (int)lane, total);
            if (b < gridDim.x) store_relaxed_u32(of_blocks + b, sum + below);
            sum += total;
        }
        if (lane == 0) store_relaxed_u32(s.totals + bin, sum);
    }
    grid_barrier(barriers + 1);

    const u32 bin = 2 * threadIdx.x;
    const u32 low = bin < bins ? load_relaxed_u32(s.totals + bin) : 0;
    const u32 high = bin < bins ? load_relaxed_u32(s.totals + bin + 1) : 0;     /* bins are even */
    u32 total;
    u32 below = warp_exclusive_scan(low + high, (int)lane, total);
    if (lane == 0) sums[warp] = total;
    __syncthreads();
    below += warp_add_u32(lane < warp ? sums[lane] : 0);
    if (bin < bins) {
        const u32 at_low = below + load_relaxed_u32(s.counts + (u64)bin * gridDim.x + blockIdx.x);
        const u32 at_high = below + low + load_relaxed_u32(s.counts + (u64)(bin + 1) * gridDim.x + blockIdx.x);
#pragma unroll 1
        for (u32 w = 0; w < WARPS; w++) {
            own[w * bins + bin] += at_low;
            own[w * bins + bin + 1] += at_high;
        }
    }
    __syncthreads();
#pragma unroll 1
    for (u32 at = first; at < last; at += 32) {
        const bool is_there = at + lane < last;
        const uint4 entry = is_there ? read(at + lane) : make_uint4(0, 0, 0, 0);
        const u32 digit = is_there ? (u32)(sort_key(entry) >> shift) & (bins - 1) : bins;
        const u32 same = __match_any_sync(FULL, digit);
        if (is_there) store_u32x4(to + mine[digit] + __popc(same & lanes_below()), entry);
        __syncwarp();
        if (is_there && !(same & lanes_below())) mine[digit] += (u32)__popc(same);
        __syncwarp();
    }
    grid_barrier(barriers + 2);
}

#endif
