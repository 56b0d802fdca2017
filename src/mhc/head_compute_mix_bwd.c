/* SPDX-License-Identifier: MIT
 * head_compute_mix_bwd.c - tgl_mhc_head_compute_mix_bwd: gradients of a head's mixes, scale and base. */
#include "mhc/common/gates_host.h"
#include "mhc/common/mhc_host.h"

TGL_SIZES(sizes, num_tokens, num_streams);
tgl_signature tgl_mhc_head_compute_mix_bwd_signature = TGL_SIGNATURE(
    "mhc_head_compute_mix_bwd(mixes: f32[num_tokens, num_streams] rows, scale: f32[1], base: f32[num_streams],"
    " grad_pre_mix: f32[num_tokens, num_streams])"
    " -> grad_mixes: f32[num_tokens, num_streams], grad_scale: f32[1], grad_base: f32[num_streams] where " MHC_RULES,
    NULL, TGL_SIZES_OF(sizes));

tgl_status tgl_mhc_head_compute_mix_bwd(const DLTensor *mixes, const DLTensor *scale, const DLTensor *base,
                                        const DLTensor *grad_pre_mix, DLTensor *grad_mixes, DLTensor *grad_scale,
                                        DLTensor *grad_base, void *workspace, size_t workspace_bytes, tgl_stream stream)
{
    const DLTensor *tensors[] = { mixes, scale, base, grad_pre_mix, grad_mixes, grad_scale, grad_base };
    sizes n;
    TGL_TRY(tgl_take(&tgl_mhc_head_compute_mix_bwd_signature, tensors, NULL, &n.num_tokens));
    gates_bwd_args a = { .grad_out = { tgl_data(grad_pre_mix) },
                         .mixes = tgl_data(mixes),
                         .scale = tgl_data(scale),
                         .base = tgl_data(base),
                         .grad_mixes = tgl_data(grad_mixes),
                         .grad_scale = tgl_data(grad_scale),
                         .grad_base = tgl_data(grad_base),
                         .num_tokens = n.num_tokens,
                         .row_stride = tgl_step_of(mixes, 0),
                         .num_streams = (int32_t)n.num_streams,
                         .num_groups = 1 };
    TGL_TRY(tgl_gates_take_workspace(&a, mixes, workspace, workspace_bytes));
    return tgl_run(&tgl_mhc_head_compute_mix_bwd_signature, &TGL_GATES_BWD, tensors, &a, stream);
}

size_t tgl_mhc_head_compute_mix_bwd_workspace_size(const DLTensor *mixes)
{
    return tgl_gates_bwd_workspace_size(mixes);
}
