/* SPDX-License-Identifier: MIT
 * norm_fn_finish_fwd.cu - parts of a projection to mixes.
 *   computes  as common/partials.h says; mixes = out_mul * rsqrt(sqrsum / columns + eps). A thread has a row of a token
 *   launch    grid of blocks, which stride over rows of tokens; block NORM_FN_FINISH_THREADS
 *   moves     4 bytes per row, token and part, and as many per output; squares again from L1 for each row
 *   macros    ROWS 1..80: rows of fn */
#include "device/ptx.cuh"
#include "mhc/norm_fn_finish_fwd.h"

static_assert(ROWS >= 1 && ROWS <= PROJECTION_MAX_ROWS, "ROWS is 1..80");

extern "C" __global__ void __launch_bounds__(NORM_FN_FINISH_THREADS)
    norm_fn_finish_fwd(const __grid_constant__ norm_fn_finish_fwd_args a)
{
    pdl_wait();
    pdl_trigger();
#pragma unroll 1
    for (i64 k = (i64)blockIdx.x * NORM_FN_FINISH_THREADS + threadIdx.x; k < a.num_tokens * ROWS;
         k += (i64)gridDim.x * NORM_FN_FINISH_THREADS)
        norm_fn_finish_row(&a, k, ROWS);
}
