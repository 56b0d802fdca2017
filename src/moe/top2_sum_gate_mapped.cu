/* SPDX-License-Identifier: MIT
 * top2_sum_gate_mapped.cu - top2_sum_gate.cu with a map, for few tokens: a block per token.
 *   computes  as tegula/moe.h says, through gate.cuh; there is a to_physical_map
 *   launch    grid num_tokens, block 32 * GATE_MAPPED_WARPS
 *   moves     as top2_sum_gate.cu; from L2, map and count of all experts
 *   macros    as top2_sum_gate.cu
 *
 * From a chosen expert to its index there are two dependent loads and a remainder. So while the first warp
 * chooses, the others compute the indices of all experts, and only a load from shared memory remains. */
#include "moe/common/gate.cuh"
#include "moe/top2_sum_gate.h"

enum {
    FINDERS = 32 * (GATE_MAPPED_WARPS - 1), /* threads that compute indices */
    MAX_EXPERTS = 32 * LANE_EXPERTS,
    PER_FINDER = (MAX_EXPERTS + FINDERS - 1) / FINDERS + 1 /* and a shared expert */
};
static_assert(GATE_MAX_SLOTS <= FINDERS, "a finder has at most one shared expert");

/* By FINDERS threads: index[e] of logical expert e. A thread's loads are independent. Calls pdl_wait(). */
DEV void find_indices(const tgl_gate &gate, i64 t, u32 thread, i32 *index)
{
    u32 expert[PER_FINDER], replica[PER_FINDER];
    bool is_there[PER_FINDER];
    i32 count[PER_FINDER], physical[PER_FINDER];
#pragma unroll
    for (u32 i = 0; i < PER_FINDER; i++) {
        const bool is_shared = i == PER_FINDER - 1;
        expert[i] = is_shared ? gate.num_experts + thread : FINDERS * i + thread;
        is_there[i] = is_shared ? thread < gate.num_shared : expert[i] < gate.num_experts;
        count[i] = 1;
        physical[i] = -1;
    }
    const u64 turn = tgl_gate_turn(&gate, t);
    pdl_wait();
#pragma unroll
    for (u32 i = 0; i < PER_FINDER; i++)
        if (is_there[i]) count[i] = gate.logical_count[expert[i]];
    if (turn >> 32)
#pragma unroll
        for (u32 i = 0; i < PER_FINDER; i++) replica[i] = (u32)(turn % tgl_gate_replicas(&gate, count[i]));
    else
#pragma unroll
        for (u32 i = 0; i < PER_FINDER; i++) replica[i] = (u32)turn % tgl_gate_replicas(&gate, count[i]);
#pragma unroll
    for (u32 i = 0; i < PER_FINDER; i++)
        if (is_there[i]) physical[i] = gate.to_physical_map[(u64)expert[i] * gate.num_replicas + replica[i]];
#pragma unroll
    for (u32 i = 0; i < PER_FINDER; i++) {
        const i32 found = (i32)tgl_tp_mask_narrow(&gate.tp_mask, physical[i]);
        if (is_there[i]) index[expert[i]] = found;
    }
}

/* Except on sm_90, ptxas would spill rather than use a 40th register unless told. */
#if __CUDA_ARCH__ == 900
#define BOUNDS 32 * GATE_MAPPED_WARPS
#else
#define BOUNDS 32 * GATE_MAPPED_WARPS, 4
#endif

extern "C" __global__ void __launch_bounds__(BOUNDS) top2_sum_gate_mapped(const __grid_constant__ tgl_gate gate)
{
    SHARED(i32[MAX_EXPERTS + GATE_MAX_SLOTS], index);
    const u32 lane = threadIdx.x % 32;
    const u32 warp = warp_max_u32(threadIdx.x / 32); /* so that the compiler sees a warp-uniform value */
    const i64 t = blockIdx.x;
    token k = {};
    candidate c = {};
    tgl_softmax softmax = {};
    if (warp == 0) {
        k = load_token<true>(gate, t, lane);
        softmax = softmax_of_values(k.logits);
        c = select_short(gate, k, lane);
    } else {
        find_indices(gate, t, threadIdx.x - 32, index);
    }
    __syncthreads();
    if (warp == 0) {
        const auto index_of = [&](u32 expert) { return index[expert]; };
        store_slot(gate, t, finish_token(gate, t, k, c, softmax, true, lane, index_of, see_nothing), lane);
    }
    pdl_trigger();
}
