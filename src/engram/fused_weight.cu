/* SPDX-License-Identifier: MIT
 * fused_weight.cu - the product of the two RMSNorm weights of the gate.
 *   computes  out[h][i] = weight_hidden[h][i] * weight_embed[h][i], in f32
 *   launch    grid (chunks of a row, at most 65535 streams, over which blocks stride), block FUSED_WEIGHT_THREADS
 *   moves     8 bytes per element of bf16, 12 of f32
 *   macros    IS_BF16 0, 1: the weights' dtype, otherwise f32; HAS_VECTORS 0, 1: FUSED_WEIGHT_VECTOR columns a thread,
 *             in vectors, instead of one */
#include "device/ptx.cuh"
#include "engram/fused_weight.h"

static_assert((IS_BF16 == 0 || IS_BF16 == 1) && (HAS_VECTORS == 0 || HAS_VECTORS == 1), "a macro is out of range");

enum { COLUMNS = HAS_VECTORS ? FUSED_WEIGHT_VECTOR : 1 };

DEV void load(const void *weights, i64 i, float (&w)[COLUMNS])
{
#if IS_BF16 && HAS_VECTORS
    const uint2 v = *(const uint2 *)((const u16 *)weights + i);
    const u32 words[] = { v.x, v.y };
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) w[j] = tgl_bf16_to_f32((u16)(words[j / 2] >> j % 2 * 16));
#elif IS_BF16
    w[0] = tgl_bf16_to_f32(((const u16 *)weights)[i]);
#elif HAS_VECTORS
    const float4 v = *(const float4 *)((const float *)weights + i);
    w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
#else
    w[0] = ((const float *)weights)[i];
#endif
}

extern "C" __global__ void __launch_bounds__(FUSED_WEIGHT_THREADS)
    fused_weight(const __grid_constant__ fused_weight_args a)
{
    const i64 i = ((i64)blockIdx.x * FUSED_WEIGHT_THREADS + threadIdx.x) * COLUMNS;
    pdl_wait();
    pdl_trigger();
    if (i >= a.hidden) return;
#pragma unroll 1
    for (i64 h = blockIdx.y; h < a.num_streams; h += gridDim.y) {
        float x[COLUMNS], y[COLUMNS];
        load(a.weight_hidden, h * a.hidden_stride + i, x);
        load(a.weight_embed, h * a.embed_stride + i, y);
        float *to = a.out + h * a.hidden + i;
#if HAS_VECTORS
        u32 out[COLUMNS];
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) out[j] = __float_as_uint(fused_weight_of(x[j], y[j]));
        store_u32x4(to, make_uint4(out[0], out[1], out[2], out[3]));
#else
        *to = fused_weight_of(x[0], y[0]);
#endif
    }
}
