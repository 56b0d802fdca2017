# SPDX-License-Identifier: MIT
"""Engram's lookup, gate and short convolution with their gradients. A weight that has a tensor main_grad, as
Megatron's parameters have, gets its gradient added there, in float32, and none from autograd; compiled code does not see
it, and autograd gets the gradient."""
from typing import Literal, Optional

import torch
from torch import Tensor

from . import _main_grad
from ..engram import (engram_gate_bwd, engram_gate_fwd, engram_gate_kv_bwd, engram_gate_kv_fwd, engram_lookup,
                      engram_lookup_bwd, grad_w_reduce, short_conv as _short_conv, short_conv_bwd)


def _flat(t, last):
    """[..., the last dimensions] as [T, the last dimensions], of rows that are packed."""
    if t.ndim != last + 1:
        t = t.reshape(t.shape[:t.ndim - last].numel(), *t.shape[t.ndim - last:])
    return t if t.stride(-1) == 1 else t.contiguous()


def _unflat(t, shape):
    """[T, ...] in a shape with the same last dimensions."""
    return t if t.ndim == len(shape) else t.view(shape)


def _check_lead(name, t, last, of, want):
    """t [..., the last dimensions] has the leading dimensions `want` of the tensor named `of`; or one of them has only
    one, of all tokens in order."""
    lead = t.shape[:t.ndim - last]
    if lead != want and len(lead) != 1 and len(want) != 1:
        raise ValueError(f"{name}: shape is {list(t.shape)}, want {[*want, *t.shape[t.ndim - last:]]}, as {of} has it")


def _flat_mask(name, mask, of, want):
    if mask is None:
        return None
    _check_lead(name, mask, 0, of, want)
    return mask.reshape(-1).contiguous()


def _wants_gradient(*tensors):
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _weight_gradients(ctx, partial, weights, wanted):
    """What autograd gets for the two weights: None for what is added to main_grad, or not wanted."""
    if not any(wanted):
        return None, None
    main = [m if is_wanted else None for m, is_wanted in zip(_main_grad.find(ctx.parameters), wanted)]
    is_tied = main[0] is not None and main[0] is main[1]
    to = [torch.zeros(w.shape, dtype=torch.float32, device=w.device) if m is None else m for w, m in zip(weights, main)]
    if is_tied:
        to[1] = torch.zeros_like(to[0])
    grad_w_reduce(partial, *(w.detach() for w in weights), *to, ctx.zero_centered)
    if is_tied:
        to[0] += to[1]
    return tuple(t if m is None and is_wanted else None for t, m, is_wanted in zip(to, main, wanted))


def _gate(is_saved, hidden_states, k, v, weight_hidden, weight_embed, clamp_value, eps, add_residual=True,
          image_token_mask=None, zero_centered=False, sign="zero"):
    """(output, what the backward needs)"""
    _check_lead("k", k, 2, "hidden_states", hidden_states.shape[:-2])
    _check_lead("v", v, 1, "hidden_states", hidden_states.shape[:-2])
    mask = _flat_mask("image_token_mask", image_token_mask, "hidden_states", hidden_states.shape[:-2])
    output, *saved = engram_gate_fwd(
        _flat(hidden_states, 2), _flat(k, 2), _flat(v, 1), None, eps, clamp_value, is_saved, image_token_mask=mask,
        weights=(weight_hidden, weight_embed), add_residual=add_residual, zero_centered=zero_centered, sign=sign)
    return _unflat(output, hidden_states.shape), (mask, *saved)


