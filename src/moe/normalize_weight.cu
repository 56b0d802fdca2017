/* SPDX-License-Identifier: MIT
 * normalize_weight.cu - every row divided by its sum, a lane per element.
 *   computes  denominator[t] = ((1e-20f + weights[t][0]) + weights[t][1]) + ...,
 *             normalized[t][k] = weights[t][k] / denominator[t]; it is packed and may be weights;
 *             every NaN becomes tgl_one_nan()'s
 *   launch    32 / NUM_TOPK rows per warp, up to NORMALIZE_MAX_WARPS warps per block
 *   moves     num_tokens * (8 * NUM_TOPK + 4) bytes, each once
 *   macros    NUM_TOPK 1..NORMALIZE_MAX_TOPK
 *
 * A call takes little more than a launch, so the path from load to store is kept short: one division per
 * lane. A lane gets the other elements of its row by shuffles. No lane reads what another writes, so in place
 * is no special case, nor is any stride or alignment. */
#include "device/ptx.cuh"
#include "moe/normalize_weight.h"
#include "numerics/base.h"

static_assert(NUM_TOPK >= 1 && NUM_TOPK <= NORMALIZE_MAX_TOPK, "NUM_TOPK is 1..NORMALIZE_MAX_TOPK");

extern "C" __global__ void __launch_bounds__(32 * NORMALIZE_MAX_WARPS) normalize_weight(normalize_weight_args a)
{
    enum { ROWS = 32 / NUM_TOPK };
    const i64 warp = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32, row = lane / NUM_TOPK, k = lane % NUM_TOPK;
    const i64 t = warp * ROWS + row;
    const bool has_element = row < ROWS && t < a.num_tokens;
    pdl_wait();
    pdl_trigger();
    const float w = has_element ? a.weights[t * a.row_stride + k] : 0;
    float d = NORMALIZE_EPSILON;
#pragma unroll
    for (int i = 0; i < NUM_TOPK; i++) d = d + __shfl_sync(FULL, w, row * NUM_TOPK + i);
    if (has_element) {
        a.normalized[t * NUM_TOPK + k] = tgl_one_nan(w / d);
        if (k == 0) a.denominator[t] = tgl_one_nan(d);
    }
}
