/* SPDX-License-Identifier: MIT
 * expand_to_fused_columns.cu - expand_to_fused by bulk stores with scale factors in columns: out_sf_row is 1.
 *   computes  as expand_to_fused.cu
 *   launch    grid a multiple of EXPAND_SF_CLUSTER, at least sf_blocks + chunks of a row * b with b >=
 *             num_tokens and b * positions >= num_positions; clusters of EXPAND_SF_CLUSTER blocks, block one
 *             warp; num_topk <= 32; positions <= 32; sf_blocks / EXPAND_SF_CLUSTER windows of sf_positions
 *             (up to EXPAND_SF_TILES * 32 * EXPAND_SF_CLUSTER) cover all positions; num_tokens * num_topk
 *             <= 2^30; dynamic shared memory of at least 16 * chunk_units and 4 * sf_positions + 128 bytes;
 *             sm_90 and up
 *   moves     as expand_to_fused.cu, and token_topk_to_pos once more for each window
 *
 * A token's scale factors go to as many sectors as there are columns: stored with the row, they would be more
 * L2 requests than the row itself. So some clusters gather them, a window of positions each, and store
 * neighbours of a column together. The map goes from slots to positions, so a cluster must search it: each
 * block scans a part of all slots for positions of the window, then collects what all blocks found for its
 * share of the positions. These clusters come first: they are latency-bound and have few bytes in flight
 * beside the rows. */
#include "moe/expand_to_fused_bulk.cuh"

#if __CUDA_ARCH__ >= 900
/* ---- scale factors ---- */

/* In place of a slot, and lower than any: the position gets zeros; the position has no slot. */
enum { ZERO = -1, NONE = -2 };

/* Sets slot[i] to the slot, of begin .. end - 1, whose position is first + i. Slots are staged in `words`
 * words of shared memory: in registers there would be fewer in flight. */
DEV void find_slots(const expand_args &a, i32 *slot, u32 first, u32 positions, int begin, int end, i32 *stage,
                    int words)
{
    const int lane = threadIdx.x;
#pragma unroll 1
    for (int at = begin; at < end; at += words) {
        const int n = min(end - at, words);
        const i32 *from = a.token_topk_to_pos + at;
#pragma unroll 4
        for (int i = lane; i < n; i += 32) copy_async_4(shared_address(stage + i), from + i);
        copy_async_commit();
        copy_async_wait<0>(); /* each lane reads its own copies */
#pragma unroll 4
        for (int i = lane; i < n; i += 32) {
            const u32 position = (u32)stage[i] - first;
            if (position < positions) slot[position] = at + i;
        }
    }
}

/* Position first + lane has this slot. A token's factors are loaded by neighbouring lanes and stored by one
 * lane: they are staged in shared memory, column c of lane i in word i ^ c % 32 of 32, so that neither side
 * has bank conflicts. */
DEV void copy_columns(const expand_args &a, i32 slot, i64 first, u32 shared, int columns)
{
    const int lane = threadIdx.x;
    const u32 full = __ballot_sync(FULL, slot >= 0);
    if (__all_sync(FULL, slot == NONE)) return;
    const u32 token = (u32)max(slot, 0) / (u32)a.num_topk;
#pragma unroll 1
    for (i64 column = 0; column < a.num_sf; column += columns) {
        const int n = (int)min(a.num_sf - column, (i64)columns);
#pragma unroll 1
        for (int c = lane; c - lane < n; c += 32) {
            const u32 *from = a.x_sf + (column + c) * a.x_sf_col;
#pragma unroll 4
            for (int i = 0; i < 32; i++) {
                const u32 t = __shfl_sync(FULL, token, i);
                if (c < n && full >> i & 1) copy_async_4(shared + 4 * (32 * c + (i ^ lane)), from + t * a.x_sf_row);
            }
        }
        copy_async_commit();
        copy_async_wait<0>();
        __syncwarp();
        u32 *to = a.out_sf + column * a.out_sf_col + first + lane;
#pragma unroll 4
        for (int c = 0; c < n; c++, to += a.out_sf_col) {
            const u32 v = shared_load_u32(shared + 4 * (32 * c + (lane ^ c % 32)));
            if (slot != NONE) *to = slot == ZERO ? 0 : v;
        }
        __syncwarp();
    }
}

/* A lane's queue over EXPAND_SF_TILES positions: drops the first, appends one. */
DEV void shift(i32 (&held)[EXPAND_SF_TILES], i32 last)
{
#pragma unroll
    for (int i = 0; i + 1 < EXPAND_SF_TILES; i++) held[i] = held[i + 1];
    held[EXPAND_SF_TILES - 1] = last;
}

