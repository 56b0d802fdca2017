# SPDX-License-Identifier: MIT
import torch
from torch import Tensor

from ... import mhc


@torch.no_grad()
def mhc_pre_apply_mix_fwd(x: Tensor, mix: Tensor, o: Tensor) -> None:
    """The streams of x [T, N, H], weighted by mix [T, N], to o [T, H].

    Args:
        x: bfloat16 [num_tokens, num_streams, hidden]
        mix: float32 [num_tokens, num_streams]
        o: bfloat16 [num_tokens, hidden]; is written

    Returns:
        None
    """
    mhc.mhc_pre_apply_mix_fwd(x, mix, out=o)


@torch.no_grad()
def mhc_pre_apply_mix_bwd(o_grad: Tensor, x: Tensor, mix: Tensor, x_grad: Tensor) -> Tensor:
    """Adds the gradient of x to x_grad; returns that of mix.

    Args:
        o_grad: bfloat16 [num_tokens, hidden]
        x: bfloat16 [num_tokens, num_streams, hidden]
        mix: float32 [num_tokens, num_streams]
        x_grad: bfloat16 [num_tokens, num_streams, hidden]; is added to

    Returns:
        mix_grad: float32 [num_tokens, num_streams]
    """
    return mhc.mhc_pre_apply_mix_bwd(o_grad, x, mix, x_grad)
