/* SPDX-License-Identifier: MIT
 * gate_fwd_ring.cu - the gate of many rows: blocks that stay, each on one stream; sm_90 and up.
 *   computes  as gate_fwd.cu
 *   launch    grid n * num_streams: block b has stream b % num_streams and tokens b / num_streams, + n, + 2 n, ...;
 *             block THREADS; dynamic shared memory of `stages` rows of x, k and, if there is an output, v
 *   moves     6 bytes per element of x, 2 of v, once each from memory; v again from L2 for every stream; of a masked
 *             row, but for the first of a block, x and its result if it has one
 *   macros    WEIGHTS, ZERO_CENTERED as common/gate.cuh says; THREADS 128, 256; VECTORS 1..GATE_RING_VECTORS per thread
 *
 * The stream's weights stay in registers. Rows come by bulk copies, `stages` of them at a time, which need no
 * registers while they are under way; a thread takes x and v of its vectors to registers, so that the stage is free for
 * a new row once all threads have passed the barrier that the sums need anyway. */
#include "engram/gate_fwd_ring.cuh"

#if __CUDA_ARCH__ >= 900
DEV void run(const gate_fwd_args &a)
{
    SHARED_DYNAMIC(memory, 128);
    SHARED(u64[GATE_RING_STAGES], loaded);
    SHARED(float4[2 * GROUPS], groups); /* of this row and the one before */
    const int tid = (int)threadIdx.x, count = (int)(a.hidden / GATE_VECTOR);
    const ring r = ring_of_block(a, shared_address(memory), shared_address(loaded));
    const bool has_out = a.out.data;
    float w[VECTORS][GATE_VECTOR];
    if (tid == 0) {
#pragma unroll 1
        for (int i = 0; i < a.stages; i++) mbar_init(r.loaded + 8 * i, 1);
        mbar_init_fence();
    }
    pdl_wait_unless_constant(a.weights.is_constant);
    /* Rows before weights, which come from L2: 5.5 instead of 5.8 us for 512 rows of 2560 columns on an H200
     * (2026-11). */
    if (tid == 0 && !a.weights.is_constant) fill_all(a, r);
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        if (tid + i * THREADS < count) load_weights(a.weights, r.h, tid + i * THREADS, w[i]);
    if (a.weights.is_constant) pdl_wait();
    if (tid == 0 && a.weights.is_constant) fill_all(a, r);
    __syncthreads();                                         /* mbarriers are initialised */
    bool coming = tid == 0 && is_masked_row(a, r, a.stages); /* the row that is loaded next */
    int stage = 0;
    u32 parity = 0;
#pragma unroll 1
    for (i64 i = 0; i < r.rows; i++) {
        const i64 t = token_of(r, i), index = t * a.num_streams + r.h;
        const bool is_masked = a.image_token_mask && a.image_token_mask[t];
        const u32 from = r.stages + stage * r.stage_bytes + 16 * tid;
        uint4 x[VECTORS], v[VECTORS];
        sums slot[SLOTS] = {};
        mbar_wait(r.loaded + 8 * stage, parity);
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            if (tid + j * THREADS >= count) continue;
            x[j] = shared_load_u32x4(from + 16 * j * THREADS);
            if (has_out) v[j] = shared_load_u32x4(from + 16 * j * THREADS + 2 * r.row_bytes);
            add_vector(slot[j % SLOTS], x[j], shared_load_u32x4(from + 16 * j * THREADS + r.row_bytes), w[j]);
        }
        float4 *const g = groups + (i % 2 ? GROUPS : 0);
        put_groups(slot, g, tid);
        __syncthreads(); /* sums are there, and the stage has been read */
        if (tid == 0 && i + a.stages < r.rows) {
            fill(a, r, i + a.stages, stage, coming);
            coming = is_masked_row(a, r, i + a.stages + 1);
        }
        const float gate = is_masked ? 0 : gate_of(a, index, row_sums(g));
        if (is_masked) put_saved(a, index, 0, 0, 0, 0);
        u16 *const out = has_out ? row_of(a.out, t, r.h) : nullptr;
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            const int c = tid + j * THREADS;
            if (c >= count || !has_out || (is_masked && !has_masked_result(a))) continue;
            store_u32x4(out + c * GATE_VECTOR,
                        is_masked ? masked_result(x[j], a.has_residual) : result_of(x[j], v[j], gate, a.has_residual));
        }
        stage = stage + 1 < a.stages ? stage + 1 : 0;
        if (stage == 0) parity ^= 1;
    }
}
#endif

/* 128 registers; sm_120 needs more of them, and has shared memory for fewer blocks anyway. */
#if __CUDA_ARCH__ >= 1200
enum { SM_BLOCKS = 1 };
#else
enum { SM_BLOCKS = 512 / THREADS };
#endif

extern "C" __global__ void __launch_bounds__(THREADS, SM_BLOCKS) gate_fwd_ring(const __grid_constant__ gate_fwd_args a)
{
#if __CUDA_ARCH__ >= 900
    run(a);
    pdl_trigger();
#endif
}
