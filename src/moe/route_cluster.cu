/* SPDX-License-Identifier: MIT
 * route_cluster.cu - route.cu by clusters, which exchange what they route through shared memory.
 *   computes  as route.cu
 *   launch    grid a multiple of cluster_blocks, else as route.cu; clusters of cluster_blocks, up to 32, not
 *             cooperative; from sm_90 on
 *   shared    MAP_SHARED(num_experts, owned_bits, num_pairs) + 16 * WORDS * num_tokens bytes
 *   moves     what the two ops move, but topk_idx is not read; logits come from L2 for all clusters but one
 *   macros    as route.cu
 *
 * Every cluster routes all tokens, a warp each, and one of the clusters writes what a token gets. The experts
 * go to all blocks of the cluster, as bytes that their mbarriers count: a tenth of the way through global
 * memory, and nothing to clear. The next kernel is launched while they write the mapping. */
#include "moe/gate.cuh"
#include "moe/map.cuh"
#include "moe/route.cuh"

extern "C" __global__ void __launch_bounds__(ROUTE_THREADS, 1) route_cluster(
    const __grid_constant__ tgl_gate gate, const __grid_constant__ tgl_map m, i32 owned_bits,
    u32 cluster_blocks)
{
#if __CUDA_ARCH__ >= 900
    SHARED_DYNAMIC(memory, 16);
    SHARED(u64, routed);
    const u32 lane = threadIdx.x % 32, num_tokens = (u32)gate.num_tokens;
    const u32 warps = blockDim.x / 32, warp = warp_max_u32(threadIdx.x / 32);   /* as in route.cu */
    const u32 rank = cluster_rank(), last_cluster = gridDim.x - cluster_blocks;
    const bool is_writer = min(warp * cluster_blocks, last_cluster) == blockIdx.x - rank;
    uint4 *const words = (uint4 *)(memory + MAP_SHARED(m.num_experts, owned_bits, m.num_pairs));
    const u32 bar = shared_address(&routed), begin = shared_address(words);
    if (threadIdx.x == 0) {
        mbar_init(bar, 1);
        mbar_init_fence();
    }
    cluster_arrive_relaxed();
    const map_block b = map_begin(m, memory, owned_bits);
    __syncthreads();
    if (threadIdx.x == 0) mbar_expect(bar, num_tokens * 16 * WORDS);
    cluster_wait();                             /* all mbarriers of the cluster are there */
    pdl_wait();
#pragma unroll 1
    for (u32 t = rank + cluster_blocks * warp; t < num_tokens; t += cluster_blocks * warps) {
        const slot s = gate_token(gate, t, is_writer, lane, [&](i32 index) {
            const u32 two = pack_codes(code_of(m, index));
#pragma unroll
            for (u32 w = 0; w < WORDS; w++) {
                const float4 word = as_floats(word_of(two, w));
                if (lane < cluster_blocks)      /* a block each */
                    cluster_store_async(cluster_map(begin + (t * WORDS + w) * 16, lane), word,
                                        cluster_map(bar, lane));
            }
        });
        if (is_writer) store_slot(gate, t, s, lane);
    }
    pdl_trigger();
    map_write(m, b, [&](const map_round &round) {
        mbar_wait(bar, 0);                      /* here, so that map_write() prepares before it */
#pragma unroll 1
        for (u32 h = threadIdx.x; h < num_tokens * 2 * WORDS; h += blockDim.x)
            map_mark(m, b, round, pairs_of(m, h, ((const uint2 *)words)[h]));
        __syncthreads();
    });
#else
    (void)gate, (void)m, (void)owned_bits, (void)cluster_blocks;
#endif
}
