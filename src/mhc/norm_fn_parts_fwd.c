/* SPDX-License-Identifier: MIT
 * norm_fn_parts_fwd.c - tgl_mhc_norm_fn_parts_fwd: the sums of norm_fn_fwd in parts; pre_fwd up to them. */
#include "mhc/common/mhc_host.h"
#include "mhc/common/rows_host.h"
#include "mhc/pre_fwd_host.h"

TGL_SIZES(sizes, num_tokens, num_streams, hidden, num_rows, num_splits);
tgl_signature tgl_mhc_norm_fn_parts_fwd_signature =
    TGL_SIGNATURE("mhc_norm_fn_parts_fwd(residual: " ROWS_STREAMS " rows, fn: f32[num_rows, num_streams * hidden],"
                  " norm_weight: f32[num_streams * hidden]?)"
                  " -> out_mul_parts: f32[num_splits, num_tokens, num_rows], sqrsum_parts: f32[num_splits, num_tokens]"
                  " where " MHC_RULES ", hidden >= 1, " MHC_ROWS
                  ", num_splits in 1.." TGL_TEXT(PROJECTION_MAX_SEGMENTS),
                  NULL, TGL_SIZES_OF(sizes));

size_t tgl_mhc_norm_fn_parts_fwd_workspace_size(const DLTensor *residual, const DLTensor *fn)
{
    return tgl_mhc_pre_fwd_workspace_size(residual, fn);
}

tgl_status tgl_mhc_norm_fn_parts_fwd(const DLTensor *residual, const DLTensor *fn, const DLTensor *norm_weight,
                                     DLTensor *out_mul_parts, DLTensor *sqrsum_parts, void *workspace,
                                     size_t workspace_bytes, tgl_stream stream)
{
    const DLTensor *tensors[] = { residual, fn, norm_weight, out_mul_parts, sqrsum_parts };
    sizes n;
    TGL_TRY(tgl_take(&tgl_mhc_norm_fn_parts_fwd_signature, tensors, NULL, &n.num_tokens));
    if (n.num_splits & (n.num_splits - 1))
        return tgl_fail(TGL_ERR_ARGUMENT, "num_splits: is %d, want 1, 2, 4, 8 or 16", (int)n.num_splits);
    TGL_TRY(tgl_expect_workspace(workspace, workspace_bytes, tgl_mhc_norm_fn_parts_fwd_workspace_size(residual, fn)));
    pre_problem p = { .args = { .out_mul = tgl_data(out_mul_parts),
                                .sqrsum = tgl_data(sqrsum_parts),
                                .num_splits = (int32_t)n.num_splits } };
    tgl_pre_take(&p.args, residual, fn, norm_weight, workspace);
    return tgl_run(&tgl_mhc_norm_fn_parts_fwd_signature, &TGL_PRE_FWD, tensors, &p, stream);
}
