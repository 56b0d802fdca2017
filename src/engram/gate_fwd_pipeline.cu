/* SPDX-License-Identifier: MIT
 * gate_fwd_pipeline.cu - the gate of very many rows: as gate_fwd_ring.cu, but a row's gate is found while the next row is
 * added up; sm_90 and up.
 *   computes  as gate_fwd.cu
 *   launch    as gate_fwd_ring.cu, with a warp more, the first, and at least two stages
 *   moves     as gate_fwd_ring.cu
 *   macros    WEIGHTS, ZERO_CENTERED as common/gate.cuh says; THREADS 128, 256; VECTORS 1..GATE_RING_VECTORS per thread
 *
 * The first warp loads rows and finds their gates. The other warps, with the stream's weights in registers, add up a row
 * and then write the results of the row before: its gate, a chain of 150 instructions, has been found meanwhile. Sums
 * and gates have two buffers: a warp overwrites the sums of a row when it has seen the gate that was made of them, and a
 * gate is overwritten when all warps have sent the sums of the next row but one, which they do after they have used it. */
#include "engram/gate_fwd_ring.cuh"

enum { WARPS = THREADS / 32 };

#if __CUDA_ARCH__ >= 900
typedef struct {
    float gate;
    i32 is_masked;
} row_gate;

/* mbarriers: of a stage, all warps have written its row; of a buffer, its sums are there, its gate is there */
typedef struct { u32 freed, summed, gated; } progress;

typedef struct {
    int stage;
    u32 parity;
} place;
DEV void advance(place &at, int stages)
{
    at.stage = at.stage + 1 < stages ? at.stage + 1 : 0;
    if (at.stage == 0) at.parity ^= 1;
}

/* The first warp. */
DEV void load_and_gate(const gate_fwd_args &a, const ring &r, const progress &p, const float4 *groups, row_gate *gates)
{
    const int lane = (int)threadIdx.x;
    pdl_wait();
    if (lane == 0) fill_all(a, r);
    place freed = { 0, 0 };
    bool next = is_masked_row(a, r, 0), coming = is_masked_row(a, r, a.stages); /* the row that is loaded next */
#pragma unroll 1
    for (i64 i = 0; i < r.rows; i++) {
        const i64 index = token_of(r, i) * a.num_streams + r.h;
        const int buffer = i % 2;
        const bool is_masked = next;
        next = is_masked_row(a, r, i + 1);
        mbar_wait(p.summed + 8 * buffer, i / 2 % 2);
        const float gate = is_masked ? 0 : gate_of(a, index, row_sums(groups + buffer * GROUPS));
        if (is_masked) put_saved(a, index, 0, 0, 0, 0);
        __syncwarp(); /* all lanes have read the sums */
        if (lane == 0) {
            gates[buffer] = { gate, is_masked };
            mbar_arrive(p.gated + 8 * buffer);
        }
        const i64 wanted = i - 1 + a.stages; /* where the row before was */
        if (i > 0 && wanted < r.rows) {
            mbar_wait(p.freed + 8 * freed.stage, freed.parity);
            if (lane == 0) fill(a, r, wanted, freed.stage, coming);
            coming = is_masked_row(a, r, wanted + 1);
            advance(freed, a.stages);
        }
    }
}

/* Calls f(j, address in row, column) for the thread's vectors. */
template <class F> DEV void for_vectors(i64 hidden, int tid, F f)
{
#pragma unroll
    for (int j = 0; j < VECTORS; j++)
        if (tid + j * THREADS < (int)(hidden / GATE_VECTOR)) f(j, (tid + j * THREADS) * GATE_VECTOR);
}

DEV void write_row(const gate_fwd_args &a, const ring &r, i64 i, u32 from, const row_gate &g, int tid)
{
    if (!a.out.data || (g.is_masked && !has_masked_result(a))) return;
    u16 *const out = row_of(a.out, token_of(r, i), r.h);
    for_vectors(a.hidden, tid, [&](int, int c) {
        const uint4 x = shared_load_u32x4(from + 2 * c), v = shared_load_u32x4(from + 2 * c + 2 * r.row_bytes);
        store_u32x4(out + c, g.is_masked ? masked_result(x, a.has_residual) : result_of(x, v, g.gate, a.has_residual));
    });
}

/* The other warps: in step i the sums of row i and the results of row i - 1. */
DEV void sum_and_write(const gate_fwd_args &a, const ring &r, const progress &p, float4 *groups, const row_gate *gates)
{
    const int tid = (int)threadIdx.x - 32;
    float w[VECTORS][GATE_VECTOR];
    pdl_wait_unless_constant(a.weights.is_constant);
    for_vectors(a.hidden, tid, [&](int j, int c) { load_weights(a.weights, r.h, c / GATE_VECTOR, w[j]); });
    if (a.weights.is_constant) pdl_wait();
    place now = { 0, 0 };
    int before = 0; /* the stage of row i - 1 */
#pragma unroll 1
    for (i64 i = 0; i <= r.rows; i++) {
        if (i < r.rows) {
            const u32 from = r.stages + now.stage * r.stage_bytes;
            sums slot[SLOTS] = {};
            mbar_wait(r.loaded + 8 * now.stage, now.parity);
            for_vectors(a.hidden, tid, [&](int j, int c) {
                add_vector(slot[j % SLOTS], shared_load_u32x4(from + 2 * c),
                           shared_load_u32x4(from + 2 * c + r.row_bytes), w[j]);
            });
            put_groups(slot, groups + i % 2 * GROUPS, tid);
            if (tid % 32 == 0) mbar_arrive(p.summed + 8 * (i % 2)); /* the lane that has stored them */
        }
        if (i > 0) {
            const i64 row = i - 1;
            mbar_wait(p.gated + 8 * (row % 2), row / 2 % 2);
            write_row(a, r, row, r.stages + before * r.stage_bytes, gates[row % 2], tid);
            __syncwarp(); /* all lanes have read the stage and the gate */
            if (tid % 32 == 0) mbar_arrive(p.freed + 8 * before);
        }
        before = now.stage;
        advance(now, a.stages);
    }
}

DEV void run(const gate_fwd_args &a)
{
    SHARED_DYNAMIC(memory, 128);
    SHARED(u64[2 * GATE_RING_STAGES + 4], bars); /* of stages loaded, of stages freed; of sums, of gates */
    SHARED(float4[2 * GROUPS], groups);
    SHARED(row_gate[2], gates);
    const ring r = ring_of_block(a, shared_address(memory), shared_address(bars));
    const u32 summed = shared_address(bars + 2 * GATE_RING_STAGES);
    const progress p = { shared_address(bars + GATE_RING_STAGES), summed, summed + 16 };
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (int i = 0; i < a.stages; i++) {
            mbar_init(r.loaded + 8 * i, 1);
            mbar_init(p.freed + 8 * i, WARPS);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            mbar_init(p.summed + 8 * i, WARPS);
            mbar_init(p.gated + 8 * i, 1);
        }
        mbar_init_fence();
    }
    __syncthreads(); /* mbarriers are initialised */
    if (threadIdx.x < 32) load_and_gate(a, r, p, groups, gates);
    else sum_and_write(a, r, p, groups, gates);
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS + 32, 512 / THREADS)
    gate_fwd_pipeline(const __grid_constant__ gate_fwd_args a)
{
#if __CUDA_ARCH__ >= 900
    run(a);
    pdl_trigger();
#endif
}
