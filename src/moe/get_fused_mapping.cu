/* SPDX-License-Identifier: MIT
 * get_fused_mapping.cu - the mapping of few pairs: every block reads all pairs and writes the part of a few
 * experts (map.cuh). No workspace, no exchange between blocks.
 *   computes  *m of the pairs topk_idx[t][k], in the order of t * num_topk + k
 *   launch    any grid, best with 1 << owned_bits experts per block; block a power of two, 32 << owned_bits
 *             to MAP_THREADS
 *   shared    MAP_SHARED(num_experts, owned_bits, num_pairs) bytes
 *   moves     num_pairs * (INDEX_BYTES + 4) + 12 * num_positions + 12 to 24 * num_experts bytes; all
 *             blocks but the first read indices from L2
 *   macros    INDEX_BYTES 4, 8 */
#include "moe/get_fused_mapping.h"
#include "moe/common/index.cuh"
#include "moe/common/map.cuh"

extern "C" __global__ void __launch_bounds__(MAP_THREADS)
    get_fused_mapping(const __grid_constant__ get_fused_mapping_args a)
{
    SHARED_DYNAMIC(memory, 16);
    const tgl_map &m = a.map;
    const map_block b = map_begin(m, memory, a.owned_bits);
    __syncthreads();
    map_write(m, b, [&](const map_round &round) {
        pdl_wait(); /* here, after map_write() has prepared */
        pdl_trigger();
        const u32 step = blockDim.x;
#pragma unroll 1
        for (u32 pair = threadIdx.x; pair < (u32)m.num_pairs; pair += MAP_AT_ONCE * step) {
            index_type index[MAP_AT_ONCE];
            map_load_all(m, (const index_type *)a.topk_idx, a.row_stride, pair, step, index);
            map_pairs p;
#pragma unroll
            for (u32 v = 0; v < MAP_AT_ONCE; v++) {
                const bool has_expert = index[v] >= 0 && index[v] < m.num_experts;
                p.pair[v] = pair + v * step;
                p.expert[v] = has_expert ? (u32)index[v] : map_nobody(m);
            }
            map_mark(m, b, round, p);
        }
        __syncthreads();
    });
}
