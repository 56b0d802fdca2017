/* SPDX-License-Identifier: MIT
 * short_conv_bwd.cu - the gradients of the short convolution, for any number of columns and taps at any address.
 *   computes  as tegula/engram.h says, sums in the order of common/short_conv.h
 *   launch    grid (num_partials, streams, over which blocks stride), block CONV_BWD_THREADS
 *   moves     2 bytes per element of x, grad_out and grad_x; what taps reach comes again, from cache
 *   macros    none
 *
 * A thread has the same columns of every token, so that it adds to its own elements of the partials. Nothing is kept
 * between tokens: z is computed again for every tap that reaches a token. */
#include "device/reduce.cuh"
#include "engram/short_conv_bwd.h"
#define MAX_NGRAM 0
#define ID_BYTES 4
#define PAST PAST_NONE
#define PAST_BYTES 0
#include "engram/common/requests.cuh"

enum { WARPS = CONV_BWD_THREADS / 32 };
struct chunk { i64 begin, end; }; /* the tokens of a request */

DEV bool is_masked(const short_conv_bwd_args &a, i64 t)
{
    return a.requests.image_token_mask && a.requests.image_token_mask[t];
}
DEV bool is_part(const short_conv_bwd_args &a, const chunk &of, i64 t)
{
    return t >= of.begin && t < of.end && !is_masked(a, t);
}
DEV float at(const gate_in &rows, i64 t, i64 h, i64 i)
{
    return tgl_bf16_to_f32(rows.data[t * rows.token + h * rows.stream + i]);
}

/* A column of a stream: its weights. */
struct column {
    i64 h, i, channel;
    float norm;
};

DEV column column_at(const short_conv_bwd_args &a, i64 h, i64 i)
{
    return { h, i, h * a.hidden + i, conv_norm_weight(&a.numbers, conv_weight_at(&a.norm, h * a.norm.stride + i)) };
}
DEV float tap_at(const short_conv_bwd_args &a, const column &c, int j)
{
    return conv_weight_at(&a.conv, c.channel * a.kernel_size + j);
}
DEV i64 lag_of(const short_conv_bwd_args &a, int j) { return (i64)(a.kernel_size - 1 - j) * a.dilation; }

DEV float normed_at(const short_conv_bwd_args &a, i64 t, const column &c)
{
    return conv_rounded(conv_normed(at(a.x, t, c.h, c.i), a.rstd[t * a.num_streams + c.h], c.norm));
}

DEV float grad_z_at(const short_conv_bwd_args &a, const chunk &of, i64 t, const column &c)
{
    float z = a.bias.data ? conv_weight_at(&a.bias, c.channel) : 0;
#pragma unroll 1
    for (int j = 0; j < a.kernel_size; j++) {
        const i64 from = t - lag_of(a, j);
        z = fmaf(tap_at(a, c, j), is_part(a, of, from) ? normed_at(a, from, c) : 0.0f, z);
    }
    return conv_grad_z(&a.numbers, at(a.grad_out, t, c.h, c.i), z, 1.0f / conv_sigmoid_divisor(z));
}

DEV float grad_at(const short_conv_bwd_args &a, const chunk &of, i64 t, const column &c)
{
    float grad = 0;
#pragma unroll 1
    for (int j = 0; j < a.kernel_size; j++) {
        const i64 to = t + lag_of(a, j);
        if (is_part(a, of, to)) grad = fmaf(tap_at(a, c, j), grad_z_at(a, of, to, c), grad);
    }
    return grad;
}

DEV void add_to_partials(const short_conv_bwd_args &a, const chunk &of, i64 t, const column &c, float grad)
{
    const i64 channel = (i64)blockIdx.x * a.num_streams * a.hidden + c.channel;
    if (a.grad_norm)
        a.grad_norm[channel] = tgl_one_nan(conv_grad_norm(grad, at(a.x, t, c.h, c.i), a.rstd[t * a.num_streams + c.h],
                                                          a.grad_norm[channel]));
    if (!a.grad_bias && !a.grad_conv) return;
    const float grad_z = grad_z_at(a, of, t, c);
    if (a.grad_bias) a.grad_bias[channel] = tgl_one_nan(a.grad_bias[channel] + grad_z);
#pragma unroll 1
    for (int j = 0; a.grad_conv && j < a.kernel_size; j++) {
        const i64 from = t - lag_of(a, j);
        float *const sum = a.grad_conv + channel * a.kernel_size + j;
        if (is_part(a, of, from)) *sum = tgl_one_nan(fmaf(grad_z, normed_at(a, from, c), *sum));
    }
}

