# SPDX-License-Identifier: MIT
from typing import Optional

import torch
from torch import Tensor

from ....mhc import mhc_expand_bwd, mhc_expand_fwd
from ._shapes import flat, flat_out, is_traced, unflat, wants_gradient


def _is_torchs(hidden):
    """The op has bfloat16."""
    return hidden.dtype in (torch.float16, torch.float32)


def _fill(hidden, mhc_mult, to):
    """[T, H] to [T, mhc_mult, H]."""
    if _is_torchs(hidden):
        to.copy_(hidden.unsqueeze(1).expand(to.shape))
    else:
        mhc_expand_fwd(hidden, mhc_mult, out=to)


class _Into(torch.autograd.Function):
    """out itself stays out of the graph, so that it may be filled again in the next step."""

    @staticmethod
    def forward(ctx, hidden, mhc_mult, out, to):
        _fill(hidden, mhc_mult, to)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        grad = flat(grad, 2)
        return grad.sum(1) if _is_torchs(grad) else mhc_expand_bwd(grad), None, None, None


def _check_as_op(hidden, mhc_mult, out):
    """What the op would refuse."""
    if not 1 <= mhc_mult <= 8:
        raise ValueError(f"num_streams: is {mhc_mult}, want 1..8")
    if out is not None and out.dtype != hidden.dtype:
        raise ValueError(f"out: dtype is {out.dtype}, want {hidden.dtype}")
    if out is not None and out.stride(-1) != 1:
        raise ValueError(f"out: strides are {list(out.stride())}, want 1 in the last dimension")


def expand_to_mhc(hidden: Tensor, mhc_mult: int, out: Optional[Tensor] = None) -> Tensor:
    """[..., H] to mhc_mult equal streams, [..., mhc_mult, H]. (The op has bfloat16; of float16 and float32 torch makes them.)

    Example:
        >>> expand_to_mhc(torch.randn(2, 3, 64).bfloat16(), 4).shape
        torch.Size([2, 3, 4, 64])
    """
    shape = *hidden.shape[:-1], mhc_mult, hidden.shape[-1]
    if _is_torchs(hidden):
        _check_as_op(hidden, mhc_mult, out)
        if out is None:
            return hidden.unsqueeze(-2).expand(shape).clone(memory_format=torch.contiguous_format)
    elif out is None:
        return unflat(mhc_expand_fwd(flat(hidden, 1), mhc_mult), shape)
    to = flat_out(out, shape, 2)
    if not wants_gradient(hidden) or is_traced():
        _fill(flat(hidden, 1), mhc_mult, to)
        return out
    made: Tensor = _Into.apply(flat(hidden, 1), mhc_mult, out, to)
    return made
