/* SPDX-License-Identifier: MIT
 * tile.h - the tile that one block transposes, by element size e: read by the kernels and by the code that launches them.
 *
 * A vector is 16 bytes. A tile is TILE_IN_VECTORS wide in x and TILE_OUT_VECTORS wide in out, so its rows are read in runs of
 * 128 bytes (256 for wide elements) and its columns written in runs of 256 (128 for single bytes). A thread loads patches of
 * TILE_PATCH_ROWS rows by one vector. Measured on H200 for 8064x7168 and 32 times that, with cold L2: writing in runs of
 * 256 bytes gains 2 to 3 % over 128, longer ones nothing; reading needs 128 only, if L2 fetches 256 at a time. Small tiles
 * keep small matrices spread over all SMs: 16 KB for 1 and 2 bytes, 8 KB for 4 and 8, 4 KB for 16. */
#ifndef TEGULA_TRANSPOSE_TILE_H
#define TEGULA_TRANSPOSE_TILE_H

#define TILE_OUT_VECTORS(e) ((e) == 1 ? 8 : 16)
#define TILE_IN_VECTORS(e) ((e) <= 4 ? 8 : 16)
#define TILE_PATCH_ROWS(e) ((e) == 8 ? 2 : (e) == 16 ? 1 : 8 / (e))
#define TILE_PATCHES(e) ((e) == 8 ? 2 : (e) == 16 ? 4 : 1) /* per thread */

#define TILE_ROWS(e) (TILE_OUT_VECTORS(e) * 16 / (e)) /* rows and columns of x */
#define TILE_COLS(e) (TILE_IN_VECTORS(e) * 16 / (e))
#define TILE_THREADS(e) (TILE_ROWS(e) / TILE_PATCH_ROWS(e) * TILE_IN_VECTORS(e) / TILE_PATCHES(e))

/* transpose_copy: each thread of a block writes this many vectors. */
#define COPY_THREADS 256
#define COPY_VECTORS 4

#endif
