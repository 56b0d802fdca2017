/* SPDX-License-Identifier: MIT
 * topk_sum_and_topk_group_idx.h - limits that the kernels of topk_sum_and_topk_group_idx and the code that
 * launches them share. */
#ifndef TEGULA_MOE_TOPK_SUM_AND_TOPK_GROUP_IDX_H
#define TEGULA_MOE_TOPK_SUM_AND_TOPK_GROUP_IDX_H

#define GROUP_IDX_WARPS 8               /* of a block, at most; a warp has a token */
#define GROUP_IDX_MAX_GROUPS 32         /* a group has a lane at least; beyond: the wide kernel, as for ... */
#define GROUP_IDX_MAX_TOPK_SUM 2        /* ... larger sums */
#define GROUP_IDX_MAX_VECTORS 8         /* a lane has under way */
#define GROUP_IDX_WIDE_THREADS 256      /* of a block, which has a token */
#define GROUP_IDX_WIDE_KEPT 4096        /* groups whose sums stay in shared memory */

#endif
