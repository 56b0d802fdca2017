/* SPDX-License-Identifier: MIT
 * channel.h - casts with a factor per column: tiles and arguments, for host and kernels.
 *
 * A thread block has a tile: a strip of CHANNEL_TILE_ROWS rows. CHANNEL_LANES adjacent threads each have a
 * vector of a row, in CHANNEL_ROWS consecutive rows, and hold it in registers from the load to the codes (x
 * is a kernel's macro X). A row of a strip is 128 bytes of x. Exceptions:
 * - If there are too few tiles for all SMs, strips are narrower, down to CHANNEL_NARROW_LANES, and threads
 *   with much work per value have CHANNEL_FEW_ROWS, so that more warps share it.
 * - bf16, transposed to unaligned rows, many tiles: tiles have CHANNEL_LONG_ROWS, threads CHANNEL_TALL_ROWS.
 *   Half as many sectors of out are then written in two parts, by two blocks.
 * - bf16, not transposed: threads have CHANNEL_TALL_ROWS, for fewer instructions per row. If there are many
 *   tiles and columns fill them, strips have CHANNEL_WIDE_LANES: 256 contiguous bytes of DRAM in, a line out.
 * - Codes with a map, very many tiles: a kernel of their own, per_channel_cast_staged.cu. */
#ifndef TEGULA_QUANT_CHANNEL_H
#define TEGULA_QUANT_CHANNEL_H

#include "numerics/divide.h"
#include "quant/common/scale.h"
#include "quant/common/vector.h"

#define CHANNEL_TILE_ROWS 128
#define CHANNEL_LONG_ROWS 256
#define CHANNEL_VALUES(x) (X_IS_CODES(x) ? 8 : X_VALUES(x)) /* of a vector: codes need more registers */
#define CHANNEL_VECTOR_BYTES(x) (X_IS_CODES(x) ? 8 : X_VECTOR_BYTES(x))
#define CHANNEL_LANES(x) (X_IS_CODES(x) ? CHANNEL_WIDE_LANES : CHANNEL_MIDDLE_LANES)
#define CHANNEL_WIDE_LANES 16
#define CHANNEL_MIDDLE_LANES 8
#define CHANNEL_NARROW_LANES 2
#define CHANNEL_ROWS(x) (X_IS_CODES(x) ? CHANNEL_TALL_ROWS : 4)
#define CHANNEL_TALL_ROWS 8
#define CHANNEL_FEW_ROWS(x, is_swiglu) (X_IS_CODES(x) || !(is_swiglu) || (x) == X_F32 ? 4 : 2)
#define CHANNEL_STAGED_BLOCKS 3 /* per SM, which loop over all tiles (per_channel_cast_staged.cu) */
#define CHANNEL_THREADS(strip_rows, patch_rows, lanes) ((strip_rows) / (patch_rows) * (lanes))

/* Measured on H200, 2026-11. */
#define CHANNEL_FEW_TILES 100   /* if there are fewer, tiles are narrower */
#define CHANNEL_MANY_TILES 1000 /* from here on tiles are wider, or longer */
/* From this many tiles per block on they are staged. With fewer, x and out may be in L2, where waits are
 * short: at 4096 x 7168 a block for each tile takes 15.1 us, staged 16.3. */
#define CHANNEL_STAGED_TILES 6

/* Whole tiles need the first 48 bytes before they load: on sm_90 they are in one line of the memory for
 * arguments. The next line has what they need later.
 *
 * Tiles are in the order of the grid: along x the tiles of a band of columns, along y down the rows, along z
 * the bands. If y or z would be too large, x goes along all columns and z over slices of rows, and no tile is
 * treated as whole. */
typedef struct {
    const char *x;
    const int32_t *pos_to_token;     /* NULL: row i is token i */
    uint32_t num_tokens;             /* rows of x, at most 2^31 */
    uint32_t whole_rows, whole_cols; /* the first so many tiles are whole; x is aligned, and out unless tiles
                                      * are long */
    uint32_t x_step, x_sf_step;      /* for whole tiles: row strides of x and of its factors, in bytes, */
    uint32_t x_sf_shift;             /* log2 of the columns of a block of factors */
    const void *x_sf_data;

    int64_t num_rows, num_cols; /* of the codes, as if not transposed */
    char *out;                  /* packed */
    float *sf;                  /* [blocks of rows, num_cols] */
    tgl_sf x_sf;                /* of codes, with the columns of its blocks */
    uint32_t out_step;          /* for whole tiles: codes of a row of out */
    uint32_t slice_rows;        /* tiles down a slice; 0: no slices, but bands */

    int64_t x_row_bytes;
    int64_t block_rows;
    int64_t x_block_cols;
    tgl_divisor by_x_block_cols;
    float clamp;            /* of SwiGLU */
    int32_t is_x_aligned;   /* to vectors */
    int32_t is_out_aligned; /* to the codes of a vector; transposed: to 16 bytes */
} tgl_channel_cast;

/* Tiles of blocks that loop: block b has tiles b, b + gridDim.x, ... of the same order. All bands have the
 * same width. */
typedef struct {
    uint32_t last;            /* tile */
    uint32_t row_tiles, band; /* tiles down, and across a band */
    tgl_divisor by_row_tiles, by_band;
} tgl_channel_tiles;

typedef struct {
    tgl_channel_cast cast;
    tgl_channel_tiles tiles;
} channel_staged_args;

#endif
