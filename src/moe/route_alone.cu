/* SPDX-License-Identifier: MIT
 * route_alone.cu - route.cu for so few tokens that every block routes all of them: no exchange between
 * blocks.
 *   computes  as route.cu
 *   launch    any grid, best with 1 << owned_bits experts of the mapping per block. Block a power of two, at
 *             least 32 * ROUTE_ALONE and 32 << owned_bits, up to ROUTE_THREADS
 *   shared    MAP_SHARED(num_experts, owned_bits, num_pairs) + 16 * WORDS * num_tokens bytes
 *   moves     what the two ops move, but topk_idx is not read; all blocks but one read logits from L2
 *   macros    as route.cu
 *
 * All blocks do the same work, in less time than an exchange takes; one of them writes a token's outputs. A
 * separate kernel, so that instructions of the exchange are not fetched. */
#include "moe/common/gate.cuh"
#include "moe/common/map.cuh"
#include "moe/route.cuh"

extern "C" __global__ void __launch_bounds__(ROUTE_THREADS, 1) route_alone(const __grid_constant__ route_args a)
{
    const tgl_gate &gate = a.gate;
    const tgl_map &m = a.map;
    SHARED_DYNAMIC(memory, 16);
    const u32 lane = threadIdx.x % 32, num_tokens = (u32)gate.num_tokens;
    const u32 t = warp_max_u32(threadIdx.x / 32); /* so that the compiler sees a warp-uniform value */
    uint4 *const words = (uint4 *)(memory + MAP_SHARED(m.num_experts, a.owned_bits, m.num_pairs));
    u16 *const slots = (u16 *)words; /* [token][8 * WORDS] */
    const map_block b = map_begin(m, memory, a.owned_bits);
    if (t < num_tokens) { /* as in route_cluster.cu */
        pdl_wait();
        const bool is_writer = min(t, gridDim.x - 1) == blockIdx.x;
        const slot s = gate_token(gate, t, is_writer, lane, [&](i32 index) {
            if (lane < 8 * WORDS) slots[t * (8 * WORDS) + lane] = (u16)code_of(m, index);
        });
        if (is_writer) store_slot(gate, t, s, lane);
    } else {
        pdl_wait();
    }
    pdl_trigger(); /* as in route_cluster.cu */
    map_write(m, b, [&](const map_round &round) {
        __syncthreads(); /* here, after map_write() has prepared */
#pragma unroll 1
        for (u32 h = threadIdx.x; h < num_tokens * 2 * WORDS; h += blockDim.x)
            map_mark(m, b, round, pairs_of(m, h, ((const uint2 *)words)[h]));
        __syncthreads();
    });
}
