/* SPDX-License-Identifier: MIT
 * swiglu_forward_and_per_token_cast_row.cu - SwiGLU, weighted and cast with one factor per row, in registers.
 *   computes  as swiglu_forward_and_per_token_cast.cu, if a block is a whole row
 *   launch    grid num_rows, block of ceil(num_cols / VECTOR / STEPS) threads in whole warps, at most
 *             FORWARD_ROW_THREADS
 *   moves     as there
 *   macros    X, FORMAT, IS_ROUNDED, CLAMP; STEPS 1, 2, 4 ... FORWARD_ROW_VALUES / VECTOR
 *
 * Alignment is as there. A thread has STEPS vectors, blockDim.x vectors apart. */
#include "quant/swiglu_forward_and_per_token_cast.cuh"

static_assert(STEPS >= 1 && STEPS * VECTOR <= FORWARD_ROW_VALUES, "STEPS is 1 .. FORWARD_ROW_VALUES / VECTOR");

enum { RESIDENT = X == X_BF16 ? 2 : 1 }; /* blocks per SM that registers allow */

/* The max over a block; all its threads get it. */
DEV u32 max_of_block(u32 v)
{
    SHARED(u32[FORWARD_ROW_THREADS / 32], of_warps);
    const u32 of_warp = warp_max_u32(v);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = of_warp;
    __syncthreads();
    u32 m = 0;
    for (u32 w = 0; w < blockDim.x / 32; w++) m = max(m, of_warps[w]);
    return m;
}

extern "C" __global__ void __launch_bounds__(FORWARD_ROW_THREADS, RESIDENT)
    swiglu_forward_and_per_token_cast_row(const forward_args a)
{
    const i64 row = blockIdx.x, first = (i64)threadIdx.x * VECTOR, step = (i64)blockDim.x * VECTOR;
    pdl_wait();
    if (row_counts(a, row)) {
        const char *gates = a.x + row * a.row_bytes, *ups = gates + a.num_cols * X_BYTES;
        vector_of<X> gate[STEPS][1], up[STEPS][1];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const i64 col = first + s * step;
            clear_vector(gate[s][0]);
            clear_vector(up[s][0]);
            if (col < a.num_cols) {
                load_vector(gates + col * X_BYTES, gate[s][0]);
                load_vector(ups + col * X_BYTES, up[s][0]);
            }
        }
        const float weight = weight_at(a, slot_of_row(a, row));
        clamp_counts counts = { 0, 0, 0 };
        float v[STEPS][1][VECTOR];
        u32 amax = 0;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            activations_of(gate[s], up[s], a.clamp, { first + s * step < a.num_cols }, counts, v[s]);
            weigh(v[s], weight);
            amax = max(amax, amax_of<VECTOR>(v[s][0]));
        }
        const tgl_scale scale = scale_of<FORMAT, IS_ROUNDED>(__uint_as_float(max_of_block(amax)), a.floor);
        u8 *out = a.out + row * bytes_of_codes(a.num_cols);
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            if (first + s * step < a.num_cols)
                store_words<CODE_BYTES>(out + bytes_of_codes(first + s * step), encode(v[s][0], scale.inv).w);
        if (threadIdx.x == 0) store_factor(a.sf, row, 0, true, scale.sf);
        if (CLAMP == FORWARD_COUNT) add_counts(counts, a.clamped_count);
    }
    pdl_trigger();
}
