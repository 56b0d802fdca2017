/* SPDX-License-Identifier: MIT
 * map.cuh - how kernels write a mapping. For few pairs map_write() does it all: every block reads all pairs
 * and writes the part of the mapping that belongs to its experts. */
#ifndef TEGULA_MOE_MAP_CUH
#define TEGULA_MOE_MAP_CUH

#include "device/integer.cuh"
#include "device/warp.cuh"
#include "moe/common/map.h"

/* The index of a pair, or -1 past the last pair. */
template <class INDEX>
DEV INDEX map_load(const tgl_map &m, const INDEX *topk_idx, i64 row_stride, u32 pair)
{
    if (pair >= (u32)m.num_pairs) return -1;
    const u32 token = tgl_divide(pair, m.by_topk);
    return topk_idx[token * row_stride + (pair - token * (u32)m.num_topk)];
}

/* Pairs pair, pair + step, ...: independent loads. The fast case is packed rows. */
template <class INDEX, int N>
DEV void map_load_all(const tgl_map &m, const INDEX *topk_idx, i64 row_stride, u32 pair, u32 step, INDEX (&index)[N])
{
    if (row_stride == m.num_topk) {
#pragma unroll
        for (u32 i = 0; i < N; i++, pair += step) index[i] = pair < (u32)m.num_pairs ? topk_idx[pair] : -1;
    } else {
#pragma unroll
        for (u32 i = 0; i < N; i++, pair += step) index[i] = map_load(m, topk_idx, row_stride, pair);
    }
}

/* The expert of an index, or -1. */
template <class INDEX> DEV i32 map_expert(const tgl_map &m, INDEX index)
{
    return index >= 0 && index < m.num_experts ? (i32)index : -1;
}

/* Writes a pair at its position, and its position. */
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

/* The arrays by expert: its segment is start .. end, its pairs end at `pairs_end`. */
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

/* Marks positions begin .. end - 1 as empty, by at least 3 `threads`. INT is unsigned. */
template <class INT> DEV void map_fill(const tgl_map &m, INT begin, INT end, u32 thread, u32 threads)
{
    const int4 empty = make_int4(-1, -1, -1, -1);
    if ((i64)end > m.num_positions) end = (INT)m.num_positions;
    if (begin >= end) return;
    INT i = begin + thread;
    if (!m.is_aligned) {
#pragma unroll 1
        for (; i < end; i += threads) map_write_empty(m, (i64)i);
        return;
    }
    /* 16 bytes at a time, and up to three positions before and after */
    const INT whole = min((begin + 3) & ~(INT)3, end), rest = max(end & ~(INT)3, whole);
    if (i < whole) map_write_empty(m, (i64)i);
    if (rest + thread < end) map_write_empty(m, (i64)(rest + thread));
#pragma unroll 1
    for (i = whole + 4 * thread; i < rest; i += 4 * threads) {
        *(int4 *)(m.pos_to_expert + i) = empty;
        *(int4 *)(m.pos_to_token + i) = empty;
        *(int4 *)(m.pos_to_token_topk + i) = empty;
    }
}

/* ---- all of a mapping, by blocks that exchange nothing ----
 * hist: bins of pairs by expert, and of pairs without one, starting at hist_begin; marks: for each of the
 * block's experts a bit per pair, set if the pair belongs to it. */
typedef struct {
    u32 *hist, *marks;
    i32 owned_bits, block, num_blocks;
} map_block;

/* Comes first; a barrier must follow. `shared` has MAP_SHARED bytes. */
DEV map_block map_begin(const tgl_map &m, void *shared, i32 owned_bits)
{
    const u32 vectors = MAP_SHARED((u32)m.num_experts, owned_bits, (u32)m.num_pairs) / 16;
    const u32 bins = MAP_BINS((u32)m.num_experts) / 4;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < vectors; i += blockDim.x) {
        const u32 begin = i < bins ? m.hist_begin : 0;
        ((uint4 *)shared)[i] = make_uint4(begin, begin, begin, begin);
    }
    u32 *const hist = (u32 *)shared;
    return { hist, hist + MAP_BINS((u32)m.num_experts), owned_bits, (i32)blockIdx.x, (i32)gridDim.x };
}

