/* SPDX-License-Identifier: MIT
 * route.cu - top2_sum_gate and get_fused_mapping of a decode batch in one launch.
 *   computes  as the two ops, through gate.cuh and map.cuh
 *   launch    any grid up to ROUTE_MAX_BLOCKS; best is one whose blocks have 1 << owned_bits experts of the
 *             mapping each. Cooperative for more than ROUTE_ALONE tokens: blocks wait for each other. Block
 *             up to ROUTE_THREADS, a power of two, 256 and 32 << owned_bits at least
 *   shared    MAP_SHARED(num_experts, owned_bits, num_pairs) + 16 * WORDS * num_tokens bytes
 *   moves     what the two ops move, but topk_idx is not read
 *   macros    those of gate.cuh; NUM_SLOTS = NUM_TOPK + num_shared, up to 32
 *
 * A block routes its tokens, a warp each, and then writes the part of the mapping that belongs to its
 * experts, for which it needs the experts of all tokens. Of few tokens it finds them itself: all blocks do
 * the same work, in less time than an exchange takes. Of more they are published in the workspace, with a bit
 * that says so in every slot: data is its own flag, and needs no fence. Every block has its own copy: a word
 * has one reader, the thread that clears it as soon as it is read. So the workspace is all zero at the end,
 * and no clear can meet another block's access. */
#include "moe/gate.cuh"
#include "moe/map.cuh"
#include "moe/route.cuh"

/* To every block's copy, from lanes that have a slot's code each; a word's other slots are published, too. */
DEV void publish(uint4 *workspace, u32 t, u32 num_tokens, u32 code, u32 lane)
{
    const u32 two = pack_codes(code);
#pragma unroll
    for (u32 w = 0; w < WORDS; w++) {
        const uint4 word = word_of(two, w);
#pragma unroll 2
        for (u32 block = lane; block < gridDim.x; block += 32)
            store_relaxed_u32x4(workspace + (block * num_tokens + t) * WORDS + w, word);
    }
}

DEV uint4 collect(uint4 *word)
{
    const u32 both = ROUTE_PUBLISHED | ROUTE_PUBLISHED << 16;
    uint4 v;
    do v = load_relaxed_u32x4(word);
    while ((v.x & v.y & v.z & v.w & both) != both);
    store_relaxed_u32x4(word, make_uint4(0, 0, 0, 0));
    return v;
}

extern "C" __global__ void __launch_bounds__(ROUTE_THREADS, 1) route(
    const __grid_constant__ tgl_gate gate, const __grid_constant__ tgl_map m, uint4 *workspace,
    i32 owned_bits)
{
    SHARED_DYNAMIC(memory, 16);
    const u32 tid = threadIdx.x, lane = tid % 32, warps = blockDim.x / 32;
    const u32 warp = warp_max_u32(tid / 32);    /* so the compiler sees that all lanes have the same tokens */
    const u32 block = blockIdx.x, num_blocks = gridDim.x, num_tokens = (u32)gate.num_tokens;
    const bool is_alone = num_tokens <= ROUTE_ALONE;
    uint4 *const words = (uint4 *)(memory + MAP_SHARED(m.num_experts, owned_bits, m.num_pairs));
    u16 *const slots = (u16 *)words;            /* [token][8 * WORDS] */
    const map_block b = map_begin(m, memory, owned_bits);
    pdl_wait();
    for (u32 t = is_alone ? warp : block + warp * num_blocks; t < num_tokens; t += warps * num_blocks) {
        const bool is_writer = !is_alone || min(t, num_blocks - 1) == block;
        const slot s = gate_token(gate, t, is_writer, lane, [&](i32 index) {
            const u32 code = code_of(m, index);
            if (!is_alone) publish(workspace, t, num_tokens, code, lane);
            else if (lane < 8 * WORDS) slots[t * (8 * WORDS) + lane] = (u16)code;
        });
        if (is_writer) store_slot(gate, t, s, lane);
    }
    pdl_trigger();                              /* as in route_cluster.cu */
    if (!is_alone)                              /* by the last threads: the first warps have the tokens */
        for (u32 i = blockDim.x - 1 - tid; i < num_tokens * WORDS; i += blockDim.x)
            words[i] = collect(workspace + block * num_tokens * WORDS + i);
    map_write(m, b, [&](const map_round &round) {
        __syncthreads();                        /* here, so that map_write() prepares before it */
#pragma unroll 1
        for (u32 h = tid; h < num_tokens * 2 * WORDS; h += blockDim.x)
            map_mark(m, b, round, pairs_of(m, h, ((const uint2 *)words)[h]));
    });
}
