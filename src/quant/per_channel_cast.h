/* SPDX-License-Identifier: MIT
 * per_channel_cast.h - what the casts with a factor per column and their kernels agree on: tiles, arguments.
 *
 * A block of threads has a tile of CHANNEL_TILE_ROWS rows and of one or more strips. In a strip,
 * CHANNEL_LANES threads side by side have a vector (vector.h) of a row each, of CHANNEL_ROWS rows below each
 * other: what a thread holds in registers from its only load to the codes (x is a kernel's macro X). Where
 * tiles are so few that they leave SMs without work, strips are CHANNEL_NARROW_LANES wide. */
#ifndef TEGULA_QUANT_PER_CHANNEL_CAST_H
#define TEGULA_QUANT_PER_CHANNEL_CAST_H

#include "numerics/divide.h"
#include "quant/scale.h"
#include "quant/vector.h"

#define CHANNEL_TILE_ROWS 128
#define CHANNEL_LANES(x) (X_IS_CODES(x) ? 4 : 8)
#define CHANNEL_NARROW_LANES 2
#define CHANNEL_ROWS 4
#define CHANNEL_STRIP_THREADS(lanes) (CHANNEL_TILE_ROWS / CHANNEL_ROWS * (lanes))
#define CHANNEL_STRIPS(is_swiglu, is_transposed) ((is_swiglu) || (is_transposed) ? 1 : 2) /* at most */

typedef struct {
    const char *x;
    int64_t x_row_bytes, num_tokens;    /* of x */
    int64_t num_rows, num_cols;         /* of the codes, as if not transposed */
    char *out;                          /* packed */
    float *sf;                          /* [blocks of rows, num_cols] */
    int64_t block_rows;
    const int32_t *pos_to_token;        /* NULL: row i is token i */
    tgl_sf x_sf;                        /* of codes, with the columns of its blocks */
    int64_t x_block_cols;
    tgl_divisor by_x_block_cols;
    float clamp;                        /* of SwiGLU */
    int32_t is_x_aligned;               /* vectors of x may be loaded as such */
    int32_t is_out_aligned;             /* codes of a vector may be stored at once; transposed: 16 bytes */

    /* Tiles follow each other along x of the grid: a row of them, and y goes down; or a band of columns, row
     * by row, and y goes to the next band. y ends at 65535: where there are more, they are cut into slices,
     * all of them along x. */
    uint32_t band;                      /* tiles side by side in a band; 0: x goes along rows */
    tgl_divisor by_band;
    uint32_t num_along;
    int64_t num_across;
} tgl_channel_cast;

#endif
