/* SPDX-License-Identifier: MIT
 * route.cu - top2_sum_gate and get_fused_mapping of a decode batch in one launch.
 *   computes  as the two ops, through gate.cuh and map.cuh
 *   launch    any grid, cooperative: blocks wait for each other; best with 1 << owned_bits experts of the
 *             mapping per block. Block a power of two, at least 256 and 32 << owned_bits, up to ROUTE_THREADS
 *   shared    MAP_SHARED(num_experts, owned_bits, num_pairs) + 16 * WORDS * num_tokens bytes
 *   moves     what the two ops move, but topk_idx is not read
 *   macros    those of gate.cuh; NUM_SLOTS = NUM_TOPK + num_shared, up to 32
 *
 * A block routes its tokens, a warp each, then writes the part of the mapping that belongs to its experts,
 * for which it needs the experts of all tokens. These are published in the workspace, with a flag bit in
 * every slot: the data is its own flag and needs no fence. Blocks poll the one copy only after they have
 * published their own tokens, as polling would slow down those that still load. The last block to have read
 * it all, by a ticket, clears the copy. */
#include "moe/common/gate.cuh"
#include "moe/common/map.cuh"
#include "moe/route.cuh"

DEV bool is_published(uint4 v)
{
    const u32 both = ROUTE_PUBLISHED | ROUTE_PUBLISHED << 16;
    return (v.x & v.y & v.z & v.w & both) == both;
}

extern "C" __global__ void __launch_bounds__(ROUTE_THREADS, 1) route(const __grid_constant__ route_args a)
{
    const tgl_gate &gate = a.gate;
    const tgl_map &m = a.map;
    u32 *const workspace = (u32 *)a.workspace;
    SHARED_DYNAMIC(memory, 16);
    const u32 tid = threadIdx.x, lane = tid % 32, warps = blockDim.x / 32;
    const u32 warp = warp_max_u32(tid / 32); /* so that the compiler sees a warp-uniform value */
    const u32 block = blockIdx.x, num_blocks = gridDim.x, num_tokens = (u32)gate.num_tokens;
    const u32 num_words = num_tokens * WORDS;
    uint4 *const words = (uint4 *)(memory + MAP_SHARED(m.num_experts, a.owned_bits, m.num_pairs));
    const map_block b = map_begin(m, memory, a.owned_bits);
    /* a line that is half in L2 would be completed from memory while all wait for it */
    if (8 * tid < num_words) prefetch_l2(workspace + 32 * tid);
    u32 t = block + warp * num_blocks;
    if (t < num_tokens) { /* as in route_cluster.cu */
        pdl_wait();
#pragma unroll 1
        do {
            const slot s = gate_token(gate, t, true, lane, [&](i32 index) {
                const u32 two = pack_codes(code_of(m, index)); /* as wide as the loads */
                if (lane < 8 * WORDS && lane % 2 == 0) store_relaxed_u32(workspace + t * (4 * WORDS) + lane / 2, two);
            });
            store_slot(gate, t, s, lane);
            t += warps * num_blocks;
        } while (t < num_tokens);
    } else {
        pdl_wait();
    }
    pdl_trigger(); /* as in route_cluster.cu */
    __syncthreads();
    /* a first poll of the thread's word, in flight while map_write() prepares */
    uint4 v = tid < num_words ? load_relaxed_u32x4(workspace + 4 * tid) : make_uint4(0, 0, 0, 0);
    u32 ticket = 0;
    map_write(m, b, [&](const map_round &round) {
        if (round.is_first)
#pragma unroll 1
            for (u32 i = tid; i < num_words; i += blockDim.x) {
                if (i != tid) v = load_relaxed_u32x4(workspace + 4 * i);
                while (!is_published(v)) v = load_relaxed_u32x4(workspace + 4 * i);
                words[i] = v; /* for later rounds */
                map_mark(m, b, round, pairs_of(m, 2 * i, make_uint2(v.x, v.y)));
                map_mark(m, b, round, pairs_of(m, 2 * i + 1, make_uint2(v.z, v.w)));
            }
        else
#pragma unroll 1
            for (u32 h = tid; h < 2 * num_words; h += blockDim.x)
                map_mark(m, b, round, pairs_of(m, h, ((const uint2 *)words)[h]));
        __syncthreads();
        if (round.is_first && tid == blockDim.x - 1)
            ticket = atomic_inc_relaxed(workspace + 4 * num_words, num_blocks - 1);
    });
    /* clears after a relaxed ticket: the loads of all other blocks have returned */
    if (warp != warps - 1) return;
    if (__shfl_sync(FULL, ticket, 31) == num_blocks - 1)
#pragma unroll 1
        for (u32 i = lane; i < num_words; i += 32) store_relaxed_u32x4(workspace + 4 * i, make_uint4(0, 0, 0, 0));
}
