/* SPDX-License-Identifier: MIT
 * head_compute_mix_fwd.c - tgl_mhc_head_compute_mix_fwd: the gate of a head. */
#include "mhc/common/gates_host.h"
#include "mhc/common/mhc_host.h"

TGL_SIZES(sizes, num_tokens, num_streams);
tgl_signature tgl_mhc_head_compute_mix_fwd_signature = TGL_SIGNATURE(
    "mhc_head_compute_mix_fwd(mixes: f32[num_tokens, num_streams] rows, scale: f32[1], base: f32[num_streams], " MHC_PRE
    ") -> pre_mix: f32[num_tokens, num_streams] where " MHC_RULES,
    &TGL_MHC_PARAMS, TGL_SIZES_OF(sizes));

tgl_status tgl_mhc_head_compute_mix_fwd(const DLTensor *mixes, const DLTensor *scale, const DLTensor *base,
                                        DLTensor *pre_mix, const tgl_mhc_params *params, tgl_stream stream)
{
    const DLTensor *tensors[] = { mixes, scale, base, pre_mix };
    sizes n;
    TGL_TRY(tgl_take(&tgl_mhc_head_compute_mix_fwd_signature, tensors, params, &n.num_tokens));
    gates_fwd_args a = { tgl_data(mixes),      tgl_data(scale),       tgl_data(base),         { tgl_data(pre_mix) },
                         n.num_tokens,         tgl_step_of(mixes, 0), (int32_t)n.num_streams, 1,
                         tgl_mhc_gates(params) };
    return tgl_run(&tgl_mhc_head_compute_mix_fwd_signature, &TGL_GATES_FWD, tensors, &a, stream);
}
