/* SPDX-License-Identifier: MIT
 * inplace_unique_group_indices.cu - the first occurrence of every group in a row stays, a thread per row.
 *   computes  group_indices[t][k] = -1 where it is >= 0 and equal to an earlier element of the row
 *   launch    grid ceil(num_tokens / UNIQUE_ROWS), block UNIQUE_ROWS
 *   moves     num_tokens * NUM_TOPK * INDEX_BYTES bytes, and INDEX_BYTES for each element that changes
 *   macros    NUM_TOPK 1..UNIQUE_MAX_TOPK, INDEX_BYTES 4, 8
 *
 * Compares all pairs, in registers: for eight groups 28 comparisons without a branch, and group numbers may
 * be anything. Rows of whole vectors (16 bytes) are loaded as such. */
#include "device/ptx.cuh"
#include "moe/common/index.cuh"
#include "moe/inplace_unique_group_indices.h"

static_assert(NUM_TOPK >= 1 && NUM_TOPK <= UNIQUE_MAX_TOPK, "NUM_TOPK is 1..UNIQUE_MAX_TOPK");

extern "C" __global__ void __launch_bounds__(UNIQUE_ROWS) inplace_unique_group_indices(unique_args a)
{
    const i64 t = (i64)blockIdx.x * UNIQUE_ROWS + threadIdx.x;
    pdl_wait();
    if (t < a.num_tokens) {
        index_type *row = (index_type *)a.group_indices + t * a.row_stride;
        index_type v[NUM_TOPK];
        if (NUM_TOPK % VECTOR == 0 && a.is_aligned) {
#pragma unroll
            for (int i = 0; i < NUM_TOPK / VECTOR; i++) {
                const vector_type part = ((const vector_type *)row)[i];
#pragma unroll
                for (int j = 0; j < VECTOR; j++) v[i * VECTOR + j] = part.e[j];
            }
        } else {
#pragma unroll
            for (int k = 0; k < NUM_TOPK; k++) v[k] = row[k];
        }
#pragma unroll
        for (int k = 1; k < NUM_TOPK; k++) {
            bool seen = false;
#pragma unroll
            for (int j = 0; j < k; j++) seen |= v[j] == v[k];
            if (seen && v[k] >= 0) row[k] = -1;
        }
    }
    pdl_trigger();
}
