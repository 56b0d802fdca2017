/* SPDX-License-Identifier: MIT
 * top2_sum_gate.cu - the experts of every token and their weights, a warp per token, for few tokens.
 *   computes  as tegula/moe.h says, through gate.cuh
 *   launch    grid ceil(num_tokens / warps), block of 1 .. TOKEN_BLOCK_WARPS warps, no shared memory
 *   moves     num_tokens * (4 * num_experts + (INDEX_BYTES + 4) * slots) bytes, each once; masks, fixed and
 *             unmapped indices, if given; the bias, and gathers of map and count, from L2
 *   macros    SCORING, NUM_TOPK, INDEX_BYTES, GROUP_LANES, NUM_LISTS: see gate.cuh */
#include "moe/common/gate.cuh"

enum { MIN_BLOCKS = NUM_LISTS <= 4 ? 4 : 2 }; /* per SM, of 256 threads: 64 or 128 registers */

extern "C" __global__ void __launch_bounds__(32 * TOKEN_BLOCK_WARPS, MIN_BLOCKS)
    top2_sum_gate(const __grid_constant__ tgl_gate gate)
{
    const u32 lane = threadIdx.x % 32;
    const u32 warp = warp_max_u32(threadIdx.x / 32); /* so that the compiler sees a warp-uniform value */
    const i64 t = (i64)blockIdx.x * (blockDim.x / 32) + warp;
    if (t < gate.num_tokens) store_slot(gate, t, gate_token<true>(gate, t, true, lane, see_nothing), lane);
    else pdl_wait();
}