/* A block has `own` positions of its cluster's window; a lane has one of every 32. */
DEV void gather_sf(const expand_args &a, i32 *memory)
{
    enum { TILES = EXPAND_SF_TILES };
    const int lane = threadIdx.x, rank = (int)cluster_rank(), own = a.sf_positions / EXPAND_SF_CLUSTER;
    const i64 window = (i64)(blockIdx.x / EXPAND_SF_CLUSTER) * a.sf_positions, first = window + rank * own;
    const i64 last = a.num_positions - 1;
    i32 slot[TILES]; /* initially the experts */
#pragma unroll
    for (int j = 0; j < TILES; j++) slot[j] = a.pos_to_expert[min(first + 32 * j + lane, last)];
    for (int i = lane; i < a.sf_positions; i += 32) memory[i] = NONE;
    __syncwarp();
    const u32 positions = (u32)min(last + 1 - window, (i64)a.sf_positions);
    const int slots = (int)(a.num_tokens * a.num_topk);
    const int part = (slots + EXPAND_SF_CLUSTER * 32 - 1) / (EXPAND_SF_CLUSTER * 32) * 32;
    const int begin = min(rank * part, slots), end = min(begin + part, slots);
    find_slots(a, memory, (u32)window, positions, begin, end, memory + a.sf_positions,
               (a.sf_words - a.sf_positions) / 32 * 32);
    __syncwarp();
    cluster_arrive();
    cluster_wait(); /* all blocks have searched their slots */
#pragma unroll 1
    for (int at = 0; at < 32 * TILES; at += 32) {
        const bool is_padding = first + at + lane <= last && slot[0] < 0;
        i32 highest = NONE;
        const u32 address = shared_address(memory + rank * own + at + lane);
#pragma unroll
        for (int r = 0; r < EXPAND_SF_CLUSTER; r++)
            if (at < own) highest = max(highest, (i32)cluster_load_u32(cluster_map(address, r)));
        shift(slot, is_padding ? ZERO : highest);
    }
    __syncwarp();
    cluster_arrive();
    cluster_wait(); /* no block reads this one's memory anymore */
#pragma unroll 1
    for (int at = 0; at < own; at += 32) {
        copy_columns(a, slot[0], first + at, shared_address(memory), a.sf_words / 32);
        shift(slot, NONE);
    }
}

/* ---- rows: a block has a chunk of a token, if any, and of a few positions that may be padding ---- */

DEV void copy_row(const expand_args &a, const chunk &c, i64 t, i32 position)
{
    const u8 *from = a.x + t * a.x_stride + c.offset;
    if (a.reads_early) load_chunk(c, from);
    const bool is_there = position >= 0 && position < a.num_positions;
    if (!a.reads_early) {
        if (!__any_sync(FULL, is_there)) return;
        load_chunk(c, from);
    }
    /* loaded after the row, which does not depend on the position */
    store_chunk(a, c, position, is_there && a.pos_to_expert[position] >= 0);
}

DEV void expand(const expand_args &a, u32 block, u32 shared)
{
    const int lane = threadIdx.x;
    const u32 chunks = (u32)a.chunks, index = block % chunks;
    const chunk c = chunk_of(a, index, shared);
    const i64 t = block / chunks, first = t * a.positions;
    const i64 last = a.num_positions - 1;
    i32 position = -1;
    if (t < a.num_tokens && lane < a.num_topk) position = a.token_topk_to_pos[t * a.num_topk + lane];
    /* loaded even if unused: under a condition the compiler would wait for it here, before the row is read */
    const i32 expert = a.pos_to_expert[min(first + lane, last)];
    if (t < a.num_tokens) copy_row(a, c, t, position);
    const bool is_padding = lane < a.positions && first + lane <= last && expert < 0;
    if (!__any_sync(FULL, is_padding)) return;
    store_zeros(a, c, first, is_padding);
    bulk_wait_read<0>();
}
#endif

extern "C" __global__ void __launch_bounds__(32, 32) expand_to_fused_columns(const expand_args a)
{
#if __CUDA_ARCH__ >= 900
    SHARED_DYNAMIC(memory, 128);
    pdl_wait();
    if (blockIdx.x < (u32)a.sf_blocks) gather_sf(a, (i32 *)memory);
    else expand(a, blockIdx.x - a.sf_blocks, shared_address(memory));
    pdl_trigger();
#endif
}
