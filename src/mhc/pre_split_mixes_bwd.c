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
    " where num_groups in 2..3", &TGL_MHC_PARAMS, TGL_SIZES_OF(sizes));

tgl_status tgl_mhc_pre_split_mixes_bwd(const DLTensor *mixes, const DLTensor *scale, const DLTensor *base,
                                       const DLTensor *grad_pre_mix, const DLTensor *grad_post_mix,
                                       const DLTensor *grad_comb, DLTensor *grad_mixes, DLTensor *grad_scale,
                                       DLTensor *grad_base, const tgl_mhc_params *params, void *workspace,
                                       size_t workspace_bytes, tgl_stream stream)
{
    const DLTensor *tensors[] = { mixes, scale, base, grad_pre_mix, grad_post_mix, grad_comb, grad_mixes, grad_scale,
                                  grad_base };
    const DLTensor *given[] = { grad_pre_mix, grad_post_mix, grad_comb };
    sizes s;
    TGL_TRY(tgl_take(&tgl_mhc_pre_split_mixes_bwd_signature, tensors, params, &s.num_tokens));
    int n = 1;
    while (n < MHC_MAX_STREAMS && gates_columns(n, (int)s.num_groups) < s.num_columns) n++;
    if (gates_columns(n, (int)s.num_groups) != s.num_columns)
        return tgl_fail(TGL_ERR_ARGUMENT, "mixes: shape is [%lld, %lld], want [%lld, %s] for n in 1..8",
                        (long long)s.num_tokens, (long long)s.num_columns, (long long)s.num_tokens,
                        s.num_groups == 3 ? "n * (n + 2)" : "2 * n");
    if (grad_comb && s.num_groups == 2)
        return tgl_fail(TGL_ERR_ARGUMENT, "grad_comb: is given, want NULL for mixes without comb");
    for (int i = 0; i < 3; i++)
        if (given[i] && s.num_streams != n)
            return tgl_fail(TGL_ERR_ARGUMENT, "%s: shape is [..., %lld], want [..., %d]",
                            i == 0 ? "grad_pre_mix" : i == 1 ? "grad_post_mix" : "grad_comb", (long long)s.num_streams,
                            n);
    gates_bwd_args a = { .mixes = tgl_data(mixes), .scale = tgl_data(scale), .base = tgl_data(base),
                         .grad_mixes = tgl_data(grad_mixes), .grad_scale = tgl_data(grad_scale),
                         .grad_base = tgl_data(grad_base), .num_tokens = s.num_tokens,
                         .row_stride = s.num_tokens > 1 ? tgl_stride(mixes, 0) : 0, .num_streams = n,
                         .num_groups = (int32_t)s.num_groups, .numbers = tgl_mhc_gates(params) };
    for (int i = 0; i < 3; i++) a.grad_out[i] = given[i] ? tgl_data(given[i]) : NULL;
    TGL_TRY(tgl_gates_take_workspace(&a, mixes, workspace, workspace_bytes));
    return tgl_run(&tgl_mhc_pre_split_mixes_bwd_signature, &TGL_GATES_BWD, tensors, &a, stream);
}

size_t tgl_mhc_pre_split_mixes_bwd_workspace_size(const DLTensor *mixes) { return tgl_gates_bwd_workspace_size(mixes); }
