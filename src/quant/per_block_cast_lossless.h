/* SPDX-License-Identifier: MIT
 * per_block_cast_lossless.h - the blocks for which per_block_cast_lossless has tiles, and arguments; for host
 * and kernels. */
#ifndef TEGULA_QUANT_PER_BLOCK_CAST_LOSSLESS_H
#define TEGULA_QUANT_PER_BLOCK_CAST_LOSSLESS_H

#include "quant/common/group.h"
#include "quant/common/scale.h"

#define LOSSLESS_THREADS 256
#define LOSSLESS_VALUES 16 /* of a vector: 8 bytes of x, 16 of out */

/* A tile is as high as a block, or has 16 rows for blocks of one row. */
#define LOSSLESS_TILE_ROWS(block_rows) ((block_rows) == 1 ? 16 : (block_rows))
#define LOSSLESS_TILE_COLS(block_rows) ((block_rows) == 128 ? 128 : (block_rows) == 64 ? 256 : 512)
#define LOSSLESS_HAS(block_rows, block_cols)                                                                         \
    (((block_rows) == 1 || (block_rows) == 16 || (block_rows) == 32 || (block_rows) == 64 || (block_rows) == 128) && \
     ((block_cols) == 16 || (block_cols) == 32 || (block_cols) == 64 || (block_cols) == 128))

typedef struct {
    const uint8_t *x;
    int64_t x_row_bytes;
    uint8_t *out;
    tgl_sf x_sf, sf;
    int64_t num_rows, num_cols;
    int64_t num_sf; /* factors of a row of blocks of out */
    int64_t x_block_rows, x_block_cols;
    tgl_divisor by_x_block_rows, by_x_block_cols;
    int32_t *inexact; /* may be NULL */
} tgl_lossless_cast;

typedef struct {
    tgl_lossless_cast cast;
    uint32_t num_tiles; /* across */
    tgl_divisor by_num_tiles;
} lossless_args;

typedef struct {
    tgl_lossless_cast cast;
    tgl_groups groups;
} lossless_any_args;

#endif
