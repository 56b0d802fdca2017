/* SPDX-License-Identifier: MIT
 * normalize_weight.cu - every row divided by its sum, a thread per row.
 *   computes  denominator[t] = ((1e-20f + weights[t][0]) + weights[t][1]) + ...,
 *             normalized[t][k] = weights[t][k] / denominator[t]; it is packed and may be weights
 *   launch    grid ceil(num_tokens / NORMALIZE_ROWS), block NORMALIZE_ROWS
 *   moves     num_tokens * (8 * NUM_TOPK + 4) bytes, each once
 *   macros    NUM_TOPK 1..NORMALIZE_MAX_TOPK
 *
 * Short rows of whole vectors (16 bytes) go straight to registers. Others pass through shared memory, where
 * an odd pitch spreads the rows over the banks, so that a warp's accesses to global memory are contiguous. */
#include "device/ptx.cuh"
#include "moe/normalize_weight.h"

#ifndef NUM_TOPK
#ifdef __CUDACC_RTC__
#error "NUM_TOPK is not defined"
#endif
#define NUM_TOPK 8
#endif
static_assert(NUM_TOPK >= 1 && NUM_TOPK <= NORMALIZE_MAX_TOPK, "NUM_TOPK is 1..NORMALIZE_MAX_TOPK");

enum { ROWS = NORMALIZE_ROWS, PITCH = NUM_TOPK | 1 };

#if NORMALIZE_HAS_VECTORS(NUM_TOPK)
DEV void normalize_vectors(const float *weights, i64 row_stride, float *denominator, float *normalized, i64 t)
{
    enum { VECTORS = NUM_TOPK / 4 };
    float4 v[VECTORS];
#pragma unroll
    for (int k = 0; k < VECTORS; k++) v[k] = ((const float4 *)(weights + t * row_stride))[k];
    float d = NORMALIZE_EPSILON;
#pragma unroll
    for (int k = 0; k < VECTORS; k++) d = (((d + v[k].x) + v[k].y) + v[k].z) + v[k].w;
    denominator[t] = d;
#pragma unroll
    for (int k = 0; k < VECTORS; k++)
        ((float4 *)(normalized + t * NUM_TOPK))[k] =
            make_float4(v[k].x / d, v[k].y / d, v[k].z / d, v[k].w / d);
}
#endif

extern "C" __global__ void __launch_bounds__(ROWS) normalize_weight(
    const float *weights, float *denominator, float *normalized, i64 num_tokens, i64 row_stride,
    u32 is_aligned)
{
    const i64 first = (i64)blockIdx.x * ROWS;
    const int tid = (int)threadIdx.x, rows = (int)min(num_tokens - first, (i64)ROWS);
    pdl_wait();
#if NORMALIZE_HAS_VECTORS(NUM_TOPK)
    if (is_aligned) {
        if (tid < rows) normalize_vectors(weights, row_stride, denominator, normalized, first + tid);
        pdl_trigger();
        return;
    }
#endif

    SHARED(float[ROWS * PITCH], tile);
#pragma unroll
    for (int i = tid; i < ROWS * NUM_TOPK; i += ROWS) {
        const int row = i / NUM_TOPK, k = i % NUM_TOPK;
        if (row < rows)
            copy_async_4(shared_address(&tile[row * PITCH + k]), weights + (first + row) * row_stride + k);
    }
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    if (tid < rows) {
        float *w = tile + tid * PITCH;
        float d = NORMALIZE_EPSILON;
#pragma unroll
        for (int k = 0; k < NUM_TOPK; k++) d = d + w[k];
        denominator[first + tid] = d;
#pragma unroll 8
        for (int k = 0; k < NUM_TOPK; k++) w[k] = w[k] / d;
    }
    __syncthreads();
#pragma unroll
    for (int i = tid; i < ROWS * NUM_TOPK; i += ROWS) {
        const int row = i / NUM_TOPK, k = i % NUM_TOPK;
        if (row < rows) normalized[first * NUM_TOPK + i] = tile[row * PITCH + k];
    }
    pdl_trigger();
}
