# SPDX-License-Identifier: MIT
import torch

from .. import mhc
from ..v2.mhc._outputs import check_outputs
from ..v2.mhc.head_compute_mix_kernel import in_row_0
from ..v2.mhc.pre_split_mixes_kernel import mhc_pre_split_mixes_fwd
from ._factory import ignored


def _mhc_pre_split_mixes_fwd(mhc_mult, mhc_post_mult_value, mhc_pre_eps, token_block_size=32, **tuning):
    ignored(**tuning)

    def call(input_mixes, mhc_scale, mhc_base, pre_layer_mix, post_layer_mix, comb_res_mix):
        mhc_pre_split_mixes_fwd(input_mixes, mhc_scale, mhc_base, pre_layer_mix, post_layer_mix, comb_res_mix,
                                mhc_post_mult_value, mhc_pre_eps)

    return call


def _mhc_pre_split_mixes_bwd(mhc_mult, mhc_post_mult_value, token_block_size=32, num_sms=148, **tuning):
    """Of the partial sums the first row has the total, the others are 0."""
    ignored(**tuning)

    @torch.no_grad()
    def call(pre_grad, post_grad, comb_grad, input_mixes, post_layer_mix, mhc_scale, mhc_base, input_mixes_grad,
             mhc_scale_grad_partial, mhc_base_grad_partial):
        check_outputs(pre_grad, post_grad, comb_grad, input_mixes, mhc_scale, mhc_base, input_mixes_grad,
                      mhc_scale_grad_partial=(mhc_scale_grad_partial, (num_sms, 3)),
                      mhc_base_grad_partial=(mhc_base_grad_partial, (num_sms, *mhc_base.shape)))
        _, scale, base = mhc.mhc_pre_split_mixes_bwd(
            input_mixes, mhc_scale, mhc_base, pre_grad, post_grad, comb_grad.reshape(-1, mhc_mult, mhc_mult),
            mhc_post_mult_value, out=(input_mixes_grad, None, None))
        in_row_0(mhc_scale_grad_partial, scale)
        in_row_0(mhc_base_grad_partial, base)

    return call


__all__ = []
