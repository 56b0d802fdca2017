/* SPDX-License-Identifier: MIT
 * get_fused_mapping_large.cu - the mapping of many pairs, for any number of experts, in one launch.
 *   computes  *m of the pairs topk_idx[t][k], in the order of t * num_topk + k
 *   launch    cooperative: blocks wait for each other. grid up to MAP_LARGE_BLOCKS, block MAP_THREADS
 *   shared    MAP_LARGE_SHARED(EXPERT_BITS) bytes
 *   moves     num_pairs * (INDEX_BYTES + 4) + 12 * num_positions + 12 to 24 * num_experts bytes; the
 *             exchange, 24 bytes per block and expert (4 for few experts), stays in L2
 *   macros    INDEX_BYTES 4, 8; EXPERT_BITS 1..MAP_LARGE_BITS: of the experts of a round;
 *             VALUES: pairs per thread, MAP_LARGE_VALUES, or MAP_SINGLE_VALUES for one tile and one round
 *
 * A block has a chunk of the pairs, cut into tiles of up to MAP_LARGE_TILE; a warp has one run of a tile:
 *   1  rank of a pair among its warp's pairs of the same expert: lanes with that expert by one vote per bit of
 *      its number, earlier pairs by a count per warp and expert
 *   2  counts per block are published, a row per block of a matrix in the workspace
 *   3  meanwhile the tile is sorted by expert in shared memory
 *   4  a warp owns two columns of the matrix, two experts: it adds them up and publishes, to every block's
 *      own row, the pairs in earlier blocks and in all blocks
 *   5  an exclusive scan of the segments' lengths tells a block where its pairs of each expert begin
 *   6  the mapping is written, arrays by position in runs, from the sorted tile
 * With owners every block reads 8 bytes per expert; if all blocks read the whole matrix, L2 would be the
 * limit from 256 experts on. Up to MAP_DIRECT_EXPERTS they do read it: one round trip to L2 instead of two.
 *
 * A published word is never 0. It has one reader, which clears it at once: so the workspace is all zero at
 * the end, and no clear races with another block's access. If all blocks read the matrix, the last one, by a
 * ticket, clears it.
 *
 * Tiles: if a chunk has several, all but the last are counted first, and written after the last, which is
 * still in registers when the exchange is over. Rounds: each takes 1 << EXPERT_BITS experts and reads all
 * pairs again. */
#include "moe/get_fused_mapping.h"
#include "moe/common/index.cuh"
#include "moe/common/map.cuh"

static_assert(EXPERT_BITS >= 1 && EXPERT_BITS <= MAP_LARGE_BITS, "EXPERT_BITS is 1..MAP_LARGE_BITS");

#define EXPERTS (1 << EXPERT_BITS)                                          /* of a round */
#define PER_THREAD (EXPERTS <= 2 * MAP_THREADS ? 2 : EXPERTS / MAP_THREADS) /* consecutive experts */
#define IS_SINGLE (VALUES == MAP_SINGLE_VALUES)                             /* one tile, one round */
#define ROWS (MAP_LARGE_BLOCKS / 32)                                        /* of the matrix, per lane */
#define IS_DIRECT (EXPERTS <= MAP_DIRECT_EXPERTS)                           /* all blocks read the matrix */
#define DIRECT_EXPERTS (IS_DIRECT ? EXPERTS : MAP_DIRECT_EXPERTS)
#define DIRECT_STEP (MAP_THREADS / DIRECT_EXPERTS)                       /* rows read at once by a block */
#define DIRECT_ROWS ((MAP_LARGE_BLOCKS + DIRECT_STEP - 1) / DIRECT_STEP) /* per thread */
static_assert(VALUES == MAP_SINGLE_VALUES || VALUES == MAP_LARGE_VALUES, "VALUES is one of the two");
static_assert(MAP_LARGE_TILE < 65536, "counts of a tile are 16 bits");
static_assert(!IS_DIRECT || EXPERT_BITS < MAP_LARGE_BITS, "a matrix that all blocks read has one round");
static_assert(32 * ROWS == MAP_LARGE_BLOCKS && PER_THREAD % 2 == 0,
              "rows divide among lanes; a thread has an even number of experts");