/* Some pairs and their experts. A number >= num_pairs is no pair. */
typedef struct { u32 pair[MAP_AT_ONCE], expert[MAP_AT_ONCE]; } map_pairs;

/* The bin of pairs without an expert, also used as their expert; the next bin may be that of slots that are
 * no pair. No block owns it: a block's experts are 1 << owned_bits, which divides it. A block that only fills
 * positions may begin there. */
DEV u32 map_nobody(const tgl_map &m) { return MAP_HIST((u32)m.num_experts); }

/* A block takes the experts from `first` on; is_first: in its first round. */
typedef struct {
    u32 first;
    bool is_first;
} map_round;

/* Marks the pairs of the block's experts. The first round also counts all pairs and writes those without
 * an expert. */
DEV void map_mark(const tgl_map &m, const map_block &b, const map_round &r, const map_pairs &p)
{
    const u32 runs = MAP_RUNS((u32)m.num_pairs), nobody = map_nobody(m);
    bool has_nobody = false;
#pragma unroll
    for (u32 v = 0; v < MAP_AT_ONCE; v++) {
        const u32 own = p.expert[v] - r.first;
        const bool is_nobody = p.expert[v] == nobody;
        if (r.is_first) atomicAdd(&b.hist[p.expert[v]], 1u);
        if (own >> b.owned_bits == 0 && p.expert[v] < nobody)
            atomicOr(&b.marks[own * runs + p.pair[v] / 32], 1u << p.pair[v] % 32);
        has_nobody |= is_nobody;
    }
    if (r.is_first && has_nobody)
#pragma unroll
        for (u32 v = 0; v < MAP_AT_ONCE; v++) {
            const bool is_mine = min(p.pair[v] / 32, (u32)b.num_blocks - 1) == (u32)b.block;
            if (p.expert[v] == nobody && p.pair[v] < (u32)m.num_pairs && is_mine) m.token_topk_to_pos[p.pair[v]] = -1;
        }
}

/* A lane's part of an expert's marks, which begin at address `marks`: words begin .. end - 1, and the number
 * of pairs in the lanes before. */
typedef struct {
    u32 marks;
    i32 begin, end;
    u32 before;
} map_words;

/* N words per lane, with fewer than 1 << BITS pairs. */
template <int N, int BITS> DEV map_words map_words_of(u32 marks, i32 runs, u32 lane)
{
    const i32 begin = N * (i32)lane;
    u32 pairs = 0;
#pragma unroll
    for (i32 i = 0; i < N; i++)
        if (begin + i < runs) pairs += __popc(shared_load_u32(marks + 4 * (begin + i)));
    __syncwarp();
    return { marks, begin, min(begin + N, runs), warp_exclusive_scan_by_votes<BITS>(pairs) };
}

DEV map_words map_words_of(const tgl_map &m, u32 marks, u32 lane)
{
    const i32 runs = MAP_RUNS((u32)m.num_pairs);
    if (runs <= 32) return map_words_of<1, 6>(marks, runs, lane);
    if (runs <= 64) return map_words_of<2, 7>(marks, runs, lane);
    const i32 per_lane = ceil_div(runs, 32), begin = min((i32)lane * per_lane, runs);
    const i32 end = min(begin + per_lane, runs);
    u32 pairs = 0;
#pragma unroll 1
    for (i32 i = begin; i < end; i++) pairs += __popc(shared_load_u32(marks + 4 * i));
    __syncwarp();
    return { marks, begin, end, warp_exclusive_scan_by_votes<9>(pairs) }; /* max 8 words: 9 bits */
}

/* Length of the segment of an expert with this bin, in units of the alignment. */
DEV u32 map_units(const tgl_map &m, u32 bin) { return __umulhi(bin, m.per_unit); }

/* Writes the segment of expert e, which begins at `start`, by `parts` warps, a power of two. Warp `part`
 * writes the pairs of its share of the lanes; the last warp starts with the padding. */
