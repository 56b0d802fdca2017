/* SPDX-License-Identifier: MIT
 * grad_w_reduce.cu - gradients of the gate's two weights.
 *   computes  G = sum of partials; grad_weight_hidden += G * weight_embed, grad_weight_embed += G * weight_hidden
 *   launch    grid (chunks of GRAD_W_COLUMNS columns, at most 65535 streams, over which blocks stride), block
 *             GRAD_W_THREADS: GRAD_W_LANES threads sum a chain of partials, then one thread per column adds the chains.
 *             (132 partials of 4 x 7168 take 7.1 us on an H200, 2026-11; with half or twice the columns of a block
 *             7.2, with 4, 2 or 1 chains at best 7.3, 7.7 and 9.9)
 *   moves     4 bytes per element of partials, 20 of a weight
 *   macros    IS_BF16 0, 1: the weights' dtype, otherwise f32; ZERO_CENTERED 0, 1: they are stored minus 1 */
#include "device/integer.cuh"
#include "engram/grad_w_reduce.h"

static_assert((IS_BF16 == 0 || IS_BF16 == 1) && (ZERO_CENTERED == 0 || ZERO_CENTERED == 1), "a macro is out of range");
static_assert(GRAD_W_THREADS >= GRAD_W_COLUMNS, "a column of a block has no thread");

/* Adds `count` partials, of up to 4 columns, to their sums; `step` elements from one to the next. */
DEV void sum_vectors(const float *from, i64 step, i64 count, float (&sum)[4])
{
#pragma unroll 1
    for (; count > 0; count -= GRAD_W_AHEAD, from += GRAD_W_AHEAD * step) {
        float4 v[GRAD_W_AHEAD];
#pragma unroll
        for (int j = 0; j < GRAD_W_AHEAD; j++)
            v[j] = j < count ? *(const float4 *)(from + j * step) : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < GRAD_W_AHEAD; j++) /* +0 changes no sum that began with +0 */
            sum[0] += v[j].x, sum[1] += v[j].y, sum[2] += v[j].z, sum[3] += v[j].w;
    }
}
DEV void sum_elements(const float *from, i64 step, i64 count, i64 columns, float (&sum)[4])
{
#pragma unroll 4
    for (i64 j = 0; j < count; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < columns) sum[i] += from[j * step + i];
}

/* Two blocks an SM are enough: without the 2 the compiler saves registers (48, not 110), and has no room for GRAD_W_AHEAD
 * loads in flight. */
extern "C" __global__ void __launch_bounds__(GRAD_W_THREADS, 2)
    grad_w_reduce(const __grid_constant__ grad_w_reduce_args a)
{
    SHARED(float[GRAD_W_CHAINS][GRAD_W_COLUMNS], sums);
    const int chain = (int)threadIdx.x / GRAD_W_LANES, column = (int)threadIdx.x % GRAD_W_LANES * 4;
    const i64 first = (i64)blockIdx.x * GRAD_W_COLUMNS, i = first + threadIdx.x, columns = a.hidden - first - column;
    const i64 size = a.num_streams * a.hidden, step = GRAD_W_CHAINS * size;
    const i64 count = ceil_div(a.num_partials - chain, GRAD_W_CHAINS);    /* of the chain */
    const bool has_column = threadIdx.x < GRAD_W_COLUMNS && i < a.hidden; /* whose chains the thread adds */
    pdl_wait();
    pdl_trigger();
#pragma unroll 1
    for (i64 h = blockIdx.y; h < a.num_streams; h += gridDim.y) {
        const i64 n = h * a.hidden + i;
        const float *const from = a.grad_w_partial + chain * size + h * a.hidden + first + column;
        float hidden = 0, embed = 0, to_hidden = 0, to_embed = 0, sum[4] = {};
        if (has_column) {
            hidden = grad_w_factor(a.weight_hidden, h * a.hidden_stride + i, IS_BF16, ZERO_CENTERED);
            embed = grad_w_factor(a.weight_embed, h * a.embed_stride + i, IS_BF16, ZERO_CENTERED);
            to_hidden = a.grad_weight_hidden[n], to_embed = a.grad_weight_embed[n];
        }
        if (a.has_vectors && columns > 0) sum_vectors(from, step, count, sum);
        if (!a.has_vectors) sum_elements(from, step, count, columns, sum);
        shared_store_u32x4(shared_address(&sums[chain][column]),
                           make_uint4(__float_as_uint(sum[0]), __float_as_uint(sum[1]), __float_as_uint(sum[2]),
                                      __float_as_uint(sum[3])));
        __syncthreads();
        if (has_column) {
            float all = 0;
#pragma unroll
            for (int c = 0; c < GRAD_W_CHAINS; c++) all += sums[c][threadIdx.x];
            a.grad_weight_hidden[n] = grad_w_added(to_hidden, all, embed);
            a.grad_weight_embed[n] = grad_w_added(to_embed, all, hidden);
        }
        __syncthreads(); /* the next stream's sums go where these are */
    }
}
