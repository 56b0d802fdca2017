/* SPDX-License-Identifier: MIT
 * group_count.c - tgl_moe_group_count: a histogram. */
#include "core/log_indices.h"
#include "moe/common/histogram.h"
#include "tegula/moe.h"

tgl_signature tgl_moe_group_count_signature =
    TGL_SIGNATURE("moe_group_count(group_idx: i64|i32[num_tokens, num_topk] rows)"
                  " -> counts: i32[num_groups]"
                  " where num_groups < 2^31",
                  NULL);

tgl_status tgl_moe_group_count(const DLTensor *group_idx, DLTensor *counts, void *workspace, size_t workspace_bytes,
                               tgl_stream stream)
{
    const DLTensor *tensors[] = { group_idx, counts };
    TGL_TRY(tgl_take(&tgl_moe_group_count_signature, tensors, NULL, NULL));
    tgl_log_indices("group_idx", group_idx, counts->shape[0]);
    return tgl_histogram(&tgl_moe_group_count_signature, tensors, 0, workspace, workspace_bytes, stream);
}

size_t tgl_moe_group_count_workspace_size(const DLTensor *group_idx, const DLTensor *counts)
{
    return tgl_histogram_workspace_size(group_idx, counts);
}
