/* SPDX-License-Identifier: MIT
 * gate_fwd_few.cu - the gate for so few rows that each has a resident block; sm_90 and up.
 *   computes  as gate_fwd.cu
 *   launch    grid num_tokens * num_streams, block THREADS; dynamic shared memory of a row of x, k and, if there is an
 *             output, v
 *   moves     6 bytes per element of x, 2 of v, once each from memory; v again from L2 for every stream
 *   macros    WEIGHTS, ZERO_CENTERED as common/gate.cuh says; THREADS 128, 256; COUNT vectors of a row, at most
 *             GATE_FEW_VECTORS a thread
 *
 * Bulk copies of all rows are in flight at once. Meanwhile the weights are loaded into registers; x and v stay in
 * shared memory. A thread then needs few registers and an SM holds many blocks: while one computes its gate, others
 * add up their rows. One warp computes the gate, 150 instructions that the other warps need not issue (512 rows of
 * 7168 columns in calls back to back, H200, 2026-11: 4.8 us, by all warps 5.0). */
#include "engram/gate_fwd.cuh"

enum { VECTORS = (COUNT + THREADS - 1) / THREADS };
/* Two weights take more registers while they are loaded, and on sm_120 all take more: fewer blocks fit, and the rows
 * of the others wait. */
#if __CUDA_ARCH__ >= 1200
enum { SM_BLOCKS = GATE_FEW_THREADS / 2 / THREADS };
#else
enum { SM_BLOCKS = GATE_FEW_THREADS / THREADS - (WEIGHTS != GATE_FUSED) };
#endif
static_assert(COUNT >= 1 && VECTORS <= GATE_FEW_VECTORS, "COUNT is 1..GATE_FEW_VECTORS a thread");

#if __CUDA_ARCH__ >= 900
/* Calls f(j) for the thread's vectors, tid + j * THREADS. */
template <class F> DEV void for_vectors(F f)
{
#pragma unroll
    for (int j = 0; j < VECTORS; j++)
        if ((j + 1) * THREADS <= COUNT || (int)threadIdx.x < COUNT - j * THREADS) f(j);
}

DEV void load_rows(const gate_fwd_args &a, i64 t, i64 h, u32 rows, u32 loaded)
{
    const u32 bytes = COUNT * GATE_VECTOR * 2;
    mbar_expect(loaded, 2 * bytes);
    bulk_load(rows, row_of(a.x, t, h), bytes, loaded);
    bulk_load(rows + bytes, row_of(a.k, t, h), bytes, loaded);
    if (!a.out.data) return;
    mbar_expect(loaded + 8, bytes);
    bulk_load(rows + 2 * bytes, row_of(a.v, t, 0), bytes, loaded + 8);
}

DEV void run(const gate_fwd_args &a)
{
    SHARED_DYNAMIC(memory, 128);
    SHARED(u64[2], bars); /* x and k; v */
    SHARED(float4[GROUPS], groups);
    SHARED(float, shared_gate);
    const int tid = (int)threadIdx.x;
    const i64 index = blockIdx.x;
    const u32 streams = (u32)a.num_streams, t = blockIdx.x / streams, h = blockIdx.x - t * streams;
    const u32 loaded = shared_address(bars), rows = shared_address(memory), row_bytes = COUNT * GATE_VECTOR * 2;
    const u32 from = rows + 16 * (u32)tid;
    float w[VECTORS][GATE_VECTOR];
    if (tid == 0) {
        mbar_init(loaded, 1);
        mbar_init(loaded + 8, 1);
        mbar_init_fence();
    }
    pdl_wait_unless_constant(a.weights.is_constant);
    if (tid == 0 && !a.weights.is_constant) load_rows(a, t, h, rows, loaded);
    for_vectors([&](int j) { load_weights(a.weights, h, tid + j * THREADS, w[j]); });
    if (a.weights.is_constant) pdl_wait();
    if (tid == 0 && a.weights.is_constant) load_rows(a, t, h, rows, loaded);
    const bool is_masked = a.image_token_mask && a.image_token_mask[t];
    __syncthreads(); /* mbarriers are initialised */
    mbar_wait(loaded, 0);
    sums slot[SLOTS] = {};
    for_vectors([&](int j) {
        add_vector(slot[j % SLOTS], shared_load_u32x4(from + 16 * j * THREADS),
                   shared_load_u32x4(from + 16 * j * THREADS + row_bytes), w[j]);
    });
    put_groups(slot, groups, tid);
    __syncthreads();
    if (tid < 32) {
        const float gate = is_masked ? 0 : gate_of(a, index, row_sums(groups));
        if (is_masked) put_saved(a, index, 0, 0, 0, 0);
        if (tid == 0) shared_gate = gate;
    }
    if (!a.out.data) return;
    __syncthreads();
    const float gate = shared_gate;
    mbar_wait(loaded + 8, 0);
    if (is_masked && !has_masked_result(a)) return;
    u16 *const out = row_of(a.out, t, h) + tid * GATE_VECTOR;
    for_vectors([&](int j) {
        const uint4 x = shared_load_u32x4(from + 16 * j * THREADS);
        const uint4 v = shared_load_u32x4(from + 16 * j * THREADS + 2 * row_bytes);
        store_u32x4(out + j * THREADS * GATE_VECTOR,
                    is_masked ? masked_result(x, a.has_residual) : result_of(x, v, gate, a.has_residual));
    });
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, SM_BLOCKS) gate_fwd_few(const __grid_constant__ gate_fwd_args a)
{
#if __CUDA_ARCH__ >= 900
    run(a);
    pdl_trigger();
#endif
}
