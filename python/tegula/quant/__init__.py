# SPDX-License-Identifier: MIT
"""Casts to FP8 (e4m3), FP4 (e2m1) and a 12-bit format (e5m6) with scale factors, back again, and fused with
SwiGLU. Most functions are builtins; those here only prepare arguments.

A quantised tensor is a pair (data, sf): value = code * sf. Data is float8_e4m3fn, int8 (pairs of e2m1) or
uint8 (e5m6). sf has a float32 factor for every block of values. With use_tma_aligned_col_major_sf it is column-major,
with columns padded to a multiple of four. With round_sf factors are powers of two. With both, use_packed_ue8m0 packs
the exponents of four neighbours into an int32."""
from __future__ import annotations as _annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import types
from .. import _after_import, _tegula
from .._help import helped_by as _helped_by
from .._rows import WORDS as _WORDS, functions as _functions, name_of as _name_of

if _TYPE_CHECKING:
    from .._quant import *          # a stub made from the table of functions
    from .._typing import AnyTensor, Array

globals().update(_functions("quant"))


def _convert(numbers, dtype):
    try:
        return numbers.to(dtype=dtype) if hasattr(numbers, "to") else numbers.astype(dtype)
    except (RuntimeError, TypeError):
        raise TypeError(f"out_dtype: is {dtype!r}, want a dtype") from None


def _packed(t):
    """All elements as one packed row; a copy if need be."""
    row = t.reshape(-1)
    if hasattr(row, "contiguous"):
        return row.contiguous()
    flags = getattr(row, "flags", None)         # of NumPy and CuPy
    return row.copy() if flags is not None and not flags.c_contiguous else row


@_helped_by(_tegula.unpack_from_e2m1fn_x2)
def unpack_from_e2m1fn_x2(x: AnyTensor, out_dtype: object = None, *, out: Array | None = None) -> AnyTensor:
    """Unpacks pairs of e2m1, the low four bits first: the last dimension gets twice as long. out_dtype None is float32. x
    may have any strides; if it is not packed, it is copied first.

    Args:
        x: int8 or uint8 [..., num_pairs]
        out_dtype: a dtype, or None

    Returns:
        out: in out_dtype [..., 2 * num_pairs]

    Example:
        >>> unpack_from_e2m1fn_x2(torch.tensor([[0x21, 0x7F]], dtype=torch.uint8))
        tensor([[ 0.5000,  1.0000, -6.0000,  6.0000]])
    """
    name = "float32" if out_dtype is None else _name_of(out_dtype)
    word = _WORDS.get(name)
    if not (is_made := word in ("f32", "bf16", "f16", "e4m3")):
        word = "f32"                                # converted afterwards
    pairs = getattr(x, "shape", None)
    if pairs is None:
        return _tegula.unpack_from_e2m1fn_x2(x, word)       # raises: x is no tensor
    if len(pairs) == 0:
        raise ValueError("x: has 0 dimensions, want 1 or more")
    shape = *pairs[:-1], 2 * pairs[-1]
    if out is None:
        numbers = _tegula.unpack_from_e2m1fn_x2(_packed(x), word).reshape(shape)
        return numbers if is_made else _convert(numbers, out_dtype)
    if not hasattr(out, "shape") or not hasattr(out, "dtype"):
        raise TypeError(f"out: is a {type(out)}, want a tensor")
    if tuple(out.shape) != shape:
        raise ValueError(f"out: shape is {list(out.shape)}, want {list(shape)}")
    if _name_of(out.dtype) != name:
        raise ValueError(f"out: dtype is {_name_of(out.dtype)}, want {name}")
    is_packed = out.is_contiguous() if hasattr(out, "is_contiguous") else out.flags.c_contiguous
    if is_packed and is_made:
        _tegula.unpack_from_e2m1fn_x2(_packed(x), word, out=out.reshape(-1))
    else:
        out[...] = _tegula.unpack_from_e2m1fn_x2(_packed(x), word).reshape(shape)
    return out


def _take_default_of_torch():
    """As in TileKernels."""
    import torch
    unpack_from_e2m1fn_x2.__defaults__ = (torch.float32,)


_after_import.run("torch", _take_default_of_torch)


def _flat(t):
    """As a matrix, if it has more than two dimensions."""
    return t.reshape(-1, t.shape[-1]) if getattr(t, "ndim", 2) > 2 else t


@_helped_by(_tegula.swiglu_backward_and_per_token_cast)
def swiglu_backward_and_per_token_cast(
        x: tuple[AnyTensor, Array], grad_out: Array, weight: Array, pos_to_token_topk: Array, token_topk_to_pos: Array,
        num_per_channels: int, round_sf: bool = False, swiglu_clamp_value: float | None = None, *,
        out: tuple[Array | None, ...] | None = None) -> tuple[
            AnyTensor, tuple[AnyTensor, AnyTensor], AnyTensor, AnyTensor]:
    """(out, (x_grad_fp8, x_grad_sf), x_grad, weight_grad): the weighted activation, computed again, then the gradients of
    x and weight. x has a factor per num_per_channels values of each half of a row. x and grad_out may have more
    dimensions. out= takes the five tensors in this order.

    Example:
        >>> x = tegula.quant.per_token_cast(torch.randn(6, 256), "e4m3", 64)
        >>> grad_out, weight = torch.randn(6, 128).bfloat16(), torch.rand(3, 2)
        >>> pairs = torch.arange(6).int()
        >>> out, (x_grad_fp8, x_grad_sf), x_grad, weight_grad = swiglu_backward_and_per_token_cast(
        ...     x, grad_out, weight, pairs, pairs.view(3, 2), 64)
        >>> x_grad.shape, weight_grad.shape
        (torch.Size([6, 256]), torch.Size([3, 2]))
    """
    pair = tuple(map(_flat, x)) if isinstance(x, (tuple, list)) else x
    out, grad, grad_sf, x_grad, weight_grad = _tegula.swiglu_backward_and_per_token_cast(
        pair, _flat(grad_out), weight, pos_to_token_topk, token_topk_to_pos, num_per_channels, round_sf,
        swiglu_clamp_value, out=out)
    return out, (grad, grad_sf), x_grad, weight_grad


__all__ = sorted(name for name in globals() if not name.startswith("_"))
