/* SPDX-License-Identifier: MIT
 * histogram.cu - how often each index occurs, in one launch, without a fill before it.
 *   computes  out[i] = c, the number of indices that are i; or (float)(c * num_bins) / (float)tokens_topk,
 *             where tokens_topk > 0
 *   launch    any grid, block up to HISTOGRAM_MAX_THREADS; shared memory 4 * num_bins bytes, IS_WIDE none
 *   moves     num_rows * num_cols * INDEX_BYTES bytes, and 4 * num_bins for the result; the workspace,
 *             8 bytes a bin (IS_WIDE: 4, and a ticket), is a few KiB in L2
 *   macros    INDEX_BYTES 4, 8; IS_WIDE 1: bins are in the workspace, as many as there are
 *
 * Blocks count in shared memory. Each adds every bin's count to the workspace, and one to the number of
 * blocks that have come, in the same 64 bits: whoever comes last to a bin has its sum, writes the result and
 * leaves 0. So one trip to L2 is all that blocks wait for. With IS_WIDE the last block, which a ticket tells,
 * does this for all bins. A single block needs no workspace unless it IS_WIDE. */
#include "device/ptx.cuh"
#include "moe/common/histogram_kernel.h"
#include "moe/common/index.cuh"

#ifndef IS_WIDE
#ifdef __CUDACC_RTC__
#error "IS_WIDE is not defined"
#endif
#define IS_WIDE 0
#endif
static_assert(IS_WIDE == 0 || IS_WIDE == 1, "IS_WIDE is 0 or 1");

#define UNROLL 4                                /* vectors under way per thread */
#define ONE_BLOCK ((u64)1 << 48)                /* above a sum: a block that has added to it */

DEV void write_result(void *out, i32 i, u64 count, i32 num_bins, i64 tokens_topk)
{
    if (tokens_topk > 0) ((float *)out)[i] = (float)((i64)count * num_bins) / (float)tokens_topk;
    else ((u32 *)out)[i] = (u32)count;
}

extern "C" __global__ void __launch_bounds__(HISTOGRAM_MAX_THREADS) histogram(
    const index_type *indices, void *out, const histogram_walk walk, i32 num_bins, i64 tokens_topk,
    u32 *workspace)
{
    SHARED_DYNAMIC(memory, 16);
    SHARED(bool, is_last);
    const i32 tid = (i32)threadIdx.x, threads = (i32)blockDim.x;
    u64 *const sums = (u64 *)workspace;         /* unless it IS_WIDE */
    u32 *const ticket = workspace, *const wide_bins = workspace + 1;
    u32 *const bins = IS_WIDE ? wide_bins : (u32 *)memory;
    if (!IS_WIDE)
#pragma unroll 1
        for (i32 i = tid; i < num_bins; i += threads) bins[i] = 0;
    const u32 first = blockIdx.x * blockDim.x + threadIdx.x;
    i64 row = tgl_divide(first, walk.by_row_units), i = first - row * walk.row_units;
    u64 offset = (u64)(row * walk.row_stride + i * walk.unit);
    __syncthreads();
    pdl_wait();
    pdl_trigger();
#pragma unroll 1
    while (row < walk.num_rows) {
        vector_type v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const index_type *from = indices + offset;
#pragma unroll
            for (int j = 0; j < VECTOR; j++) v[u].e[j] = -1;
            if (row < walk.num_rows) {
                if (walk.unit == 1) {
                    v[u].e[0] = from[0];
                } else if (i < walk.whole_units) {
                    v[u] = *(const vector_type *)from;
                } else {
#pragma unroll
                    for (int j = 0; j < VECTOR; j++)
                        if (i * VECTOR + j < walk.num_cols) v[u].e[j] = from[j];
                }
            }
            row += walk.step_rows;
            i += walk.step_units;               /* less than row_units */
            offset += walk.step_offset;
            if (i >= walk.row_units) {
                row++;
                i -= walk.row_units;
                offset += walk.wrap_offset;
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int j = 0; j < VECTOR; j++)
                if (v[u].e[j] >= 0 && v[u].e[j] < num_bins) atomicAdd(&bins[v[u].e[j]], 1u);
    }
    __syncthreads();
    if (IS_WIDE) {
        if (tid == 0) is_last = atomic_inc_acq_rel(ticket, gridDim.x - 1) == gridDim.x - 1;
        __syncthreads();
        if (is_last)
#pragma unroll 4
            for (i32 i = tid; i < num_bins; i += threads) {
                write_result(out, i, bins[i], num_bins, tokens_topk);
                bins[i] = 0;
            }
    } else if (gridDim.x == 1) {
#pragma unroll 1
        for (i32 i = tid; i < num_bins; i += threads) write_result(out, i, bins[i], num_bins, tokens_topk);
    } else {
#pragma unroll 2
        for (i32 i = tid; i < num_bins; i += threads) {
            const u64 old = atomicAdd(&sums[i], ONE_BLOCK | bins[i]);
            if (old / ONE_BLOCK != gridDim.x - 1) continue;
            write_result(out, i, old % ONE_BLOCK + bins[i], num_bins, tokens_topk);
            store_relaxed_u32x2(&sums[i], make_uint2(0, 0));    /* all have added: races nothing */
        }
    }
}