class EngramGateFn(torch.autograd.Function):
    """apply(hidden_states, k, v, weight_hidden, weight_embed, clamp_value, eps, add_residual=True, image_token_mask=None,
    zero_centered=False, sign="zero"): leading dimensions of the first three may be any, [..., H, D] and [..., D].
    engram_gate() calls it, and has its arguments."""

    @staticmethod
    def forward(ctx, hidden_states, k, v, weight_hidden, weight_embed, clamp_value, eps, add_residual=True,
                image_token_mask=None, zero_centered=False, sign="zero"):
        ctx.clamp_value, ctx.add_residual, ctx.zero_centered = clamp_value, add_residual, zero_centered
        ctx.parameters = _main_grad.keep(weight_hidden, weight_embed)
        is_saved = any(ctx.needs_input_grad)
        output, saved = _gate(is_saved, hidden_states, k, v, weight_hidden, weight_embed, clamp_value, eps,
                              add_residual, image_token_mask, zero_centered, sign)
        if is_saved:
            ctx.save_for_backward(hidden_states, k, v, weight_hidden, weight_embed, *saved)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        hidden_states, k, v, weight_hidden, weight_embed, mask, *saved = ctx.saved_tensors
        weights, wanted = (weight_hidden, weight_embed), ctx.needs_input_grad
        grad_x, grad_k, grad_v, partial = engram_gate_bwd(
            _flat(grad_output, 2), _flat(hidden_states, 2), _flat(k, 2), _flat(v, 1), None, *saved, ctx.clamp_value,
            image_token_mask=mask, weights=weights, add_residual=ctx.add_residual, zero_centered=ctx.zero_centered,
            wanted=(*wanted[:3], any(wanted[3:5])))
        return (_shaped(grad_x, hidden_states), _shaped(grad_k, k), _shaped(grad_v, v),
                *_weight_gradients(ctx, partial, weights, wanted[3:5]), *(None,) * 6)


def _shaped(grad, t):
    """A gradient, or None, in the shape of its tensor."""
    return None if grad is None else grad.view(t.shape)


def _by_stream(kv, hidden_states):
    """[..., (H + 1) * D] or [..., H + 1, D] as [T, H + 1, D]."""
    streams, hidden = hidden_states.shape[-2:]
    last = 2 if kv.shape[-2:] == (streams + 1, hidden) else 1
    if last == 1 and kv.shape[-1] != (streams + 1) * hidden:
        raise ValueError(f"kv: shape is {list(kv.shape)}, want [..., {(streams + 1) * hidden}] or [..., {streams + 1}, "
                         f"{hidden}]")
    _check_lead("kv", kv, last, "hidden_states", hidden_states.shape[:-2])
    if last == 2 and kv.ndim == 3:
        return kv
    return kv.reshape(kv.shape[:kv.ndim - last].numel(), streams + 1, hidden)


def _gate_kv(is_saved, hidden_states, kv, weight_hidden, weight_embed, clamp_value, eps, image_token_mask=None,
             add_residual=True, zero_centered=False, sign="bit"):
    """(output, what the backward needs)"""
    mask = _flat_mask("image_token_mask", image_token_mask, "hidden_states", hidden_states.shape[:-2])
    output, *saved = engram_gate_kv_fwd(
        _flat(hidden_states, 2), _flat(_by_stream(kv, hidden_states), 2), None, eps, clamp_value, is_saved, mask,
        weights=(weight_hidden, weight_embed), add_residual=add_residual, zero_centered=zero_centered, sign=sign)
    return _unflat(output, hidden_states.shape), (mask, *saved)


class EngramGateKvFn(torch.autograd.Function):
    """apply(hidden_states, kv, weight_hidden, weight_embed, clamp_value, eps, image_token_mask=None, add_residual=True,
    zero_centered=False, sign="bit"): keys and value in one tensor, [..., (H + 1) * D] or [..., H + 1, D].
    engram_gate_kv() calls it, and has its arguments."""

    @staticmethod
    def forward(ctx, hidden_states, kv, weight_hidden, weight_embed, clamp_value, eps, image_token_mask=None,
                add_residual=True, zero_centered=False, sign="bit"):
        ctx.clamp_value, ctx.add_residual, ctx.zero_centered = clamp_value, add_residual, zero_centered
        ctx.parameters = _main_grad.keep(weight_hidden, weight_embed)
        is_saved = any(ctx.needs_input_grad)
        output, saved = _gate_kv(is_saved, hidden_states, kv, weight_hidden, weight_embed, clamp_value, eps,
                                 image_token_mask, add_residual, zero_centered, sign)
        if is_saved:
            ctx.save_for_backward(hidden_states, kv, weight_hidden, weight_embed, *saved)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        hidden_states, kv, weight_hidden, weight_embed, mask, *saved = ctx.saved_tensors
        weights, wanted = (weight_hidden, weight_embed), ctx.needs_input_grad
        grad_x, grad_kv, partial = engram_gate_kv_bwd(
            _flat(grad_output, 2), _flat(hidden_states, 2), _flat(_by_stream(kv, hidden_states), 2), None, *saved,
            ctx.clamp_value, mask, weights=weights, add_residual=ctx.add_residual, zero_centered=ctx.zero_centered,
            wanted=(*wanted[:2], any(wanted[2:4])))
        return (_shaped(grad_x, hidden_states), _shaped(grad_kv, kv),
                *_weight_gradients(ctx, partial, weights, wanted[2:4]), *(None,) * 6)


