/* SPDX-License-Identifier: MIT
 * channel.h - what the casts with a factor per column and their kernels agree on: tiles, arguments.
 *
 * A block of threads has a tile: a strip of CHANNEL_TILE_ROWS rows. In it, CHANNEL_LANES threads side by side
 * have a vector of a row each, in CHANNEL_ROWS rows below each other; a thread holds them in registers from the
 * load to the codes (x is a kernel's macro X). A row of a strip is 128 bytes of x. Exceptions:
 * - If tiles are too few for all SMs, strips are narrower, down to CHANNEL_NARROW_LANES, and threads with much
 *   work for each value have CHANNEL_FEW_ROWS, so that more warps share it.
 * - bf16 that is transposed to unaligned rows, in many tiles: these have CHANNEL_LONG_ROWS and threads
 *   CHANNEL_TALL_ROWS. Then half as many sectors of out are written in two parts, by two blocks.
 * - bf16 that is not transposed: threads have CHANNEL_TALL_ROWS, which takes fewer instructions per row. If tiles
 *   are many and columns fill them, strips have CHANNEL_WIDE_LANES: 256 contiguous bytes of DRAM in, a line out.
 * - Codes by a map in very many tiles have a kernel of their own, per_channel_cast_staged.cu. */
#ifndef TEGULA_QUANT_CHANNEL_H
#define TEGULA_QUANT_CHANNEL_H

#include "numerics/divide.h"
#include "quant/common/scale.h"
#include "quant/common/vector.h"

#define CHANNEL_TILE_ROWS 128
#define CHANNEL_LONG_ROWS 256
#define CHANNEL_VALUES(x) (X_IS_CODES(x) ? 8 : X_VALUES(x))     /* of a vector: codes need more registers */
#define CHANNEL_VECTOR_BYTES(x) (X_IS_CODES(x) ? 8 : X_VECTOR_BYTES(x))
#define CHANNEL_LANES(x) (X_IS_CODES(x) ? CHANNEL_WIDE_LANES : CHANNEL_MIDDLE_LANES)
#define CHANNEL_WIDE_LANES 16
#define CHANNEL_MIDDLE_LANES 8
#define CHANNEL_NARROW_LANES 2
#define CHANNEL_ROWS(x) (X_IS_CODES(x) ? CHANNEL_TALL_ROWS : 4)
#define CHANNEL_TALL_ROWS 8
#define CHANNEL_FEW_ROWS(x, is_swiglu) (X_IS_CODES(x) || !(is_swiglu) || (x) == X_F32 ? 4 : 2)
#define CHANNEL_STAGED_BLOCKS 3         /* of an SM, that go through all tiles (per_channel_cast_staged.cu) */
#define CHANNEL_THREADS(strip_rows, patch_rows, lanes) ((strip_rows) / (patch_rows) * (lanes))

/* Measured on H200, November 2026. */
#define CHANNEL_FEW_TILES 100           /* fewer are made narrower */
#define CHANNEL_MANY_TILES 1000         /* from which on they are wider, or longer */
/* Tiles of a block from which on they are staged. Of fewer tiles x and out may be in L2, where waits are short: with
 * 4096 x 7168 there, a block for each tile takes 15.1 us, staged ones 16.3. */
#define CHANNEL_STAGED_TILES 6

/* The first 48 bytes are what whole tiles need before they load: on sm_90 in one line of the memory that has
 * arguments. What they need later is in the next.
 *
 * Tiles are in the order of a grid's blocks. Along x they are side by side in a band of columns, along y they
 * follow each other down the rows, and along z are further bands. If there are too many of either for that,
 * x goes through all columns and z through slices of rows, and no tile is treated as whole. */
typedef struct {
    const char *x;
    const int32_t *pos_to_token;        /* NULL: row i is token i */
    uint32_t num_tokens;                /* of x, as far as a map may name them */
    uint32_t whole_rows, whole_cols;    /* tiles that are whole, the first of each; x is aligned, and out
                                         * unless they are long */
    uint32_t x_step, x_sf_step;         /* for those: bytes from a row of x and of its factors to the next, */
    uint32_t x_sf_shift;                /* columns of a block of factors, as a power of two */
    const void *x_sf_data;

    int64_t num_rows, num_cols;         /* of the codes, as if not transposed */
    char *out;                          /* packed */
    float *sf;                          /* [blocks of rows, num_cols] */
    tgl_sf x_sf;                        /* of codes, with the columns of its blocks */
    uint32_t out_step;                  /* of whole tiles: codes of a row of out */
    uint32_t slice_rows;                /* tiles down a slice; 0: there are bands */

    int64_t x_row_bytes;
    int64_t block_rows;
    int64_t x_block_cols;
    tgl_divisor by_x_block_cols;
    float clamp;                        /* of SwiGLU */
    int32_t is_x_aligned;               /* vectors of x may be loaded as such */
    int32_t is_out_aligned;             /* codes of a vector may be stored at once; transposed: 16 bytes */
} tgl_channel_cast;

/* Tiles that blocks go through: block b has tiles b, b + blocks, ... of the same order. Bands are equally
 * wide. */
typedef struct {
    uint32_t last;                      /* tile */
    uint32_t row_tiles, band;           /* tiles down, and along a band */
    tgl_divisor by_row_tiles, by_band;
} tgl_channel_tiles;

typedef struct {
    tgl_channel_cast cast;
    tgl_channel_tiles tiles;
} channel_staged_args;

#endif
