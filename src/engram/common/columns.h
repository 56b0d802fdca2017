/* SPDX-License-Identifier: MIT
 * columns.h - the columns of an Engram table, each a modulus and an offset, by which windows of ids become rows:
 * what hash and rows share. */
#ifndef TEGULA_ENGRAM_COLUMNS_H
#define TEGULA_ENGRAM_COLUMNS_H

#include "engram/common/engram_limits.h"
#include "numerics/divide.h"
#include "numerics/integer.h"

#define COLUMN_THREADS 256 /* of a block */
/* Where they are enough: rows of 128 tokens take 3.26 us, with 256 3.49 (H200, 2026-11). */
#define COLUMN_MIN_THREADS 128
#define COLUMN_MAX_COUNT (1 << 23) /* less than this: of all layers */
#define COLUMN_CHUNK 192           /* units of a block, at most */
#define COLUMN_WINDOW_BYTES 36864  /* of shared memory, at most: the windows of a tile, one of any length */
/* Blocks resident on an SM, and its tiles before a thread has several tokens, in one wave. hash has 54 registers, rows
 * 78; of more than 4 ids they have more, and an SM one block less. */
#define COLUMN_HASH_BLOCKS 4
#define COLUMN_ROWS_BLOCKS 3
#define COLUMN_MAX_ROUNDS 8       /* tokens of a thread, one after the other, in a tile */
#define COLUMN_NONE (~0u)         /* in place of the 0 behind a window: its rows are -1 */
#define COLUMN_SKIPPED (1u << 31) /* or it is of another tile */
#define COLUMN_UNROLLED 8         /* longest n-gram for which a kernel is compiled */

/* A unit is a run of columns of one order (WIDTH of the kernel) in one layer: what a thread has of a token. A
 * block has a chunk of the units, for tiles of tokens. */
typedef struct {
    const int64_t *multipliers;
    const void *vocab_sizes, *offsets;
    void *out;
    int64_t num_tokens, layer_stride, token_stride;        /* of out, in elements */
    int32_t num_layers, max_ngram, num_heads, num_columns; /* columns of a layer */
    int32_t vocab_bytes, offset_bytes, out_bytes;
    /* of a launch */
    int32_t num_units, chunk_units, num_chunks;
    int32_t slots;                    /* tokens of a block at a time ... */
    int64_t slots_stride;             /* ... and how far apart in out those of a thread are */
    int32_t tile_tokens, num_windows; /* windows that shared memory has room for */
    tgl_divisor by_layer_units, by_chunk_units, by_heads;
    int32_t has_vectors; /* a unit of out is aligned */
} tgl_columns;

/* Shared memory of a window in words of 8 bytes, an even number: its ids; 0, COLUMN_NONE or COLUMN_SKIPPED. */
TGL_INLINE int32_t tgl_window_words(int32_t max_ngram) { return (max_ngram + 2) / 2 * 2; }

#endif