def _by_token(indices):
    """[..., C] as [T, C], any strides."""
    if indices.ndim == 2:
        return indices
    return indices.reshape(indices.shape[:-1].numel(), indices.shape[-1])


def _lookup(table, indices, row_begin):
    if table.dtype not in (torch.bfloat16, torch.float32):
        raise TypeError(f"table: dtype is {table.dtype}, want bfloat16 or float32: others have no gradient")
    return engram_lookup(table, _by_token(indices), row_begin=row_begin).view(*indices.shape, table.shape[1])


class EngramLookupFn(torch.autograd.Function):
    """apply(table, indices, row_begin=0): rows of a table [R, D], bfloat16 or float32, by index [..., C], as [..., C,
    D]. The gradient is dense, unless the table has a main_grad. lookup() calls it, and has its arguments."""

    @staticmethod
    def forward(ctx, table, indices, row_begin=0):
        ctx.parameters = _main_grad.keep(table)
        main_grad, = _main_grad.find(ctx.parameters)
        if ctx.needs_input_grad[0] and indices.device != (table if main_grad is None else main_grad).device:
            raise ValueError(f"table: is on {table.device} and requires a gradient, want a main_grad on {indices.device}, "
                             "as indices")
        ctx.save_for_backward(indices)          # the table's values may change: its gradient needs none
        ctx.shape, ctx.dtype, ctx.row_begin = table.shape, table.dtype, row_begin
        return _lookup(table, indices, row_begin)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        indices, = ctx.saved_tensors
        main_grad, = _main_grad.find(ctx.parameters)
        to = torch.zeros(ctx.shape, dtype=torch.float32, device=indices.device) if main_grad is None else main_grad
        engram_lookup_bwd(_flat(grad_output, 2), _by_token(indices), ctx.shape[0], row_begin=ctx.row_begin, grad_table=to)
        return (to.to(ctx.dtype) if main_grad is None else None), None, None


def lookup(table: Tensor, indices: Tensor, row_begin: int = 0) -> Tensor:
    """Rows indices - row_begin of a table [R, D], bfloat16 or float32: [..., C] -> [..., C, D], or [] -> [D], zeros where
    there is no such row. A table in pinned memory that requires a gradient needs a main_grad on the device of indices.

    Args:
        table: bfloat16 or float32 [table_rows, dim]
        indices: int32 or int64 [..., num_columns]
        row_begin: int

    Returns:
        out: as table [..., num_columns, dim]

    Example:
        >>> table = torch.randn(100, 64, requires_grad=True)
        >>> lookup(table, torch.tensor([[7, 9, 7]])).sum().backward()
        >>> table.grad[7, 0], table.grad[9, 0], table.grad[8, 0]
        (tensor(2.), tensor(1.), tensor(0.))
    """
    if indices.ndim == 0:
        return lookup(table, indices[None], row_begin)[0]
    args = table, indices, row_begin
    made: Tensor = EngramLookupFn.apply(*args) if _wants_gradient(table) else _lookup(*args)
    return made


