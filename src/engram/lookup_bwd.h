/* SPDX-License-Identifier: MIT
 * lookup_bwd.h - what the kernel of lookup_bwd and the code that launches it agree on. */
#ifndef TEGULA_ENGRAM_LOOKUP_BWD_H
#define TEGULA_ENGRAM_LOOKUP_BWD_H

#include "numerics/bf16.h"
#include "numerics/divide.h"

#define LOOKUP_CHUNK 32             /* occurrences of a row that are summed one after the other */
#define LOOKUP_BWD_THREADS 512
#define LOOKUP_BWD_MAX_BLOCKS 160
#define LOOKUP_BWD_DIGIT 10         /* bits at most: sort.cuh's */
#define LOOKUP_BWD_BARRIERS 32      /* 3 for each of up to 7 digits, and 4 */

/* Strides in elements. A position is (token, column), t * num_columns + c. */
typedef struct {
    const void *grad_out, *indices;
    float *grad_table, *grad_rows;              /* NULL: not wanted */
    void *unique_rows;
    int32_t *num_unique;
    int64_t row_begin;
    uint64_t num_rows;                          /* that are owned: 2^63 at most, any index from 0 on */
    int64_t grad_token_stride, grad_column_stride, index_token_stride, index_column_stride, table_stride;
    int64_t num_tokens, num_columns, dim;
    int32_t index_bytes, unique_bytes;
    /* of a launch */
    int32_t has_vectors;                        /* all rows are aligned to 16 bytes, and whole vectors */
    uint32_t count, block_count;                /* positions, of all and of a block */
    uint32_t digit_bits, num_digits;
    tgl_divisor by_columns;
    /* of the workspace */
    uint8_t *entries, *next_entries;            /* 16 bytes a position: row, position, number of the row */
    uint32_t *counts, *totals, *block_heads, *block_last, *barriers;
    float *partial;                             /* sums of chunks: two for 32 positions */
} lookup_bwd_args;

/* The row that a position belongs to, or num_rows if it is not owned: as the last. */
TGL_INLINE uint64_t lookup_bwd_row(const lookup_bwd_args *a, int64_t token, int64_t column)
{
    const int64_t at = token * a->index_token_stride + column * a->index_column_stride;
    const int64_t index = a->index_bytes == 4 ? ((const int32_t *)a->indices)[at] : ((const int64_t *)a->indices)[at];
    const uint64_t row = (uint64_t)index - (uint64_t)a->row_begin;
    return index >= a->row_begin && row < a->num_rows ? row : a->num_rows;
}

#endif
