/* SPDX-License-Identifier: MIT
 * mask_indices_by_tp.cu - every index through tgl_tp_mask.
 *   computes  out[i][j] = tgl_tp_mask_wide(mask, indices[i][j]); out is packed and may be indices
 *   launch    block MASK_THREADS, threads for all units or for a MASK_UNITS-th of them
 *             (mask_indices_by_tp.h)
 *   moves     2 * num_rows * num_cols * INDEX_BYTES bytes, each once
 *   macros    INDEX_BYTES 4, 8
 *
 * A unit is what a thread loads at a time: a vector (16 bytes) where addresses and rows allow it, else an
 * element. Packed indices come as a single row. */
#include "device/ptx.cuh"
#include "moe/index.cuh"
#include "moe/mask_indices_by_tp.h"
#include "moe/tp_mask.h"

DEV index_type masked(const tgl_tp_mask &mask, index_type v)
{
#if INDEX_BYTES == 4
    return (index_type)tgl_tp_mask_narrow(&mask, v);
#else
    return tgl_tp_mask_wide(&mask, v);
#endif
}

extern "C" __global__ void __launch_bounds__(MASK_THREADS) mask_indices_by_tp(
    const index_type *indices, index_type *out, i64 num_rows, i64 num_cols, i64 row_stride, i32 unit,
    i64 row_units, tgl_divisor by_row_units, const tgl_tp_mask mask)
{
    const i64 units = num_rows * row_units, step = (i64)gridDim.x * MASK_THREADS;
    const i64 first = (i64)blockIdx.x * MASK_THREADS + threadIdx.x;
    i64 at[MASK_UNITS];                             /* in out */
    int count[MASK_UNITS];                          /* elements: `unit`, fewer at the end, 0 beyond it */
    vector_type v[MASK_UNITS];
    pdl_wait();
#pragma unroll
    for (int k = 0; k < MASK_UNITS; k++) {
        const i64 i = first + k * step;
        const i64 row = num_rows == 1          ? 0
                        : i < TGL_DIVIDE_LIMIT ? (i64)tgl_divide((u32)i, by_row_units)
                                               : i / row_units;
        const i64 col = (i - row * row_units) * unit;
        at[k] = row * num_cols + col;
        count[k] = i < units ? (int)min((i64)unit, num_cols - col) : 0;
        const index_type *from = indices + row * row_stride + col;
        if (count[k] == VECTOR) {
            v[k] = *(const vector_type *)from;
        } else {
#pragma unroll
            for (int j = 0; j < VECTOR - 1; j++)
                if (j < count[k]) v[k].e[j] = from[j];
        }
    }
#pragma unroll
    for (int k = 0; k < MASK_UNITS; k++) {
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            if (j < count[k]) v[k].e[j] = masked(mask, v[k].e[j]);
        if (count[k] == VECTOR) {
            *(vector_type *)(out + at[k]) = v[k];
        } else {
#pragma unroll
            for (int j = 0; j < VECTOR - 1; j++)
                if (j < count[k]) out[at[k] + j] = v[k].e[j];
        }
    }
    pdl_trigger();
}