def engram_gate(hidden_states: Tensor, k: Tensor, v: Tensor, weight_hidden: Tensor, weight_embed: Tensor,
                clamp_value: float, eps: float, add_residual: bool = True, image_token_mask: Optional[Tensor] = None,
                zero_centered: bool = False, sign: Literal["zero", "bit"] = "zero") -> Tensor:
    """hidden_states [..., H, D] + gate * v [..., D], with keys k [..., H, D] and weights [H, D] of both norms. sign: what a
    score of 0 becomes, "zero" (gate 0.5) or "bit" (by its sign bit).

    Args:
        hidden_states: bfloat16 [..., num_streams, hidden]
        k: bfloat16 [..., num_streams, hidden]
        v: bfloat16 [..., hidden]
        weight_hidden: bfloat16 or float32 [num_streams, hidden]
        weight_embed: bfloat16 or float32 [num_streams, hidden]
        clamp_value: float
        eps: float
        add_residual: bool
        image_token_mask: bool [...], of tokens that keep their hidden_states (0 without residual), or
            None
        zero_centered: bool, whether weights are stored minus 1
        sign: 'zero' or 'bit'

    Returns:
        output: bfloat16 [..., num_streams, hidden]

    Example:
        >>> x, v, weight = torch.randn(2, 3, 4, 64).bfloat16(), torch.randn(2, 3, 64).bfloat16(), torch.rand(4, 64)
        >>> engram_gate(x, x, v, weight, weight, 1e-6, 1e-20).shape
        torch.Size([2, 3, 4, 64])
    """
    args = (hidden_states, k, v, weight_hidden, weight_embed, clamp_value, eps, add_residual, image_token_mask,
            zero_centered, sign)
    made: Tensor = EngramGateFn.apply(*args) if _wants_gradient(*args[:5]) else _gate(False, *args)[0]  # saves nothing
    return made


def engram_gate_kv(hidden_states: Tensor, kv: Tensor, weight_hidden: Tensor, weight_embed: Tensor, clamp_value: float,
                   eps: float, image_token_mask: Optional[Tensor] = None, add_residual: bool = True,
                   zero_centered: bool = False, sign: Literal["zero", "bit"] = "bit") -> Tensor:
    """The same with keys and value in one tensor, [..., (H + 1) * D] or [..., H + 1, D], and the other sign of 0.

    Args:
        hidden_states: bfloat16 [..., num_streams, hidden]
        kv: bfloat16 [..., (num_streams + 1) * hidden] or [..., num_streams + 1, hidden], the value
            last
        weight_hidden: bfloat16 or float32 [num_streams, hidden]
        weight_embed: bfloat16 or float32 [num_streams, hidden]
        clamp_value: float
        eps: float
        image_token_mask: bool [...], of tokens that keep their hidden_states (0 without residual), or
            None
        add_residual: bool
        zero_centered: bool, whether weights are stored minus 1
        sign: 'zero' or 'bit'

    Returns:
        output: bfloat16 [..., num_streams, hidden]

    Example:
        >>> x, kv, weight = torch.randn(6, 4, 64).bfloat16(), torch.randn(6, 320).bfloat16(), torch.rand(4, 64)
        >>> engram_gate_kv(x, kv, weight, weight, 1e-6, 1e-20).shape
        torch.Size([6, 4, 64])
    """
    args = (hidden_states, kv, weight_hidden, weight_embed, clamp_value, eps, image_token_mask, add_residual,
            zero_centered, sign)
    made: Tensor = EngramGateKvFn.apply(*args) if _wants_gradient(*args[:4]) else _gate_kv(False, *args)[0]
    return made


def _of_weight(weight, partial, main_grad):
    """What autograd gets for a weight: None for what is added to main_grad, or not wanted."""
    if partial is None:
        return None
    grad = partial.sum(0).view(weight.shape)
    if main_grad is None:
        return grad.to(weight.dtype)
    main_grad += grad
    return None


def _sequences(x):
    """cu_seqlens of x [..., S, H, D]: each S tokens are a sequence."""
    count = x.shape[:-3].numel()
    return None if x.ndim <= 3 or count == 1 else torch.arange(count + 1, device=x.device) * x.shape[-3]


def _conv(is_saved, x, norm_weight, conv_weight, bias, residual, dilation, eps, activation, add_input, cu_seqlens, mask,
          zero_centered):
    """(output, what the backward needs)"""
    if cu_seqlens is None:
        cu_seqlens = _sequences(x)
    mask = _flat_mask("mask", mask, "x", x.shape[:-2])
    if residual is not None:
        _check_lead("residual", residual, 2, "x", x.shape[:-2])
        residual = _flat(residual, 2)
    out, rstd = _short_conv(_flat(x, 2), norm_weight, conv_weight, dilation, eps, activation, bias, add_input, residual,
                            cu_seqlens, None, is_saved, mask=mask, zero_centered=zero_centered)
    return out.view(x.shape), (cu_seqlens, mask, rstd)


