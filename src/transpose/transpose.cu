/* SPDX-License-Identifier: MIT
 * transpose.cu - matrices whose rows, in x and in out, are whole 16-byte vectors: a tile per block, through
 * shared memory.
 *   computes  out[b][j][i] = x[b][i][j]
 *   launch    grid (row_tiles, column tiles, batches), or slices of it (tile.h), block TILE_THREADS,
 *             4 to 16 KB of static shared memory
 *   moves     2 * num_batches * num_rows * num_cols * ELEMENT_BYTES bytes, each once
 *   macros    ELEMENT_BYTES 1, 2, 4, 8, 16
 *   needs     x, out and all strides (in bytes) multiples of 16, num_rows and num_cols of 16 / ELEMENT_BYTES
 *
 * A thread loads one vector of a few rows, transposes this patch in registers and stores its columns in the
 * tile (tile.cuh). After the barrier each thread writes vectors of out. Global and shared accesses are 8 or
 * 16 bytes wide, without bank conflicts. Blocks overlap each other's loads and stores: fewer per SM gained
 * nothing, nor did more loads per thread. No streaming hints: L1::no_allocate, .cs and evict_first each cost
 * 2 to 4 % on H200 (2026-11) at 8192x7168. */
#define TILE_ANY 0
#include "transpose/tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) transpose(transpose_tile_args a)
{
    SHARED(tile_type, tile);
    const u32 thread = threadIdx.x;
    const tile_place at = tile_of_block(a.row_tiles, a.col_slices);
    pdl_wait();
    if (at.col >= a.num_cols || at.batch >= a.num_batches) return;
    const i64 first_row = at.row_tile * ROWS;
    const int rows = (int)min((i64)ROWS, a.num_rows - first_row);
    const int cols = (int)min((i64)COLS, a.num_cols - at.col);

    const int in = thread % IN_VECTORS, group = thread / IN_VECTORS;
    const u8 *from = (const u8 *)a.x + at.batch * a.x_batch_bytes + (first_row + group * PATCH_ROWS) * a.x_row_bytes +
                     (at.col + in * VECTOR) * ELEMENT_BYTES;
    enum { STEP = THREADS / IN_VECTORS * PATCH_ROWS }; /* rows from a thread's patch to its next */
    uint4 v[PATCHES][PATCH_ROWS];
#pragma unroll
    for (int p = 0; p < PATCHES; p++)
        if (in * VECTOR < cols && p * STEP + group * PATCH_ROWS < rows)
#pragma unroll
            for (int r = 0; r < PATCH_ROWS; r++) v[p][r] = load_ahead_u32x4(from + (p * STEP + r) * a.x_row_bytes);
#pragma unroll
    for (int p = 0; p < PATCHES; p++)
        if (in * VECTOR < cols && p * STEP + group * PATCH_ROWS < rows)
            tile_put(tile, v[p], p * STEP + group * PATCH_ROWS, in);
    __syncthreads();

    const int k = thread % OUT_VECTORS, first = thread / OUT_VECTORS;
    u8 *to = (u8 *)a.out + at.batch * a.out_batch_bytes + (at.col + first) * a.out_row_bytes +
             (first_row + k * VECTOR) * ELEMENT_BYTES;
    if (k * VECTOR < rows)
#pragma unroll
        for (int j = 0; j < COLS; j += THREADS / OUT_VECTORS)
            if (first + j < cols) *(uint4 *)(to + j * a.out_row_bytes) = tile[tile_index(first + j, k)];
    pdl_trigger();
}
