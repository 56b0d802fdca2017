/* SPDX-License-Identifier: MIT
 * grad_w_reduce.cu - gradients of the gate's two weights.
 *   computes  G = sum of partials in order; grad_weight_hidden += G * weight_embed,
 *             grad_weight_embed += G * weight_hidden
 *   launch    grid (chunks of a row, at most 65535 streams, over which blocks stride), block GRAD_W_THREADS, which
 *             have a column each
 *   moves     4 bytes per element of partials, 20 of a weight
 *   macros    IS_BF16 0, 1: the weights' dtype, otherwise f32; ZERO_CENTERED 0, 1: they are stored minus 1 */
#include "device/ptx.cuh"
#include "engram/grad_w_reduce.h"

static_assert((IS_BF16 == 0 || IS_BF16 == 1) && (ZERO_CENTERED == 0 || ZERO_CENTERED == 1), "a macro is out of range");

extern "C" __global__ void __launch_bounds__(GRAD_W_THREADS) grad_w_reduce(const __grid_constant__ grad_w_reduce_args a)
{
    const i64 i = (i64)blockIdx.x * GRAD_W_THREADS + threadIdx.x, size = a.num_streams * a.hidden;
    pdl_wait();
    pdl_trigger();
    if (i >= a.hidden) return;
#pragma unroll 1
    for (i64 h = blockIdx.y; h < a.num_streams; h += gridDim.y) {
        const i64 n = h * a.hidden + i;
        const float *from = a.grad_w_partial + n;
        const float hidden = grad_w_factor(a.weight_hidden, h * a.hidden_stride + i, IS_BF16, ZERO_CENTERED);
        const float embed = grad_w_factor(a.weight_embed, h * a.embed_stride + i, IS_BF16, ZERO_CENTERED);
        const float to_hidden = a.grad_weight_hidden[n], to_embed = a.grad_weight_embed[n];
        float sum = 0;
        i64 partial = 0;
#pragma unroll 1
        for (; partial + GRAD_W_AHEAD <= a.num_partials; partial += GRAD_W_AHEAD) {
            float v[GRAD_W_AHEAD];
#pragma unroll
            for (int j = 0; j < GRAD_W_AHEAD; j++) v[j] = from[(partial + j) * size];
#pragma unroll
            for (int j = 0; j < GRAD_W_AHEAD; j++) sum += v[j];
        }
#pragma unroll 1
        for (; partial < a.num_partials; partial++) sum += from[partial * size];
        a.grad_weight_hidden[n] = grad_w_added(to_hidden, sum, embed);
        a.grad_weight_embed[n] = grad_w_added(to_embed, sum, hidden);
    }
}