class ShortConvFn(torch.autograd.Function):
    """apply(x, norm_weight, conv_weight, bias, residual, dilation, eps, activation, add_input, cu_seqlens, mask,
    zero_centered): x and residual [..., H, D]. short_conv() calls it, and has its arguments."""

    @staticmethod
    def forward(ctx, x, norm_weight, conv_weight, bias, residual, dilation, eps, activation, add_input, cu_seqlens,
                mask, zero_centered):
        is_saved = any(ctx.needs_input_grad)
        out, saved = _conv(is_saved, x, norm_weight, conv_weight, bias, residual, dilation, eps, activation, add_input,
                           cu_seqlens, mask, zero_centered)
        if is_saved:
            ctx.save_for_backward(x, norm_weight, conv_weight, bias, *saved)
        ctx.parameters = _main_grad.keep(norm_weight, conv_weight, bias)
        ctx.residual_shape = None if residual is None else residual.shape
        ctx.numbers = dilation, activation, add_input, zero_centered
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        x, norm_weight, conv_weight, bias, cu_seqlens, mask, rstd = ctx.saved_tensors
        dilation, activation, add_input, zero_centered = ctx.numbers
        wanted = ctx.needs_input_grad
        grad_x, *partials = (None,) * 4
        if any(wanted[:4]):
            grad_x, *partials = short_conv_bwd(
                _flat(grad_output, 2), _flat(x, 2), norm_weight, conv_weight, rstd, dilation, activation, bias, add_input,
                cu_seqlens, mask=mask, zero_centered=zero_centered, wanted=wanted[:4])
        main_grads = _main_grad.find(ctx.parameters)
        return (_shaped(grad_x, x), *map(_of_weight, (norm_weight, conv_weight, bias), partials, main_grads),
                grad_output.reshape(ctx.residual_shape) if wanted[4] else None, *(None,) * 7)


def short_conv(x: Tensor, norm_weight: Tensor, conv_weight: Tensor, dilation: int = 3, eps: float = 1e-5,
               activation: Literal["silu", "none"] = "silu", bias: Optional[Tensor] = None, add_input: bool = False,
               residual: Optional[Tensor] = None, cu_seqlens: Optional[Tensor] = None, mask: Optional[Tensor] = None,
               zero_centered: bool = False) -> Tensor:
    """tegula.engram.short_conv of x [..., S, H, D] without state, with gradients of x, residual and the weights. Each S
    tokens are a sequence. With cu_seqlens, tokens are counted over all leading dimensions.

    Args:
        x: bfloat16 [..., num_streams, hidden]
        norm_weight: bfloat16 or float32 [num_streams, hidden]
        conv_weight: bfloat16 or float32 [num_streams * hidden, kernel_size] or [num_streams *
            hidden, 1, kernel_size]
        dilation: int
        eps: float
        activation: 'silu' or 'none'
        bias: bfloat16 or float32 [num_streams * hidden], or None
        add_input: bool
        residual: bfloat16 [..., num_streams, hidden], or None
        cu_seqlens: int32 or int64 [num_requests + 1], or None
        mask: bool [...], of tokens that count as 0, or None
        zero_centered: bool, whether norm_weight is stored minus 1

    Returns:
        out: bfloat16 [..., num_streams, hidden]

    Example:
        >>> conv_weight = torch.randn(256, 4, requires_grad=True)
        >>> short_conv(torch.randn(6, 4, 64).bfloat16(), torch.ones(4, 64), conv_weight).float().sum().backward()
        >>> conv_weight.grad.shape
        torch.Size([256, 4])
    """
    args = (x, norm_weight, conv_weight, bias, residual, dilation, eps, activation, add_input, cu_seqlens, mask,
            zero_centered)
    made: Tensor = ShortConvFn.apply(*args) if _wants_gradient(*args[:5]) else _conv(False, *args)[0]
    return made


__all__ = ["EngramGateFn", "EngramGateKvFn", "EngramLookupFn", "ShortConvFn", "engram_gate", "engram_gate_kv", "lookup",
           "short_conv"]


def __dir__():
    return __all__
