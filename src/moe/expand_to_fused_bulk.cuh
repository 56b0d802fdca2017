/* SPDX-License-Identifier: MIT
 * expand_to_fused_bulk.cuh - rows by bulk stores, for the kernels that differ in where scale factors go.
 *
 * A block is a warp. It loads a chunk of a row to shared memory once and stores it to all positions from
 * there, one per lane. That takes so few instructions that one warp does it, and so few registers that chunks
 * may fill all shared memory of an SM: enough bytes in flight to hide what each block waits for in turn, its
 * positions, its chunk and its stores. */
#ifndef TEGULA_MOE_EXPAND_TO_FUSED_BULK_CUH
#define TEGULA_MOE_EXPAND_TO_FUSED_BULK_CUH

#include "device/warp.cuh"
#include "moe/expand_to_fused.h"

#if __CUDA_ARCH__ >= 900
/* A block's part of a row: where it begins there, its bytes, its address in shared memory. */
typedef struct { i64 offset; u32 bytes, shared; } chunk;

DEV chunk chunk_of(const expand_args &a, u32 index, u32 shared)
{
    const i64 offset = (i64)index * a.chunk_units * 16;
    const i64 bytes = min(a.row_bytes - offset, (i64)a.chunk_units * 16);
    const chunk c = { offset, (u32)bytes, shared };
    return c;
}

/* By the lanes: a bulk load would wait behind the bulk stores of the SM's other blocks (H200, 4096 tokens,
 * top-6 of 384 experts, rows of 8 KB: 68.9 us so, 71.5 by bulk loads). */
DEV void load_chunk(const chunk &c, const u8 *from)
{
    for (u32 i = 16 * threadIdx.x; i < c.bytes; i += 16 * 32) copy_async_16(c.shared + i, from + i);
    copy_async_commit();
}

/* The chunk that load_chunk() loads, to the lane's position if is_valid. */
DEV void store_chunk(const expand_args &a, const chunk &c, i32 position, bool is_valid)
{
    copy_async_wait<0>();
    bulk_fence();
    __syncwarp();                               /* all lanes' parts are there */
    if (is_valid) bulk_store(a.out + position * a.row_bytes + c.offset, c.shared, c.bytes);
    bulk_commit();
    bulk_wait_read<0>();
}

/* Zeros to the lane's position, from `first` on, if is_padding. They are read until bulk_wait_read(). */
DEV void store_zeros(const expand_args &a, const chunk &c, i64 first, bool is_padding)
{
    const int lane = threadIdx.x;
    __syncwarp();                               /* all stores of the row have read it */
    const uint4 zeros = make_uint4(0, 0, 0, 0);
    for (u32 i = 16 * lane; i < c.bytes; i += 16 * 32) shared_store_u32x4(c.shared + i, zeros);
    bulk_fence();
    __syncwarp();
    if (is_padding) bulk_store(a.out + (first + lane) * a.row_bytes + c.offset, c.shared, c.bytes);
    bulk_commit();
}
#endif

#endif
