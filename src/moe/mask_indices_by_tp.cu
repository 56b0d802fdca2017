/* SPDX-License-Identifier: MIT
 * mask_indices_by_tp.cu - every index through tgl_tp_mask.
 *   computes  out[i][j] = tgl_tp_mask_wide(mask, indices[i][j]); out is packed and may be indices
 *   launch    grid ceil(units / MASK_THREADS), at most MASK_BLOCKS, block MASK_THREADS
 *   moves     2 * num_rows * num_cols * INDEX_BYTES bytes, each once
 *   macros    INDEX_BYTES 4, 8
 *
 * Packed indices are a single row. Only a thread's first unit, below 2^31, takes a division. */
#include "device/ptx.cuh"
#include "moe/common/index.cuh"
#include "moe/mask_indices_by_tp.h"

/* All below 2^31. */
DEV bool is_narrow(const vector_type &v)
{
    bool is = true;
#pragma unroll
    for (int j = 0; j < VECTOR; j++) is &= v.e[j] < TGL_DIVIDE_LIMIT;
    return is;
}

extern "C" __global__ void __launch_bounds__(MASK_THREADS) mask_indices_by_tp(const __grid_constant__ mask_args a)
{
    const u32 first = blockIdx.x * MASK_THREADS + threadIdx.x;
    i64 row = tgl_divide(first, a.by_row_units), i = first - row * a.row_units;
    pdl_wait();
#pragma unroll 1
    while (row < a.num_rows) {
        const i64 col = i * a.unit;
        const int count = (int)min((i64)a.unit, a.num_cols - col);
        const index_type *from = (const index_type *)a.indices + row * a.row_stride + col;
        index_type *to = (index_type *)a.out + row * a.num_cols + col;
        vector_type v;
        if (count == VECTOR) v = *(const vector_type *)from;
        if (count == VECTOR && is_narrow(v)) {
#pragma unroll
            for (int j = 0; j < VECTOR; j++) v.e[j] = (index_type)tgl_tp_mask_narrow(&a.mask, v.e[j]);
            *(vector_type *)to = v;
        } else {
#pragma unroll 1
            for (int j = 0; j < count; j++) to[j] = (index_type)tgl_tp_mask_wide(&a.mask, from[j]);
        }
        row += a.step_rows; /* step_units < row_units */
        i += a.step_units;
        if (i >= a.row_units) {
            i -= a.row_units;
            row++;
        }
    }
    pdl_trigger();
}
