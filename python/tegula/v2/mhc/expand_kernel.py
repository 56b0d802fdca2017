# SPDX-License-Identifier: MIT
import torch
from torch import Tensor

from ... import mhc


@torch.no_grad()
def expand_to_mhc_fwd(x: Tensor, o: Tensor) -> None:
    """x [T, H] to all streams of o [T, N, H]."""
    mhc.mhc_expand_fwd(x, o.shape[1], out=o)


@torch.no_grad()
def expand_to_mhc_bwd(o_grad: Tensor, x_grad: Tensor) -> None:
    """The sum of o_grad's streams to x_grad."""
    mhc.mhc_expand_bwd(o_grad, out=x_grad)
