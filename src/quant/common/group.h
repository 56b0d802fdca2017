/* SPDX-License-Identifier: MIT
 * group.h - kernels for blocks of any size: which threads have a block (group.cuh). */
#ifndef TEGULA_QUANT_GROUP_H
#define TEGULA_QUANT_GROUP_H

#include "numerics/divide.h"

#define GROUP_WARPS 8    /* of a block of threads */
#define GROUP_LARGE 4096 /* values; a larger block has all warps of a thread block, others have one */

/* A group of threads takes `span` adjacent blocks. */
typedef struct {
    int64_t block_rows, block_cols;
    int64_t num_spans; /* across a row of blocks */
    tgl_divisor by_num_spans;
    int64_t total; /* spans in all */
    int32_t span;
    int32_t warps; /* of a group: 1 or GROUP_WARPS */
} tgl_groups;

#ifndef __CUDACC__

/* num_block_rows x num_block_cols blocks of block_rows x block_cols values in num_rows rows. */
static inline tgl_groups tgl_groups_of(int64_t num_rows, int64_t block_rows, int64_t block_cols, int64_t num_block_rows,
                                       int64_t num_block_cols, int span)
{
    const int64_t num_spans = (num_block_cols + span - 1) / span;
    const int64_t rows = block_rows < num_rows ? block_rows : num_rows;
    return (tgl_groups){ .block_rows = block_rows,
                         .block_cols = block_cols,
                         .num_spans = num_spans,
                         .by_num_spans = tgl_divisor_of(num_spans),
                         .total = num_block_rows * num_spans,
                         .span = span,
                         .warps = rows > GROUP_LARGE / block_cols ? GROUP_WARPS : 1 };
}

/* Thread blocks, at most 2^31 - 1: groups loop. */
static inline int64_t tgl_groups_grid(const tgl_groups *g)
{
    const int64_t each = GROUP_WARPS / g->warps, blocks = (g->total + each - 1) / each;
    return blocks < INT32_MAX ? blocks : INT32_MAX;
}

#endif
#endif
