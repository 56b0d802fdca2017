/* SPDX-License-Identifier: MIT
 * sinkhorn_step.cu - one step of Sinkhorn's normalisation: rows divided by their norms, squares of columns summed.
 *   computes  x, the norm of its row and the order of that sum as common/sinkhorn.h says; with f = 1 / (norm + eps):
 *             row_norm = norm, row_scale = row_scale * f, partial[p][j] = sum over rows of chunk p, in ascending order,
 *             of (x * f)^2; sumsq[j] = sum over p, in ascending order
 *   launch    grid of up to SINKHORN_SM_BLOCKS(THREADS) blocks per SM, which stride over chunks; block THREADS; shared
 *             memory for the scales of columns. Reduced: cooperative, since blocks wait for each other
 *   moves     matrix once (rows of any length: twice, and partial with every row), partial once, or twice if reduced;
 *             scales, norms
 *   macros    as common/sinkhorn.cuh says; IS_REDUCED 0, 1: with sumsq */
#include "engram/common/sinkhorn.cuh"
#include "engram/common/sinkhorn_reduce.cuh"

static_assert(IS_REDUCED == 0 || IS_REDUCED == 1, "IS_REDUCED is 0 or 1");

/* A batch of rows: the chunk, the first row, the end of the chunk's rows. Blocks stride over chunks. */
struct place { i64 chunk, row, end; };

DEV place place_of_chunk(const sinkhorn_step_args &a, i64 chunk)
{
    const i64 num_rows = a.m.num_rows, row = min(chunk * a.chunk, num_rows);
    return { chunk, row, min(row + a.chunk, num_rows) };
}
DEV place place_after(const sinkhorn_step_args &a, const place &p)
{
    if (p.row + ROWS < p.end) return { p.chunk, p.row + ROWS, p.end };
    const i64 chunk = p.chunk + gridDim.x;
    return chunk < a.num_partials ? place_of_chunk(a, chunk) : place{ chunk, a.m.num_rows, a.m.num_rows };
}

/* Lane r < ROWS has the sum and the scale of row r; it writes, in the first warp. All warps have read the scale: the
 * sum has waited for them. -> the factor */
DEV float put_row(const sinkhorn_step_args &a, const place &p, float sum, float row_scale)
{
    const i64 row = p.row + threadIdx.x;
    const float norm = tgl_one_nan(sqrtf(sum)), factor = 1 / (norm + a.eps);
    if (threadIdx.x < ROWS && row < p.end) {
        a.row_norm[row] = norm;
        a.m.row_scale[row] = tgl_one_nan(row_scale * factor);
    }
    return factor;
}

DEV void step_held(const sinkhorn_step_args &a, float *scales, partial_sums *of_warps)
{
    const sinkhorn_matrix &m = a.m;
    i32 turn = 0;
    stage_col_scale(m, scales);
    place now = place_of_chunk(a, blockIdx.x);
    batch next = load_batch(m, now.row, now.end);
    float squares[HELD][4] = {};
#pragma unroll 1
    while (now.chunk < a.num_partials) { /* a chunk without rows: partial sums of 0 */
        float x[ROWS][HELD][4];
        const float row_scale = next.row_scale;
        const place following = place_after(a, now);
        scale_batch(m, next, scales, x);
        next = load_batch(m, following.row, following.end);
        const float sum = sum_of_row(x, of_warps[turn ^= 1]);
        const float factors = put_row(a, now, sum, row_scale);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float factor = __shfl_sync(FULL, factors, r);
            if (now.row + r < now.end) {
#pragma unroll
                for (int v = 0; v < HELD; v++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const float normed = x[r][v][e] * factor;
                        squares[v][e] += normed * normed;
                    }
            }
        }
        if (following.chunk != now.chunk) {
#pragma unroll
            for (int v = 0; v < HELD; v++) {
#pragma unroll
                for (int e = 0; e < 4; e++) squares[v][e] = tgl_one_nan(squares[v][e]);
                float *const partial = a.partial + now.chunk * m.dim + first_column(v);
                if (m.has_vectors) store_vector<true>(partial, squares[v], columns_left(m, v));
                else store_vector<false>(partial, squares[v], columns_left(m, v));
#pragma unroll
                for (int e = 0; e < 4; e++) squares[v][e] = 0;
            }
        }
        now = following;
    }
}

DEV void step_wide(const sinkhorn_step_args &a, partial_sums *of_warps)
{
    const sinkhorn_matrix &m = a.m;
    i32 turn = 0;
#pragma unroll 1
    for (i64 chunk = blockIdx.x; chunk < a.num_partials; chunk += gridDim.x) {
        float *const partial = a.partial + chunk * m.dim;
        place p = place_of_chunk(a, chunk);
#pragma unroll 1
        for (i64 col = threadIdx.x; col < m.dim && p.row == p.end; col += THREADS) partial[col] = 0;
#pragma unroll 1
        for (const i64 first = p.row; p.row < p.end; p.row++) {
            const float *const row = m.matrix + p.row * m.row_stride, row_scale = m.row_scale[p.row];
            const float sum = sum_of_wide_row(m, row, row_scale, of_warps[turn ^= 1]);
            const float factor = put_row(a, p, sum, row_scale);
#pragma unroll 4
            for (i64 col = 4 * (i64)threadIdx.x; col < m.dim; col += WIDTH) {
                float x[4];
                scale_wide(m, row, row_scale, col, x);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const float normed = x[e] * factor;
                    if (col + e < m.dim)
                        partial[col + e] = tgl_one_nan((p.row == first ? 0 : partial[col + e]) + normed * normed);
                }
            }
        }
    }
}

/* Until all blocks have come here; leaves the words zero. */
DEV void wait_for_all_blocks(u32 *words)
{
    u32 *const arrived = words, *const is_open = words + 1, *const left = words + 2;
    const u32 last = gridDim.x - 1;
    __syncthreads();
    if (threadIdx.x == 0) {
        if (atomic_inc_acq_rel(arrived, last) == last) store_release_u32(is_open, 1);
        else
            while (load_acquire_u32(is_open) == 0) { }
        if (atomic_inc_relaxed(left, last) == last) store_relaxed_u32(is_open, 0);
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, SINKHORN_SM_BLOCKS(THREADS))
    sinkhorn_step(const __grid_constant__ sinkhorn_step_args a)
{
    SHARED_DYNAMIC(memory, 16);
    SHARED(partial_sums[2], of_warps);
    pdl_wait();
    if (VECTORS) step_held(a, (float *)memory, of_warps);
    else step_wide(a, of_warps);
    if (IS_REDUCED) {
        enum { COLUMNS = THREADS / 8 };
        const sinkhorn_reduce_args reduction = { a.partial, a.sumsq, a.m.dim, a.num_partials, a.m.dim };
        wait_for_all_blocks(a.workspace);
#pragma unroll 1
        for (i64 first = (i64)blockIdx.x * COLUMNS; first < a.m.dim; first += (i64)gridDim.x * COLUMNS)
            reduce_columns<THREADS, COLUMNS>(reduction, first, (float *)memory);
    }
    pdl_trigger();
}
