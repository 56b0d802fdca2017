/* SPDX-License-Identifier: MIT
 * expand_to_fused_bulk.cuh - rows by bulk stores, for the two kernels that differ in how they store scale
 * factors.
 *
 * A block is one warp. It loads a chunk of a row into shared memory once and stores it from there to all
 * positions, one per lane. This takes so few instructions that one warp suffices, and so few registers that
 * chunks can fill the shared memory of an SM: enough bytes in flight to hide the latency of positions, chunk
 * and stores. */
#ifndef TEGULA_MOE_EXPAND_TO_FUSED_BULK_CUH
#define TEGULA_MOE_EXPAND_TO_FUSED_BULK_CUH

#include "device/warp.cuh"
#include "moe/expand_to_fused.h"

#if __CUDA_ARCH__ >= 900
/* A block's part of a row: offset in the row, size, address in shared memory. */
typedef struct {
    i64 offset;
    u32 bytes, shared;
} chunk;

DEV chunk chunk_of(const expand_args &a, u32 index, u32 shared)
{
    const i64 offset = (i64)index * a.chunk_units * 16;
    const i64 bytes = min(a.row_bytes - offset, (i64)a.chunk_units * 16);
    const chunk c = { offset, (u32)bytes, shared };
    return c;
}

/* By the lanes: a bulk load would queue behind the bulk stores of the SM's other blocks (H200, 2026-11, 4096 tokens,
 * top-6 of 384 experts, rows of 8 KB: 68.9 us, 71.5 with bulk loads). */
DEV void load_chunk(const chunk &c, const u8 *from)
{
    for (u32 i = 16 * threadIdx.x; i < c.bytes; i += 16 * 32) copy_async_16(c.shared + i, from + i);
    copy_async_commit();
}

/* Stores the chunk of load_chunk() to the lane's position, if is_valid. */
DEV void store_chunk(const expand_args &a, const chunk &c, i32 position, bool is_valid)
{
    copy_async_wait<0>();
    bulk_fence();
    __syncwarp(); /* all lanes' parts have arrived */
    if (is_valid) bulk_store(a.out + position * a.row_bytes + c.offset, c.shared, c.bytes);
    bulk_commit();
    bulk_wait_read<0>();
}

/* Zeros position first + lane, if is_padding. The chunk is in use until bulk_wait_read(). */
DEV void store_zeros(const expand_args &a, const chunk &c, i64 first, bool is_padding)
{
    const int lane = threadIdx.x;
    __syncwarp(); /* the row's stores have read it */
    const uint4 zeros = make_uint4(0, 0, 0, 0);
    for (u32 i = 16 * lane; i < c.bytes; i += 16 * 32) shared_store_u32x4(c.shared + i, zeros);
    bulk_fence();
    __syncwarp();
    if (is_padding) bulk_store(a.out + (first + lane) * a.row_bytes + c.offset, c.shared, c.bytes);
    bulk_commit();
}
#endif

#endif
