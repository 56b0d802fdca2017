# SPDX-License-Identifier: MIT
from typing import Optional

import torch
from torch import Tensor

from ....mhc import mhc_pre_apply_mix_bwd, mhc_pre_apply_mix_fwd
from ._residual_grad import find
from ._shapes import check_out, flat, flat_mix, flat_out, is_traced, unflat, wants_gradient


class _PreApplyMix(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mix, out, to):
        ctx.save_for_backward(x, mix)
        made = mhc_pre_apply_mix_fwd(flat(x, 2), flat_mix(mix, x), out=to)
        return made.view(*x.shape[:-2], x.shape[-1]) if out is None else out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, mix = ctx.saved_tensors
        is_wanted = ctx.needs_input_grad[0]
        buffer = find(x, ctx.next_functions[0]) if is_wanted else None
        args = flat(grad, 1), flat(x, 2), flat_mix(mix, x)
        if buffer is not None:
            return None, mhc_pre_apply_mix_bwd(*args, buffer).view(mix.shape), None, None
        grad_x, grad_mix = mhc_pre_apply_mix_bwd(*args)
        return grad_x.view(x.shape) if is_wanted else None, grad_mix.view(mix.shape), None, None


def mhc_pre_apply_mix(x: Tensor, mix: Tensor, out: Optional[Tensor] = None) -> Tensor:
    """The streams of x [..., N, H] as one, [..., H], weighted by mix [..., N, 1] or [..., N].

    Args:
        x: bfloat16 [..., num_streams, hidden]
        mix: float32 [..., num_streams, 1] or [..., num_streams]
        out: a tensor to write to, or None

    Returns:
        out: bfloat16 [..., hidden]

    Example:
        >>> mhc_pre_apply_mix(torch.randn(2, 3, 4, 64).bfloat16(), torch.rand(2, 3, 4, 1)).shape
        torch.Size([2, 3, 64])
    """
    shape = *x.shape[:-2], x.shape[-1]
    to = flat_out(out, shape, 1)
    if not wants_gradient(x, mix) or is_traced():
        made = mhc_pre_apply_mix_fwd(flat(x, 2), flat_mix(mix, x), out=to)
        return unflat(made, shape) if out is None else out
    check_out(out, x, mix)
    weighted: Tensor = _PreApplyMix.apply(x, mix, out, to)
    return weighted
