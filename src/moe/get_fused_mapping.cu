/* SPDX-License-Identifier: MIT
 * get_fused_mapping.cu - the mapping of few pairs: every block reads all of them and writes what belongs to
 * a few experts (map.cuh). No workspace, no exchange between blocks.
 *   computes  *m of the pairs topk_idx[t][k], in the order of t * num_topk + k
 *   launch    any grid; best is one whose blocks have `owned` experts each; block MAP_THREADS
 *   shared    MAP_SMALL_SHARED(num_experts) bytes
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
    u32 *const hist = (u32 *)memory;
    u16 *const runs = (u16 *)(hist + m.num_experts);
    const i32 tid = (i32)threadIdx.x;
    for (i32 i = tid; i < m.num_experts; i += MAP_THREADS) hist[i] = 0;
    pdl_wait();
    i32 expert[PER_THREAD];
#pragma unroll
    for (int v = 0; v < PER_THREAD; v++)
        expert[v] = map_load(m, topk_idx, row_stride, (u32)(v * MAP_THREADS + tid));
    __syncthreads();
    map_write<MAP_THREADS, PER_THREAD>(m, expert, hist, runs, owned, (i32)blockIdx.x, (i32)gridDim.x);
    pdl_trigger();
}
