/* SPDX-License-Identifier: MIT
 * inplace_unique_group_indices.h - what host and kernels agree on. */
#ifndef TEGULA_MOE_INPLACE_UNIQUE_GROUP_INDICES_H
#define TEGULA_MOE_INPLACE_UNIQUE_GROUP_INDICES_H

#include "numerics/base.h"

/* inplace_unique_group_indices: rows per block, one per thread. 64 spreads few tokens over many SMs, and the
 * 32 blocks of an SM still fill it. A row is in registers; ..._wide takes longer ones. */
#define UNIQUE_ROWS 64
#define UNIQUE_MAX_TOPK 32

/* inplace_unique_group_indices_wide: rows per block, one per warp. */
#define UNIQUE_WIDE_WARPS 4

typedef struct {
    void *group_indices; /* of index_bytes */
    int64_t num_tokens, row_stride, num_topk;
    uint32_t is_aligned; /* rows begin at multiples of 16 bytes; the wide kernel ignores it */
    int32_t index_bytes; /* a macro in kernels, as is num_topk in all but the wide one */
} unique_args;

#endif
