/* SPDX-License-Identifier: MIT
 * histogram.cu - how often each index occurs, in one launch, without a fill.
 *   computes  out[i] = c, the number of indices equal to i; if tokens_topk > 0,
 *             (float)(c * num_bins) / (float)tokens_topk
 *   launch    any grid, block up to HISTOGRAM_MAX_THREADS; shared memory 4 * num_bins bytes, none if
 *             IS_WIDE
 *   moves     num_rows * num_cols * INDEX_BYTES bytes, and 4 * num_bins for the result; the workspace,
 *             8 bytes per bin (IS_WIDE: 4, and a ticket), is a few KiB in L2
 *   macros    INDEX_BYTES 4, 8; IS_WIDE 1: bins are in the workspace, any number of them
 *
 * Blocks count in shared memory. With one 64-bit atomic per bin a block adds its count to the workspace and 1
 * to the number of blocks done: the last block at a bin has its sum, writes the result and leaves 0. So
 * blocks wait for one round trip to L2 only. If IS_WIDE the last block, by a ticket, does this for all bins.
 * A single block needs no workspace unless IS_WIDE. */
#include "device/ptx.cuh"
#include "moe/common/histogram_kernel.h"
#include "moe/common/index.cuh"

static_assert(IS_WIDE == 0 || IS_WIDE == 1, "IS_WIDE is 0 or 1");

#define UNROLL 4                 /* vectors in flight per thread */
#define ONE_BLOCK ((u64)1 << 48) /* above a sum: the number of blocks that added to it */

/* A thread's place: row, unit within the row, offset in elements. */
typedef struct {
    i64 row, unit;
    u64 offset;
} place;

DEV place first_place(const histogram_args &a)
{
    const u32 first = blockIdx.x * blockDim.x + threadIdx.x;
    const i64 row = tgl_divide(first, a.by_row_units), unit = first - row * a.row_units;
    return { row, unit, (u64)(row * a.row_stride + unit * a.unit) };
}

DEV void advance(const histogram_args &a, place &at)
{
    at.row += a.step_rows;
    at.unit += a.step_units; /* less than row_units */
    at.offset += a.step_offset;
    if (at.unit < a.row_units) return;
    at.row++;
    at.unit -= a.row_units;
    at.offset += a.wrap_offset;
}

DEV vector_type load_unit(const histogram_args &a, const place &at)
{
    const index_type *from = (const index_type *)a.indices + at.offset;
    vector_type v;
#pragma unroll
    for (int j = 0; j < VECTOR; j++) v.e[j] = -1;
    if (at.row >= a.num_rows) return v;
    if (a.unit == 1) {
        v.e[0] = from[0];
    } else if (at.unit < a.whole_units) {
        v = *(const vector_type *)from;
    } else {
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            if (at.unit * VECTOR + j < a.num_cols) v.e[j] = from[j];
    }
    return v;
}

DEV void count(const histogram_args &a, place at, u32 *bins)
{
#pragma unroll 1
    while (at.row < a.num_rows) {
        vector_type v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            v[u] = load_unit(a, at);
            advance(a, at);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int j = 0; j < VECTOR; j++)
                if (v[u].e[j] >= 0 && v[u].e[j] < a.num_bins) atomicAdd(&bins[v[u].e[j]], 1u);
    }
}

DEV void write_result(const histogram_args &a, i32 bin, u64 count)
{
    if (a.tokens_topk > 0) ((float *)a.out)[bin] = (float)((i64)count * a.num_bins) / (float)a.tokens_topk;
    else ((u32 *)a.out)[bin] = (u32)count;
}

/* IS_WIDE: all blocks share `bins`. */
DEV void finish_wide(const histogram_args &a, u32 *bins)
{
    SHARED(bool, is_last);
    u32 *const ticket = a.workspace;
    if (threadIdx.x == 0) is_last = atomic_inc_acq_rel(ticket, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (!is_last) return;
#pragma unroll 4
    for (i32 i = (i32)threadIdx.x; i < a.num_bins; i += (i32)blockDim.x) {
        write_result(a, i, bins[i]);
        bins[i] = 0; /* for the next call */
    }
}

/* `bins` are the block's. */
DEV void finish(const histogram_args &a, const u32 *bins)
{
    const i32 tid = (i32)threadIdx.x, threads = (i32)blockDim.x;
    if (gridDim.x == 1) {
#pragma unroll 1
        for (i32 i = tid; i < a.num_bins; i += threads) write_result(a, i, bins[i]);
        return;
    }
    u64 *const sums = (u64 *)a.workspace;
#pragma unroll 2
    for (i32 i = tid; i < a.num_bins; i += threads) {
        const u64 old = atomicAdd(&sums[i], ONE_BLOCK | bins[i]);
        if (old / ONE_BLOCK != gridDim.x - 1) continue;
        write_result(a, i, old % ONE_BLOCK + bins[i]);
        store_relaxed_u32x2(&sums[i], make_uint2(0, 0)); /* all have added: no race */
    }
}

extern "C" __global__ void __launch_bounds__(HISTOGRAM_MAX_THREADS) histogram(const __grid_constant__ histogram_args a)
{
    SHARED_DYNAMIC(memory, 16);
    u32 *const bins = IS_WIDE ? a.workspace + 1 : (u32 *)memory;
    if (!IS_WIDE)
#pragma unroll 1
        for (i32 i = (i32)threadIdx.x; i < a.num_bins; i += (i32)blockDim.x) bins[i] = 0;
    const place at = first_place(a);
    __syncthreads();
    pdl_wait();
    pdl_trigger();
    count(a, at, bins);
    __syncthreads();
    if (IS_WIDE) finish_wide(a, bins);
    else finish(a, bins);
}