/* What a block works on. x and x0 number the experts of a round. */
typedef struct {
    /* shared memory */
    u16 *count;       /* [MAP_WARPS][EXPERTS]: pairs of a warp, then of earlier warps */
    int2 *segment;    /* [EXPERTS], later in its place: end of pairs, end of padding */
    u32 *base;        /* [EXPERTS]: where a tile's pairs begin */
    u32 *sorted;      /* [MAP_LARGE_TILE]: expert, pair in tile */
    u16 *local_start; /* [EXPERTS]: in `sorted` */
    /* workspace */
    u32 *counts; /* [MAP_LARGE_BLOCKS][EXPERTS] */
    u32 *sums;   /* the same, two words each; or the ticket */

    i32 tid, lane, warp, block, num_blocks;
    i32 tile_pairs, num_tiles;
    u32 begin;      /* the block's first pair */
    i32 num_values; /* pairs per thread, at most VALUES */
    i32 run;        /* this thread's first pair of a tile */
    i32 x0;         /* this thread's first expert */
    bool is_reused; /* another round will use the workspace */
} block_work;

DEV block_work work_of_block(const get_fused_mapping_args &a, void *shared)
{
    block_work b;
    b.count = (u16 *)shared;
    b.segment = (int2 *)shared;
    b.base = (u32 *)(b.count + MAP_WARPS * EXPERTS);
    b.sorted = b.base + EXPERTS;
    b.local_start = (u16 *)(b.sorted + MAP_LARGE_TILE);
    b.counts = a.workspace;
    b.sums = b.counts + MAP_LARGE_BLOCKS * EXPERTS;
    b.tid = (i32)threadIdx.x;
    b.lane = b.tid % 32;
    b.warp = b.tid / 32;
    b.block = (i32)blockIdx.x;
    b.num_blocks = (i32)gridDim.x;
    b.tile_pairs = a.tile_pairs;
    b.num_tiles = IS_SINGLE ? 1 : a.num_tiles;
    b.begin = (u32)b.block * ((u32)b.tile_pairs * (u32)b.num_tiles);
    b.num_values = (b.tile_pairs + MAP_THREADS - 1) / MAP_THREADS;
    b.run = b.warp * 32 * b.num_values + b.lane;
    b.x0 = b.tid * PER_THREAD;
    b.is_reused = !IS_SINGLE && a.map.num_experts > EXPERTS;
    return b;
}

/* Experts low .. low + num_experts - 1; num_columns is num_experts rounded up to even. */
typedef struct { i32 low, num_experts, num_columns; } expert_round;

/* ---- steps ---- */

DEV void clear_counts(u16 *count)
{
#pragma unroll 1
    for (i32 i = (i32)threadIdx.x; i < MAP_WARPS * EXPERTS / 8; i += MAP_THREADS)
        ((int4 *)count)[i] = make_int4(0, 0, 0, 0);
}

/* This block's rows of the matrices, so that they are in L2 when they are written and read. */
DEV void prefetch_rows(const u32 *counts, const u32 *sums)
{
    const i32 row = (i32)blockIdx.x * EXPERTS;
#pragma unroll 1
    for (i32 i = 8 * (i32)threadIdx.x; i < (IS_DIRECT ? 1 : 3) * EXPERTS; i += 8 * MAP_THREADS)
        prefetch_l2(i < EXPERTS ? counts + row + i : sums + 2 * row + (i - EXPERTS));
}

/* Indices of this thread's pairs of the tile that begins with pair `tile`: independent loads. The fast case
 * is packed rows. */
DEV void load_tile(const get_fused_mapping_args &a, const block_work &b, u32 tile, index_type (&index)[VALUES])
{
    const index_type *topk_idx = (const index_type *)a.topk_idx;
    const u32 pair = tile + (u32)b.run, end = min(tile + (u32)b.tile_pairs, (u32)a.map.num_pairs);
    if (a.row_stride == a.map.num_topk) {
#pragma unroll
        for (int v = 0; v < VALUES; v++)
            index[v] = v < b.num_values && pair + 32 * v < end ? topk_idx[pair + 32 * v] : -1;
    } else {
#pragma unroll
        for (int v = 0; v < VALUES; v++) {
            index[v] = -1;
            if (v < b.num_values && pair + 32 * v < end)
                index[v] = map_load(a.map, topk_idx, a.row_stride, pair + 32 * v);
        }
    }
}

