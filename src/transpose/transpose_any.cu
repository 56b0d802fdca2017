/* SPDX-License-Identifier: MIT
 * transpose_any.cu - matrices of any size, strides and alignment: the tiles of transpose.cu, with bounds and
 * alignment checked.
 *   computes  out[b][j][i] = x[b][i][j]
 *   launch    grid (row_tiles, column tiles, batches), or slices of it (tile.h), block TILE_THREADS,
 *             4 to 32 KB of static shared memory; a row tile advances by ROWS - halo * VECTOR rows
 *   moves     2 * num_batches * num_rows * num_cols * ELEMENT_BYTES bytes, each once
 *   macros    ELEMENT_BYTES 1, 2, 4, 8, 16
 *   needs     contiguous rows of out; without a halo, these aligned to 16. x's strides may be 0 or negative
 *
 * Memory is accessed in aligned blocks of 16 bytes where possible. Inside a contiguous row of x, an unaligned
 * vector is cut out of two blocks; the second one is the neighbour's first, and comes from L1. The ends of
 * x's rows, and rows that are not contiguous, are read element by element.
 *
 * If rows of out are not aligned, tiles overlap by `halo` vectors, 32 bytes. So each row of a tile writes
 * from one multiple of 32 bytes to another, each block cut out of two vectors of the tile, and no sector is
 * written in two parts: that cost up to half of the speed, as L2 has to fetch the rest of a sector. Only the
 * ends of rows are written in smaller pieces. */
#define TILE_ANY 1
#include "device/unaligned.cuh"
#include "transpose/tile.cuh"

typedef part_of<ELEMENT_BYTES>::type part_type;
enum { PART_BYTES = sizeof(part_type), PARTS = 16 / PART_BYTES };

/* Fills the tile with columns 0 .. cols - 1 of rows first .. end - 1; `from` is where row 0 would be. `left`
 * and `right` are the bytes of these rows of x before and after the tile; used if rows are contiguous. All
 * loads of a patch are in flight before the first is used, so all loops of a patch are unrolled: two columns
 * of elements at a time took 87 us instead of 48, at 4000x7168 bf16, every second column, on H200 (2026-11). */
DEV void load_tile(tile_type &tile, const u8 *from, i64 x_row_bytes, i64 x_col_bytes, int first, int end, int cols,
                   i64 left, i64 right)
{
    const int in = (int)(threadIdx.x % IN_VECTORS), group = (int)(threadIdx.x / IN_VECTORS);
    left += in * 16;                               /* before this thread's vectors */
    right += (cols - in * VECTOR) * ELEMENT_BYTES; /* from their first bytes on */
    const bool is_contiguous = x_col_bytes == ELEMENT_BYTES;
    const bool is_aligned = is_contiguous && misalignment(from) == 0 && x_row_bytes % 16 == 0 && right >= 16;
    const bool is_inside = is_contiguous && left >= 15 && right >= 31; /* both blocks exist */
#pragma unroll 1
    for (int p = 0; p < PATCHES; p++) {
        const int row = (p * (THREADS / IN_VECTORS) + group) * PATCH_ROWS;
        const u8 *at = from + row * x_row_bytes + in * VECTOR * x_col_bytes;
        uint4 v[PATCH_ROWS];
#pragma unroll
        for (int r = 0; r < PATCH_ROWS; r++) v[r] = make_uint4(0, 0, 0, 0);
        if (is_aligned) {
#pragma unroll
            for (int r = 0; r < PATCH_ROWS; r++)
                if (row + r >= first && row + r < end) v[r] = load_ahead_u32x4(at + r * x_row_bytes);
        } else if (is_inside) {
            uint4 next[PATCH_ROWS];
#pragma unroll
            for (int r = 0; r < PATCH_ROWS; r++) {
                const int s = misalignment(at + r * x_row_bytes);
                next[r] = make_uint4(0, 0, 0, 0);
                if (row + r < first || row + r >= end) continue;
                v[r] = *(const uint4 *)(at + r * x_row_bytes - s);
                if (s != 0) next[r] = *(const uint4 *)(at + r * x_row_bytes - s + 16);
            }
#pragma unroll
            for (int r = 0; r < PATCH_ROWS; r++)
                v[r] = vector_shift<PART_BYTES>(v[r], next[r], misalignment(at + r * x_row_bytes));
        } else {
#pragma unroll
            for (int r = 0; r < PATCH_ROWS; r++)
#pragma unroll
                for (int k = 0; k < PARTS; k++) {
                    const int j = k * PART_BYTES / ELEMENT_BYTES;
                    const int half = k * PART_BYTES % ELEMENT_BYTES / PART_BYTES;
                    const u8 *element = at + r * x_row_bytes + j * x_col_bytes;
                    if (row + r >= first && row + r < end && in * VECTOR + j < cols)
                        set_part(v[r], k, ((const part_type *)element)[half]);
                }
        }
        tile_put(tile, v, row, in);
    }
}

