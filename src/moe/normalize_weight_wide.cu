/* SPDX-License-Identifier: MIT
 * normalize_weight_wide.cu - every row divided by its sum, for rows of any length: a warp per row.
 *   computes  as normalize_weight.cu
 *   launch    grid ceil(num_tokens / NORMALIZE_WIDE_WARPS), block 32 * NORMALIZE_WIDE_WARPS
 *   moves     num_tokens * (8 * num_topk + 4) bytes; rows are read twice, the second time from a cache
 *
 * Lane l loads elements l, l + 32, ... The order of the sum is given, so all lanes add all elements, by
 * shuffles. An element is divided by the lane that loaded it: even in place no lane reads what another
 * writes. */
#include "device/ptx.cuh"
#include "moe/normalize_weight.h"
#include "numerics/base.h"

extern "C" __global__ void __launch_bounds__(32 * NORMALIZE_WIDE_WARPS) normalize_weight_wide(normalize_weight_args a)
{
    const i64 t = (i64)blockIdx.x * NORMALIZE_WIDE_WARPS + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    pdl_wait();
    pdl_trigger();
    if (t < a.num_tokens) {
        const float *row = a.weights + t * a.row_stride;
        float d = NORMALIZE_EPSILON, w = lane < a.num_topk ? row[lane] : 0;
        for (i64 k = 0; k < a.num_topk; k += 32) {
            const i64 ahead = k + 32 + lane;
            const float next = ahead < a.num_topk ? row[ahead] : 0; /* in flight during the additions */
            if (a.num_topk - k >= 32) {
#pragma unroll
                for (int l = 0; l < 32; l++) d = d + __shfl_sync(FULL, w, l);
            } else {
#pragma unroll 1
                for (int l = 0; l < (int)(a.num_topk - k); l++) d = d + __shfl_sync(FULL, w, l);
            }
            w = next;
        }
        if (lane == 0) a.denominator[t] = tgl_one_nan(d);
        for (i64 k = lane; k < a.num_topk; k += 32) a.normalized[t * a.num_topk + k] = tgl_one_nan(row[k] / d);
    }
}
