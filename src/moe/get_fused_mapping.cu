/* SPDX-License-Identifier: MIT
 * get_fused_mapping.cu - the mapping of few pairs: every block reads all of them and writes what belongs to
 * a few experts (map.cuh). No workspace, no exchange between blocks.
 *   computes  *m of the pairs topk_idx[t][k], in the order of t * num_topk + k
 *   launch    any grid; best is one whose blocks have `owned` experts each; block MAP_THREADS
 *   shared    MAP_SHARED(num_experts, owned, num_pairs) bytes
 *   moves     num_pairs * (INDEX_BYTES + 4) + 12 * num_positions + 12 to 24 * num_experts bytes; indices
 *             come from L2 for all blocks but the first
 *   macros    INDEX_BYTES 4, 8 */
#include "moe/get_fused_mapping.h"
#include "moe/index.cuh"
#include "moe/map.cuh"

extern "C" __global__ void __launch_bounds__(MAP_THREADS) get_fused_mapping(
    const index_type *topk_idx, i64 row_stride, const __grid_constant__ tgl_map m, i32 owned)
{
    SHARED_DYNAMIC(memory, 16);
    map_clear(m, (u32 *)memory, owned);
    __syncthreads();
    pdl_wait();
    map_write(m, (u32 *)memory, owned, (i32)blockIdx.x, (i32)gridDim.x, [&](i32 pair) {
        return map_expert(m, map_load(m, topk_idx, row_stride, (u32)pair));
    });
    pdl_trigger();
}