DEV void map_write_owned(const tgl_map &m, i32 e, const map_words &w, i32 start, u32 bin, u32 lane, i32 part, i32 parts)
{
    i32 position = start + (i32)w.before;
    const i32 end = ((i32)lane & (parts - 1)) == part ? w.end : w.begin;
#pragma unroll 1
    for (i32 i = w.begin; i < end; i++)
#pragma unroll 1
        for (u32 left = shared_load_u32(w.marks + 4 * i); left; left &= left - 1)
            map_write_pair(m, 32 * i + __ffs((i32)left) - 1, e, position++);
    const i32 pairs_end = start + (i32)(bin - m.hist_begin);
    const i32 segment_end = start + (i32)(map_units(m, bin) * m.alignment);
    if (part == parts - 1 && lane == 0) map_write_expert(m, e, start, pairs_end, segment_end);
    map_fill(m, (u32)pairs_end, (u32)segment_end, (u32)(32 * (parts - 1 - part)) + lane, (u32)(32 * parts));
}

/* Called by all threads of all blocks. Writes the mapping of the pairs for which each(round) calls
 * map_mark(), with a barrier behind them. In a block:
 *   1  pairs per expert are counted, those of its experts marked
 *   2  each of its experts has one or more warps: the lengths of earlier segments give its start, the marks
 *      before a pair its position */
template <class EACH> DEV void map_write(const tgl_map &m, const map_block &b, const EACH &each)
{
    const u32 tid = threadIdx.x, threads = blockDim.x, num_pairs = (u32)m.num_pairs;
    const u32 hist = shared_address(b.hist), marks = hist + 4 * MAP_BINS((u32)m.num_experts);
    const u32 lane = tid % 32;
    const i32 warp = (i32)(tid / 32), warps = (i32)(threads / 32);
    const i32 parts = warps >> b.owned_bits, part = warp >> b.owned_bits;
    const i32 j = warp & ((1 << b.owned_bits) - 1);
    u32 total;
    for (i32 first = b.block << b.owned_bits;;) {
        each({ (u32)first, first == b.block << b.owned_bits });

        /* to host memory by one warp, coalesced: it is far away */
        if (m.num_tokens_per_expert_host && b.block == b.num_blocks - 1 && warp == warps - 1)
#pragma unroll 1
            for (i32 i = (i32)lane; i < m.num_experts; i += 32) {
                const u32 units = map_units(m, shared_load_u32(hist + 4 * i));
                m.num_tokens_per_expert_host[i] = (i32)(units * m.alignment);
            }

        /* units of the segments before this warp's expert, and of all; bins past the experts have none */
        const i32 e = first + j;
        u32 low = 0, all = 0;
#pragma unroll 1
        for (i32 i = (i32)(4 * lane); i < m.num_experts; i += 256) {
            const uint4 n = shared_load_u32x4(hist + 4 * i), n2 = shared_load_u32x4(hist + 4 * (i + 128));
            const u32 bin[8] = { n.x, n.y, n.z, n.w, n2.x, n2.y, n2.z, n2.w };
            const i32 before = e - i;
#pragma unroll
            for (i32 c = 0; c < 8; c++) {
                const u32 units = map_units(m, bin[c]);
                all += units;
                low += c % 4 + c / 4 * 128 < before ? units : 0;
            }
        }
        __syncwarp();
        const map_words w = map_words_of(m, marks + 4 * j * MAP_RUNS(num_pairs), lane);
        total = warp_add_u32(all) * m.alignment;
        low = warp_add_u32(low) * m.alignment;
        if (part < parts && e < m.num_experts)
            map_write_owned(m, e, w, (i32)low, shared_load_u32(hist + 4 * e), lane, part, parts);
        first += b.num_blocks << b.owned_bits;
        if (first >= m.num_experts) break;
        __syncthreads(); /* more experts: mark their pairs */
#pragma unroll 1
        for (u32 i = tid; i < (u32)MAP_MARKS(b.owned_bits, m.num_pairs); i += threads) b.marks[i] = 0;
        __syncthreads();
    }
    map_fill(m, (u64)total, (u64)m.num_positions, b.block * threads + tid, b.num_blocks * threads);
}

#endif
