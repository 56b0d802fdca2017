/* SPDX-License-Identifier: MIT
 * transpose_any.cu - matrices of any size, strides and alignment: transpose.cu's tiles, with what it asks for tested at run time.
 *   computes  out[b][j][i] = x[b][i][j]
 *   launch    grid row_tiles * col_tiles * num_batches, block TILE_THREADS, 4 to 16 KB of static shared memory
 *   moves     2 * num_batches * num_rows * num_cols * ELEMENT_BYTES bytes, each once
 *   macros    ELEMENT_BYTES 1, 2, 4, 8, 16
 *   needs     out's rows contiguous; x's elements at multiples of x_col_bytes, which may be 0 or negative, like its other strides
 *
 * Memory is accessed in aligned vectors wherever it can be. Inside a row that is contiguous in x, a vector at an odd address
 * is cut out of two aligned ones, of which the second is the neighbour's first and comes from L1. On the other side, a thread
 * writes the aligned vectors that a row of the tile covers, cut out of two of the tile's. What is left at the ends of rows, and all
 * of an x without contiguous rows, goes element by element. */
#include "transpose/tile.cuh"
#include "transpose/unaligned.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) transpose_any(
    const u8 *x, u8 *out, i64 num_rows, i64 num_cols, i64 x_row_bytes, i64 x_col_bytes, i64 x_batch_bytes, i64 out_row_bytes,
    i64 out_batch_bytes, u32 row_tiles, u32 col_tiles)
{
    SHARED(tile_type, tile);
    const tile_place at = tile_of_block(row_tiles, col_tiles);
    const int rows = (int)min((i64)ROWS, num_rows - at.row), cols = (int)min((i64)COLS, num_cols - at.col);
    const int thread = (int)threadIdx.x;
    pdl_wait();

    /* `from` is the tile's first element. A patch whose vectors can all be loaded is transposed as in transpose.cu. For that the
     * row must have a whole vector, and 15 bytes on either side of it unless all rows are aligned. */
    const u8 *from = x + at.batch * x_batch_bytes + at.row * x_row_bytes + at.col * x_col_bytes;
    const bool is_contiguous = x_col_bytes == ELEMENT_BYTES;
    const int margin = misalignment(from) | (int)(x_row_bytes & 15) ? 15 : 0;
    const int in = thread % IN_VECTORS, group = thread / IN_VECTORS;
    const i64 left = (at.col + in * VECTOR) * ELEMENT_BYTES, right = (num_cols - at.col - (in + 1) * VECTOR) * ELEMENT_BYTES;
    const bool whole = is_contiguous && left >= margin && right >= margin;
#pragma unroll
    for (int p = 0; p < PATCHES; p++) {
        const int row = (p * (THREADS / IN_VECTORS) + group) * PATCH_ROWS;
        if (whole && row + PATCH_ROWS <= rows) {
            uint4 v[PATCH_ROWS];
#pragma unroll
            for (int r = 0; r < PATCH_ROWS; r++) v[r] = load_vector(from + (row + r) * x_row_bytes + in * 16);
            tile_put(tile, v, row, in);
            continue;
        }
        for (int i = row; i < min(row + PATCH_ROWS, rows); i++)
            for (int j = in * VECTOR; j < min((in + 1) * VECTOR, cols); j++)
#pragma unroll
                for (int b = 0; b < ELEMENT_BYTES; b += PART_BYTES)
                    copy_part((u8 *)&tile[tile_index(j, i / VECTOR)] + i % VECTOR * ELEMENT_BYTES + b,
                              from + i * x_row_bytes + j * x_col_bytes + b);
    }
    __syncthreads();

    /* Row j of the tile goes to `to`, s bytes after an aligned address: in windows of 16 bytes that begin -s, 16 - s, 32 - s ...
     * bytes after it, one more than it has vectors. */
    enum { WINDOWS = OUT_VECTORS + 1 };
    const int bytes = rows * ELEMENT_BYTES;
    for (int item = thread; item < cols * WINDOWS; item += THREADS) {
        const int j = item / WINDOWS;
        u8 *to = out + at.batch * out_batch_bytes + (at.col + j) * out_row_bytes + at.row * ELEMENT_BYTES;
        const int begin = item % WINDOWS * 16 - misalignment(to), end = min(begin + 16, bytes);
        if (begin >= 0 && begin + 16 <= bytes) {
            const int k = begin / 16, s = begin % 16;
            const uint4 low = tile[tile_index(j, k)];
            *(uint4 *)(to + begin) = s == 0 ? low : vector_shift(low, tile[tile_index(j, k + 1)], s);
        } else {
            for (int b = max(begin, 0); b < end; b += PART_BYTES)
                copy_part(to + b, (const u8 *)&tile[tile_index(j, b / 16)] + b % 16);
        }
    }
    pdl_trigger();
}
