# SPDX-License-Identifier: MIT
from ..v2.mhc.head_compute_mix_kernel import mhc_head_compute_mix_bwd, mhc_head_compute_mix_fwd
from ._factory import ignored


def _mhc_head_compute_mix_fwd(mhc_mult, mhc_pre_eps, token_block_size=32, **tuning):
    ignored(**tuning)

    def call(input_mix, mhc_scale, mhc_base, output_mix):
        mhc_head_compute_mix_fwd(input_mix, mhc_scale, mhc_base, output_mix, mhc_pre_eps)

    return call


def _mhc_head_compute_mix_bwd(mhc_mult, token_block_size=32, num_sms=148, **tuning):
    """Of the partial sums the first row has the total, the others are 0."""
    ignored(**tuning)

    def call(output_mix_grad, input_mix, mhc_scale, mhc_base, input_mix_grad, mhc_scale_grad_partial,
             mhc_base_grad_partial):
        mhc_head_compute_mix_bwd(output_mix_grad, input_mix, mhc_scale, mhc_base, input_mix_grad,
                                 mhc_scale_grad_partial, mhc_base_grad_partial, num_sms)

    return call


__all__ = []
