/* SPDX-License-Identifier: MIT
 * group.cuh - for kernels with blocks of any size: a group of threads, one warp or all GROUP_WARPS of a
 * thread block, goes through a block row by row. */
#ifndef TEGULA_QUANT_GROUP_CUH
#define TEGULA_QUANT_GROUP_CUH

#include "device/ptx.cuh"
#include "quant/common/group.h"

/* A thread's place in a matrix, and the distance to its next one. */
typedef struct {
    i64 row, col, num_cols;
    u32 step_rows, step_cols;
} walk;

/* The first place of a thread. */
DEV walk walk_from(u32 thread, u32 threads, i64 num_cols)
{
    const u32 cols = (u32)min(num_cols, (i64)0x7FFFFFFF);
    const walk w = { thread / cols, thread % cols, num_cols, threads / cols, threads % cols };
    return w;
}

DEV void walk_on(walk &w)
{
    w.row += w.step_rows;
    w.col += w.step_cols; /* fewer than num_cols */
    if (w.col >= w.num_cols) {
        w.col -= w.num_cols;
        w.row++;
    }
}

/* The max of COUNT (1 or 2) values over the group; all its threads call and get it. */
template <int COUNT> DEV void max_of_group(u32 (&v)[COUNT], int warps)
{
    SHARED(u32[2 * GROUP_WARPS], parts);
#pragma unroll
    for (int i = 0; i < COUNT; i++) v[i] = warp_max_u32(v[i]);
    if (warps == 1) return;
    __syncthreads(); /* all have read the last call's parts */
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (threadIdx.x % 32 == 0) parts[i * GROUP_WARPS + threadIdx.x / 32] = v[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COUNT; i++)
#pragma unroll
        for (int w = 0; w < GROUP_WARPS; w++) v[i] = max(v[i], parts[i * GROUP_WARPS + w]);
}

#endif
