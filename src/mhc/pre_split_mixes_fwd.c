/* SPDX-License-Identifier: MIT
 * pre_split_mixes_fwd.c - tgl_mhc_pre_split_mixes_fwd: gates and logits from mixes. */
#include "mhc/common/gates_host.h"
#include "mhc/common/mhc_host.h"

TGL_SIZES(sizes, num_tokens, num_streams);
tgl_signature tgl_mhc_pre_split_mixes_fwd_signature =
    TGL_SIGNATURE("mhc_pre_split_mixes_fwd(mixes: f32[num_tokens, num_streams * (2 + num_streams * comb)] rows,"
                  " scale: f32[2 + comb], base: f32[num_streams * (2 + num_streams * comb)], " MHC_PRE ", " MHC_POST ")"
                  " -> pre_mix: f32[num_tokens, num_streams], post_mix: f32[num_tokens, num_streams], comb: " MHC_SQUARE
                  "?"
                  " where " MHC_RULES,
                  &TGL_MHC_PARAMS, TGL_SIZES_OF(sizes));

tgl_status tgl_mhc_pre_split_mixes_fwd(const DLTensor *mixes, const DLTensor *scale, const DLTensor *base,
                                       DLTensor *pre_mix, DLTensor *post_mix, DLTensor *comb,
                                       const tgl_mhc_params *params, tgl_stream stream)
{
    const DLTensor *tensors[] = { mixes, scale, base, pre_mix, post_mix, comb };
    sizes n;
    TGL_TRY(tgl_take(&tgl_mhc_pre_split_mixes_fwd_signature, tensors, params, &n.num_tokens));
    gates_fwd_args a = { tgl_data(mixes),        tgl_data(scale),
                         tgl_data(base),         { tgl_data(pre_mix), tgl_data(post_mix), tgl_data_or_null(comb) },
                         n.num_tokens,           tgl_step_of(mixes, 0),
                         (int32_t)n.num_streams, comb ? 3 : 2,
                         tgl_mhc_gates(params) };
    return tgl_run(&tgl_mhc_pre_split_mixes_fwd_signature, &TGL_GATES_FWD, tensors, &a, stream);
}
