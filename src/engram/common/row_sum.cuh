/* SPDX-License-Identifier: MIT
 * row_sum.cuh - sums over a row, in an order that depends on the number of columns alone: the columns of a vector one
 * after the other; vectors of a group as a tree, vector i and i + 16, then i + 8, 4, 2, 1; then the groups in order. */
#ifndef TEGULA_ENGRAM_ROW_SUM_CUH
#define TEGULA_ENGRAM_ROW_SUM_CUH

#include "device/reduce.cuh"

enum { ROW_SUM_VECTOR = 8, ROW_SUM_GROUP = 32 }; /* columns of a vector, vectors of a group */

/* The sum of a group, a vector per lane, in all lanes. */
DEV float group_sum(float sum) { return lanes_sum_by_halves<ROW_SUM_GROUP>(sum); }

/* In all threads of a block; add(sum, i) is the sum with column i. `groups` is shared memory, a number per warp. */
template <int NUM_THREADS, class F> DEV float row_sum(i64 columns, float *groups, F add)
{
    const int tid = (int)threadIdx.x;
    float total = 0;
#pragma unroll 1
    for (i64 first = 0; first < columns; first += NUM_THREADS * ROW_SUM_VECTOR) {
        float sum = 0;
        const i64 begin = first + tid * ROW_SUM_VECTOR;
#pragma unroll 1
        for (i64 i = begin; i < min(begin + ROW_SUM_VECTOR, columns); i++) sum = add(sum, i);
        sum = group_sum(sum);
        if (tid % 32 == 0) groups[tid / 32] = sum;
        __syncthreads();
#pragma unroll 1
        for (int i = 0; i < NUM_THREADS / 32; i++)
            if (first + (i64)i * ROW_SUM_GROUP * ROW_SUM_VECTOR < columns) total += groups[i];
        __syncthreads();
    }
    return total;
}

#endif
