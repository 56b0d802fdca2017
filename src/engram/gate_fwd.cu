/* SPDX-License-Identifier: MIT
 * gate_fwd.cu - the gate of a row, one block per row.
 *   computes  as tegula/engram.h says, sums in the order of gate_fwd.h
 *   launch    grid num_tokens * num_streams (block_index), block GATE_SLOTS
 *   moves     6 bytes per element of x, 2 of v, once each if VECTORS > 0; weights of a row per token
 *   macros    WEIGHTS, ZERO_CENTERED as common/gate.cuh says; VECTORS 1..GATE_ROW_VECTORS of a thread, whole and
 *             aligned; 0: any number of columns at any address, one at a time */
#define THREADS GATE_SLOTS
#include "engram/gate_fwd.cuh"

static_assert(VECTORS >= 0 && VECTORS <= GATE_ROW_VECTORS, "VECTORS is 0..GATE_ROW_VECTORS");

typedef struct {
    const u16 *x, *k, *v;
    u16 *out;
    i64 h;
} row;

#if VECTORS > 0
/* Everything is loaded before anything is used. Results are stored as what nobody reads soon: 4096 x 4 rows of 7168
 * columns in place take 191 us on an H200 (2026-11), else 196. */
DEV void run(const gate_fwd_args &a, const row &r, i64 index, bool is_masked, float4 *groups)
{
    const int tid = (int)threadIdx.x, count = (int)(a.hidden / GATE_VECTOR);
    const bool has_out = a.out.data;
    uint4 x[VECTORS], k[VECTORS], v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int c = tid + i * THREADS;
        x[i] = load_ahead_u32x4_if(r.x + c * GATE_VECTOR, c < count); /* out may be x: not for load_stream */
        k[i] = load_ahead_u32x4_if(r.k + c * GATE_VECTOR, c < count && !is_masked);
    }
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int c = tid + i * THREADS;
        v[i] = load_ahead_u32x4_if(r.v + c * GATE_VECTOR, c < count && !is_masked && has_out);
    }
    if (is_masked) {
        put_saved(a, index, 0, 0, 0, 0);
        if (!has_masked_result(a)) return;
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const int c = tid + i * THREADS;
            if (c < count) store_stream_u32x4(r.out + c * GATE_VECTOR, masked_result(x[i], a.has_residual));
        }
        return;
    }
    sums slot[SLOTS] = {};
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int c = tid + i * THREADS;
        if (c >= count) continue;
        float w[GATE_VECTOR];
        load_weights(a.weights, r.h, c, w);
        add_vector(slot[0], x[i], k[i], w);
    }
    put_groups(slot, groups, (int)threadIdx.x);
    __syncthreads();
    const float gate = gate_of(a, index, row_sums(groups));
    if (!has_out) return;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int c = tid + i * THREADS;
        if (c < count) store_stream_u32x4(r.out + c * GATE_VECTOR, result_of(x[i], v[i], gate, a.has_residual));
    }
}
#else
/* Calls f for the thread's columns, in the order of its slot. */
template <class F> DEV void for_columns(i64 hidden, F f)
{
#pragma unroll 1
    for (i64 c = threadIdx.x; c * GATE_VECTOR < hidden; c += THREADS)
#pragma unroll 1
        for (i64 i = c * GATE_VECTOR; i < min((c + 1) * GATE_VECTOR, hidden); i++) f(i);
}

DEV void run(const gate_fwd_args &a, const row &r, i64 index, bool is_masked, float4 *groups)
{
    if (is_masked) {
        put_saved(a, index, 0, 0, 0, 0);
        if (has_masked_result(a)) for_columns(a.hidden, [&](i64 i) { r.out[i] = a.has_residual ? r.x[i] : (u16)0; });
        return;
    }
    sums slot[SLOTS] = {};
    for_columns(a.hidden, [&](i64 i) {
        add_column(slot[0], tgl_bf16_to_f32(r.x[i]), tgl_bf16_to_f32(r.k[i]),
                   gate_weight_at(&a.weights, WEIGHTS, ZERO_CENTERED, r.h, i));
    });
    put_groups(slot, groups, (int)threadIdx.x);
    __syncthreads(); /* all columns have been read: out may be x */
    const float gate = gate_of(a, index, row_sums(groups));
    if (a.out.data)
        for_columns(a.hidden, [&](i64 i) {
            r.out[i] =
                tgl_bf16_from_f32(gate_result(tgl_bf16_to_f32(r.x[i]), tgl_bf16_to_f32(r.v[i]), gate, a.has_residual));
        });
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) gate_fwd(const __grid_constant__ gate_fwd_args a)
{
    SHARED(float4[GROUPS], groups);
    const i64 index = (i64)blockIdx.y * gridDim.x + blockIdx.x;
    pdl_wait();
    if (index < a.num_tokens * a.num_streams) {
        const i64 t = index / a.num_streams, h = index - t * a.num_streams;
        const row r = { row_of(a.x, t, h), row_of(a.k, t, h), row_of(a.v, t, 0),
                        a.out.data ? row_of(a.out, t, h) : nullptr, h };
        run(a, r, index, a.image_token_mask && a.image_token_mask[t], groups);
    }
    pdl_trigger();
}
