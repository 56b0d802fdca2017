/* SPDX-License-Identifier: MIT
 * pre_split_mixes_bwd.c - tgl_mhc_pre_split_mixes_bwd: gradients of mixes, scale and base. */
#include "mhc/common/gates_host.h"
#include "mhc/common/mhc_host.h"

TGL_SIZES(sizes, num_tokens, num_columns, num_groups, num_streams);
tgl_signature tgl_mhc_pre_split_mixes_bwd_signature = TGL_SIGNATURE(
    "mhc_pre_split_mixes_bwd(mixes: f32[num_tokens, num_columns] rows, scale: f32[num_groups], base: f32[num_columns],"
    " grad_pre_mix: f32[num_tokens, num_streams]?, grad_post_mix: f32[num_tokens, num_streams]?,"
    " grad_comb: " MHC_SQUARE "?, " MHC_POST ")"
    " -> grad_mixes: f32[num_tokens, num_columns], grad_scale: f32[num_groups], grad_base: f32[num_columns]"
    " where num_groups in 2..3",
    &TGL_MHC_PARAMS, TGL_SIZES_OF(sizes));

tgl_status tgl_mhc_pre_split_mixes_bwd(const DLTensor *mixes, const DLTensor *scale, const DLTensor *base,
                                       const DLTensor *grad_pre_mix, const DLTensor *grad_post_mix,
                                       const DLTensor *grad_comb, DLTensor *grad_mixes, DLTensor *grad_scale,
                                       DLTensor *grad_base, const tgl_mhc_params *params, void *workspace,
                                       size_t workspace_bytes, tgl_stream stream)
{
    const DLTensor *tensors[] = { mixes,     scale,      base,       grad_pre_mix, grad_post_mix,
                                  grad_comb, grad_mixes, grad_scale, grad_base };
    sizes s;
    TGL_TRY(tgl_take(&tgl_mhc_pre_split_mixes_bwd_signature, tensors, params, &s.num_tokens));
    gates_bwd_args a;
    TGL_TRY(tgl_gates_take_grads(&a, tensors, "grad_comb", s.num_tokens, s.num_columns, s.num_streams, params));
    TGL_TRY(tgl_gates_take_workspace(&a, mixes, workspace, workspace_bytes));
    return tgl_run(&tgl_mhc_pre_split_mixes_bwd_signature, &TGL_GATES_BWD, tensors, &a, stream);
}

size_t tgl_mhc_pre_split_mixes_bwd_workspace_size(const DLTensor *mixes) { return tgl_gates_bwd_workspace_size(mixes); }
