/* SPDX-License-Identifier: MIT
 * mask_indices_by_tp.cu - every index through tgl_tp_mask.
 *   computes  out[i][j] = tgl_tp_mask_wide(mask, indices[i][j]); out is packed and may be indices
 *   launch    grid ceil(units / MASK_THREADS), at most MASK_BLOCKS, block MASK_THREADS
 *   moves     2 * num_rows * num_cols * INDEX_BYTES bytes, each once
 *   macros    INDEX_BYTES 4, 8
 *
 * A unit is what a thread loads at a time: a vector (16 bytes) where addresses and rows allow it, else an
 * element. Packed indices come as a single row. From one unit of a thread to the next it is step_rows rows
 * and step_units units; only the first, which has a number below 2^31, is found by a division. */
#include "device/ptx.cuh"
#include "moe/common/index.cuh"
#include "moe/mask_indices_by_tp.h"
#include "moe/common/tp_mask.h"

/* Are all of them below 2^31? */
DEV bool is_narrow(const vector_type &v)
{
    bool is = true;
#pragma unroll
    for (int j = 0; j < VECTOR; j++) is &= v.e[j] < TGL_DIVIDE_LIMIT;
    return is;
}

extern "C" __global__ void __launch_bounds__(MASK_THREADS) mask_indices_by_tp(
    const index_type *indices, index_type *out, i64 num_rows, i64 num_cols, i64 row_stride, i32 unit,
    i64 row_units, tgl_divisor by_row_units, i64 step_rows, i64 step_units, const tgl_tp_mask mask)
{
    const u32 first = blockIdx.x * MASK_THREADS + threadIdx.x;
    i64 row = tgl_divide(first, by_row_units), i = first - row * row_units;
    pdl_wait();
#pragma unroll 1
    while (row < num_rows) {
        const i64 col = i * unit;
        const int count = (int)min((i64)unit, num_cols - col);
        const index_type *from = indices + row * row_stride + col;
        index_type *to = out + row * num_cols + col;
        vector_type v;
        if (count == VECTOR) v = *(const vector_type *)from;
        if (count == VECTOR && is_narrow(v)) {
#pragma unroll
            for (int j = 0; j < VECTOR; j++) v.e[j] = (index_type)tgl_tp_mask_narrow(&mask, v.e[j]);
            *(vector_type *)to = v;
        } else {
#pragma unroll 1
            for (int j = 0; j < count; j++) to[j] = (index_type)tgl_tp_mask_wide(&mask, from[j]);
        }
        row += step_rows;                       /* step_units < row_units */
        i += step_units;
        if (i >= row_units) {
            i -= row_units;
            row++;
        }
    }
    pdl_trigger();
}
