/* SPDX-License-Identifier: MIT
 * lookup_bwd.h - what the kernel of lookup_bwd and the code that launches it agree on. */
#ifndef TEGULA_ENGRAM_LOOKUP_BWD_H
#define TEGULA_ENGRAM_LOOKUP_BWD_H

#include "numerics/bf16.h"
#include "numerics/divide.h"
#include "numerics/integer.h"

#define LOOKUP_CHUNK 32 /* occurrences of a row that are summed one after the other */
#define LOOKUP_BWD_THREADS 512
#define LOOKUP_BWD_FEW_THREADS 256 /* of a block that has few positions */
#define LOOKUP_BWD_SORTERS 160     /* blocks that sort, at most */
#define LOOKUP_BWD_SAMPLES 2       /* positions of a thread that tell where rows are */
#define LOOKUP_BWD_BUFFERS 3       /* of entries: by bucket; sorted; for what shared memory has no room */
/* Bytes of shared memory: sort.cuh's counts; two times eight chunks of 32 columns a warp. */
#define LOOKUP_BWD_COUNT_BYTES(threads) ((threads) / 32 * 256 * 4)
#define LOOKUP_BWD_CHUNK_BYTES(threads) (2 * ((threads) / 32) * 8 * 32 * 4)

/* Strides in elements. A position is (token, column), t * num_columns + c. A bucket is a range of rows, which a block
 * sorts. All words of the workspace are 0 between launches; a word that blocks wait for is stored plus 1. */
typedef struct {
    const void *grad_out, *indices;
    float *grad_table, *grad_rows; /* NULL: not wanted */
    void *unique_rows;
    int32_t *num_unique;
    int64_t row_begin;
    uint64_t num_rows; /* that are owned: 2^63 at most, any index from 0 on */
    int64_t grad_token_stride, grad_column_stride, index_token_stride, index_column_stride, table_stride;
    int64_t num_tokens, num_columns, dim;
    int32_t index_bytes, unique_bytes;
    /* of a launch */
    int32_t has_vectors;               /* all rows are aligned to 16 bytes, and whole vectors */
    uint32_t count, num_sorters, part; /* positions; blocks that sort, and positions of each */
    uint32_t capacity;                 /* entries in shared memory, twice */
    uint32_t max_longs;                /* rows in `longs`, at most */
    uint32_t span;                     /* positions of a warp at a time: 8, 16 or 32 */
    tgl_divisor by_columns;
    /* of the workspace */
    uint8_t *entries[LOOKUP_BWD_BUFFERS]; /* of the sort: row, position */
    uint32_t *starts;                     /* for each bucket and block, where it begins in the block's part */
    uint32_t *windows;                    /* of 32 sorted positions, 4 words each: rows of the bucket before them,
                                           * where the last of these begins, bucket, 0 */
    uint32_t *buckets;                    /* rows and positions of each */
    uint32_t *longs;                      /* rows of several chunks, 8 words each: first sorted position, chunks,
                                           * number, 0, row (2 words), 0, 0 */
    uint32_t *words;                      /* LOOKUP_BWD_WORDS */
    float *partial;                       /* sums of chunks: two for 32 positions */
} lookup_bwd_args;

enum {
    LOOKUP_BWD_PARTED,
    LOOKUP_BWD_SUMMED,
    LOOKUP_BWD_TICKET,
    LOOKUP_BWD_NUM_FEW,
    LOOKUP_BWD_NUM_MANY,
    LOOKUP_BWD_WORDS
};

/* The row that a position belongs to, or num_rows if it is not owned. */
TGL_INLINE uint64_t lookup_bwd_row(const lookup_bwd_args *a, int64_t token, int64_t column)
{
    const int64_t at = token * a->index_token_stride + column * a->index_column_stride;
    const int64_t index = tgl_integer_at(a->indices, at, a->index_bytes);
    const uint64_t row = (uint64_t)index - (uint64_t)a->row_begin;
    return index >= a->row_begin && row < a->num_rows ? row : a->num_rows;
}

#endif
