/* SPDX-License-Identifier: MIT
 * per_token_cast.h - what per_token_cast.c and its kernels agree on. */
#ifndef TEGULA_QUANT_PER_TOKEN_CAST_H
#define TEGULA_QUANT_PER_TOKEN_CAST_H

#include "numerics/divide.h"
#include "quant/common/scale.h"
#include "quant/common/vector.h"

/* A warp holds that many vectors a lane, all of one row side by side: 1024 columns, or half as many of f32
 * where blocks of up to 128 are. So it has whole words of packed factors. In per_token_cast_wide block_cols
 * is 0. */
#define TOKEN_VECTORS(x, block_cols) \
    (X_IS_CODES(x) ? 2 : (x) == X_F32 && ((block_cols) == 0 || (block_cols) > 128) ? 8 : 4)
#define TOKEN_WARP_COLS(x, block_cols) (32 * X_VALUES(x) * TOKEN_VECTORS(x, block_cols))

/* If an SM would get at most so many blocks of threads (measured on H200, November 2026), warps have half as many
 * vectors, if that still makes whole words, and there are twice as many warps. */
#define TOKEN_FEW_BLOCKS 2

/* A warp's shared memory, for its codes of e5m6, but not those of a few rows of bf16. */
#define TOKEN_STAGED_BYTES(x, format, is_few, warp_cols) \
    ((format) == TGL_FORMAT_E5M6 && !((x) == X_BF16 && (is_few)) ? (warp_cols) / 8 * 12 : 0)

/* of per_token_cast: warps of a block, and so rows, which fill sectors of column-major factors */
#define TOKEN_WARPS 8
/* of per_token_cast_wide: at most */
#define TOKEN_MAX_WARPS 32
/* of per_token_cast_wide that makes e5m6 of f32: about so many warps on an SM at most, each with 4 KB of
 * loads under way. More take longer: 4096 x 7168 on an H200 42.4 us with 35 of them, 42.1 with 28, 41.5 with
 * 21. */
#define TOKEN_SM_WARPS 24
/* of per_token_cast_any: threads of a block, and at most so many groups at a time */
#define TOKEN_ANY_THREADS 256
#define TOKEN_ANY_GROUPS 2048

/* Sizes of per_token_cast and per_token_cast_wide are below 2^31. In the order of their use: a few rows wait
 * for every line of 64 bytes, and on sm_90 the first one ends behind num_cols. */
typedef struct {
    const char *x;
    int64_t x_row_bytes;
    tgl_divisor by_units;
    int64_t num_units;          /* of a row: what a block has of it */
    int64_t num_rows, num_cols;
    char *out;
    int64_t out_row_bytes;
    tgl_sf sf;
    int64_t num_sf, block_cols;
    tgl_sf x_sf;
    tgl_divisor by_x_block_rows, by_x_block_cols;
    int64_t x_block_rows, x_block_cols;
    tgl_divisor by_block_cols;
    tgl_scale_rule rule;        /* for per_token_cast_any, which has no macros for this and these: */
    int32_t unit_groups, is_given, has_out;
} tgl_token_cast;

/* The arguments of per_token_cast for few rows: without those of codes less than the 48 bytes that on sm_90
 * are one line. The rest follows from macros, or is no use to a block that has a row. */
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
