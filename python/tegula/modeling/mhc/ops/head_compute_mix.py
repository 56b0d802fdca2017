# SPDX-License-Identifier: MIT
from ....mhc import mhc_head_compute_mix_fwd
from ._shapes import flat


def mhc_head_compute_mix(input_mix, mhc_scale, mhc_base, mhc_pre_eps):
    """sigmoid(input_mix * mhc_scale + mhc_base) + mhc_pre_eps, [..., N]. mhc_scale has one element."""
    return mhc_head_compute_mix_fwd(flat(input_mix, 1), mhc_scale.reshape(1), mhc_base, mhc_pre_eps).view(
        input_mix.shape)
