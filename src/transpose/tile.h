/* SPDX-License-Identifier: MIT
 * tile.h - the tile that a block transposes, by element size e; for the kernels and their launch.
 *
 * A vector is 16 bytes. A tile is TILE_IN_VECTORS wide in x and TILE_OUT_VECTORS wide in out; a thread loads
 * TILE_PATCHES patches of TILE_PATCH_ROWS rows by one vector. Measured on H200 (2026-11) with cold L2 at 8192x7168 and
 * 32 x 8064 x 7168:
 * - x is read in runs of 256 bytes, or of 128 if L2 fetches 256 at a time (otherwise 3 % slower).
 * - out is written in runs of 256 bytes (128 are 1.5 % slower). For elements of 1 byte that would take 32 KB
 *   and cost 10 % at 128 x 7168. Runs of 512 gain nothing.
 * - Tiles of at most 16 KB spread small matrices over all SMs; 1 to 8 loads per thread keep enough bytes in
 *   flight.
 * `any` is 0 for transpose.cu and 1 for transpose_any.cu, whose tiles overlap in out by TILE_HALO_VECTORS and
 * therefore are longer. */
#ifndef TEGULA_TRANSPOSE_TILE_H
#define TEGULA_TRANSPOSE_TILE_H

#include "numerics/base.h"

#define TILE_OUT_VECTORS(e, any) ((e) == 1 && !(any) ? 8 : 16)
#define TILE_IN_VECTORS(e) ((e) <= 2 ? 8 : 16)
#define TILE_PATCH_ROWS(e, any) ((e) == 1 && !(any) ? 8 : (e) == 16 ? 1 : (e) == 8 ? 2 : 4)
#define TILE_PATCHES(e) ((e) == 8 ? 2 : (e) == 16 ? 4 : 1)

#define TILE_ROWS(e, any) (TILE_OUT_VECTORS(e, any) * 16 / (e)) /* rows and columns of x */
#define TILE_COLS(e) (TILE_IN_VECTORS(e) * 16 / (e))
#define TILE_THREADS(e, any) (TILE_ROWS(e, any) / TILE_PATCH_ROWS(e, any) * TILE_IN_VECTORS(e) / TILE_PATCHES(e))
#define TILE_HALO_VECTORS 2

/* A grid has row tiles along x, column tiles along y and batches along z, so that blocks need no division at
 * the start (0.2 us of 3 at 128 x 7168). y and z end at TILE_MAX_GRID: larger ones are cut into slices, which
 * all go along x. */
#define TILE_MAX_GRID 65535

/* For transpose.cu and transpose_any.cu. A row of out has num_rows elements, a batch of out num_cols rows.
 * transpose.cu uses neither x_col_bytes nor halo, the vectors by which tiles overlap. */
typedef struct {
    const void *x;
    void *out;
    int64_t num_rows, num_cols, num_batches;
    int64_t x_row_bytes, x_col_bytes, x_batch_bytes, out_row_bytes, out_batch_bytes;
    uint32_t row_tiles, col_slices, halo;
} transpose_tile_args;

/* For transpose_copy.cu. A thread writes COPY_VECTORS vectors. Dimension 0 is contiguous in out. */
#define COPY_THREADS 256
#define COPY_VECTORS 4
typedef struct {
    const void *x;
    void *out;
    int64_t sizes[3], x_bytes[3];
} transpose_copy_args;

#endif
