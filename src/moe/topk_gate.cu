/* SPDX-License-Identifier: MIT
 * topk_gate.cu - the NUM_TOPK best experts of every token, a warp per token, in registers.
 *   computes  topk_idx[t][k] = the expert of k-th highest rank (numerics/rank.h) in scores[t]
 *   launch    grid ceil(num_tokens / warps), block of 1 .. TOKEN_BLOCK_WARPS warps, no shared memory
 *   moves     num_tokens * (4 * num_experts + INDEX_BYTES * NUM_TOPK) bytes, each once
 *   macros    NUM_LISTS 1 .. 8 = ceil(num_experts / 128), NUM_TOPK 1 .. 32, INDEX_BYTES 4 or 8
 *
 * Rounds of short_keys.cuh. The bits cut off a key matter only if two picks, or the last pick and a remaining
 * expert, agree in all other bits: then all experts that may belong to the result are candidates, one per
 * lane, and whole scores decide. Rows with more than 32 candidates, mostly of equal scores, take the slow
 * path of topk.cuh. */
#include "moe/common/index.cuh"
#include "moe/common/short_keys.cuh"
#include "moe/common/topk.cuh"
#include "moe/topk_gate.h"

static_assert(NUM_TOPK >= 1 && NUM_TOPK <= 32, "NUM_TOPK is 1 .. 32");

enum { MIN_BLOCKS = NUM_LISTS <= 4 ? 4 : 2 }; /* per SM, of 256 threads: 64 or 128 registers */

typedef struct { u32 slot, expert; } choice; /* slot >= NUM_TOPK: not chosen */

/* Lane l has experts 128 i + 4 l .. + 3 in list i. */
DEV lists load_lists(const float *row, u32 num_experts, bool is_vector, u32 lane)
{
    float x[NUM_LISTS][4];
    if (is_vector) {
#pragma unroll
        for (int i = 0; i < NUM_LISTS; i++) {
            const u32 e = 128 * i + 4 * lane;
            const float4 v = e < num_experts ? *(const float4 *)(row + e) : make_float4(0, 0, 0, 0);
            x[i][0] = v.x;
            x[i][1] = v.y;
            x[i][2] = v.z;
            x[i][3] = v.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < NUM_LISTS; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const u32 e = 128 * i + 4 * lane + j;
                x[i][j] = e < num_experts ? row[e] : 0;
            }
    }
    lists l;
#pragma unroll
    for (int i = 0; i < NUM_LISTS; i++) {
        u32 (&k)[4] = l.key[i];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const u32 e = 128 * i + 4 * lane + j;
            const u32 key = short_key(tgl_rank_key(x[i][j]), e);
            k[j] = e < num_experts ? key : TGL_RANK_NONE;
        }
        sort4(k);
    }
    return l;
}

/* Lanes 0 .. NUM_TOPK - 1 have the picks so far, as short keys in order; `last` is the last. */
DEV choice decide(lists &l, u32 pick, u32 last, const float *row, u32 num_experts, u32 lane)
{
    const u32 floor = last & ~EXPERT_MASK;
    u32 num_picks = NUM_TOPK;
    while (num_picks <= 32 && __any_sync(FULL, head(l) >= floor)) {
        const u32 next = warp_max_u32(head(l));
        if (lane == num_picks) pick = next;
        pop(l, next);
        num_picks++;
    }
    choice c = { lane, 0 };
    if (num_picks <= 32) {
        c.expert = lane < num_picks ? expert_of(pick) : 0;
        const u64 rank = tgl_rank(row[c.expert], c.expert);
        c.slot = lane < num_picks ? 0 : 32;
#pragma unroll 4
        for (u32 i = 0; i < num_picks; i++) c.slot += __shfl_sync(FULL, rank, i) > rank;
        return c;
    }
    u64 best = best_below(ALL_RANKS, row, num_experts, lane, 32);
#pragma unroll 1
    for (u32 k = 0; k < NUM_TOPK; k++) {
        const u64 rank = warp_max_u64(best);
        if (lane == k) c.expert = tgl_rank_index(rank);
        if (best == rank) best = best_below(rank, row, num_experts, lane, 32);
    }
    return c;
}

DEV choice choose(const float *row, u32 num_experts, bool is_vector, u32 lane)
{
    lists l = load_lists(row, num_experts, is_vector, lane);
    u32 pick = TGL_RANK_NONE, last = TGL_RANK_NONE;
#pragma unroll
    for (u32 k = 0; k < NUM_TOPK; k++) {
        last = warp_max_u32(head(l));
        if (lane == k) pick = last;
        pop(l, last);
    }
    const u32 previous = __shfl_up_sync(FULL, pick, 1);
    const bool is_close = lane > 0 && lane < NUM_TOPK && (pick ^ previous) <= EXPERT_MASK;
    if (__any_sync(FULL, is_close || head(l) >= (last & ~EXPERT_MASK)))
        return decide(l, pick, last, row, num_experts, lane);
    return { lane, expert_of(pick) };
}

extern "C" __global__ void __launch_bounds__(32 * TOKEN_BLOCK_WARPS, MIN_BLOCKS) topk_gate(topk_gate_args a)
{
    const u32 lane = threadIdx.x % 32;
    const i64 t = (i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const bool is_vector = (((u64)a.scores | (u64)a.row_stride * 4) & 15) == 0 && a.num_experts % 4 == 0;
    pdl_wait();
    if (t < a.num_tokens) {
        const choice c = choose(a.scores + t * a.row_stride, a.num_experts, is_vector, lane);
        if (c.slot < NUM_TOPK) ((index_type *)a.topk_idx)[t * NUM_TOPK + c.slot] = (index_type)c.expert;
    }
    pdl_trigger();
}
