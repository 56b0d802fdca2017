/* SPDX-License-Identifier: MIT
 * gate_conv_fwd_any.cu - gate and short convolution, for any number of columns and taps at any address.
 *   computes  as tegula/engram.h says, sums in the orders of common/gate.h and common/short_conv.h
 *   launch    grid num_tokens * num_streams (block b: stream b % num_streams), block GATE_CONV_ANY_THREADS
 *   moves     4 bytes per element of x and out, and 8 of x, k and v for each tap
 *   macros    ROUND_EACH 0, 1
 *
 * The ring is written as in gate_conv_fwd.cu: where tokens of a chunk read what others write, the block of the first
 * token has all of them, and a thread writes columns that it alone has read. */
#include "device/ptx.cuh"
#include "engram/gate_conv_fwd.h"
#define MAX_NGRAM 0
#define ID_BYTES 4
#define PAST PAST_RING
#define PAST_BYTES 4
#include "engram/common/requests.cuh"

static_assert(ROUND_EACH == 0 || ROUND_EACH == 1, "ROUND_EACH is 0 or 1");
static_assert(GATE_CONV_ANY_THREADS == GATE_SLOTS, "a thread has a slot");

enum { WARPS = GATE_CONV_ANY_THREADS / 32 };

/* One of the rows that a result is made of: v with its gate and rstd, or a row of the ring, or nothing. */
struct tap { const u16 *v, *ring; float gate, rstd; };

DEV float gated(const u16 *v, i64 i, float gate)
{
    return conv_rounded(gate_result(0, tgl_bf16_to_f32(v[i]), gate, 0));
}

DEV float warp_tree(float v)
{
#pragma unroll
    for (int half = 16; half > 0; half /= 2) v += __shfl_xor_sync(FULL, v, half);
    return v;
}