/* Pairs of this thread's experts in the tiles before the last. */
DEV void count_earlier(const get_fused_mapping_args &a, const block_work &b, const expert_round &r,
                       u32 (&earlier)[PER_THREAD])
{
#pragma unroll 1
    for (i32 x = b.tid; x < EXPERTS; x += MAP_THREADS) b.base[x] = 0;
    __syncthreads();
#pragma unroll 4
    for (i32 i = b.tid; i < b.tile_pairs * (b.num_tiles - 1); i += MAP_THREADS) {
        const index_type index = map_load(a.map, (const index_type *)a.topk_idx, a.row_stride, b.begin + i);
        const i32 e = map_expert(a.map, index) - r.low;
        if ((u32)e < (u32)r.num_experts) atomicAdd(&b.base[e], 1u);
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++)
        if (b.x0 + j < EXPERTS) earlier[j] = b.base[b.x0 + j];
}

/* Step 1, by a warp: `count` has its pairs of each expert of the round so far. */
DEV void rank_in_warp(const block_work &b, const expert_round &r, const i32 (&expert)[VALUES], i32 (&rank)[VALUES])
{
    u16 *const count = b.count + b.warp * EXPERTS;
#pragma unroll
    for (int v = 0; v < VALUES; v++) {
        rank[v] = 0;
        if (v >= b.num_values) continue;
        const i32 e = expert[v] - r.low;
        const bool is_here = (u32)e < (u32)r.num_experts;
        u32 same = __ballot_sync(FULL, is_here);
#pragma unroll
        for (int i = 0; i < EXPERT_BITS; i++) {
            const bool bit = e >> i & 1;
            const u32 set = __ballot_sync(FULL, bit);
            same &= bit ? set : ~set;
        }
        const u32 before = same & lanes_below();
        const u32 old = is_here ? count[e] : 0;
        rank[v] = (i32)old + __popc(before);
        __syncwarp();
        if (is_here && before == 0) count[e] = (u16)(old + __popc(same));
        __syncwarp();
    }
}

/* Step 2: an exclusive scan of each expert's counts over the warps; `own` are the block's totals. Two experts
 * share a register: a tile has fewer than 65536 pairs. */
DEV void add_warps(u16 *count, i32 x0, u32 (&own)[PER_THREAD])
{
#pragma unroll
    for (int j = 0; j < PER_THREAD; j += 2) {
        u32 *const column = (u32 *)(count + x0 + j);
        u32 of_warp[MAP_WARPS], two = 0;
        if (x0 + j < EXPERTS) {
#pragma unroll
            for (int w = 0; w < MAP_WARPS; w++) of_warp[w] = column[w * (EXPERTS / 2)];
#pragma unroll
            for (int w = 0; w < MAP_WARPS; w++) {
                column[w * (EXPERTS / 2)] = two;
                two += of_warp[w];
            }
        }
        own[j] = two & 0xffff;
        own[j + 1] = two >> 16;
    }
}

/* Exclusive scan of v over the block, with one barrier. `sums` has a word per warp; a second barrier must
 * come before its next use. */
DEV u32 block_exclusive_scan(u32 v, u32 *sums, u32 &total)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 warp_total;
    const u32 below = warp_exclusive_scan(v, lane, warp_total);
    if (lane == 0) sums[warp] = warp_total;
    __syncthreads();
    const u32 other = lane < MAP_WARPS ? sums[lane] : 0;
    total = warp_add_u32(other);
    return warp_add_u32(lane < warp ? other : 0) + below;
}

/* Step 2: words are counts plus 1. */
DEV void publish_counts(const block_work &b, const expert_round &r, const u32 (&earlier)[PER_THREAD],
                        const u32 (&own)[PER_THREAD])
{
#pragma unroll
    for (int j = 0; j < PER_THREAD; j += 2)
        if (b.x0 + j < r.num_columns)
            store_relaxed_u32x2(b.counts + b.block * EXPERTS + b.x0 + j,
                                make_uint2(earlier[j] + own[j] + 1, earlier[j + 1] + own[j + 1] + 1));
}

/* Step 3: returns the number of the tile's pairs with an expert of the round. Ranks in the warp become ranks
 * in the block. */
DEV u32 sort_tile(const block_work &b, const expert_round &r, const u32 (&own)[PER_THREAD], const i32 (&expert)[VALUES],
                  i32 (&rank)[VALUES], u32 *warp_sums)
{
    u32 num_own = 0, num_sorted;
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) num_own += own[j];
    u32 at = block_exclusive_scan(num_own, warp_sums, num_sorted);
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        if (b.x0 + j < EXPERTS) b.local_start[b.x0 + j] = (u16)at;
        at += own[j];
    }
    __syncthreads();
