/* SPDX-License-Identifier: MIT
 * transpose_any.cu - matrices of any size, strides and alignment: the tiles of transpose.cu, with what it asks for tested here.
 *   computes  out[b][j][i] = x[b][i][j]
 *   launch    grid (row_tiles, column tiles, batches), or slices of it (tile.h), block TILE_THREADS, 4 to 16 KB of static
 *             shared memory
 *   moves     2 * num_batches * num_rows * num_cols * ELEMENT_BYTES bytes, each once
 *   macros    ELEMENT_BYTES 1, 2, 4, 8, 16
 *   needs     out's rows contiguous; x's strides may be 0 or negative
 *
 * Memory is accessed in aligned blocks of 16 bytes wherever it can be. Inside a row that is contiguous in x, a vector at an odd
 * address is cut out of two blocks, of which the second is the neighbour's first and comes from L1. On the other side a thread
 * writes the blocks that a row of the tile covers, cut out of two of the tile's vectors. The ends of rows go in smaller pieces, and
 * an x without contiguous rows goes element by element. */
#include "transpose/tile.cuh"
#include "transpose/unaligned.cuh"

/* Element i of column j in the tile. */
DEV part_type *tile_element(tile_type &tile, int j, int i)
{
    return (part_type *)((u8 *)&tile[tile_index(j, i / VECTOR)] + i % VECTOR * ELEMENT_BYTES);
}

/* Fills the tile with the rows x cols elements at `from`, whose rows are contiguous. `left` and `right` are what these rows of x have
 * before and after the tile, in bytes. */
DEV void load_rows(tile_type &tile, const u8 *from, i64 x_row_bytes, int rows, int cols, i64 left, i64 right)
{
    const int in = (int)threadIdx.x % IN_VECTORS, group = (int)threadIdx.x / IN_VECTORS;
    if (in * VECTOR >= cols) return;
    left += in * 16;                                           /* of this thread's vectors now, right counts them in */
    right += (cols - in * VECTOR) * ELEMENT_BYTES;
    const bool is_inside = left >= 15 && right >= 31;          /* both blocks of a vector may be read, however it is aligned */
    const bool is_aligned = misalignment(from) == 0 && x_row_bytes % 16 == 0 && right >= 16;
#pragma unroll
    for (int p = 0; p < PATCHES; p++) {
        const int row = (p * (THREADS / IN_VECTORS) + group) * PATCH_ROWS;
        const u8 *at = from + row * x_row_bytes + in * 16;
        if (is_inside || is_aligned) {
            uint4 low[PATCH_ROWS], high[PATCH_ROWS];
#pragma unroll
            for (int r = 0; r < PATCH_ROWS; r++) {
                const int s = misalignment(at + r * x_row_bytes);
                low[r] = high[r] = make_uint4(0, 0, 0, 0);
                if (row + r < rows) low[r] = *(const uint4 *)(at + r * x_row_bytes - s);
                if (row + r < rows && s != 0) high[r] = *(const uint4 *)(at + r * x_row_bytes - s + 16);
            }
#pragma unroll
            for (int r = 0; r < PATCH_ROWS; r++) low[r] = vector_shift(low[r], high[r], misalignment(at + r * x_row_bytes));
            tile_put(tile, low, row, in);
        } else {
            for (int i = row; i < min(row + PATCH_ROWS, rows); i++, at += x_row_bytes) {
                const uint4 v = load_vector(at, left, right);
#pragma unroll
                for (int k = 0; k < PARTS; k++) {
                    const int j = in * VECTOR + k * PART_BYTES / ELEMENT_BYTES;
                    if (j < cols) tile_element(tile, j, i)[k * PART_BYTES % ELEMENT_BYTES / PART_BYTES] = vector_part(v, k);
                }
            }
        }
    }
}

/* The same for columns that are x_col_bytes apart. Threads take neighbouring columns, whose strides are the smallest. */
DEV void load_elements(tile_type &tile, const u8 *from, i64 x_row_bytes, i64 x_col_bytes, int rows, int cols)
{
#pragma unroll 4
    for (int item = (int)threadIdx.x; item < rows * COLS; item += THREADS) {
        const int i = item / COLS, j = item % COLS;
        const part_type *at = (const part_type *)(from + i * x_row_bytes + j * x_col_bytes);
        if (j >= cols) continue;
        tile_element(tile, j, i)[0] = at[0];
        if (PART_BYTES < ELEMENT_BYTES) tile_element(tile, j, i)[1] = at[1];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) transpose_any(
    const u8 *x, u8 *out, i64 num_rows, i64 num_cols, i64 num_batches, i64 x_row_bytes, i64 x_col_bytes, i64 x_batch_bytes,
    i64 out_row_bytes, i64 out_batch_bytes, u32 row_tiles, u32 col_slices)
{
    SHARED(tile_type, tile);
    const tile_place at = tile_of_block(row_tiles, col_slices);
    pdl_wait();
    if (at.col >= num_cols || at.batch >= num_batches) return;
    const int rows = (int)min((i64)ROWS, num_rows - at.row), cols = (int)min((i64)COLS, num_cols - at.col);
    const u8 *from = x + at.batch * x_batch_bytes + at.row * x_row_bytes + at.col * x_col_bytes;
    if (x_col_bytes == ELEMENT_BYTES)
        load_rows(tile, from, x_row_bytes, rows, cols, at.col * ELEMENT_BYTES, (num_cols - at.col - cols) * ELEMENT_BYTES);
    else
        load_elements(tile, from, x_row_bytes, x_col_bytes, rows, cols);
    __syncthreads();

    /* Row j of the tile covers the blocks of out that begin -s, 16 - s, 32 - s ... bytes after its first: one more than it has
     * vectors, the first and the last of them in part. */
    enum { BLOCKS = OUT_VECTORS + 1 };
    for (int item = (int)threadIdx.x; item < cols * BLOCKS; item += THREADS) {
        const int j = item / BLOCKS;
        u8 *to = out + at.batch * out_batch_bytes + (at.col + j) * out_row_bytes + at.row * ELEMENT_BYTES;
        const int s = misalignment(to), begin = item % BLOCKS * 16 - s, n = rows * ELEMENT_BYTES - begin;
        if (n <= 0) continue;
        const int k = item % BLOCKS - (s != 0);
        const uint4 low = tile[tile_index(j, max(k, 0))];
        const uint4 high = s != 0 ? tile[tile_index(j, min(k + 1, OUT_VECTORS - 1))] : low;
        store_block(to + begin, vector_shift(low, high, begin & 15), -begin, n);
    }
    pdl_trigger();
}
