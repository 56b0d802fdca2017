/* SPDX-License-Identifier: MIT
 * gate_bwd.cu - the gradients of the gate, for any number of columns and streams at any address.
 *   computes  as tegula/engram.h says, sums in the order of gate_bwd.h
 *   launch    grid (num_partials, streams, over which blocks stride), block GATE_BWD_THREADS
 *   moves     14 bytes per element of x and stream, 4 of v, and 8 of grad_w_partial per token
 *   macros    WEIGHTS, ZERO_CENTERED as common/gate.cuh says
 *
 * A thread has the same columns of every token, so that it adds to its own elements of grad_w_partial. The blocks of
 * stream 0 compute grad_v, too. */
#include "engram/common/gate.cuh"
#include "engram/common/row_sum.cuh"
#include "engram/gate_bwd.h"

DEV void run_row(const gate_bwd_args &a, i64 t, i64 h, float *grad_w, float *groups)
{
    const u16 *go = row_of(a.grad_out, t, h), *x = row_of(a.x, t, h), *k = row_of(a.k, t, h);
    const u16 *v = row_of(a.v, t, 0);
    const float grad_gate = row_sum<GATE_BWD_THREADS>(a.hidden, groups, [&](float sum, i64 i) {
        return fmaf(tgl_bf16_to_f32(go[i]), tgl_bf16_to_f32(v[i]), sum);
    });
    const i64 row = t * a.num_streams + h;
    gate_slopes s = gate_slopes_of(&a.numbers, a.dot[row], a.gate_score[row], a.rstd_x[row], a.rstd_k[row]);
    gate_set_q(&s, grad_gate);
    u16 *grad_x = a.grad_x.data ? row_of(a.grad_x, t, h) : nullptr;
    u16 *grad_k = a.grad_k.data ? row_of(a.grad_k, t, h) : nullptr;
#pragma unroll 1
    for (i64 i = threadIdx.x; i < a.hidden; i += GATE_BWD_THREADS) {
        const float xi = tgl_bf16_to_f32(x[i]), ki = tgl_bf16_to_f32(k[i]);
        const float w = gate_weight_at(&a.weights, WEIGHTS, ZERO_CENTERED, h, i);
        if (grad_x) grad_x[i] = tgl_bf16_from_f32(gate_grad_x(&s, tgl_bf16_to_f32(go[i]), xi, ki, w, a.has_residual));
        if (grad_k) grad_k[i] = tgl_bf16_from_f32(gate_grad_k(&s, xi, ki, w));
        if (grad_w) grad_w[i] = tgl_one_nan(gate_grad_w(&s, xi, ki, grad_w[i]));
    }
}

DEV void run_grad_v(const gate_bwd_args &a, i64 t, bool is_masked)
{
    u16 *grad_v = row_of(a.grad_v, t, 0);
#pragma unroll 1
    for (i64 i = threadIdx.x; i < a.hidden; i += GATE_BWD_THREADS) {
        float sum = 0;
#pragma unroll 1
        for (i64 h = 0; h < a.num_streams && !is_masked; h++)
            sum = fmaf(tgl_bf16_to_f32(row_of(a.grad_out, t, h)[i]), a.gate_score[t * a.num_streams + h], sum);
        grad_v[i] = tgl_bf16_from_f32(sum);
    }
}

DEV void run_masked(const gate_bwd_args &a, i64 t, i64 h)
{
#pragma unroll 1
    for (i64 i = threadIdx.x; i < a.hidden; i += GATE_BWD_THREADS) {
        if (a.grad_x.data) row_of(a.grad_x, t, h)[i] = a.has_residual ? row_of(a.grad_out, t, h)[i] : (u16)0;
        if (a.grad_k.data) row_of(a.grad_k, t, h)[i] = 0;
    }
}

extern "C" __global__ void __launch_bounds__(GATE_BWD_THREADS) gate_bwd(const __grid_constant__ gate_bwd_args a)
{
    SHARED(float[GATE_BWD_THREADS / 32], groups);
    pdl_wait();
#pragma unroll 1
    for (i64 h = blockIdx.y; h < a.num_streams; h += gridDim.y) {
        const i64 row = (i64)blockIdx.x * a.num_streams + h;
        float *grad_w = a.grad_w_partial ? a.grad_w_partial + row * a.hidden : nullptr;
#pragma unroll 1
        for (i64 i = threadIdx.x; grad_w && i < a.hidden; i += GATE_BWD_THREADS) grad_w[i] = 0;
#pragma unroll 1
        for (i64 t = blockIdx.x; t < a.num_tokens; t += a.num_partials) {
            const bool is_masked = a.image_token_mask && a.image_token_mask[t];
            if (is_masked) run_masked(a, t, h);
            else run_row(a, t, h, grad_w, groups);
        }
    }
#pragma unroll 1
    for (i64 t = blockIdx.x; blockIdx.y == 0 && a.grad_v.data && t < a.num_tokens; t += a.num_partials)
        run_grad_v(a, t, a.image_token_mask && a.image_token_mask[t]);
    pdl_trigger();
}
