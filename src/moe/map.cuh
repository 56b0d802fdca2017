/* SPDX-License-Identifier: MIT
 * map.cuh - how blocks write a mapping.
 *
 * map_write() is all of it for few pairs: every block has the experts of all of them, in registers, and
 * writes the part of the mapping that belongs to some experts, so blocks exchange nothing. */
#ifndef TEGULA_MOE_MAP_CUH
#define TEGULA_MOE_MAP_CUH

#include "device/ptx.cuh"
#include "moe/map.h"

/* The expert of a pair; -1: it has none, or there is no such pair. */
template <class INDEX>
DEV i32 map_load(const tgl_map &m, const INDEX *topk_idx, i64 row_stride, u32 pair)
{
    if (pair >= (u32)m.num_pairs) return -1;
    const u32 token = tgl_divide(pair, m.by_topk);
    const INDEX v = topk_idx[token * row_stride + (pair - token * (u32)m.num_topk)];
    return v >= 0 && v < m.num_experts ? (i32)v : -1;
}

/* The pair at a position, and the position of the pair. */
DEV void map_write_pair(const tgl_map &m, i32 pair, i32 expert, i32 position)
{
    const bool fits = position < m.num_positions;
    if (fits) {
        m.pos_to_expert[position] = expert;
        m.pos_to_token[position] = (i32)tgl_divide((u32)pair, m.by_topk);
        m.pos_to_token_topk[position] = pair;
    }
    m.token_topk_to_pos[pair] = fits ? position : -1;
}

/* What there is per expert: the segment from start to end, of which `pairs_end` is where its pairs end. */
DEV void map_write_expert(const tgl_map &m, i32 expert, i32 start, i32 pairs_end, i32 end)
{
    m.expert_start[expert] = start;
    m.expert_end[expert] = end;
    m.num_tokens_per_expert[expert] = end - start;
    if (m.count) m.count[expert] = pairs_end - start;
    if (m.psum_end) m.psum_end[expert] = pairs_end;
}

DEV void map_write_empty(const tgl_map &m, i64 position)
{
    m.pos_to_expert[position] = -1;
    m.pos_to_token[position] = -1;
    m.pos_to_token_topk[position] = -1;
}

/* Positions begin .. end - 1 have no pair: by `threads` threads, at least 3. */
DEV void map_fill(const tgl_map &m, i64 begin, i64 end, i32 thread, i32 threads)
{
    end = min(end, m.num_positions);
    if (m.is_aligned) {                         /* 16 bytes at a time */
        const int4 empty = make_int4(-1, -1, -1, -1);
        const i64 whole = min((begin + 3) & ~(i64)3, end), rest = max(end & ~(i64)3, whole);
        if (begin + thread < whole) map_write_empty(m, begin + thread);
#pragma unroll 1
        for (i64 i = whole + 4 * thread; i < rest; i += 4 * threads) {
            *(int4 *)(m.pos_to_expert + i) = empty;
            *(int4 *)(m.pos_to_token + i) = empty;
            *(int4 *)(m.pos_to_token_topk + i) = empty;
        }
        if (rest + thread < end) map_write_empty(m, rest + thread);
    } else {
#pragma unroll 1
        for (i64 i = begin + thread; i < end; i += threads) map_write_empty(m, i);
    }
}

DEV u32 warp_sum_below(u32 v, int lane, u32 &total)     /* over the lanes before this one */
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

/* Shared memory of map_write(): hist has num_experts words, all zero, with a barrier behind that; `runs` is
 * scratch. Pairs come in runs of 32, one per warp and register. */
#define MAP_RUNS(threads, per_thread) ((threads) / 32 * (per_thread))

/* Writes the mapping of the pairs v * THREADS + thread, whose experts are expert[v] (below 0: none), by all
 * threads of `num_blocks` blocks; each takes `owned` (1 .. MAP_OWNED) experts at a time. In a block:
 *   1  pairs per expert are counted; for each owned expert a vote tells which lanes have its pairs
 *   2  a warp per owned expert: its segment starts where the segments before it end; how many of its pairs
 *      are in earlier runs
 *   3  position = start + pairs in earlier runs + pairs in lanes before */
