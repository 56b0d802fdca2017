/* SPDX-License-Identifier: MIT
 * inplace_unique_group_indices_wide.cu - the first occurrence of every group in a row stays, for rows of any
 * length: a warp per row.
 *   computes  as inplace_unique_group_indices.cu
 *   launch    grid ceil(num_tokens / UNIQUE_WIDE_WARPS), block 32 * UNIQUE_WIDE_WARPS
 *   moves     as inplace_unique_group_indices.cu; elements read again come from a cache
 *   macros    INDEX_BYTES 4, 8
 *
 * Lane k % 32 has element k: only that lane loads and stores it, the others get it by a shuffle. Duplicates
 * that have become -1 do not matter to later elements: the first occurrence is still there. */
#include "device/ptx.cuh"
#include "moe/common/index.cuh"
#include "moe/inplace_unique_group_indices.h"

extern "C" __global__ void __launch_bounds__(32 * UNIQUE_WIDE_WARPS) inplace_unique_group_indices_wide(unique_args a)
{
    const i64 t = (i64)blockIdx.x * UNIQUE_WIDE_WARPS + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    pdl_wait();
    if (t < a.num_tokens) {
        index_type *row = (index_type *)a.group_indices + t * a.row_stride;
        for (i64 begin = 0; begin < a.num_topk; begin += 32) {
            const i64 k = begin + lane;
            const index_type v = k < a.num_topk ? row[k] : -1;
            bool seen = false;
            for (i64 earlier = 0; earlier < begin; earlier += 32) {
                const index_type w = row[earlier + lane];
#pragma unroll 8
                for (int l = 0; l < 32; l++) seen |= __shfl_sync(FULL, w, l) == v;
            }
#pragma unroll 8
            for (int l = 0; l < 31; l++) seen |= (__shfl_sync(FULL, v, l) == v) & (l < lane);
            if (seen && v >= 0) row[k] = -1;
        }
    }
    pdl_trigger();
}
