/* SPDX-License-Identifier: MIT
 * swiglu_forward_and_per_token_cast.h - thresholds and arguments of swiglu_forward_and_per_token_cast, for
 * host and kernels. */
#ifndef TEGULA_QUANT_SWIGLU_FORWARD_AND_PER_TOKEN_CAST_H
#define TEGULA_QUANT_SWIGLU_FORWARD_AND_PER_TOKEN_CAST_H

#include "numerics/divide.h"
#include "quant/common/scale.h"
#include "quant/common/vector.h"

#define FORWARD_WARPS 8 /* of a block, at most; each has a row */
#define FORWARD_LANES 8 /* macro BLOCK_LANES, at most, unless tiles are few */
#define FORWARD_TILES 2 /* of a part, if rows have maps and tiles are many */
/* Tiles are few below FORWARD_BLOCKS_PER_SM per SM, and many from FORWARD_MANY_TILES times as many on: parts
 * of two tiles halve the warps. Measured on H200, 2026-11. */
#define FORWARD_MANY_TILES 4
#define FORWARD_MAX_BLOCK 128   /* columns of a factor */
#define FORWARD_ROW_THREADS 512 /* of a row, at most, if a block is a whole row, */
#define FORWARD_ROW_VALUES 32   /* and values of a thread, in registers */
#define FORWARD_ANY_WARPS 8
#define FORWARD_BLOCKS_PER_SM 16 /* of a grid whose blocks loop: several times as many as fit */

/* CLAMP, a macro of the kernels. */
#define FORWARD_NO_CLAMP 0
#define FORWARD_CLAMP 1
#define FORWARD_COUNT 2 /* clamps, and counts what was clamped */

/* The arguments of all kernels, in the order of use: if rows are few, every line is a wait. */
typedef struct {
    const char *x;
    int64_t row_bytes;                /* row stride of x */
    tgl_divisor by_parts;             /* this and the next line: for swiglu_forward_and_per_token_cast.cu */
    uint32_t num_parts, num_pieces;   /* of a row, in all */
    int64_t num_rows, num_cols;       /* of out */
    const int32_t *pos_to_expert;     /* NULL: every row counts */
    const int32_t *pos_to_token_topk; /* NULL: no weights */
    uint8_t *out;
    tgl_sf sf;
    float clamp, floor;
    const float *topk_weights;
    int64_t num_weights;
    int64_t *clamped_count; /* if CLAMP is FORWARD_COUNT */
    int64_t block_cols;     /* columns of a factor */
} forward_args;

#endif
