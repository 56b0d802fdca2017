/* SPDX-License-Identifier: MIT
 * sinkhorn_momentum_update.cu - a moving average of gradients, and the update that follows from it.
 *   computes  momentum = m' = fma(momentum, old_share, new_share * grad), rounded to its dtype
 *             out = m', or fma(grad, new_share, old_share * m')
 *   launch    grid tiles of 4 MOMENTUM_VECTORS MOMENTUM_THREADS elements, over which blocks stride, block
 *             MOMENTUM_THREADS
 *   moves     grad once, momentum twice, out once
 *   macros    GRAD_BYTES, MOMENTUM_BYTES 2 (bf16), 4 (f32); IS_NESTEROV 0, 1 */
#include "device/ptx.cuh"
#include "engram/sinkhorn_momentum_update.h"

static_assert((GRAD_BYTES == 2 || GRAD_BYTES == 4) && (MOMENTUM_BYTES == 2 || MOMENTUM_BYTES == 4), "2 or 4 bytes");
static_assert(IS_NESTEROV == 0 || IS_NESTEROV == 1, "IS_NESTEROV is 0 or 1");

/* One vector per instruction of a warp covers whole lines of either dtype. */
struct vector { float e[4]; };

template <int BYTES> DEV vector load4(const void *x, i64 i)
{
    if (BYTES == 4) {
        const float4 v = *(const float4 *)((const float *)x + i);
        return { { v.x, v.y, v.z, v.w } };
    }
    const uint2 v = *(const uint2 *)((const u16 *)x + i);
    return { { __uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000), __uint_as_float(v.y << 16),
               __uint_as_float(v.y & 0xffff0000) } };
}
template <int BYTES> DEV void store4(void *x, i64 i, const vector &v)
{
    if (BYTES == 4) *(float4 *)((float *)x + i) = make_float4(v.e[0], v.e[1], v.e[2], v.e[3]);
    else *(uint2 *)((u16 *)x + i) = make_uint2(pack_bf16(v.e[0], v.e[1]), pack_bf16(v.e[2], v.e[3]));
}

DEV void update_one(const momentum_args &a, i64 i)
{
    const float grad = GRAD_BYTES == 2 ? tgl_bf16_to_f32(((const u16 *)a.grad)[i]) : ((const float *)a.grad)[i];
    const float old = MOMENTUM_BYTES == 2 ? tgl_bf16_to_f32(((u16 *)a.momentum)[i]) : ((float *)a.momentum)[i];
    const float next = momentum_next(&a, old, grad);
    if (MOMENTUM_BYTES == 2) ((u16 *)a.momentum)[i] = tgl_bf16_from_f32(next);
    else ((float *)a.momentum)[i] = next;
    a.out[i] = IS_NESTEROV ? momentum_ahead(&a, next, grad) : next;
}

extern "C" __global__ void __launch_bounds__(MOMENTUM_THREADS)
    sinkhorn_momentum_update(const __grid_constant__ momentum_args a)
{
    enum { STEP = 4 * MOMENTUM_THREADS, TILE = STEP * MOMENTUM_VECTORS };
    pdl_wait();
#pragma unroll 1
    for (i64 tile = (i64)blockIdx.x * TILE; tile < a.count; tile += (i64)gridDim.x * TILE) {
        const i64 first = tile + 4 * threadIdx.x;
        const i64 end = a.has_vectors ? a.count - 3 : 0; /* vectors begin before it */
        vector grad[MOMENTUM_VECTORS], momentum[MOMENTUM_VECTORS];
#pragma unroll
        for (int v = 0; v < MOMENTUM_VECTORS; v++)
            if (first + v * STEP < end) {
                grad[v] = load4<GRAD_BYTES>(a.grad, first + v * STEP);
                momentum[v] = load4<MOMENTUM_BYTES>(a.momentum, first + v * STEP);
            }
#pragma unroll
        for (int v = 0; v < MOMENTUM_VECTORS; v++) {
            const i64 i = first + v * STEP;
            if (i < end) {
                vector out;
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    momentum[v].e[e] = momentum_next(&a, momentum[v].e[e], grad[v].e[e]);
                    out.e[e] = IS_NESTEROV ? momentum_ahead(&a, momentum[v].e[e], grad[v].e[e]) : momentum[v].e[e];
                }
                store4<MOMENTUM_BYTES>(a.momentum, i, momentum[v]);
                store4<4>(a.out, i, out);
            } else {
#pragma unroll 1
                for (i64 j = i; j < min(i + 4, a.count); j++) update_one(a, j);
            }
        }
    }
    pdl_trigger();
}
