/* SPDX-License-Identifier: MIT
 * tile.h - the tile that one block transposes, by element size e: read by the kernels and by the code
 * that launches them.
 *
 * A vector is 16 bytes. A tile is TILE_IN_VECTORS wide in x and TILE_OUT_VECTORS wide in out; a thread
 * loads TILE_PATCHES patches of TILE_PATCH_ROWS rows by one vector. What decides, measured on H200 with
 * cold L2 at 8192x7168 and at 32 x 8064 x 7168: x is read in runs of 256 bytes, or of 128 if L2 fetches
 * 256 at a time (-3 % otherwise); out is written in runs of 256 (-1.5 % at 128, but single bytes would
 * need 32 KB for it and lose 10 % at 128 x 7168); runs of 512 gain nothing. Tiles of 16 KB and less
 * spread small matrices over all SMs, and 1 to 8 loads a thread, with many blocks, keep enough bytes in
 * flight. `any` is 0 for transpose.cu and 1 for transpose_any.cu, whose tiles overlap in out by
 * TILE_HALO_VECTORS and so want to be long. */
#ifndef TEGULA_TRANSPOSE_TILE_H
#define TEGULA_TRANSPOSE_TILE_H

#include "numerics/base.h"

#define TILE_OUT_VECTORS(e, any) ((e) == 1 && !(any) ? 8 : 16)
#define TILE_IN_VECTORS(e) ((e) <= 2 ? 8 : 16)
#define TILE_PATCH_ROWS(e, any) ((e) == 1 && !(any) ? 8 : (e) == 16 ? 1 : (e) == 8 ? 2 : 4)
#define TILE_PATCHES(e) ((e) == 8 ? 2 : (e) == 16 ? 4 : 1)

#define TILE_ROWS(e, any) (TILE_OUT_VECTORS(e, any) * 16 / (e)) /* rows and columns of x */
#define TILE_COLS(e) (TILE_IN_VECTORS(e) * 16 / (e))
#define TILE_THREADS(e, any)                                                                               \
    (TILE_ROWS(e, any) / TILE_PATCH_ROWS(e, any) * TILE_IN_VECTORS(e) / TILE_PATCHES(e))
#define TILE_HALO_VECTORS 2

/* A grid has row tiles along x, column tiles along y and batches along z, so that blocks need not begin
 * with divisions (0.2 us of 3 at 128 x 7168). y and z end at TILE_MAX_GRID: where there are more, they
 * are cut into slices, all of them along x. */
#define TILE_MAX_GRID 65535

/* What transpose.cu and transpose_any.cu take. Strides are in bytes; out's rows have num_rows elements, its
 * batches num_cols rows. transpose.cu needs neither x_col_bytes nor halo, the vectors by which tiles overlap. */
typedef struct {
    const void *x;
    void *out;
    int64_t num_rows, num_cols, num_batches;
    int64_t x_row_bytes, x_col_bytes, x_batch_bytes, out_row_bytes, out_batch_bytes;
    uint32_t row_tiles, col_slices, halo;
} transpose_tile_args;

/* transpose_copy: each thread of a block writes this many vectors. Dimension 0 is the fastest of out. */
#define COPY_THREADS 256
#define COPY_VECTORS 4
typedef struct {
    const void *x;
    void *out;
    int64_t sizes[3], x_bytes[3];
} transpose_copy_args;

#endif
