/* SPDX-License-Identifier: MIT
 * aux_fi.c - tgl_moe_aux_fi: a histogram, divided by what it would be if experts were chosen evenly. */
#include <inttypes.h>

#include "core/log.h"
#include "moe/common/histogram.h"
#include "tegula/moe.h"

static tgl_status check(const DLTensor *topk_idx, const DLTensor *fi, int64_t num_aux_topk)
{
    TGL_TRY(tgl_expect("topk_idx", topk_idx, TGL_I64 | TGL_I32, 2, TGL_ROWS));
    TGL_TRY(tgl_expect("fi", fi, TGL_F32, 1, TGL_PACKED));
    TGL_TRY(tgl_expect_shape("fi", fi, (tgl_dim[]){ { 0, INT32_MAX } }));
    TGL_TRY(tgl_expect_same_device("fi", fi, topk_idx));
    TGL_TRY(tgl_expect_no_overlap("fi", fi, "topk_idx", topk_idx));
    if (num_aux_topk < 1)
        return tgl_fail(TGL_ERR_ARGUMENT, "num_aux_topk: is %" PRId64 ", want >= 1", num_aux_topk);
    int64_t tokens_topk;
    if (__builtin_mul_overflow(topk_idx->shape[0], num_aux_topk, &tokens_topk))
        return tgl_fail(TGL_ERR_ARGUMENT, "num_aux_topk: is %" PRId64 " for %" PRId64
                        " tokens, want a product < 2^63", num_aux_topk, topk_idx->shape[0]);
    return TGL_OK;
}

tgl_status tgl_moe_aux_fi(const DLTensor *topk_idx, DLTensor *fi, int64_t num_aux_topk, void *workspace,
                          size_t workspace_bytes, tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_moe_aux_fi", "topk_idx", topk_idx, "fi", fi, NULL);
    TGL_TRY(check(topk_idx, fi, num_aux_topk));
    tgl_log_indices("topk_idx", topk_idx, fi->shape[0]);
    /* without tokens all counts are 0, and so are their bits as a float */
    return tgl_histogram(topk_idx, fi, topk_idx->shape[0] * num_aux_topk, workspace, workspace_bytes, stream);
}

size_t tgl_moe_aux_fi_workspace_size(const DLTensor *topk_idx, const DLTensor *fi)
{
    return tgl_histogram_workspace_size(topk_idx, fi);
}
