# SPDX-License-Identifier: MIT
from torch import Tensor

from ....mhc import mhc_head_compute_mix_fwd
from ._shapes import flat, packed, unflat


def mhc_head_compute_mix(input_mix: Tensor, mhc_scale: Tensor, mhc_base: Tensor, mhc_pre_eps: float) -> Tensor:
    """sigmoid(input_mix * mhc_scale + mhc_base) + mhc_pre_eps, [..., N]. mhc_scale has one element.

    Args:
        input_mix: float32 [..., num_streams]
        mhc_scale: float32 or bfloat16 [1]
        mhc_base: float32 or bfloat16 [num_streams]
        mhc_pre_eps: float

    Returns:
        pre_mix: float32 [..., num_streams]

    Example:
        >>> mhc_head_compute_mix(torch.randn(2, 3, 4), torch.ones(1), torch.zeros(4), 1e-6).shape
        torch.Size([2, 3, 4])
    """
    made = mhc_head_compute_mix_fwd(flat(input_mix, 1), packed(mhc_scale).reshape(1), packed(mhc_base), mhc_pre_eps)
    return unflat(made, input_mix.shape)
