/* SPDX-License-Identifier: MIT
 * sinkhorn_reduce.cuh - sums of columns over partial rows, in ascending order: what sinkhorn_step_reduce.cu and
 * sinkhorn_step.cu share. A block loads a tile to shared memory, where one thread per column adds it up. */
#ifndef TEGULA_ENGRAM_SINKHORN_REDUCE_CUH
#define TEGULA_ENGRAM_SINKHORN_REDUCE_CUH

#include "device/ptx.cuh"
#include "engram/common/sinkhorn.h"

/* Columns first .. first + COLUMNS - 1; the tile has SINKHORN_TILE_BYTES(BLOCK). */
template <int BLOCK, int COLUMNS> DEV void reduce_columns(const sinkhorn_reduce_args &a, i64 first, float *tile)
{
    enum { STEP = BLOCK / COLUMNS, TILE_ROWS = STEP * SINKHORN_LOADS };
    const i32 tid = (i32)threadIdx.x, column = tid % COLUMNS, row = tid / COLUMNS;
    const bool is_there = first + column < a.dim;
    float sum = 0;
#pragma unroll 1
    for (i64 begin = 0; begin < a.num_partials; begin += TILE_ROWS) {
        const i32 rows = (i32)min((i64)TILE_ROWS, a.num_partials - begin);
        const float *const from = a.partial + begin * a.stride + first + column;
        float value[SINKHORN_LOADS];
#pragma unroll
        for (int i = 0; i < SINKHORN_LOADS; i++)
            value[i] = is_there && row + i * STEP < rows ? from[(row + i * STEP) * a.stride] : 0;
        __syncthreads(); /* the tile before has been added */
#pragma unroll
        for (int i = 0; i < SINKHORN_LOADS; i++) tile[(row + i * STEP) * COLUMNS + column] = value[i];
        __syncthreads();
        if (tid < COLUMNS) {
#pragma unroll 8
            for (i32 i = 0; i < rows; i++) sum += tile[i * COLUMNS + tid];
        }
    }
    if (tid < COLUMNS && is_there) a.sumsq[first + tid] = tgl_one_nan(sum);
}

#endif
