/* SPDX-License-Identifier: MIT
 * topk_sum_and_topk_group_idx.h - what host and kernels agree on. */
#ifndef TEGULA_MOE_TOPK_SUM_AND_TOPK_GROUP_IDX_H
#define TEGULA_MOE_TOPK_SUM_AND_TOPK_GROUP_IDX_H

#include "moe/common/token_warps.h"
#include "numerics/base.h"

#define GROUP_IDX_MAX_GROUPS 32    /* a group has at least one lane; more: the wide kernel, as for ... */
#define GROUP_IDX_MAX_TOPK_SUM 2   /* ... larger sums */
#define GROUP_IDX_MAX_VECTORS 8    /* loads in flight per lane */
#define GROUP_IDX_WIDE_THREADS 256 /* per block, which has one token */
#define GROUP_IDX_WIDE_KEPT 4096   /* max sums in shared memory */

typedef struct {
    const float *scores;
    void *group_idx; /* of index_bytes */
    int64_t num_tokens, token_stride, group_stride;
    uint32_t num_groups, experts_per_group, num_topk_sum, num_topk_groups;
    int32_t index_bytes; /* a macro in kernels, as is num_topk_sum in all but the wide one */
} group_idx_args;

#endif
