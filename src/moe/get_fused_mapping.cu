/* SPDX-License-Identifier: MIT
 * get_fused_mapping.cu - the mapping of few pairs: every block reads all of them and writes what belongs to
 * a few experts (map.cuh). No workspace, no exchange between blocks.
 *   computes  *m of the pairs topk_idx[t][k], in the order of t * num_topk + k
 *   launch    any grid; best is one whose blocks have `owned` experts each; block MAP_THREADS
 *   shared    MAP_SHARED(num_experts, owned, MAP_SMALL_PAIRS) bytes
 *   moves     num_pairs * (INDEX_BYTES + 4) + 12 * num_positions + 12 to 24 * num_experts bytes; indices
 *             come from L2 for all blocks but the first
 *   macros    INDEX_BYTES 4, 8 */
#include "moe/get_fused_mapping.h"
#include "moe/index.cuh"
#include "moe/map.cuh"

#define PER_THREAD (MAP_SMALL_PAIRS / MAP_THREADS)

extern "C" __global__ void __launch_bounds__(MAP_THREADS) get_fused_mapping(
    const index_type *topk_idx, i64 row_stride, const tgl_map m, i32 owned)
{
    SHARED_DYNAMIC(memory, 16);
    map_clear<MAP_THREADS, PER_THREAD>(m, memory, owned);
    pdl_wait();
    index_type index[PER_THREAD];
#pragma unroll
    for (int v = 0; v < PER_THREAD; v++) {
        index[v] = -1;
        if (v * MAP_THREADS < m.num_pairs)
            index[v] = map_load(m, topk_idx, row_stride, v * MAP_THREADS + threadIdx.x);
    }
    i32 expert[PER_THREAD];
#pragma unroll
    for (int v = 0; v < PER_THREAD; v++) expert[v] = map_expert(m, index[v]);
    __syncthreads();
    map_write<MAP_THREADS, PER_THREAD>(m, expert, memory, owned, (i32)blockIdx.x, (i32)gridDim.x);
    pdl_trigger();
}
