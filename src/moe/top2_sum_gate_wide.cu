/* SPDX-License-Identifier: MIT
 * top2_sum_gate_wide.cu - top2_sum_gate for any number of experts, groups and slots: a block per token.
 *   computes  as tegula/moe.h says, by exact keys of all experts
 *   launch    grid num_tokens in x and y, block GATE_WIDE_THREADS
 *   moves     num_tokens * (4 * num_experts + (INDEX_BYTES + 4) * slots) bytes, masks, bias, map; after
 *             each pick of a thread its logits beyond GATE_WIDE_KEPT again, from L1 or L2
 *   macros    SCORING 0 .. 3, INDEX_BYTES 4 or 8 */
#include "moe/common/gate_wide.cuh"
#include "moe/common/topk.cuh"
#include "moe/top2_sum_gate.h"

enum { THREADS = GATE_WIDE_THREADS, WARPS = THREADS / 32, KEPT = GATE_WIDE_KEPT };
#define MINUS_INFINITY __uint_as_float(0xff800000)

typedef struct {
    u32 key[KEPT]; /* by expert; TGL_RANK_NONE: its group is left out */
    float group_sum[KEPT];
    u64 best_of_warp[2][WARPS];
} memory;

typedef struct {
    const tgl_gate &gate;
    const float *row;
    memory &kept;
    u64 last_group; /* rank of the last group that stays; 0: all stay */
} search;

DEV u32 exact_key(const search &s, u32 e)
{
    return tgl_rank_key(tgl_score_key(SCORING, s.row[e], s.gate.bias ? s.gate.bias[e] : 0.0f));
}

/* Of experts first, first + step, ... of a group; -inf if there is none. */
DEV two best_two_of(const search &s, u32 group, u32 first, u32 step)
{
    two best = { MINUS_INFINITY, MINUS_INFINITY };
#pragma unroll 1
    for (u32 i = first; i < s.gate.group_size; i += step) {
        const u32 e = group * s.gate.group_size + i;
        const float score = tgl_rank_value((u64)(e < KEPT ? s.kept.key[e] : exact_key(s, e)) << 32);
        best = best_two(best, { score, MINUS_INFINITY });
    }
    return best;
}
DEV float sum_of(const search &s, two best) { return s.gate.group_size == 1 ? best.first : best.first + best.second; }

/* By a single thread. Kept keys and sums must be complete. */
DEV u64 rank_of_group(const search &s, u32 group)
{
    return tgl_rank(group < KEPT ? s.kept.group_sum[group] : sum_of(s, best_two_of(s, group, 0, 1)), group);
}

/* The max of all threads' ranks. */
DEV u64 block_max(const search &s, u64 rank, u32 round) { return block_max_u64(s.kept.best_of_warp[round % 2], rank); }

/* Sums by warps; rounds over their ranks; then experts of other groups lose their keys. */
DEV void choose_groups(search &s)
{
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
    for (u32 g = warp; g < min(s.gate.num_groups, (u32)KEPT); g += WARPS) {
        const two best = best_two_of_lanes<32>(best_two_of(s, g, lane, 32));
        if (lane == 0) s.kept.group_sum[g] = sum_of(s, best);
    }
    __syncthreads();
    u64 last = ALL_RANKS;
#pragma unroll 1
    for (u32 r = 0; r < s.gate.num_topk_groups; r++) {
        u64 best = TGL_RANK_NONE;
#pragma unroll 1
        for (u32 g = threadIdx.x; g < s.gate.num_groups; g += THREADS) {
            const u64 rank = rank_of_group(s, g);
            if (rank < last && rank > best) best = rank;
        }
        last = block_max(s, best, r);
    }
    s.last_group = last;
    __syncthreads(); /* best_of_warp is used again */
#pragma unroll 1
    for (u32 e = threadIdx.x; e < min(s.gate.num_experts, (u32)KEPT); e += THREADS)
        if (rank_of_group(s, e / s.gate.group_size) < last) s.kept.key[e] = TGL_RANK_NONE;
}

/* Without groups no sum is kept or read. */
DEV bool is_left_out(const search &s, u32 group)
{
    return s.last_group != TGL_RANK_NONE && rank_of_group(s, group) < s.last_group;
}

/* The best rank below `limit` of this thread's experts. */
DEV u64 best_left(const search &s, u64 limit)
{
    u64 best = TGL_RANK_NONE;
#pragma unroll 1
    for (u32 e = threadIdx.x; e < s.gate.num_experts; e += THREADS) {
        u32 key;
        if (e < KEPT) key = s.kept.key[e];
        else if (is_left_out(s, e / s.gate.group_size)) key = TGL_RANK_NONE;
        else key = exact_key(s, e);
        const u64 rank = (u64)key << 32 | (u32)~e;
        if (key != TGL_RANK_NONE && rank < limit && rank > best) best = rank;
    }
    return best;
}

DEV void choose_experts(const tgl_gate &gate, i64 t, const float *row)
{
    SHARED(memory, kept);
    search s = { gate, row, kept, TGL_RANK_NONE };
#pragma unroll 1
    for (u32 e = threadIdx.x; e < min(gate.num_experts, (u32)KEPT); e += THREADS) kept.key[e] = exact_key(s, e);
    __syncthreads();
    if (gate.num_topk_groups < gate.num_groups) choose_groups(s);
    u64 last = ALL_RANKS, best = last;
#pragma unroll 1
    for (u32 k = 0; k < gate.num_topk; k++) {
        if (best == last) best = best_left(s, last); /* its best was picked */
        last = block_max(s, best, k);
        if (threadIdx.x == 0) {
            indices_of(gate, t)[k] = (index_type)tgl_rank_index(last);
            if (gate.unmapped_topk_idx) unmapped_of(gate, t)[k] = (index_type)tgl_rank_index(last);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) top2_sum_gate_wide(const __grid_constant__ tgl_gate gate)
{
    const i64 t = block_index();
    const float *row = gate.logits + t * gate.logits_stride;
    pdl_wait();
    if (t >= gate.num_tokens) return;
    if (gate.mask && !gate.mask[t]) {
        mask_token(gate, t);
    } else {
        if (gate.fix_routing_mask && gate.fix_routing_mask[t])
#pragma unroll 1
            for (u32 k = threadIdx.x; k < gate.num_topk; k += THREADS) indices_of(gate, t)[k] = unmapped_of(gate, t)[k];
        else choose_experts(gate, t, row);
        finish_token(gate, t, row);
    }
    pdl_trigger();
}
