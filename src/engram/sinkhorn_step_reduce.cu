/* SPDX-License-Identifier: MIT
 * sinkhorn_step_reduce.cu - sums of columns over partial rows.
 *   computes  sumsq[j] = partial[0][j] + partial[1][j] + ..., in this order
 *   launch    grid blocks of SINKHORN_REDUCE_COLUMNS columns, over which blocks stride; block SINKHORN_REDUCE_THREADS,
 *             shared memory for a tile
 *   moves     partial once, in sectors of 32 bytes; sumsq once
 *   macros    none */
#include "engram/common/sinkhorn_reduce.cuh"

extern "C" __global__ void __launch_bounds__(SINKHORN_REDUCE_THREADS)
    sinkhorn_step_reduce(const __grid_constant__ sinkhorn_reduce_args a)
{
    SHARED_DYNAMIC(memory, 16);
    const i64 step = (i64)gridDim.x * SINKHORN_REDUCE_COLUMNS;
    pdl_wait();
#pragma unroll 1
    for (i64 first = (i64)blockIdx.x * SINKHORN_REDUCE_COLUMNS; first < a.dim; first += step)
        reduce_columns<SINKHORN_REDUCE_THREADS, SINKHORN_REDUCE_COLUMNS>(a, first, (float *)memory);
    pdl_trigger();
}
