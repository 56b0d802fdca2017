# SPDX-License-Identifier: MIT
from typing import Optional

import torch
from torch import Tensor

from ....mhc import mhc_post_bwd as _bwd, mhc_post_fwd as _fwd
from ._residual_grad import leave
from ._shapes import check_lead, check_out, flat, flat_mix, flat_out, is_traced, unflat, wants_gradient


def _flat(x, residual, post_layer_mix, comb_res_mix):
    check_lead("x", x, 1, residual)
    if comb_res_mix is not None:
        check_lead("comb_res_mix", comb_res_mix, 2, residual)
        comb_res_mix = flat(comb_res_mix, 2).contiguous()
    return flat(x, 1), flat(residual, 2), flat_mix(post_layer_mix, residual), comb_res_mix


def _post(x, residual, post_layer_mix, comb_res_mix, out):
    made = _fwd(*_flat(x, residual, post_layer_mix, comb_res_mix), out=flat_out(out, residual.shape, 2))
    return unflat(made, residual.shape) if out is None else out


@torch.no_grad()
def mhc_post_fwd(x: Tensor, residual: Tensor, post_layer_mix: Tensor, comb_res_mix: Optional[Tensor],
                 out: Optional[Tensor] = None) -> Tensor:
    """mhc_post without gradients.

    Args:
        x: bfloat16 [..., hidden]
        residual: bfloat16 [..., num_streams, hidden]
        post_layer_mix: float32 [..., num_streams, 1] or [..., num_streams]
        comb_res_mix: float32 [..., num_streams, num_streams], or None
        out: a tensor to write to, which may be residual, or None

    Returns:
        out: bfloat16 [..., num_streams, hidden]

    Example:
        >>> x, residual = torch.randn(6, 64).bfloat16(), torch.randn(6, 4, 64).bfloat16()
        >>> mhc_post_fwd(x, residual, torch.rand(6, 4), torch.rand(6, 4, 4), out=residual) is residual
        True
    """
    return _post(x, residual, post_layer_mix, comb_res_mix, out)


def _grads(inputs, d_o, is_left, edge=None):
    """Of what _Post saved: without comb_res_mix nothing reads the values of residual, which may be None."""
    x, residual, post_layer_mix, comb_res_mix = inputs
    if residual is None:
        residual = d_o                      # for its shape and dtype
    d_o, args = flat(d_o, 2), _flat(x, residual, post_layer_mix, comb_res_mix)
    if comb_res_mix is None:
        d_x, d_post = _bwd(d_o, *args)
        d_residual, d_comb = d_o.clone(memory_format=torch.contiguous_format), None     # d_o is not ours to add to
    else:
        d_x, d_residual, d_post, d_comb = _bwd(d_o, *args)
        d_comb = unflat(d_comb, comb_res_mix.shape)
    d_residual = leave(residual, d_residual, edge) if is_left else unflat(d_residual, residual.shape)
    return unflat(d_x, x.shape), d_residual, d_post.view(post_layer_mix.shape), d_comb


@torch.no_grad()
def mhc_post_bwd(x: Tensor, residual: Tensor, post_layer_mix: Tensor, comb_res_mix: Optional[Tensor], d_o: Tensor,
                 fuse_grad_acc: bool = True) -> tuple[Tensor, Tensor, Tensor, Optional[Tensor]]:
    """The gradients of mhc_post's four tensors; that of comb_res_mix is None if it was. With fuse_grad_acc that of residual
    is also left on its storage.

    Args:
        x: bfloat16 [..., hidden]
        residual: bfloat16 [..., num_streams, hidden]
        post_layer_mix: float32 [..., num_streams, 1] or [..., num_streams]
        comb_res_mix: float32 [..., num_streams, num_streams], or None
        d_o: bfloat16 [..., num_streams, hidden]
        fuse_grad_acc: bool

    Returns:
        d_x: bfloat16 [..., hidden]
        d_residual: bfloat16 [..., num_streams, hidden]
        d_post_layer_mix: float32, in the shape of post_layer_mix
        d_comb_res_mix: float32 [..., num_streams, num_streams], or None

    Example:
        >>> x, residual = torch.randn(6, 64).bfloat16(), torch.randn(6, 4, 64).bfloat16()
        >>> d_x, d_residual, d_post, d_comb = mhc_post_bwd(x, residual, torch.rand(6, 4), torch.rand(6, 4, 4), residual)
        >>> d_x.shape, d_comb.shape
        (torch.Size([6, 64]), torch.Size([6, 4, 4]))
    """
    return _grads((x, residual, post_layer_mix, comb_res_mix), d_o, fuse_grad_acc)


class _Post(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, residual, post_layer_mix, comb_res_mix, out):
        is_read = comb_res_mix is not None or ctx.needs_input_grad[1]       # its values, or its storage by leave()
        ctx.save_for_backward(x, residual if is_read else None, post_layer_mix, comb_res_mix)
        return _post(x, residual, post_layer_mix, comb_res_mix, out)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_o):
        return *_grads(ctx.saved_tensors, d_o, ctx.needs_input_grad[1], ctx.next_functions[1]), None


def mhc_post(x: Tensor, residual: Tensor, post_layer_mix: Tensor, comb_res_mix: Optional[Tensor],
             out: Optional[Tensor] = None) -> Tensor:
    """A sublayer's output x [..., H] into residual [..., N, H]: post_layer_mix [..., N, 1] or [..., N] times x, plus
    the streams mixed by comb_res_mix [..., N, N], [input, output stream], or as they are if that is None (HY-V4).

    Args:
        x: bfloat16 [..., hidden]
        residual: bfloat16 [..., num_streams, hidden]
        post_layer_mix: float32 [..., num_streams, 1] or [..., num_streams]
        comb_res_mix: float32 [..., num_streams, num_streams], or None
        out: a tensor to write to, or None

    Returns:
        out: bfloat16 [..., num_streams, hidden]

    Example:
        >>> x, residual = torch.randn(2, 3, 64).bfloat16(), torch.randn(2, 3, 4, 64).bfloat16()
        >>> mhc_post(x, residual, torch.rand(2, 3, 4, 1), torch.rand(2, 3, 4, 4)).shape
        torch.Size([2, 3, 4, 64])
    """
    if not wants_gradient(x, residual, post_layer_mix, comb_res_mix) or is_traced():
        return _post(x, residual, post_layer_mix, comb_res_mix, out)
    is_read = comb_res_mix is not None or residual.requires_grad
    check_out(out, x, residual if is_read else None, post_layer_mix, comb_res_mix)
    made: Tensor = _Post.apply(x, residual, post_layer_mix, comb_res_mix, out)
    return made
