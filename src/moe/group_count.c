/* SPDX-License-Identifier: MIT
 * group_count.c - tgl_moe_group_count: a histogram. */
#include "core/log.h"
#include "moe/common/histogram.h"
#include "tegula/moe.h"

static tgl_status check(const DLTensor *group_idx, const DLTensor *counts)
{
    TGL_TRY(tgl_expect("group_idx", group_idx, TGL_I64 | TGL_I32, 2, TGL_ROWS));
    TGL_TRY(tgl_expect("counts", counts, TGL_I32, 1, TGL_PACKED));
    TGL_TRY(tgl_expect_shape("counts", counts, (tgl_dim[]){ { 0, INT32_MAX } }));
    TGL_TRY(tgl_expect_same_device("counts", counts, group_idx));
    return tgl_expect_no_overlap("counts", counts, "group_idx", group_idx);
}

tgl_status tgl_moe_group_count(const DLTensor *group_idx, DLTensor *counts, void *workspace,
                               size_t workspace_bytes, tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_moe_group_count", "group_idx", group_idx, "counts", counts, NULL);
    TGL_TRY(check(group_idx, counts));
    tgl_log_indices("group_idx", group_idx, counts->shape[0]);
    return tgl_histogram(group_idx, counts, 0, workspace, workspace_bytes, stream);
}

size_t tgl_moe_group_count_workspace_size(const DLTensor *group_idx, const DLTensor *counts)
{
    return tgl_histogram_workspace_size(group_idx, counts);
}
