/* SPDX-License-Identifier: MIT
 * normalize_weight_vectors.cu - every row divided by its sum, for short rows of whole vectors (16 bytes).
 *   computes  as normalize_weight.cu
 *   launch    32 / (NUM_TOPK / ELEMENTS) rows per warp, up to NORMALIZE_MAX_WARPS warps per block
 *   moves     num_tokens * (8 * NUM_TOPK + 4) bytes, each once
 *   macros    NUM_TOPK 4, 8, ... NORMALIZE_VECTORS_TOPK; ELEMENTS per lane 1, 2, 4
 *
 * Every lane loads its whole row, which takes no longer than one element, and sums it alone. All lanes load
 * before any writes, as normalized may be weights. */
#include "device/ptx.cuh"
#include "moe/normalize_weight.h"
#include "numerics/base.h"

static_assert(NUM_TOPK >= 4 && NUM_TOPK <= NORMALIZE_VECTORS_TOPK && NUM_TOPK % 4 == 0,
              "NUM_TOPK is 4, 8, ... NORMALIZE_VECTORS_TOPK");
static_assert(ELEMENTS == 1 || ELEMENTS == 2 || ELEMENTS == 4, "ELEMENTS is 1, 2 or 4");

typedef struct __align__(4 * ELEMENTS) { float w[ELEMENTS]; } lane_elements;

extern "C" __global__ void __launch_bounds__(32 * NORMALIZE_MAX_WARPS) normalize_weight_vectors(normalize_weight_args a)
{
    enum { LANES = NUM_TOPK / ELEMENTS, ROWS = 32 / LANES, VECTORS = NUM_TOPK / 4 };
    const u64 warp = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const u32 lane = threadIdx.x % 32, row = lane / LANES, k = lane % LANES * ELEMENTS;
    const i64 t = (i64)(warp * ROWS + row);
    pdl_wait();
    pdl_trigger();
    if (row >= ROWS || t >= a.num_tokens) return;
    const float *from = a.weights + t * a.row_stride;
    float4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; i++) v[i] = *(const float4 *)(from + 4 * i);
    lane_elements own;
#if ELEMENTS == 4
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        if (i == 0 || k == 4 * i) own = { v[i].x, v[i].y, v[i].z, v[i].w };
#else
    own = *(const lane_elements *)(from + k);
#endif
    __syncwarp();
    float d = NORMALIZE_EPSILON;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) d = (((d + v[i].x) + v[i].y) + v[i].z) + v[i].w;
#pragma unroll
    for (int i = 0; i < ELEMENTS; i++) own.w[i] = tgl_one_nan(own.w[i] / d);
    *(lane_elements *)(a.normalized + t * NUM_TOPK + k) = own;
    if (k == 0) a.denominator[t] = tgl_one_nan(d);
}