#pragma unroll
    for (int v = 0; v < VALUES; v++) {
        const i32 e = expert[v] - r.low;
        if ((u32)e < (u32)r.num_experts) {
            rank[v] += b.count[b.warp * EXPERTS + e];
            b.sorted[b.local_start[e] + rank[v]] = (u32)e << 16 | (u32)(b.run + 32 * v);
        }
    }
    return num_sorted;
}

/* Step 4, by a warp, for experts x and x + 1. A lane has consecutive rows, as few as possible. Words are
 * values plus 1. */
DEV void add_column(u32 *counts, u32 *sums, i32 x, bool is_reused)
{
    const i32 lane = (i32)threadIdx.x % 32, num_blocks = (i32)gridDim.x;
    const i32 first = lane * ((num_blocks + 31) / 32), end = min(first + (num_blocks + 31) / 32, num_blocks);
    uint2 c[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        c[i] = make_uint2(1, 1);
        if (first + i < end) c[i] = load_relaxed_u32x2(counts + (first + i) * EXPERTS + x);
    }
    u32 a = 0, b = 0;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (first + i < end) {
            u32 *const from = counts + (first + i) * EXPERTS + x;
            while (c[i].x == 0 || c[i].y == 0) c[i] = load_relaxed_u32x2(from);
            store_relaxed_u32x2(from, make_uint2(0, 0));
        }
        a += --c[i].x;
        b += --c[i].y;
    }
    u32 all_a, all_b;
    a = warp_exclusive_scan(a, lane, all_a);
    b = warp_exclusive_scan(b, lane, all_b);
    if (is_reused) __threadfence(); /* the clears come before what the next round publishes */
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (first + i < end)
            store_relaxed_u32x4(sums + 2 * ((first + i) * EXPERTS + x), make_uint4(a + 1, all_a + 1, b + 1, all_b + 1));
        a += c[i].x;
        b += c[i].y;
    }
}

/* Step 4 for few experts, by all threads: adds every expert's pairs in earlier blocks, and in all blocks, to
 * `sums`, initially 0. */
DEV void add_rows(const u32 *counts, i32 num_columns, u32 (&sums)[2][DIRECT_EXPERTS])
{
    const i32 x = (i32)threadIdx.x % EXPERTS, row = (i32)threadIdx.x / EXPERTS;
    if (x >= num_columns || row >= (i32)gridDim.x) return;
    u32 c[DIRECT_ROWS], before = 0, all = 0;
    bool has_all;
#pragma unroll
    for (int i = 0; i < DIRECT_ROWS; i++) c[i] = row + i * DIRECT_STEP < (i32)gridDim.x ? 0 : 1;
#pragma unroll 1
    do { /* loads all missing ones at once: one round trip to L2 */
        has_all = true;
#pragma unroll
        for (int i = 0; i < DIRECT_ROWS; i++)
            if (c[i] == 0) c[i] = load_relaxed_u32(counts + (row + i * DIRECT_STEP) * EXPERTS + x);
#pragma unroll
        for (int i = 0; i < DIRECT_ROWS; i++) has_all &= c[i] != 0;
    } while (!has_all);
#pragma unroll
    for (int i = 0; i < DIRECT_ROWS; i++) {
        all += c[i] - 1;
        before += row + i * DIRECT_STEP < (i32)blockIdx.x ? c[i] - 1 : 0;
    }
    atomicAdd(&sums[0][x], before);
    atomicAdd(&sums[1][x], all);
}

/* By a warp of the last block to read the matrix. A vector may reach into rows that are 0. */
DEV void clear_rows(u32 *counts)
{
    const i32 vectors = ((i32)gridDim.x * EXPERTS + 3) / 4;
#pragma unroll 1
    for (i32 i = (i32)threadIdx.x % 32; i < vectors; i += 32)
        store_relaxed_u32x4(counts + 4 * i, make_uint4(0, 0, 0, 0));
}

/* Step 5: pairs of this thread's experts in earlier blocks, and in all. */
DEV void take_sums(u32 *sums, i32 x0, i32 num_columns, u32 (&before)[PER_THREAD], u32 (&all)[PER_THREAD])
{
#pragma unroll
    for (int j = 0; j < PER_THREAD; j += 2) {
        u32 *const from = sums + 2 * (blockIdx.x * EXPERTS + x0 + j);
        uint4 s = make_uint4(1, 1, 1, 1);
        if (x0 + j < num_columns) {
            do s = load_relaxed_u32x4(from);
            while (s.x == 0 || s.y == 0 || s.z == 0 || s.w == 0);
            store_relaxed_u32x4(from, make_uint4(0, 0, 0, 0));
        }
        before[j] = s.x - 1;
        all[j] = s.y - 1;
        before[j + 1] = s.z - 1;
        all[j + 1] = s.w - 1;
    }
}

