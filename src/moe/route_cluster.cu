/* SPDX-License-Identifier: MIT
 * route_cluster.cu - route.cu by clusters, which exchange experts through shared memory.
 *   computes  as route.cu
 *   launch    grid a multiple of cluster_blocks, else as route.cu; clusters of cluster_blocks, up to 32, not
 *             cooperative, with a warp for every token; sm_90 and up
 *   shared    MAP_SHARED(num_experts, owned_bits, num_pairs) + 16 * WORDS * num_tokens bytes
 *   moves     what the two ops move, but topk_idx is not read; all clusters but one read logits from L2
 *   macros    as route.cu
 *
 * Every cluster routes all tokens, a warp each, and one cluster writes a token's outputs. The experts go to
 * all blocks of the cluster as bytes counted by their mbarriers: a tenth of the latency of global memory, and
 * nothing to clear. A warp has an mbarrier for the words that it marks, so that it waits only for those. The
 * next kernel is launched while the mapping is written. */
#include "moe/common/gate.cuh"
#include "moe/common/map.cuh"
#include "moe/route.cuh"

extern "C" __global__ void __launch_bounds__(ROUTE_THREADS, 1) route_cluster(const __grid_constant__ route_args a)
{
#if __CUDA_ARCH__ >= 900
    const tgl_gate &gate = a.gate;
    const tgl_map &m = a.map;
    SHARED_DYNAMIC(memory, 16);
    SHARED(u64[ROUTE_THREADS / 32], routed);
    const u32 lane = threadIdx.x % 32, num_tokens = (u32)gate.num_tokens, num_words = num_tokens * WORDS;
    const u32 warps = blockDim.x / 32, warp = warp_max_u32(threadIdx.x / 32); /* as in route.cu */
    const u32 rank = cluster_rank(), t = rank + a.cluster_blocks * warp;
    /* the cluster that writes this token */
    const bool is_writer = warp * gridDim.x - (blockIdx.x - rank) * warps < a.cluster_blocks * warps;
    uint4 *const words = (uint4 *)(memory + MAP_SHARED(m.num_experts, a.owned_bits, m.num_pairs));
    const u32 bars = shared_address(routed), bar = bars + 8 * warp, begin = shared_address(words);
    if (lane == 0) {
        mbar_init(bar, 1);
        mbar_init_fence();
    }
    __syncwarp();
    cluster_arrive_relaxed();
    const map_block b = map_begin(m, memory, a.owned_bits);
    __syncthreads();
    u32 marked = 0; /* words of this warp: 16 at a time, round robin over warps */
#pragma unroll 1
    for (u32 i = 16 * warp; i < num_words; i += 16 * warps) marked += min(16u, num_words - i);
    if (lane == 0) mbar_expect(bar, 16 * marked);
    __syncwarp();
    cluster_wait();       /* all mbarriers of the cluster are initialised */
    if (t < num_tokens) { /* decided before pdl_wait(), which saves 0.2 of 3.7 us in a graph */
        pdl_wait();
        const slot s = gate_token(gate, t, is_writer, lane, [&](i32 index) {
            const u32 two = pack_codes(code_of(m, index));
#pragma unroll
            for (u32 w = 0; w < WORDS; w++) {
                const float4 word = as_floats(word_of(two, w));
                const u32 i = t * WORDS + w;
                if (lane < a.cluster_blocks) /* a block each */
                    cluster_store_async(cluster_map(begin + 16 * i, lane), word,
                                        cluster_map(bars + 8 * (i / 16 & (warps - 1)), lane));
            }
        });
        if (is_writer) store_slot(gate, t, s, lane);
    } else {
        pdl_wait();
    }
    pdl_trigger();
    map_write(m, b, [&](const map_round &round) {
        mbar_wait_cluster(bar, 0); /* here, after map_write() has prepared */
#pragma unroll 1
        for (u32 h = threadIdx.x; h < 2 * num_words; h += blockDim.x)
            map_mark(m, b, round, pairs_of(m, h, ((const uint2 *)words)[h]));
        __syncthreads();
    });
#endif
}