template <int THREADS, int PER_THREAD>
DEV void map_write(const tgl_map &m, const i32 (&expert)[PER_THREAD], u32 *hist, u16 *runs, i32 owned,
                   i32 block, i32 num_blocks)
{
    enum { RUNS = MAP_RUNS(THREADS, PER_THREAD), RUNS_PER_LANE = RUNS / 32 };
    static_assert(RUNS % 32 == 0 && 32 * RUNS < 65536 && THREADS / 32 >= MAP_OWNED, "sizes of map_write");
    SHARED(i32[MAP_OWNED], starts);
    const i32 tid = (i32)threadIdx.x, lane = tid % 32, warp = tid / 32;

    /* the empty pairs are shared out: a block's slice begins at `mine` */
    const i32 slice = (m.num_pairs + num_blocks - 1) / num_blocks, mine = block * slice;
#pragma unroll
    for (int v = 0; v < PER_THREAD; v++) {
        const i32 pair = v * THREADS + tid;
        if (expert[v] >= 0) atomicAdd(&hist[expert[v]], 1u);
        else if (pair < m.num_pairs && (u32)(pair - mine) < (u32)slice) m.token_topk_to_pos[pair] = -1;
    }

    i32 first = block * owned;
    u32 total;
    do {
        u32 before[PER_THREAD];                 /* lanes before that have the same owned expert */
#pragma unroll
        for (int v = 0; v < PER_THREAD; v++) {
            u32 in_run = 0;                     /* lane j: of expert first + j */
            before[v] = 0;
            if (v * THREADS < m.num_pairs)
#pragma unroll 1
                for (i32 j = 0; j < owned; j++) {
                    const u32 same = __ballot_sync(FULL, expert[v] == first + j);
                    if (expert[v] == first + j) before[v] = __popc(same & lanes_below());
                    if (lane == j) in_run = __popc(same);
                }
            if (lane < owned) runs[lane * RUNS + v * (THREADS / 32) + warp] = (u16)in_run;
        }
        __syncthreads();

        u32 low = 0, all = 0;                   /* lengths of segments: before this warp's, of all */
        const i32 e = first + warp;
        /* to the host by one warp, in long runs: it is far away */
        const bool to_host =
            m.num_tokens_per_expert_host && block == num_blocks - 1 && warp == THREADS / 32 - 1;
#pragma unroll 4
        for (i32 i = lane; i < m.num_experts; i += 32) {
            const u32 length = tgl_map_aligned(&m, hist[i]);
            all += length;
            low += i < e ? length : 0;
            if (to_host) m.num_tokens_per_expert_host[i] = (i32)length;
        }
        total = warp_add_u32(all);
        if (warp < owned && e < m.num_experts) {
            u16 *const run = runs + warp * RUNS + lane * RUNS_PER_LANE;
            u32 in_run[RUNS_PER_LANE], sum = 0;
#pragma unroll
            for (int i = 0; i < RUNS_PER_LANE; i++) sum += in_run[i] = run[i];
            u32 count, earlier = warp_sum_below(sum, lane, count);
#pragma unroll
            for (int i = 0; i < RUNS_PER_LANE; i++) {
                run[i] = (u16)earlier;
                earlier += in_run[i];
            }
            const i32 start = (i32)warp_add_u32(low), pairs_end = start + (i32)count;
            const i32 end = start + (i32)tgl_map_aligned(&m, count);
            if (lane == 0) {
                starts[warp] = start;
                map_write_expert(m, e, start, pairs_end, end);
            }
            map_fill(m, pairs_end, end, lane, 32);
        }
        __syncthreads();

#pragma unroll
        for (int v = 0; v < PER_THREAD; v++) {
            const i32 j = expert[v] - first;
            if (expert[v] >= 0 && (u32)j < (u32)owned)
                map_write_pair(m, v * THREADS + tid, expert[v],
                               starts[j] + runs[j * RUNS + v * (THREADS / 32) + warp] + (i32)before[v]);
        }
        first += num_blocks * owned;
        if (first < m.num_experts) __syncthreads();     /* runs and starts are written again */
    } while (first < m.num_experts);
    map_fill(m, total, m.num_positions, block * THREADS + tid, num_blocks * THREADS);
}

#endif