/* Step 5: turns `start`, the pairs in earlier blocks, into positions of this block's pairs. Returns the total
 * length of the round's segments. */
DEV u32 lay_out(const tgl_map &m, const block_work &b, const expert_round &r, u32 position,
                const u32 (&earlier)[PER_THREAD], const u32 (&all)[PER_THREAD], u32 (&start)[PER_THREAD],
                u32 *warp_sums)
{
    u32 length = 0, round_length;
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) length += tgl_map_aligned(&m, all[j]);
    u32 to = position + block_exclusive_scan(length, warp_sums, round_length);
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++)
        if (b.x0 + j < r.num_experts) {
            const u32 end = to + tgl_map_aligned(&m, all[j]);
            start[j] += to;
            b.base[b.x0 + j] = start[j] + earlier[j];
            b.segment[b.x0 + j] = make_int2((i32)(to + all[j]), (i32)end);
            to = end;
        }
    return round_length;
}

/* Step 6: the arrays by expert; each block has some experts. */
DEV void write_experts(const tgl_map &m, const block_work &b, const expert_round &r, u32 position)
{
    const int2 *segment = b.segment;
    const i32 each = (r.num_experts + b.num_blocks - 1) / b.num_blocks;
    const i32 last = min((b.block + 1) * each, r.num_experts);
#pragma unroll 1
    for (i32 x = b.block * each + b.warp; x < last; x += MAP_WARPS) {
        const i32 from = x > 0 ? segment[x - 1].y : (i32)position;
        if (b.lane == 0) map_write_expert(m, r.low + x, from, segment[x].x, segment[x].y);
        map_fill(m, (u32)segment[x].x, (u32)segment[x].y, (u32)b.lane, 32);
    }
    /* to host memory by one block, coalesced: it is far away */
    if (m.num_tokens_per_expert_host && b.block == b.num_blocks - 1)
#pragma unroll 1
        for (i32 x = b.tid; x < r.num_experts; x += MAP_THREADS)
            m.num_tokens_per_expert_host[r.low + x] = segment[x].y - (x > 0 ? segment[x - 1].y : (i32)position);
}

/* Step 6: the arrays by pair and by position. */
DEV void write_tile(const tgl_map &m, const block_work &b, const expert_round &r, u32 tile, const i32 (&expert)[VALUES],
                    const i32 (&rank)[VALUES], u32 num_sorted)
{
#pragma unroll
    for (int v = 0; v < VALUES; v++) {
        const i32 in_tile = b.run + 32 * v, e = expert[v] - r.low;
        const u32 pair = tile + in_tile;
        if (v >= b.num_values || in_tile >= b.tile_pairs || pair >= (u32)m.num_pairs) continue;
        if ((u32)e < (u32)r.num_experts) {
            const i32 p = (i32)b.base[e] + rank[v];
            m.token_topk_to_pos[pair] = (u32)p < (u64)m.num_positions ? p : -1;
        } else if (expert[v] < 0 && r.low == 0) {
            m.token_topk_to_pos[pair] = -1;
        }
    }
#pragma unroll 1
    for (i32 j = b.tid; j < (i32)num_sorted; j += MAP_THREADS) {
        const i32 e = (i32)(b.sorted[j] >> 16), p = (i32)b.base[e] + j - b.local_start[e];
        const u32 pair = tile + (b.sorted[j] & 0xffff);
        if ((u32)p < (u64)m.num_positions) {
            m.pos_to_expert[p] = r.low + e;
            m.pos_to_token[p] = (i32)tgl_divide(pair, m.by_topk);
            m.pos_to_token_topk[p] = (i32)pair;
        }
    }
}

/* ---- the kernel ---- */

