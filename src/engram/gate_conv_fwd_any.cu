/* SPDX-License-Identifier: MIT
 * gate_conv_fwd_any.cu - gate and short convolution, for any number of columns and taps at any address.
 *   computes  as tegula/engram.h says, sums in the orders of common/gate.h and common/short_conv.h
 *   launch    grid num_tokens * num_streams (block b: stream b % num_streams), block GATE_CONV_ANY_THREADS
 *   moves     4 bytes per element of x and out, and 8 of x, k and v for each tap
 *   macros    ROUND_EACH 0, 1 */
#include "device/ptx.cuh"
#include "engram/gate_conv_fwd.h"
#define MAX_NGRAM 0
#define ID_BYTES 4
#define PAST PAST_RING
#define PAST_BYTES 4
#include "engram/common/requests.cuh"
#include "engram/common/row_sum.cuh"

static_assert(GATE_CONV_ANY_THREADS == GATE_SLOTS, "a thread has a slot");

typedef gate_conv_args args;
enum { THREADS = GATE_CONV_ANY_THREADS };
struct tap {
    const u16 *row, *ring;
    float gate, rstd;
}; /* row: of v */

DEV float gated(const u16 *v, i64 i, float gate)
{
    return conv_rounded(gate_result(0, tgl_bf16_to_f32(v[i]), gate, 0));
}

/* The sum of a row's groups, one for each warp, in all threads. */
DEV float block_sum(float v, float *groups)
{
    const float group = group_sum(v);
    if (threadIdx.x % 32 == 0) groups[threadIdx.x / 32] = group;
    __syncthreads();
    float total = 0;
#pragma unroll 1
    for (int i = 0; i < THREADS / 32; i++) total += groups[i];
    __syncthreads();
    return total;
}

/* Calls f for the thread's columns, vector by vector. */
template <class F> DEV void for_columns(i64 hidden, F f)
{
#pragma unroll 1
    for (i64 c = threadIdx.x; c * GATE_VECTOR < hidden; c += GATE_SLOTS)
#pragma unroll 1
        for (i64 i = c * GATE_VECTOR; i < min((c + 1) * GATE_VECTOR, hidden); i++) f(i);
}

DEV float gate_of(const gate_conv_args &a, i64 token, i64 h, float *groups)
{
    const u16 *const x = a.x.data + token * a.x.token + h * a.x.stream;
    const u16 *const k = a.k.data + token * a.k.token + h * a.k.stream;
    float squares_x = 0, squares_k = 0, dot = 0;
    for_columns(a.hidden, [&](i64 i) {
        const float xi = tgl_bf16_to_f32(x[i]), ki = tgl_bf16_to_f32(k[i]);
        const float w = gate_weight_at(&a.weights, a.weights.kind, a.weights.is_zero_centered, h, i);
        squares_x = fmaf(xi, xi, squares_x);
        squares_k = fmaf(ki, ki, squares_k);
        dot = fmaf(xi * w, ki, dot);
    });
    const float rstd_x = gate_rstd(&a.gate, block_sum(squares_x, groups));
    const float rstd_k = gate_rstd(&a.gate, block_sum(squares_k, groups));
    return gate_score_of(&a.gate, gate_scaled(&a.gate, block_sum(dot, groups), rstd_x, rstd_k));
}

DEV tap tap_of(const args &a, i64 token, i64 h, float *groups)
{
    const u16 *const v = a.v.data + token * a.v.token;
    const float gate = gate_of(a, token, h, groups);
    const float squares = row_sum<THREADS>(a.hidden, groups, [&](float sum, i64 i) {
        const float at = gated(v, i, gate);
        return fmaf(at, at, sum);
    });
    return { v, nullptr, gate, conv_rstd(&a.numbers, squares) };
}
DEV float input_at(const tap &t, i64 i) { return gated(t.row, i, t.gate); }
DEV u16 *ring_row(const args &a, i64 slot, i64 entry, i64 h) { return a.ring + gate_conv_ring_row(&a, slot, entry, h); }
DEV const u16 *residual_of(const args &a, i64 t, i64 h)
{
    return a.has_residual ? a.x.data + t * a.x.token + h * a.x.stream : nullptr;
}
DEV void put_rstd(const args &, i64, i64, float) { }
#include "engram/common/short_conv_any.cuh"

extern "C" __global__ void __launch_bounds__(GATE_CONV_ANY_THREADS, 4)
    gate_conv_fwd_any(const __grid_constant__ gate_conv_args a)
{
    pdl_wait();
    run(a);
    pdl_trigger();
}
