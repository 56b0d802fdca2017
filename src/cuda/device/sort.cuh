/* SPDX-License-Identifier: MIT
 * sort.cuh - a stable sort by several blocks that run at the same time: radix sort, the lowest digit first. Blocks have
 * equal parts of the entries, warps equal parts of these.
 *
 * In a pass every warp ranks its entries among its own of the same digit; counts are scanned over warps, blocks and
 * digits; entries are stored in their order. No barrier is between blocks: a word that is stored for another block is
 * never 0, its place was 0 before, and who reads it waits until it is not. */
#ifndef TEGULA_SORT_CUH
#define TEGULA_SORT_CUH

#include "device/ptx.cuh"
#include "device/warp.cuh"

#define SORT_MAX_BITS 10            /* of a digit */
#define SORT_MIN_THREADS 256        /* of a block: a quarter of the bins */
#define SORT_ITEMS 8                /* entries of a thread that stay in registers */
#define SORT_ROWS 8                 /* of counts that a thread loads at once */

/* ---- entries: a key and a value below 2^32 - 1, in words that are not 0 ---- */

/* Keys below 2^32 - 1. */
DEV void sort_set(uint2 &e, u64 key, u32 value) { e = make_uint2((u32)key + 1, value + 1); }
DEV bool sort_is_set(uint2 e) { return e.x && e.y; }
DEV u32 sort_key(uint2 e) { return e.x - 1; }
DEV u32 sort_value(uint2 e) { return e.y - 1; }
DEV void sort_load(uint2 &e, const uint2 *from) { e = load_relaxed_u32x2(from); }
DEV void sort_store(uint2 *to, uint2 e) { store_relaxed_u32x2(to, e); }

/* Any keys, in three words. */
DEV void sort_set(uint4 &e, u64 key, u32 value)
{
    const u32 bit = 1u << 31, low = (1u << 22) - 1;
    e = make_uint4(bit | ((u32)key & low), bit | ((u32)(key >> 22) & low), bit | (u32)(key >> 44), value + 1);
}
DEV bool sort_is_set(uint4 e) { return e.x && e.y && e.z && e.w; }
DEV u64 sort_key(uint4 e)
{
    const u32 low = (1u << 22) - 1;
    return (u64)(e.z & low) << 44 | (u64)(e.y & low) << 22 | (e.x & low);
}
DEV u32 sort_value(uint4 e) { return e.w - 1; }
DEV void sort_load(uint4 &e, const uint4 *from) { e = load_relaxed_u32x4(from); }
DEV void sort_store(uint4 *to, uint4 e) { store_relaxed_u32x4(to, e); }

/* An entry that another block stores, perhaps later. */
template <class ENTRY> DEV ENTRY sort_wait(const ENTRY *from)
{
    ENTRY e;
#pragma unroll 1
    do sort_load(e, from);
    while (!sort_is_set(e));
    return e;
}

/* ---- a pass ---- */

typedef struct {
    u32 *counts;                        /* of this pass: for every block a word for each bin */
    u32 block, num_blocks;
    u32 begin, end;                     /* this block's entries */
    u32 pass, bits;                     /* of a digit: 2 .. SORT_MAX_BITS */
} sort_work;

template <class ENTRY> DEV u32 sort_digit(const sort_work &s, ENTRY e)
{
    return (u32)(sort_key(e) >> s.pass * s.bits) & ((1u << s.bits) - 1);
}

/* SORT_ITEMS entries of a lane, from + at, from + at + 32, ..., below `last`: loaded again until they are set. */
template <class ENTRY> DEV void sort_read(const ENTRY *from, u32 at, u32 last, ENTRY (&e)[SORT_ITEMS])
{
    bool has_all;
#pragma unroll
    for (int v = 0; v < SORT_ITEMS; v++) e[v] = ENTRY();
#pragma unroll 1
    do {
        has_all = true;
#pragma unroll
        for (int v = 0; v < SORT_ITEMS; v++)
            if (at + 32 * v < last && !sort_is_set(e[v])) sort_load(e[v], from + at + 32 * v);
#pragma unroll
        for (int v = 0; v < SORT_ITEMS; v++) has_all &= at + 32 * v >= last || sort_is_set(e[v]);
    } while (!has_all);
}

/* The first becomes the last: loops over what is in registers are not unrolled, since code is far away as well, when a
 * kernel is not in the caches. */
template <class T, int N> DEV void rotate(T (&v)[N])
{
    const T first = v[0];
#pragma unroll
    for (int i = 1; i < N; i++) v[i - 1] = v[i];
    v[N - 1] = first;
}

/* Ranks of entries among those of the same digit; `counts` of the warp: how many there were before, and are then. */
template <class ENTRY>
DEV void sort_rank(const sort_work &s, ENTRY (&e)[SORT_ITEMS], u32 (&rank)[SORT_ITEMS], u32 *counts)
{
#pragma unroll 1
    for (int v = 0; v < SORT_ITEMS; v++) {
        const bool is_there = sort_is_set(e[0]);
        u32 same = __ballot_sync(FULL, is_there);
        if (same) {
            const u32 digit = is_there ? sort_digit(s, e[0]) : 0;
#pragma unroll
            for (int i = 0; i < SORT_MAX_BITS; i++) {
                const u32 ones = __ballot_sync(FULL, digit >> i & 1);
                same &= digit >> i & 1 ? ones : ~ones;
            }
            const u32 before = is_there ? counts[digit] : 0, below = (u32)__popc(same & lanes_below());
            __syncwarp();
            if (is_there && below == 0) counts[digit] = before + (u32)__popc(same);
            __syncwarp();
            rank[0] = before + below;
        }
        rotate(e);
        rotate(rank);
    }
}