/* 16 bytes of row j of the tile, from byte `begin` on; without a halo this is a multiple of 16. */
DEV uint4 load_block(const tile_type &tile, int j, int begin, u32 halo)
{
    const int k = begin >> 4;
    const uint4 v = tile[tile_index(j, k)];
    return halo ? vector_shift<PART_BYTES>(v, tile[tile_index(j, min(k + 1, OUT_VECTORS - 1))], begin & 15) : v;
}

extern "C" __global__ void __launch_bounds__(THREADS) transpose_any(transpose_tile_args a)
{
    const i64 num_rows = a.num_rows, num_cols = a.num_cols, out_row_bytes = a.out_row_bytes;
    const u32 halo = a.halo;
    SHARED(tile_type, tile);
    const tile_place at = tile_of_block(a.row_tiles, a.col_slices);
    pdl_wait();
    if (at.col >= num_cols || at.batch >= a.num_batches) return;
    const int step = ROWS - (int)halo * VECTOR, cols = (int)min((i64)COLS, num_cols - at.col);
    const i64 row = at.row_tile * step - (int)halo * VECTOR; /* the first tile begins before x does */
    const u8 *from = (const u8 *)a.x + at.batch * a.x_batch_bytes + row * a.x_row_bytes + at.col * a.x_col_bytes;
    load_tile(tile, from, a.x_row_bytes, a.x_col_bytes, (int)max(-row, (i64)0), (int)min((i64)ROWS, num_rows - row),
              cols, at.col * ELEMENT_BYTES, (num_cols - at.col - cols) * ELEMENT_BYTES);
    __syncthreads();

    /* Vectors k and k + 1 of row j of the tile make a block of out. This tile's part of row j of out begins
     * at `to`, or with a halo `back` bytes before that, at a multiple of 32. The block begins `begin - back`
     * bytes into the row. All of it is inside the row if min_back <= back <= max_back. */
    enum { STEP = THREADS / OUT_VECTORS };
    const int k = (int)(threadIdx.x % OUT_VECTORS), first = (int)(threadIdx.x / OUT_VECTORS);
    if (k * VECTOR >= step) return;
    const i64 part = at.row_tile * step * ELEMENT_BYTES, begin = part + k * 16;
    const i64 end = num_rows * ELEMENT_BYTES;
    const int min_back = (int)max(begin + 16 - end, (i64)0), max_back = (int)min(begin, (i64)31);
    const int mask = halo ? 31 : 0;
    u8 *to = (u8 *)a.out + at.batch * a.out_batch_bytes + (at.col + first) * out_row_bytes + part;
#pragma unroll
    for (int j = 0; j < COLS; j += STEP) {
        u8 *row_to = to + j * out_row_bytes;
        const int back = (int)(u64)row_to & mask;
        const uint4 v = load_block(tile, first + j, ((int)halo + k) * 16 - back, halo);
        if (first + j < cols && back >= min_back && back <= max_back) *(uint4 *)(row_to - back + k * 16) = v;
    }
    if (min_back > 0 || max_back < 31) { /* some blocks are ends of rows */
#pragma unroll 1
        for (int j = first; j < cols; j += STEP, to += STEP * out_row_bytes) {
            const int back = (int)(u64)to & mask;
            const int skip = (int)max(back - begin, (i64)0), n = (int)min(end - begin + back, (i64)16);
            if (skip < n && n - skip < 16)
                store_block<PART_BYTES>(to - back + k * 16, load_block(tile, j, ((int)halo + k) * 16 - back, halo),
                                        skip, n);
        }
    }
    pdl_trigger();
}
