# SPDX-License-Identifier: MIT
from typing import Optional

import torch
from torch import Tensor

from ....mhc import mhc_norm_fn_bwd, mhc_norm_fn_fwd
from ... import _main_grad
from ._residual_grad import discard, find
from ._shapes import flat, is_traced, packed, unflat, wants_gradient


def _to_main_grad(grad, main_grad):
    """What autograd gets. mhc_head uses the first rows of a larger fn."""
    if main_grad is None:
        return grad
    main_grad[:grad.shape[0]].add_(grad)
    return None


class _NormFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, residual, fn, norm_weight, eps, fuse_grad_acc):
        mixes, out_mul, sqrsum = mhc_norm_fn_fwd(flat(residual, 2), packed(fn), packed(norm_weight), eps)
        ctx.save_for_backward(residual, fn, norm_weight, out_mul, sqrsum)
        ctx.eps, ctx.fuse_grad_acc = eps, fuse_grad_acc
        # As TileKernels has it: of the product of fn and the gain.
        weights = (getattr(fn, "tegula_rows_of", fn), norm_weight) if norm_weight is not None else (None, None)
        ctx.parameters = _main_grad.keep(*weights)
        return mixes

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        residual, fn, norm_weight, out_mul, sqrsum = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        buffer = find(residual, ctx.next_functions[0]) if ctx.fuse_grad_acc and wanted[0] else None
        made = mhc_norm_fn_bwd(grad.contiguous(), flat(residual, 2), packed(fn), out_mul, sqrsum, packed(norm_weight),
                               ctx.eps, grad_residual=buffer)
        if buffer is None:
            grad_residual, *made = made
        else:
            discard(residual.untyped_storage())
            made = made if norm_weight is not None else (made,)
        of_weights = [_to_main_grad(g, main) if is_wanted else None
                      for g, main, is_wanted in zip(made, _main_grad.find(ctx.parameters), wanted[1:3])]
        return (grad_residual.view(residual.shape) if buffer is None and wanted[0] else None, of_weights[0],
                of_weights[1] if norm_weight is not None else None, None, None)


def mhc_pre_norm_fn(residual: Tensor, mhc_fn: Tensor, mhc_norm_weight: Optional[Tensor], mhc_norm_eps: float,
                    fuse_grad_acc: bool = True, n_splits: int = 16) -> Tensor:
    """Mixes [..., P]: RMSNorm of the columns of all streams of residual [..., N, H], with gain mhc_norm_weight [N * H]
    or None, times the rows of mhc_fn [P, N * H], in TF32. Results do not depend on n_splits. If mhc_fn or
    mhc_norm_weight, both given, has a tensor main_grad, its gradient is added there and autograd gets none; compiled code
    does not see it, and autograd gets the gradient.

    Args:
        residual: bfloat16 [..., num_streams, hidden]
        mhc_fn: float32 or bfloat16 [num_mixes, num_streams * hidden]
        mhc_norm_weight: float32 or bfloat16 [num_streams * hidden], or None
        mhc_norm_eps: float
        fuse_grad_acc: bool, whether the backward adds to the gradient that mhc_post's has left
        n_splits: int, ignored

    Returns:
        mixes: float32 [..., num_mixes]

    Example:
        >>> mhc_pre_norm_fn(torch.randn(2, 3, 4, 64).bfloat16(), torch.randn(24, 256), None, 1e-6).shape
        torch.Size([2, 3, 24])
    """
    shape = *residual.shape[:-2], mhc_fn.shape[0]
    if not wants_gradient(residual, mhc_fn, mhc_norm_weight) or is_traced():
        return unflat(mhc_norm_fn_fwd(flat(residual, 2), packed(mhc_fn), packed(mhc_norm_weight), mhc_norm_eps)[0],
                      shape)
    made: Tensor = _NormFn.apply(residual, mhc_fn, mhc_norm_weight, mhc_norm_eps, fuse_grad_acc)
    return unflat(made, shape)
