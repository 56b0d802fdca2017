/* SPDX-License-Identifier: MIT
 * per_block_cast.h - the blocks for which per_block_cast has tiles, and arguments; for host and kernels. */
#ifndef TEGULA_QUANT_PER_BLOCK_CAST_H
#define TEGULA_QUANT_PER_BLOCK_CAST_H

#include "quant/common/group.h"
#include "quant/common/strip.h"
#include "quant/common/vector.h"

/* A tile is as high as a block, and 256 or 512 bytes of a row wide. */
#define BLOCK_CAST_TILE_COLS(x, block_rows) ((x) == X_BF16 && (block_rows) < 64 ? 256 : 128)
#define BLOCK_CAST_THREADS(block_rows) ((block_rows) >= 128 ? 512 : 256)
/* Threads per SM, as many as registers allow without spills. */
#define BLOCK_CAST_RESIDENT(x, block_cols) ((x) == X_BF16 ? 1536 : (block_cols) > 1 ? 1024 : 512)
#define BLOCK_CAST_HAS(block_rows, block_cols)                                                  \
    (((block_rows) == 16 || (block_rows) == 32 || (block_rows) == 64 || (block_rows) == 128) && \
     ((block_cols) == 1 || (block_cols) == 16 || (block_cols) == 32 || (block_cols) == 64 || (block_cols) == 128))

/* In the order of use. */
typedef struct {
    const uint8_t *x;
    int64_t x_row_bytes;
    int64_t num_cols;
    uint8_t *out;
    tgl_sf sf;
    int64_t num_rows;
    int64_t num_sf; /* factors of a row of blocks */
} tgl_block_cast;

/* Threads need the first 48 bytes before they load: on sm_90 they are one line of the memory for
 * arguments. */
typedef struct {
    tgl_divisor by_num_tiles;
    uint32_t num_tiles, num_rows;
    tgl_block_cast cast;
} per_block_cast_args;

typedef struct {
    tgl_block_cast cast;
    tgl_groups groups;
    tgl_scale_rule rule;
} per_block_cast_any_args;

typedef struct {
    tgl_block_cast cast;
    tgl_strip strip;
    int32_t is_vector; /* units are vectors; always in per_block_cast_given.cu */
} per_block_cast_given_args;

#endif
