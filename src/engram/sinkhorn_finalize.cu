/* SPDX-License-Identifier: MIT
 * sinkhorn_finalize.cu - rows of a scaled matrix, each divided by its norm.
 *   computes  out = x * (alpha / (norm of x's row + eps)), x and the order of its sum as common/sinkhorn.h says
 *   launch    grid of SINKHORN_SM_BLOCKS(THREADS) blocks per SM, which stride over batches of rows; block THREADS;
 *             shared memory for the scales of columns
 *   moves     matrix once (rows of any length: twice, the second time from L2), out once, scales
 *   macros    as common/sinkhorn.cuh says */
#include "engram/common/sinkhorn.cuh"

DEV void finalize_wide(const sinkhorn_finalize_args &a, partial_sums *of_warps)
{
    const sinkhorn_matrix &m = a.m;
    i32 turn = 0;
#pragma unroll 1
    for (i64 i = blockIdx.x; i < m.num_rows; i += gridDim.x) {
        const float *const row = m.matrix + i * m.row_stride, row_scale = m.row_scale[i];
        const float sum = sum_of_wide_row(m, row, row_scale, of_warps[turn ^= 1]);
        const float factor = a.alpha / (sqrtf(sum) + a.eps);
#pragma unroll 4
        for (i64 col = 4 * (i64)threadIdx.x; col < m.dim; col += WIDTH) {
            float x[4];
            scale_wide(m, row, row_scale, col, x);
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (col + e < m.dim) a.out[i * a.out_stride + col + e] = tgl_one_nan(x[e] * factor);
        }
    }
}

template <bool HAS_VECTORS>
DEV void store_rows(const sinkhorn_finalize_args &a, i64 row, const float (&x)[ROWS][HELD][4], float factors)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float factor = __shfl_sync(FULL, factors, r);
        float *const out = a.out + (row + r) * a.out_stride;
#pragma unroll
        for (int v = 0; v < HELD; v++) {
            float y[4];
#pragma unroll
            for (int e = 0; e < 4; e++) y[e] = tgl_one_nan(x[r][v][e] * factor);
            store_vector<HAS_VECTORS>(out + first_column(v), y, row + r < a.m.num_rows ? columns_left(a.m, v) : 0);
        }
    }
}

DEV void finalize_held(const sinkhorn_finalize_args &a, float *scales, partial_sums *of_warps)
{
    const sinkhorn_matrix &m = a.m;
    const i64 step = (i64)gridDim.x * ROWS;
    i64 row = (i64)blockIdx.x * ROWS;
    i32 turn = 0;
    stage_col_scale(m, scales);
    batch next = load_batch(m, row, m.num_rows);
#pragma unroll 1
    for (; row < m.num_rows; row += step) {
        float x[ROWS][HELD][4];
        scale_batch(m, next, scales, x);
        if (row + step < m.num_rows) next = load_batch(m, row + step, m.num_rows);
        const float sum = sum_of_row(x, of_warps[turn ^= 1]);
        const float factors = a.alpha / (sqrtf(sum) + a.eps);
        if (m.has_vectors) store_rows<true>(a, row, x, factors);
        else store_rows<false>(a, row, x, factors);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, SINKHORN_SM_BLOCKS(THREADS))
    sinkhorn_finalize(const __grid_constant__ sinkhorn_finalize_args a)
{
    SHARED_DYNAMIC(memory, 16);
    SHARED(partial_sums[2], of_warps);
    pdl_wait();
    if (VECTORS) finalize_held(a, (float *)memory, of_warps);
    else finalize_wide(a, of_warps);
    pdl_trigger();
}
