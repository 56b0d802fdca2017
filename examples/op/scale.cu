/* SPDX-License-Identifier: MIT
 * scale.cu - one element per thread.
 *   computes  out[i][j] = x[i][j] * c
 *   launch    grid (blocks of columns, at most 65535 rows, over which blocks stride), block SCALE_THREADS
 *   moves     each element of x and out once
 *   macros    ELEMENT_BYTES 1 (e4m3), 2 (bf16), 4 (f32) */
#include "device/ptx.cuh"
#include "op/scale.h"
static_assert(ELEMENT_BYTES == 1 || ELEMENT_BYTES == 2 || ELEMENT_BYTES == 4, "ELEMENT_BYTES is 1, 2 or 4");
extern "C" __global__ void __launch_bounds__(SCALE_THREADS) scale(scale_args a)
{
    const i64 col = (i64)blockIdx.x * SCALE_THREADS + threadIdx.x;
    pdl_wait();
    if (col < a.num_cols)
        for (i64 row = blockIdx.y; row < a.num_rows; row += gridDim.y) scale_element(&a, row, col, ELEMENT_BYTES);
    pdl_trigger();
}