/* The sum of a row's groups, one for each warp, in all threads. */
DEV float block_sum(float v, float *groups)
{
    const float group = warp_tree(v);
    if (threadIdx.x % 32 == 0) groups[threadIdx.x / 32] = group;
    __syncthreads();
    float total = 0;
#pragma unroll 1
    for (int i = 0; i < WARPS; i++) total += groups[i];
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

DEV float rstd_of(const gate_conv_args &a, const u16 *v, float gate, float *groups)
{
    float total = 0;
#pragma unroll 1
    for (i64 first = 0; first < a.hidden; first += GATE_CONV_ANY_THREADS * CONV_VECTOR) {
        const i64 begin = first + threadIdx.x * CONV_VECTOR;
        float sum = 0;
#pragma unroll 1
        for (i64 i = begin; i < min(begin + CONV_VECTOR, a.hidden); i++) {
            const float at = gated(v, i, gate);
            sum = fmaf(at, at, sum);
        }
        const float group = warp_tree(sum);
        if (threadIdx.x % 32 == 0) groups[threadIdx.x / 32] = group;
        __syncthreads();
#pragma unroll 1
        for (int i = 0; i < WARPS; i++) total += groups[i];
        __syncthreads();
    }
    return conv_rstd(&a.numbers, total);
}

DEV tap tap_at(const gate_conv_args &a, const tgl_request &r, i64 token, i64 h, float *groups)
{
    tap made = { nullptr, nullptr, 0, 0 };
    const tgl_windows &w = a.requests;
    const i64 before = r.place.begin - token;
    if (before > r.reach || (before <= 0 && w.image_token_mask && w.image_token_mask[token])) return made;
    if (before > 0) {
        const i64 entry = r.start - before < 0 ? r.start - before + w.ring_size : r.start - before;
        made.ring = a.ring + gate_conv_ring_row(&a, r.slot, entry, h);
    } else {
        made.v = a.v.data + token * a.v.token;
        made.gate = gate_of(a, token, h, groups);
        made.rstd = rstd_of(a, made.v, made.gate, groups);
    }
    return made;
}

DEV float value_of(const gate_conv_args &a, const tap &t, i64 h, i64 i)
{
    if (t.ring) return tgl_bf16_to_f32(t.ring[i]);
    if (!t.v) return 0;
    const float norm = conv_norm_weight(&a.numbers, conv_weight_at(&a.norm, h * a.norm.stride + i));
    return conv_rounded(conv_normed(gated(t.v, i, t.gate), t.rstd, norm));
}

/* The entry of the ring of token number i of the chunk. */
DEV void store_ring(const gate_conv_args &a, const tgl_request &r, i64 i, const tap &t, i64 h)
{
    u16 *const to = a.ring + gate_conv_ring_row(&a, r.slot, tgl_ring_entry(&a.requests, r.start + i), h);
#pragma unroll 1
    for (i64 c = threadIdx.x; c < a.hidden; c += GATE_CONV_ANY_THREADS)
        to[c] = tgl_bf16_from_f32(value_of(a, t, h, c));
}

DEV void run_row(const gate_conv_args &a, const tgl_request &r, bool is_alive, bool writes, i64 t, i64 h, tap *taps,
                 float *groups)
{
    const int last = a.kernel_size - 1;
    __syncthreads();                                        /* taps have been read */
#pragma unroll 1
    for (int j = 0; is_alive && j <= last; j++) {
        const tap made = tap_at(a, r, t - (i64)(last - j) * a.dilation, h, groups);
        if (threadIdx.x == 0) taps[j] = made;
    }
    if (!is_alive && threadIdx.x == 0) taps[last] = { nullptr, nullptr, 0, 0 };
    __syncthreads();
    const u16 *const x = a.x.data + t * a.x.token + h * a.x.stream;
    u16 *const out = a.out.data + t * a.out.token + h * a.out.stream;
#pragma unroll 1
    for (i64 i = threadIdx.x; i < a.hidden; i += GATE_CONV_ANY_THREADS) {
        const u16 residual = a.has_residual ? x[i] : (u16)0;
        if (!is_alive) {
            out[i] = residual;
            continue;
        }
        const i64 channel = h * a.hidden + i;
        float z = a.bias.data ? conv_weight_at(&a.bias, channel) : 0;
#pragma unroll 1
        for (int j = 0; j <= last; j++)
            z = fmaf(conv_weight_at(&a.conv, channel * a.kernel_size + j), value_of(a, taps[j], h, i), z);
        if (ROUND_EACH) z = conv_rounded(z);
        out[i] = tgl_bf16_from_f32(conv_result(&a.numbers, z, 1.0f / conv_sigmoid_divisor(z),
                                               gated(taps[last].v, i, taps[last].gate), a.has_residual,
                                               tgl_bf16_to_f32(residual), ROUND_EACH));
    }
    if (writes) store_ring(a, r, t - r.place.begin, taps[last], h);
}

extern "C" __global__ void __launch_bounds__(GATE_CONV_ANY_THREADS, 4) gate_conv_fwd_any(
    const __grid_constant__ gate_conv_args a)
{
    SHARED(tap[CONV_MAX_TAPS], taps);
    SHARED(float[WARPS], groups);
    SHARED(tgl_request, shared_request);
    SHARED(request_scratch<GATE_CONV_ANY_THREADS>, scratch);
    const i64 block = (i64)blockIdx.y * gridDim.x + blockIdx.x, t = block / a.num_streams;
    const i64 h = block - t * a.num_streams;
    const tgl_windows &w = a.requests;
    pdl_wait();
    if (t < a.num_tokens) {
        const tgl_place place = find_place(w, t, scratch);
        if (threadIdx.x == 0) {
            shared_request = { { -1, 0 }, -1, 0, 0 };
            if (is_in_request(w, place)) shared_request = tgl_request_at(&w, place);
        }
        __syncthreads();
        const tgl_request r = shared_request;
        const bool has_request = r.place.number >= 0;
        const i64 q = has_request ? tgl_end_of(&w, &r.place) - r.place.begin : 0, depth = t - r.place.begin;
        const bool writes = has_request && r.slot >= 0 && w.writes_ring;
        const bool is_apart = !writes || tgl_writes_apart(&w, q);
        const i64 together = is_apart ? 0 : min(q, (i64)w.max_ngram - 1);
        const i64 end = has_request && depth == 0 && together > 0 ? t + together : t + 1;
        if (depth == 0 || depth >= together || !has_request)
#pragma unroll 1
            for (i64 at = t; at < end; at++) {
                const bool is_alive = has_request && !(w.image_token_mask && w.image_token_mask[at]);
                run_row(a, r, is_alive, writes && is_apart, at, h, taps, groups);
            }
        if (writes && !is_apart && depth == 0)
#pragma unroll 1
            for (i64 i = max((i64)0, q - w.ring_size); i < q; i++)
                store_ring(a, r, i, tap_at(a, r, t + i, h, groups), h);
    }
    pdl_trigger();
}