extern "C" __global__ void __launch_bounds__(MAP_THREADS, 1) get_fused_mapping_large(const get_fused_mapping_args a)
{
    SHARED_DYNAMIC(memory, 16);
    SHARED(u32[2][MAP_WARPS], warp_sums);
    SHARED(u32[2][DIRECT_EXPERTS], direct_sums);
    const tgl_map &m = a.map;
    const block_work b = work_of_block(a, memory);
    u32 ticket = 0;           /* in the last warp's first lane */
    u32 position = 0;         /* where the round's first segment starts */
    index_type index[VALUES]; /* of the next tile */
    pdl_wait();
    load_tile(a, b, b.begin + (u32)b.tile_pairs * (u32)(b.num_tiles - 1), index); /* first: latency */
    pdl_trigger();
    prefetch_rows(b.counts, b.sums);
    clear_counts(b.count);
    if (IS_DIRECT && b.tid < 2 * DIRECT_EXPERTS) direct_sums[b.tid / DIRECT_EXPERTS][b.tid % DIRECT_EXPERTS] = 0;

#pragma unroll 1
    for (i32 low = 0;; low += EXPERTS) {
        const i32 num_experts = min(m.num_experts - low, EXPERTS);
        const expert_round r = { low, num_experts, (num_experts + 1) / 2 * 2 };
        u32 earlier[PER_THREAD] = {};
        if (b.num_tiles > 1) count_earlier(a, b, r, earlier);

#pragma unroll 1
        for (i32 i = 0; i < b.num_tiles; i++) {
            const bool is_last = i == 0; /* of the chunk: processed first */
            const u32 tile = b.begin + (u32)(is_last ? b.num_tiles - 1 : i - 1) * (u32)b.tile_pairs;

            /* 1 */
            i32 expert[VALUES], rank[VALUES];
            if (i > 0 || low > 0) load_tile(a, b, tile, index);
#pragma unroll
            for (int v = 0; v < VALUES; v++) expert[v] = map_expert(m, index[v]);
            __syncthreads();
            rank_in_warp(b, r, expert, rank);
            __syncthreads();

            /* 2, 3. The fence separates the previous round, where this thread read and cleared sums, from
             * what it publishes now: the clears of its counts come first, and a reader of the counts finds
             * the sums cleared. */
            u32 own[PER_THREAD];
            add_warps(b.count, b.x0, own);
            if (is_last && b.is_reused) __threadfence();
            if (is_last) publish_counts(b, r, earlier, own);
            const u32 num_sorted = sort_tile(b, r, own, expert, rank, warp_sums[0]);

            u32 start[PER_THREAD] = {}; /* of this block's pairs */
            if (is_last) {
                u32 all[PER_THREAD] = {};
                if (IS_DIRECT) {
                    /* 4. The ticket is relaxed, but behind the barrier: this block, and all with an earlier
                     * ticket, have read every published word, so a clear comes after all reads. */
                    add_rows(b.counts, r.num_columns, direct_sums);
                    __syncthreads();
                    if (b.tid == MAP_THREADS - 32) ticket = atomic_inc_relaxed(b.sums, (u32)b.num_blocks - 1);
#pragma unroll
                    for (int j = 0; j < PER_THREAD; j++)
                        if (b.x0 + j < num_experts) {
                            start[j] = direct_sums[0][b.x0 + j];
                            all[j] = direct_sums[1][b.x0 + j];
                        }
                } else {
                    /* 4, by the last warps: the first ones do the next step */
#pragma unroll 1
                    for (i32 x = 2 * (b.block + b.num_blocks * (MAP_WARPS - 1 - b.warp)); x < r.num_columns;
                         x += 2 * b.num_blocks * MAP_WARPS)
                        add_column(b.counts, b.sums, x, b.is_reused);
                    take_sums(b.sums, b.x0, r.num_columns, start, all);
                }
                const u32 round_length = lay_out(m, b, r, position, earlier, all, start, warp_sums[1]);
                __syncthreads();
                write_experts(m, b, r, position);
                position += round_length;
            } else {
                __syncthreads();
            }
            write_tile(m, b, r, tile, expert, rank, num_sorted);

            if (b.num_tiles > 1 || b.is_reused) { /* a tile or a round follows */
                __syncthreads();
                clear_counts(b.count);
            }
            /* after the last tile comes the first; later tiles continue where the previous one ends */
            if (i + 1 < b.num_tiles)
#pragma unroll
                for (int j = 0; j < PER_THREAD; j++)
                    if (b.x0 + j < num_experts) b.base[b.x0 + j] = is_last ? start[j] : b.base[b.x0 + j] + own[j];
        }
        if (IS_SINGLE || m.num_experts - low <= EXPERTS) break;
    }
    map_fill(m, (u64)position, (u64)m.num_positions, (u32)(b.block * MAP_THREADS + b.tid),
             (u32)(b.num_blocks * MAP_THREADS));
    if (IS_DIRECT && b.warp == MAP_WARPS - 1 && __shfl_sync(FULL, ticket, 0) == (u32)b.num_blocks - 1)
        clear_rows(b.counts);
}
