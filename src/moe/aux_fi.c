/* SPDX-License-Identifier: MIT
 * aux_fi.c - tgl_moe_aux_fi: the histogram of experts over that of an even choice. */
#include <inttypes.h>

#include "core/log_indices.h"
#include "moe/common/histogram.h"
#include "tegula/moe.h"

tgl_signature tgl_moe_aux_fi_signature =
    TGL_SIGNATURE("moe_aux_fi(topk_idx: i64|i32[num_tokens, num_topk] rows, num_aux_topk: int >= 1)"
                  " -> fi: f32[num_experts]"
                  " where num_experts < 2^31",
                  NULL);

tgl_status tgl_moe_aux_fi(const DLTensor *topk_idx, DLTensor *fi, int64_t num_aux_topk, void *workspace,
                          size_t workspace_bytes, tgl_stream stream)
{
    const DLTensor *tensors[] = { topk_idx, fi };
    TGL_TRY(tgl_take(&tgl_moe_aux_fi_signature, tensors, &num_aux_topk, NULL));
    int64_t tokens_topk; /* 0 without tokens: all counts are 0, as is fi */
    if (__builtin_mul_overflow(topk_idx->shape[0], num_aux_topk, &tokens_topk))
        return tgl_fail(TGL_ERR_ARGUMENT, "num_aux_topk: is %" PRId64 " for %" PRId64 " tokens, want a product < 2^63",
                        num_aux_topk, topk_idx->shape[0]);
    tgl_log_indices("topk_idx", topk_idx, fi->shape[0]);
    return tgl_histogram(&tgl_moe_aux_fi_signature, tensors, tokens_topk, workspace, workspace_bytes, stream);
}

size_t tgl_moe_aux_fi_workspace_size(const DLTensor *topk_idx, const DLTensor *fi)
{
    return tgl_histogram_workspace_size(topk_idx, fi);
}
