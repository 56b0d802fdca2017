# SPDX-License-Identifier: MIT
import torch
from torch import Tensor

from ... import mhc


@torch.no_grad()
def mhc_pre_apply_mix_fwd(x: Tensor, mix: Tensor, o: Tensor) -> None:
    """The streams of x [T, N, H], weighted by mix [T, N], to o [T, H]."""
    mhc.mhc_pre_apply_mix_fwd(x, mix, out=o)


@torch.no_grad()
def mhc_pre_apply_mix_bwd(o_grad: Tensor, x: Tensor, mix: Tensor, x_grad: Tensor) -> Tensor:
    """Adds the gradient of x to x_grad; returns that of mix."""
    return mhc.mhc_pre_apply_mix_bwd(o_grad, x, mix, x_grad)