DEV float tree(float v) { return lanes_sum_by_halves<CONV_GROUP>(v); } /* of a group, in all lanes */

DEV void run_row(const short_conv_bwd_args &a, const chunk &of, i64 t, i64 h, float *groups)
{
    const int tid = (int)threadIdx.x;
    const float rstd = a.rstd[t * a.num_streams + h];
    float total = 0;
#pragma unroll 1
    for (i64 first = 0; first < a.hidden; first += CONV_GROUP * CONV_GROUP * CONV_BWD_VECTOR) {
#pragma unroll 1
        for (int g = tid / 32; g < CONV_GROUP; g += WARPS) {
            float sum = 0;
            const i64 begin = first + (g * CONV_GROUP + tid % 32) * CONV_BWD_VECTOR;
#pragma unroll 1
            for (i64 i = begin; i < min(begin + CONV_BWD_VECTOR, a.hidden); i++) {
                const column c = column_at(a, h, i);
                const float grad = grad_at(a, of, t, c);
                sum = fmaf(c.norm * grad, at(a.x, t, h, i), sum);
                add_to_partials(a, of, t, c, grad);
            }
            sum = tree(sum);
            if (tid % 32 == 0) groups[g] = sum;
        }
        __syncthreads();
        total += tree(groups[tid % 32]);
        __syncthreads();
    }
    if (!a.grad_x.data) return;
    const float slope = conv_slope(&a.numbers, total, rstd);
#pragma unroll 1
    for (i64 i = tid; i < a.hidden; i += CONV_BWD_THREADS) {
        const column c = column_at(a, h, i);
        a.grad_x.data[t * a.grad_x.token + h * a.grad_x.stream + i] =
            tgl_bf16_from_f32(conv_grad_x(&a.numbers, at(a.x, t, h, i), rstd, slope, c.norm * grad_at(a, of, t, c),
                                          at(a.grad_out, t, h, i)));
    }
}

DEV void set_to_zero(float *of_block, i64 count)
{
#pragma unroll 1
    for (i64 i = threadIdx.x; of_block && i < count; i += CONV_BWD_THREADS) of_block[i] = 0;
}

extern "C" __global__ void __launch_bounds__(CONV_BWD_THREADS, 4)
    short_conv_bwd(const __grid_constant__ short_conv_bwd_args a)
{
    SHARED(float[CONV_GROUP], groups);
    SHARED(chunk[CONV_BWD_THREADS], chunks);
    SHARED(request_scratch<CONV_BWD_THREADS>, scratch);
    const i64 first = (i64)blockIdx.x * a.partial_tokens, end = min(first + a.partial_tokens, a.num_tokens);
    const i64 before = (i64)blockIdx.x * a.num_streams * a.hidden;
    pdl_wait();
#pragma unroll 1
    for (i64 h = blockIdx.y; h < a.num_streams; h += gridDim.y) {
        const i64 channel = before + h * a.hidden;
        set_to_zero(a.grad_norm ? a.grad_norm + channel : nullptr, a.hidden);
        set_to_zero(a.grad_bias ? a.grad_bias + channel : nullptr, a.hidden);
        set_to_zero(a.grad_conv ? a.grad_conv + channel * a.kernel_size : nullptr, a.hidden * a.kernel_size);
    }
    __syncthreads(); /* other threads' columns are set to zero */
#pragma unroll 1
    for (i64 some = first; some < end; some += CONV_BWD_THREADS) {
        const tgl_place place = find_place(a.requests, some, scratch);
        chunk mine = { 0, 0 };
        if (some + threadIdx.x < end && is_in_request(a.requests, place))
            mine = { place.begin, tgl_end_of(&a.requests, &place) };
        __syncthreads(); /* chunks have been read */
        chunks[threadIdx.x] = mine;
        __syncthreads();
        const i64 some_end = min(some + CONV_BWD_TILE, end);
#pragma unroll 1
        for (i64 h = blockIdx.y; h < a.num_streams; h += gridDim.y)
#pragma unroll 1
            for (i64 begin = some; begin < min(some + a.dilation, some_end); begin++)
#pragma unroll 1
                for (i64 t = begin; t < some_end; t += a.dilation) {
                    const chunk of = chunks[t - some];
                    if (is_part(a, of, t)) {
                        run_row(a, of, t, h, groups);
                        continue;
                    }
#pragma unroll 1
                    for (i64 i = threadIdx.x; a.grad_x.data && i < a.hidden; i += CONV_BWD_THREADS)
                        a.grad_x.data[t * a.grad_x.token + h * a.grad_x.stream + i] = 0;
                }
    }
    pdl_trigger();
}
