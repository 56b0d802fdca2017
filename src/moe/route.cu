/* SPDX-License-Identifier: MIT
 * route.cu - top2_sum_gate and get_fused_mapping of a decode batch in one launch.
 *   computes  as the two ops, through gate.cuh and map.cuh
 *   launch    any grid of blocks that are all resident (cooperative), block ROUTE_THREADS; best is one whose
 *             blocks have `owned` experts of the mapping each
 *   shared    16 * WORDS * num_tokens + MAP_SHARED(num_experts, owned, num_pairs) bytes
 *   moves     what the two ops move, but topk_idx is not read
 *   macros    those of gate.cuh; NUM_SLOTS = NUM_TOPK + num_shared, up to 32
 *
 * The first warps of a block route its tokens and publish their experts in the workspace, which is 0 between
 * launches: 16 bits a slot with the top bit set, so data is its own flag and needs no fence. The other warps
 * collect the experts of all tokens; then every block writes the part of the mapping that belongs to its
 * experts. The last block to have collected clears the workspace. */
#include "moe/gate.cuh"
#include "moe/map.cuh"
#include "moe/route.h"

#ifndef NUM_SLOTS
#ifdef __CUDACC_RTC__
#error "NUM_SLOTS is not defined"
#endif
#define NUM_SLOTS NUM_TOPK
#endif
static_assert(NUM_SLOTS >= NUM_TOPK && NUM_SLOTS <= 32, "NUM_SLOTS is NUM_TOPK .. 32");

enum { WORDS = ROUTE_WORDS(NUM_SLOTS) };

DEV void publish(u8 *workspace, i64 t, i32 expert, i32 num_experts, u32 lane)
{
    const u32 code = (u32)expert < (u32)num_experts ? (u32)expert : ROUTE_NO_EXPERT;
    if (lane < NUM_SLOTS)
        store_relaxed_u16(workspace + t * ROUTE_LINE_BYTES + 2 * lane, ROUTE_PUBLISHED | code);
}

/* Waits for eight slots of a token, or as many as are left of them. */
DEV uint4 collect(const u8 *line, u32 word)
{
    const i32 slots = NUM_SLOTS - 8 * (i32)word;
    const u32 both = ROUTE_PUBLISHED | ROUTE_PUBLISHED << 16;
    u32 want[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        want[i] = slots >= 2 * i + 2 ? both : slots == 2 * i + 1 ? ROUTE_PUBLISHED : 0;
    uint4 v;
    do v = load_relaxed_u32x4(line + 16 * word);
    while ((~v.x & want[0]) | (~v.y & want[1]) | (~v.z & want[2]) | (~v.w & want[3]));
    return v;
}

extern "C" __global__ void __launch_bounds__(ROUTE_THREADS, 1) route(
    const __grid_constant__ tgl_gate gate, const __grid_constant__ tgl_map m, u8 *workspace, i32 owned)
{
    SHARED_DYNAMIC(memory, 16);
    u16 *const slots = (u16 *)memory;           /* [token][8 * WORDS] */
    const u32 tid = threadIdx.x, lane = tid % 32, warp = tid / 32, num_tokens = (u32)gate.num_tokens;
    u32 *const scratch = (u32 *)(memory + 16 * WORDS * num_tokens);
    const u32 tokens_per_block = (num_tokens + gridDim.x - 1) / gridDim.x;
    const u32 gate_warps = min(tokens_per_block, (u32)ROUTE_GATE_WARPS);
    map_clear(m, scratch, owned);
    pdl_wait();
    if (warp < gate_warps) {
        for (u32 t = blockIdx.x + warp * gridDim.x; t < num_tokens; t += gate_warps * gridDim.x) {
            const slot s = gate_token(gate, t, lane, [&](i32 index) {
                publish(workspace, t, index, m.num_experts, lane);
            });
            store_slot(gate, t, s, lane);
        }
    } else {
        for (u32 i = tid - 32 * gate_warps; i < num_tokens * WORDS; i += ROUTE_THREADS - 32 * gate_warps)
            *(uint4 *)(slots + 8 * i) = collect(workspace + i / WORDS * ROUTE_LINE_BYTES, i % WORDS);
    }
    __syncthreads();
    u32 ticket = 0;
    if (tid == 0) ticket = atomic_inc_acq_rel((u32 *)(workspace + ROUTE_TICKET), gridDim.x - 1);

    map_write(m, scratch, owned, (i32)blockIdx.x, (i32)gridDim.x, [&](i32 pair) {
        const u32 token = (u32)pair / NUM_SLOTS, k = (u32)pair % NUM_SLOTS;
        const u32 code = slots[token * (8 * WORDS) + k] & ROUTE_NO_EXPERT;
        return code == ROUTE_NO_EXPERT ? -1 : (i32)code;
    });

    if (warp == 0) {
        ticket = __shfl_sync(FULL, ticket, 0);
        __syncwarp();                           /* what other blocks did before their tickets is done */
        if (ticket == gridDim.x - 1)
            for (u32 i = lane; i < num_tokens * WORDS; i += 32)
                *(uint4 *)(workspace + i / WORDS * ROUTE_LINE_BYTES + 16 * (i % WORDS)) = { 0, 0, 0, 0 };
    }
    pdl_trigger();
}
