/* SPDX-License-Identifier: MIT
 * map.cuh - how kernels write a mapping. map_write() is all of it for few pairs: every block has the experts
 * of all of them, in registers, and writes the part of the mapping that belongs to some experts. */
#ifndef TEGULA_MOE_MAP_CUH
#define TEGULA_MOE_MAP_CUH

#include "device/ptx.cuh"
#include "moe/map.h"

/* The index of a pair; -1: there is no such pair. Apart from what follows, so that loads of several pairs do
 * not wait for each other. */
template <class INDEX>
DEV INDEX map_load(const tgl_map &m, const INDEX *topk_idx, i64 row_stride, u32 pair)
{
    if (pair >= (u32)m.num_pairs) return -1;
    const u32 token = tgl_divide(pair, m.by_topk);
    return topk_idx[token * row_stride + (pair - token * (u32)m.num_topk)];
}

/* The expert that an index names; -1: none. */
template <class INDEX> DEV i32 map_expert(const tgl_map &m, INDEX index)
{
    return index >= 0 && index < m.num_experts ? (i32)index : -1;
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

/* Sum of v over the lanes before this one. */
DEV u32 warp_sum_below(u32 v, int lane, u32 &total)
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

/* The same for v < 1 << BITS, by a vote per bit: votes do not wait for each other, as steps of a scan do. */
template <int BITS> DEV u32 warp_sum_below_by_votes(u32 v)
{
    u32 sum = 0;
#pragma unroll
    for (int i = 0; i < BITS; i++) sum += __popc(__ballot_sync(FULL, v >> i & 1) & lanes_below()) << i;
    return sum;
}

/* ---- all of a mapping, by blocks that exchange nothing ----
 * Pairs come in runs of 32: run v * WARPS + w is that of warp w and register v. Shared memory of a block,
 * MAP_SHARED bytes, in this order: u32 hist[num_experts], pairs of an expert; u32 bits[owned][RUNS], the
 * lanes of a run that have a pair of an owned expert; u16 earlier[owned][RUNS], its pairs in earlier runs. */
#define MAP_RUNS(threads, per_thread) ((threads) / 32 * (per_thread))

/* Comes first, with a barrier behind it. */
template <int THREADS, int PER_THREAD> DEV void map_clear(const tgl_map &m, void *shared, i32 owned)
{
    const i32 words = m.num_experts + owned * MAP_RUNS(THREADS, PER_THREAD);
#pragma unroll 1
    for (i32 i = (i32)threadIdx.x; i < words; i += THREADS) ((u32 *)shared)[i] = 0;
}

/* Writes the mapping of the pairs v * THREADS + thread, whose experts are expert[v] (-1: none), by all
 * threads of `num_blocks` blocks; each takes `owned` (1 .. MAP_OWNED) experts at a time. In a block:
 *   1  pairs per expert are counted, those of owned experts marked
 *   2  a warp per owned expert: its segment starts where the segments before it end; its pairs in earlier
 *      runs are added up
 *   3  position = start + pairs in earlier runs + pairs in lanes before */
template <int THREADS, int PER_THREAD>
DEV void map_write(const tgl_map &m, const i32 (&expert)[PER_THREAD], void *shared, i32 owned, i32 block,
                   i32 num_blocks)
{
    enum { WARPS = THREADS / 32, RUNS = MAP_RUNS(THREADS, PER_THREAD), RUNS_PER_LANE = RUNS / 32 };
    static_assert(RUNS % 32 == 0 && RUNS_PER_LANE <= 8 && WARPS >= MAP_OWNED, "sizes of map_write");
    SHARED(i32[MAP_OWNED], starts);
    u32 *const hist = (u32 *)shared, *const bits = hist + m.num_experts;
    u16 *const earlier = (u16 *)(bits + owned * RUNS);
    const i32 tid = (i32)threadIdx.x, lane = tid % 32, warp = tid / 32;

    /* Empty pairs are shared out, by runs, to as many blocks as are a power of two. */
    const i32 shares = (i32)(1u << (31 - __clz(num_blocks)));
#pragma unroll
    for (int v = 0; v < PER_THREAD; v++) {
        const i32 pair = v * THREADS + tid;
        if (v * THREADS >= m.num_pairs) break;  /* with few pairs most registers are not looked at */
        if (expert[v] >= 0) atomicAdd(&hist[expert[v]], 1u);
        else if (pair < m.num_pairs && ((v * WARPS + warp) & (shares - 1)) == block)
            m.token_topk_to_pos[pair] = -1;
    }

    u32 total;
    for (i32 first = block * owned;;) {
#pragma unroll
        for (int v = 0; v < PER_THREAD; v++) {
            const u32 j = (u32)(expert[v] - first);
            if (v * THREADS >= m.num_pairs) break;
            if (expert[v] >= 0 && j < (u32)owned) atomicOr(&bits[j * RUNS + v * WARPS + warp], 1u << lane);
        }
        __syncthreads();

        /* the lengths of the segments before this warp's, and of all; to the host by one warp, in long runs:
         * it is far away */
        const i32 e = first + warp;
        const bool is_owner = warp < owned && e < m.num_experts;
        const bool to_host = m.num_tokens_per_expert_host && block == num_blocks - 1 && warp == WARPS - 1;
        u32 low = 0, all = 0;
#pragma unroll 4
        for (i32 i = lane; i < m.num_experts; i += 32) {
            const u32 length = tgl_map_aligned(&m, hist[i]);
            all += length;
            low += i < e ? length : 0;
            if (to_host) m.num_tokens_per_expert_host[i] = (i32)length;
        }
        total = warp_add_u32(all);
        const i32 start = (i32)warp_add_u32(low);
        if (is_owner) {
            const i32 at = warp * RUNS + lane * RUNS_PER_LANE;
            u32 pairs[RUNS_PER_LANE], sum = 0;
#pragma unroll
            for (int i = 0; i < RUNS_PER_LANE; i++) sum += pairs[i] = __popc(bits[at + i]);
            u32 before = warp_sum_below_by_votes<9>(sum);       /* at most 8 runs, of 32 pairs */
#pragma unroll
            for (int i = 0; i < RUNS_PER_LANE; i++) {
                earlier[at + i] = (u16)before;
                before += pairs[i];
            }
            if (lane == 0) starts[warp] = start;
        }
        __syncthreads();

#pragma unroll
        for (int v = 0; v < PER_THREAD; v++) {
            const u32 j = (u32)(expert[v] - first), at = j * RUNS + v * WARPS + warp;
            if (v * THREADS >= m.num_pairs) break;
            if (expert[v] >= 0 && j < (u32)owned)
                map_write_pair(m, v * THREADS + tid, expert[v],
                               starts[j] + earlier[at] + __popc(bits[at] & lanes_below()));
        }
        if (is_owner) {
            const i32 pairs_end = start + (i32)hist[e], end = start + (i32)tgl_map_aligned(&m, hist[e]);
            if (lane == 0) map_write_expert(m, e, start, pairs_end, end);
            map_fill(m, pairs_end, end, lane, 32);
        }
        first += num_blocks * owned;
        if (first >= m.num_experts) break;
        __syncthreads();                        /* more experts: their pairs are marked anew */
#pragma unroll 1
        for (i32 i = tid; i < owned * RUNS; i += THREADS) bits[i] = 0;
        __syncthreads();
    }
    map_fill(m, total, m.num_positions, block * THREADS + tid, num_blocks * THREADS);
}

#endif
