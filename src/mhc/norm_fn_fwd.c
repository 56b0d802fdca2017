/* SPDX-License-Identifier: MIT
 * norm_fn_fwd.c - tgl_mhc_norm_fn_fwd: RMSNorm of a token's streams times the rows of fn; pre_fwd up to the mixes. */
#include "mhc/common/mhc_host.h"
#include "mhc/common/rows_host.h"
#include "mhc/pre_fwd_host.h"

TGL_SIZES(sizes, num_tokens, num_streams, hidden, num_rows);
tgl_signature tgl_mhc_norm_fn_fwd_signature =
    TGL_SIGNATURE("mhc_norm_fn_fwd(residual: " ROWS_STREAMS " rows, fn: f32[num_rows, num_streams * hidden],"
                  " norm_weight: f32[num_streams * hidden]?, has_rms_eps: bool, rms_eps: float >= 0 with has_rms_eps)"
                  " -> mixes: f32[num_tokens, num_rows], out_mul: f32[num_tokens, num_rows]?, sqrsum: f32[num_tokens]?"
                  " where " MHC_RULES ", hidden >= 1, " MHC_ROWS,
                  &TGL_MHC_PARAMS, TGL_SIZES_OF(sizes));

size_t tgl_mhc_norm_fn_fwd_workspace_size(const DLTensor *residual, const DLTensor *fn)
{
    return tgl_mhc_pre_fwd_workspace_size(residual, fn);
}

tgl_status tgl_mhc_norm_fn_fwd(const DLTensor *residual, const DLTensor *fn, const DLTensor *norm_weight,
                               DLTensor *mixes, DLTensor *out_mul, DLTensor *sqrsum, const tgl_mhc_params *params,
                               void *workspace, size_t workspace_bytes, tgl_stream stream)
{
    const DLTensor *tensors[] = { residual, fn, norm_weight, mixes, out_mul, sqrsum };
    TGL_TRY(tgl_take(&tgl_mhc_norm_fn_fwd_signature, tensors, params, NULL));
    TGL_TRY(tgl_expect_workspace(workspace, workspace_bytes, tgl_mhc_norm_fn_fwd_workspace_size(residual, fn)));
    pre_problem p = { .args = { .mixes = tgl_data(mixes),
                                .out_mul = tgl_data_or_null(out_mul),
                                .sqrsum = tgl_data_or_null(sqrsum),
                                .rms_eps = tgl_mhc_rms_eps(params) } };
    tgl_pre_take(&p.args, residual, fn, norm_weight, workspace);
    return tgl_run(&tgl_mhc_norm_fn_fwd_signature, &TGL_PRE_FWD, tensors, &p, stream);
}
