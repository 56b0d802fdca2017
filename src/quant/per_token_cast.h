/* SPDX-License-Identifier: MIT
 * per_token_cast.h - thresholds and arguments of per_token_cast, for host and kernels. */
#ifndef TEGULA_QUANT_PER_TOKEN_CAST_H
#define TEGULA_QUANT_PER_TOKEN_CAST_H

#include "numerics/divide.h"
#include "quant/common/scale.h"
#include "quant/common/vector.h"

/* Vectors of a lane, all of one row: a warp has 1024 adjacent columns, or half as many of f32 with blocks of
 * up to 128, and so whole words of packed factors. In per_token_cast_wide block_cols is 0. */
#define TOKEN_VECTORS(x, block_cols) \
    (X_IS_CODES(x) ? 2 : (x) == X_F32 && ((block_cols) == 0 || (block_cols) > 128) ? 8 : 4)
#define TOKEN_WARP_COLS(x, block_cols) (32 * X_VALUES(x) * TOKEN_VECTORS(x, block_cols))

/* If an SM would get at most this many thread blocks (H200, 2026-11), warps have half as many vectors,
 * if these still make whole words, and there are twice as many warps. */
#define TOKEN_FEW_BLOCKS 2

/* A warp's shared memory: for codes of e5m6, except few rows of bf16. */
#define TOKEN_STAGED_BYTES(x, format, is_few, warp_cols) \
    ((format) == TGL_FORMAT_E5M6 && !((x) == X_BF16 && (is_few)) ? (warp_cols) / 8 * 12 : 0)

#define TOKEN_WARPS 8      /* per_token_cast: warps of a block, a row each: sectors of column-major factors */
#define TOKEN_MAX_WARPS 32 /* per_token_cast_wide: of a block, at most */
/* per_token_cast_wide, f32 to e5m6: warps per SM, about, each with 4 KB of loads in flight. More take longer:
 * 4096 x 7168 on H200 (2026-11) takes 42.4 us with 35 warps, 42.1 with 28, 41.5 with 21. */
#define TOKEN_SM_WARPS 24
#define TOKEN_ANY_THREADS 256 /* per_token_cast_any: of a block, */
#define TOKEN_ANY_GROUPS 2048 /* and at most so many blocks of factors at a time */

/* Sizes of per_token_cast and per_token_cast_wide are below 2^31. In the order of use: if rows are few, every
 * line of 64 bytes is a wait. On sm_90 the first line ends behind num_cols. */
typedef struct {
    const char *x;
    int64_t x_row_bytes;
    tgl_divisor by_units;
    int64_t num_units; /* of a row, one per thread block */
    int64_t num_rows, num_cols;
    char *out;
    int64_t out_row_bytes;
    tgl_sf sf;
    int64_t num_sf, block_cols;
    tgl_sf x_sf;
    tgl_divisor by_x_block_rows, by_x_block_cols;
    int64_t x_block_rows, x_block_cols;
    tgl_divisor by_block_cols;
    tgl_scale_rule rule; /* from here on for per_token_cast_any, which has no macros for it */
    int32_t unit_groups, is_given, has_out;
} tgl_token_cast;

/* The arguments of per_token_cast for few rows: without those of codes they fit in the 48 bytes of a line on
 * sm_90. The rest follows from macros, or is of no use to a block with one row. */
typedef struct {
    const char *x;
    char *out;
    void *sf;
    uint32_t x_row_bytes, sf_stride;
    uint32_t num_cols;
    tgl_sf x_sf;
    tgl_divisor by_x_block_rows, by_x_block_cols;
} tgl_few_cast;

#endif
