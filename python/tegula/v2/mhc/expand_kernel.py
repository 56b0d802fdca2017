# SPDX-License-Identifier: MIT
import torch
from torch import Tensor

from ... import mhc


@torch.no_grad()
def expand_to_mhc_fwd(x: Tensor, o: Tensor) -> None:
    """x [T, H] to all streams of o [T, N, H].

    Args:
        x: bfloat16, float16 or float32 [num_tokens, hidden]
        o: as x [num_tokens, num_streams, hidden]; is written

    Returns:
        None
    """
    mhc.mhc_expand_fwd(x, o.shape[1], out=o)


@torch.no_grad()
def expand_to_mhc_bwd(o_grad: Tensor, x_grad: Tensor) -> None:
    """The sum of o_grad's streams to x_grad.

    Args:
        o_grad: bfloat16, float16 or float32 [num_tokens, num_streams, hidden]
        x_grad: as o_grad [num_tokens, hidden]; is written

    Returns:
        None
    """
    mhc.mhc_expand_bwd(o_grad, out=x_grad)
