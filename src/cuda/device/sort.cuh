/* SPDX-License-Identifier: MIT
 * sort.cuh - what a block needs to sort entries, a key and a value each: stable, by up to 256 bins in a pass. */
#ifndef TEGULA_SORT_CUH
#define TEGULA_SORT_CUH

#include "device/integer.cuh"
#include "device/warp.cuh"

#define SORT_BITS 8                                      /* of a bin's number */
#define SORT_BINS (1 << SORT_BITS)                       /* of a pass at most, and threads of a block at least */
#define SORT_WORDS(threads) ((threads) / 32 * SORT_BINS) /* of shared memory for a pass */

/* ---- entries. To and from memory of other blocks they go by sort_store and sort_load ---- */

DEV void sort_set(uint2 &e, u64 key, u32 value) { e = make_uint2((u32)key, value); }
DEV u32 sort_key(uint2 e) { return e.x; }
DEV u32 sort_value(uint2 e) { return e.y; }
DEV uint2 sort_load(const uint2 *from) { return load_relaxed_u32x2(from); }
DEV void sort_store(uint2 *to, uint2 e) { store_relaxed_u32x2(to, e); }

DEV void sort_set(uint4 &e, u64 key, u32 value) { e = make_uint4((u32)key, (u32)(key >> 32), value, 0); }
DEV u64 sort_key(uint4 e) { return (u64)e.y << 32 | e.x; }
DEV u32 sort_value(uint4 e) { return e.z; }
DEV uint4 sort_load(const uint4 *from) { return load_relaxed_u32x4(from); }
DEV void sort_store(uint4 *to, uint4 e) { store_relaxed_u32x4(to, e); }

/* The last of SORT_BINS ascending numbers, of which the first is 0, that is not above x. */
template <class T> DEV u32 sort_last_of(const T *numbers, T x)
{
    u32 last = 0;
#pragma unroll
    for (u32 step = SORT_BINS / 2; step > 0; step /= 2)
        if (numbers[last + step] <= x) last += step;
    return last;
}

/* ---- by all threads of a block ---- */

/* The sum of v over the threads before this one; `total` over all. */
DEV u32 block_exclusive_scan(u32 v, u32 &total)
{
    SHARED(u32[32], sums);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 of_warp;
    const u32 before = warp_exclusive_scan(v, (int)lane, of_warp);
    __syncthreads(); /* sums are free */
    if (lane == 0) sums[warp] = of_warp;
    __syncthreads();
    const u32 sum = lane < blockDim.x / 32 ? sums[lane] : 0;
    total = warp_add_u32(sum);
    return before + warp_add_u32(lane < warp ? sum : 0);
}

/* Entries go where their bins are: write(place, entry), in the order that they have, bin after bin; bin_of(entry) is
 * below SORT_BINS. Thread b calls start_of(b, place) with the first place of bin b. `counts` is shared memory,
 * SORT_WORDS. What was written is there for all threads afterwards. */
template <class ENTRY, class BIN, class START, class WRITE>
DEV void sort_pass(const ENTRY *from, u32 count, u32 *counts, BIN bin_of, START start_of, WRITE write)
{
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
    const u32 span = (count + blockDim.x - 1) / blockDim.x * 32; /* entries of a warp */
    const u32 first = min(warp * span, count), last = min(first + span, count);
    u32 *const mine = counts + warp * SORT_BINS;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < SORT_WORDS(blockDim.x) / 4; i += blockDim.x)
        ((uint4 *)counts)[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
#pragma unroll 2
    for (u32 i = first + lane; i < last; i += 32) atomicAdd(&mine[bin_of(from[i])], 1u);
    __syncthreads();

    /* Counts become places: of each bin, those of one warp after the other. */
    u32 *const of_bin = counts + threadIdx.x % SORT_BINS;
    u32 of_all = 0, total;
    if (threadIdx.x < SORT_BINS)
#pragma unroll 4
        for (u32 w = 0; w < num_warps; w++) of_all += of_bin[w * SORT_BINS];
    u32 place = block_exclusive_scan(of_all, total);
    if (threadIdx.x < SORT_BINS) {
        start_of(threadIdx.x, place);
#pragma unroll 4
        for (u32 w = 0; w < num_warps; w++) {
            const u32 of_warp = of_bin[w * SORT_BINS];
            of_bin[w * SORT_BINS] = place;
            place += of_warp;
        }
    }
    __syncthreads();

#pragma unroll 2
    for (u32 at = first; at < last; at += 32) {
        const bool is_there = at + lane < last;
        const ENTRY e = from[is_there ? at + lane : at];
        const u32 bin = bin_of(e);
        u32 same = __ballot_sync(FULL, is_there);
#pragma unroll
        for (int i = 0; i < SORT_BITS; i++) {
            const u32 ones = __ballot_sync(FULL, bin >> i & 1);
            same &= bin >> i & 1 ? ones : ~ones;
        }
        const u32 below = (u32)__popc(same & lanes_below()), to = mine[bin];
        __syncwarp();
        if (is_there && below == 0) mine[bin] = to + (u32)__popc(same);
        __syncwarp();
        if (is_there) write(to + below, e);
    }
    __syncthreads();
}

/* Entries by the lowest `bits` of key - low. Passes take turns between x, where entries are, and y; returns where they
 * are in the end. */
template <class ENTRY, class KEY>
DEV ENTRY *sort_by_digits(ENTRY *x, ENTRY *y, u32 count, KEY low, u32 bits, u32 *counts)
{
    const u32 num_digits = ceil_div(bits, SORT_BITS);
    const u32 of_digit = num_digits ? ceil_div(bits, num_digits) : 0;
#pragma unroll 1
    for (u32 digit = 0; digit < num_digits; digit++) {
        const u32 shift = digit * of_digit, mask = (1u << of_digit) - 1;
        sort_pass(
            x, count, counts, [&](ENTRY e) { return (u32)((sort_key(e) - low) >> shift) & mask; }, [](u32, u32) { },
            [&](u32 place, ENTRY e) { y[place] = e; });
        ENTRY *const other = x;
        x = y, y = other;
    }
    return x;
}

#endif
