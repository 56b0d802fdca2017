# SPDX-License-Identifier: MIT
from typing import Optional

import torch
from torch import Tensor

from ....mhc import mhc_expand_bwd, mhc_expand_fwd
from ._shapes import flat, flat_out, is_traced, unflat, wants_gradient


class _Into(torch.autograd.Function):
    """out itself stays out of the graph, so that it may be filled again in the next step."""

    @staticmethod
    def forward(ctx, hidden, mhc_mult, out, to):
        mhc_expand_fwd(hidden, mhc_mult, out=to)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return mhc_expand_bwd(flat(grad, 2)), None, None, None


def expand_to_mhc(hidden: Tensor, mhc_mult: int, out: Optional[Tensor] = None) -> Tensor:
    """[..., H] to mhc_mult equal streams, [..., mhc_mult, H], in bfloat16, float16 or float32.

    Args:
        hidden: bfloat16, float16 or float32 [..., hidden]
        mhc_mult: int, num_streams
        out: a tensor to write to, or None

    Returns:
        out: as hidden [..., num_streams, hidden]

    Example:
        >>> expand_to_mhc(torch.randn(2, 3, 64).bfloat16(), 4).shape
        torch.Size([2, 3, 4, 64])
    """
    shape = *hidden.shape[:-1], mhc_mult, hidden.shape[-1]
    if out is None:
        return unflat(mhc_expand_fwd(flat(hidden, 1), mhc_mult), shape)
    to = flat_out(out, shape, 2)
    if not wants_gradient(hidden) or is_traced():
        mhc_expand_fwd(flat(hidden, 1), mhc_mult, out=to)
        return out
    made: Tensor = _Into.apply(flat(hidden, 1), mhc_mult, out, to)
    return made
