/* SPDX-License-Identifier: MIT
 * expand_to_fused.h - what the kernels of expand_to_fused, the code that launches them and the CPU loop
 * share. */
#ifndef TEGULA_MOE_EXPAND_TO_FUSED_H
#define TEGULA_MOE_EXPAND_TO_FUSED_H

#include "numerics/base.h"

typedef struct {
    /* The call. Rows are bytes, scale factors 32-bit words; num_sf is 0 without scale factors. x_stride is in
     * bytes, strides of scale factors are in words. */
    const uint8_t *x;
    uint8_t *out;
    const uint32_t *x_sf;
    uint32_t *out_sf;
    const int32_t *token_topk_to_pos, *pos_to_expert;
    int64_t num_tokens, num_topk, num_positions;
    int64_t row_bytes, x_stride;
    int64_t num_sf, x_sf_row, x_sf_col, out_sf_row, out_sf_col;

    /* How the launch divides it. A unit is 16, 8, 4, 2 or 1 bytes, the most that divides all rows and
     * their addresses. */
    int64_t row_units, chunks;
    int32_t unit_bytes; /* 16 for bulk stores */
    int32_t chunk_units;
    int32_t positions;      /* checked for padding by a block */
    int32_t padding_blocks; /* come first, then blocks for tokens; 0: blocks do both (bulk stores) */
    int32_t reads_early;    /* read rows before it is known whether they have a position */
    int32_t sf_blocks;      /* gather scale factors in columns, and come first */
    int32_t sf_positions;   /* of a cluster's window */
    int32_t sf_words;       /* of a block's shared memory */
} expand_args;

/* expand_to_fused.cu: a block takes chunks of a row. Each thread moves up to EXPAND_UNITS units of a chunk,
 * blockDim.x apart, and one scale factor. */
#define EXPAND_THREADS 256
#define EXPAND_UNITS 4

/* Max positions checked for padding by a block: one per lane. */
#define EXPAND_POSITIONS 32

/* Measured on an H200, from 2026-11-15 on. */

/* With fewer rows, counting those read and those written, a thread moves one unit of a chunk. */
#define EXPAND_FEW_ROWS 2048

/* Up to this many tokens, or as many as there are positions, rows are read early. */
#define EXPAND_EARLY_TOKENS 256

/* Bulk stores. From this many rows on, blocks do both padding and tokens, and expand_to_fused_columns gathers
 * factors in columns. */
#define EXPAND_BULK_MANY 8192
/* "Few copies": fewer positions per token than this. */
#define EXPAND_BULK_COPIES 4
/* Max bytes of a chunk: */
#define EXPAND_BULK_BYTES 16384       /* many rows with more copies */
#define EXPAND_BULK_SPREAD_BYTES 4096 /* many rows with few copies, no factors in columns */
#define EXPAND_BULK_SOME_BYTES 8192   /* all others, except ... */
#define EXPAND_BULK_FEW_BYTES 4096    /* ... fewer than EXPAND_FEW_ROWS */

/* expand_to_fused_columns. A window has a tile of 32 positions per block for every EXPAND_SF_SLOTS slots. */
#define EXPAND_SF_CLUSTER 8 /* blocks of a cluster */
#define EXPAND_SF_TILES 4   /* max tiles per block */
#define EXPAND_SF_SLOTS 16384
#define EXPAND_SF_MIN_BYTES 4096 /* of shared memory */

#endif