/* Adds what earlier blocks, and all blocks, have of each bin. */
DEV void sort_add_rows(const sort_work &s, u32 *before, u32 *all)
{
    const u32 vectors = 1u << (s.bits - 2), x = threadIdx.x & (vectors - 1), row = threadIdx.x >> (s.bits - 2);
    const u32 step = blockDim.x >> (s.bits - 2);
    if (row >= s.num_blocks) return;
    u32 of_earlier[4] = { 0, 0, 0, 0 }, of_all[4] = { 0, 0, 0, 0 };
#pragma unroll 1
    for (u32 first = row; first < s.num_blocks; first += SORT_ROWS * step) {
        uint4 c[SORT_ROWS];
        bool has_all;
#pragma unroll
        for (int i = 0; i < SORT_ROWS; i++) c[i] = make_uint4(0, 0, 0, 0);
#pragma unroll 1
        do {
            const u32 again = kept_u32(first);  /* so that addresses do not stay in registers */
            has_all = true;
#pragma unroll
            for (int i = 0; i < SORT_ROWS; i++)
                if (first + i * step < s.num_blocks && !sort_is_set(c[i]))
                    c[i] = load_relaxed_u32x4(s.counts + 4 * (u64)((again + i * step) * vectors + x));
#pragma unroll
            for (int i = 0; i < SORT_ROWS; i++) has_all &= first + i * step >= s.num_blocks || sort_is_set(c[i]);
        } while (!has_all);
#pragma unroll
        for (int i = 0; i < SORT_ROWS; i++) {
            if (first + i * step >= s.num_blocks) continue;
            const u32 counts[4] = { c[i].x - 1, c[i].y - 1, c[i].z - 1, c[i].w - 1 };
            const u32 is_earlier = first + i * step < s.block;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                of_all[j] += counts[j];
                of_earlier[j] += is_earlier ? counts[j] : 0;
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        atomicAdd(&before[4 * x + j], of_earlier[j]);
        atomicAdd(&all[4 * x + j], of_all[j]);
    }
}

/* Adds to before[bin] the sum of `all` over lower bins. */
DEV void sort_scan_bins(u32 bins, u32 *before, const u32 *all)
{
    SHARED(u32[32], sums);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 lower = 0;
#pragma unroll 1
    for (u32 first = 0; first < bins; first += blockDim.x) {
        const u32 bin = first + threadIdx.x;
        u32 total;
        u32 below = warp_exclusive_scan(bin < bins ? all[bin] : 0, (int)lane, total);
        if (lane == 0) sums[warp] = total;
        __syncthreads();
        below += lower + warp_add_u32(lane < warp ? sums[lane] : 0);
        lower += warp_add_u32(lane < blockDim.x / 32 ? sums[lane] : 0);
        if (bin < bins) before[bin] += below;
        __syncthreads();
    }
}

/* Counts of a block's warps become those of earlier warps; those of the block go to the others, and come from them. */
DEV void sort_exchange(const sort_work &s, u32 *memory, u32 *before, u32 *all)
{
    const u32 bins = 1u << s.bits, num_warps = blockDim.x / 32;
#pragma unroll 1
    for (u32 bin = threadIdx.x; bin < bins; bin += blockDim.x) {
        u32 sum = 0;
#pragma unroll 4
        for (u32 w = 0; w < num_warps; w++) {
            const u32 count = memory[w * bins + bin];
            memory[w * bins + bin] = sum;
            sum += count;
        }
        if (s.num_blocks > 1) store_relaxed_u32(s.counts + s.block * bins + bin, sum + 1);
        else all[bin] = sum;
    }
    if (s.num_blocks > 1) sort_add_rows(s, before, all);
    __syncthreads();
    sort_scan_bins(bins, before, all);
}

/* Digit s.pass of the entries in `from`, which go to `to`, in order, and are 0 then. `memory` is shared,
 * (blockDim.x / 32 + 2) << s.bits words. */
template <class ENTRY> DEV void sort_pass(const sort_work &s, ENTRY *from, ENTRY *to, u32 *memory)
{
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32, bins = 1u << s.bits;
    const u32 span = (s.end - s.begin + blockDim.x - 1) / blockDim.x * 32;
    const u32 first = min(s.begin + warp * span, s.end), last = min(first + span, s.end);
    const bool is_single = span <= 32 * SORT_ITEMS;     /* what was read to count stays in registers */
    u32 *const mine = memory + warp * bins, *const before = memory + num_warps * bins, *const all = before + bins;
    ENTRY e[SORT_ITEMS];
    u32 rank[SORT_ITEMS] = { 0 };

#pragma unroll 1
    for (u32 i = threadIdx.x; i < (num_warps + 2) * bins / 4; i += blockDim.x)
        ((uint4 *)memory)[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
#pragma unroll 1
    for (int turn = 0; turn < 2; turn++) {              /* counts, then places */
#pragma unroll 1
        for (u32 at = first; at < last; at += 32 * SORT_ITEMS) {
            if (turn == 0 || !is_single) {
                sort_read(from, at + lane, last, e);
                sort_rank(s, e, rank, mine);
            }
#pragma unroll 1
            for (u32 v = 0; turn == 1 && v < SORT_ITEMS; v++) {
                const u32 i = at + 32 * v + lane;
                if (i < last) {
                    const u32 digit = sort_digit(s, e[0]), earlier = is_single ? mine[digit] : 0;
                    sort_store(to + before[digit] + earlier + rank[0], e[0]);
                    sort_store(from + i, ENTRY());
                }
                rotate(e);
                rotate(rank);
            }
        }
        __syncthreads();                                /* in the end, memory is free */
        if (turn == 0) sort_exchange(s, memory, before, all);
    }
}

#endif
