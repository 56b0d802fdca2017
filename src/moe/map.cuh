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
 * Shared memory of a block, MAP_SHARED bytes: u32 hist[num_experts], pairs of an expert; then a bit per pair
 * for each of its `owned` experts, set where the pair is theirs. */

DEV i32 map_runs(const tgl_map &m) { return (m.num_pairs + 31) / 32; }     /* words of bits per expert */

/* Comes first, with a barrier behind it. */
DEV void map_clear(const tgl_map &m, u32 *shared, i32 owned)
{
    const i32 words = m.num_experts + owned * map_runs(m);
#pragma unroll 1
    for (i32 i = (i32)threadIdx.x; i < words; i += (i32)blockDim.x) shared[i] = 0;
}

/* The part of expert e, whose pairs are in `bits`, from `start` on: by `parts` warps, of which this is number
 * `part`. */
DEV void map_write_owned(const tgl_map &m, i32 e, const u32 *bits, i32 start, i32 count, i32 part, i32 parts)
{
    const i32 lane = (i32)(threadIdx.x % 32), runs = map_runs(m), per_lane = (runs + 31) / 32;
    const i32 begin = min(lane * per_lane, runs), end = min(begin + per_lane, runs);
    u32 mine = 0;
#pragma unroll 1
    for (i32 i = begin; i < end; i++) mine += __popc(bits[i]);
    i32 position = start + (i32)warp_sum_below_by_votes<9>(mine);       /* at most 8 words */
#pragma unroll 1
    for (i32 i = begin; i < end; i++) {
        u32 left = bits[i];
        if (i % parts != part) position += __popc(left), left = 0;
#pragma unroll 1
        for (; left; left &= left - 1) map_write_pair(m, 32 * i + __ffs((i32)left) - 1, e, position++);
    }
    const i32 pairs_end = start + count, segment_end = start + (i32)tgl_map_aligned(&m, (u32)count);
    if (part == 0 && lane == 0) map_write_expert(m, e, start, pairs_end, segment_end);
    map_fill(m, pairs_end, segment_end, 32 * part + lane, 32 * parts);
}

/* Writes the mapping of pairs whose experts are expert_of(pair) (-1: none), by all threads of `num_blocks`
 * blocks; each takes `owned` (1 .. MAP_OWNED) experts at a time. In a block:
 *   1  pairs per expert are counted, those of owned experts marked
 *   2  warps for each owned expert: its segment starts where the segments before it end, and marks before a
 *      pair's tell its position */
template <class EXPERT_OF>
DEV void map_write(const tgl_map &m, u32 *shared, i32 owned, i32 block, i32 num_blocks,
                   const EXPERT_OF &expert_of)
{
    const i32 tid = (i32)threadIdx.x, threads = (i32)blockDim.x, lane = tid % 32, warp = tid / 32;
    const i32 runs = map_runs(m), warps = threads / 32;
    const i32 parts = 1 << (31 - __clz(warps / owned)), j = warp % owned, part = warp / owned;
    const i32 share = (runs + num_blocks - 1) / num_blocks;     /* runs whose empty pairs a block writes */
    u32 *const hist = shared, *const bits = hist + m.num_experts;
    u32 total;
    for (i32 first = block * owned;;) {
        const bool is_first = first == block * owned;
#pragma unroll 4
        for (i32 pair = tid; pair < m.num_pairs; pair += threads) {
            const i32 e = expert_of(pair);
            if (e >= 0) {
                if (is_first) atomicAdd(&hist[e], 1u);
                if ((u32)(e - first) < (u32)owned)
                    atomicOr(&bits[(e - first) * runs + pair / 32], 1u << pair % 32);
            } else if (is_first && (u32)(pair / 32 - block * share) < (u32)share) {
                m.token_topk_to_pos[pair] = -1;
            }
        }
        __syncthreads();

        /* the lengths of the segments before this warp's, and of all; to the host by one warp, in long runs:
         * it is far away */
        const i32 e = first + j;
        const bool to_host = m.num_tokens_per_expert_host && block == num_blocks - 1 && warp == warps - 1;
        u32 low = 0, all = 0;
#pragma unroll 4
        for (i32 i = lane; i < m.num_experts; i += 32) {
            const u32 length = tgl_map_aligned(&m, hist[i]);
            all += length;
            low += i < e ? length : 0;
            if (to_host) m.num_tokens_per_expert_host[i] = (i32)length;
        }
        total = warp_add_u32(all);
        low = warp_add_u32(low);
        if (part < parts && e < m.num_experts)
            map_write_owned(m, e, bits + j * runs, (i32)low, (i32)hist[e], part, parts);
        first += num_blocks * owned;
        if (first >= m.num_experts) break;
        __syncthreads();                        /* more experts: their pairs are marked anew */
#pragma unroll 1
        for (i32 i = tid; i < owned * runs; i += threads) bits[i] = 0;
        __syncthreads();
    }
    map_fill(m, total, m.num_positions, block * threads + tid, num_blocks * threads);
}

#endif
