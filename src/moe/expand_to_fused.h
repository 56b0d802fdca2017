/* SPDX-License-Identifier: MIT
 * expand_to_fused.h - what the kernels of expand_to_fused, the code that launches them and the CPU loop agree
 * on. */
#ifndef TEGULA_MOE_EXPAND_TO_FUSED_H
#define TEGULA_MOE_EXPAND_TO_FUSED_H

#include "numerics/base.h"

/* Rows are bytes, scale factors words of 32 bits; where there are none, num_sf is 0. x_stride is in bytes,
 * strides of scale factors are in words. */
typedef struct {
    const uint8_t *x;
    uint8_t *out;
    const uint32_t *x_sf;
    uint32_t *out_sf;
    const int32_t *token_topk_to_pos, *pos_to_expert;
    int64_t num_tokens, num_topk, num_positions;
    int64_t row_bytes, x_stride;
    int64_t num_sf, x_sf_row, x_sf_col, out_sf_row, out_sf_col;
} expand_problem;

/* A block takes chunks of a row. Of a chunk, each of its threads moves up to EXPAND_UNITS units, as far
 * apart as there are threads, and one scale factor. A unit is the widest of 16, 8, 4, 2 or 1 bytes that all
 * rows are made of. */
#define EXPAND_THREADS 256
#define EXPAND_UNITS 4

/* With fewer rows than this, read and written together, a thread moves one unit of a chunk. */
#define EXPAND_FEW_ROWS 2048

/* Up to so many tokens, or with a position for each, rows are read before it is known whether they go
 * anywhere. */
#define EXPAND_EARLY_TOKENS 256

/* Positions that a block looks at for padding: at most so many, one of a warp's lanes each. */
#define EXPAND_POSITIONS 32

/* The kernel with bulk stores: bytes of a chunk, at most, with so many rows that have so many copies, with
 * fewer copies, with fewer rows or factors in columns, and with fewer than EXPAND_FEW_ROWS. Copies are
 * positions of a token. */
#define EXPAND_BULK_BYTES 16384
#define EXPAND_BULK_MANY 8192
#define EXPAND_BULK_COPIES 4
#define EXPAND_BULK_SPREAD_BYTES 4096
#define EXPAND_BULK_SOME_BYTES 8192
#define EXPAND_BULK_FEW_BYTES 4096

/* The kernel for scale factors in columns: blocks of a cluster that gathers, times that each of these has 32
 * positions, at most, and once for so many slots. */
#define EXPAND_SF_CLUSTER 8
#define EXPAND_SF_TILES 4
#define EXPAND_SF_SLOTS 16384
#define EXPAND_SF_MIN_BYTES 4096        /* of its shared memory */

typedef struct {
    int64_t row_units, chunks;
    int32_t unit_bytes;     /* 16 for bulk stores */
    int32_t chunk_units;
    int32_t positions;      /* of a block that looks for padding */
    int32_t padding_blocks; /* these come first, blocks for tokens follow; 0: blocks do both (bulk stores) */
    int32_t reads_early;
    int32_t sf_blocks;      /* these gather scale factors in columns, and come first */
    int32_t sf_positions;   /* of a cluster's window */
    int32_t sf_words;       /* of a block's shared memory */
} expand_shape;

#endif
