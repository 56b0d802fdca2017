/* SPDX-License-Identifier: MIT
 * inplace_unique_group_indices.h - what the kernels and the code that launches them agree on. */
#ifndef TEGULA_MOE_INPLACE_UNIQUE_GROUP_INDICES_H
#define TEGULA_MOE_INPLACE_UNIQUE_GROUP_INDICES_H

#include "numerics/base.h"

/* inplace_unique_group_indices: rows, and threads, of a block; 64 spreads few tokens over many SMs and still
 * fills an SM, which holds 32 blocks. A row is in registers; longer ones are ..._wide's. */
#define UNIQUE_ROWS 64
#define UNIQUE_MAX_TOPK 32

/* inplace_unique_group_indices_wide: warps, and rows, of a block. */
#define UNIQUE_WIDE_WARPS 4

typedef struct {
    void *group_indices;                /* of index_bytes */
    int64_t num_tokens, row_stride, num_topk;
    uint32_t is_aligned;                /* do rows begin at multiples of 16 bytes? The wide kernel does not ask */
    int32_t index_bytes;                /* macros in kernels: this, and num_topk but for the wide one */
} unique_args;

#endif
