# SPDX-License-Identifier: MIT
from typing import Optional

import torch
from torch import Tensor

from .ops import (expand_to_mhc, mhc_head_compute_mix, mhc_pre_apply_mix, mhc_pre_norm_fn, mhc_pre_split_mixes,
                  sinkhorn_normalize)
from .ops._shapes import is_traced, wants_gradient
from .ops.pre_big_fuse import head, pre


def expand_from_embedding(x: Tensor, mhc_mult: int = 4) -> Tensor:
    """An embedding [..., H] to all streams, [..., mhc_mult, H].

    Args:
        x: bfloat16, float16 or float32 [..., hidden]
        mhc_mult: int, num_streams

    Returns:
        out: as x [..., num_streams, hidden]

    Example:
        >>> expand_from_embedding(torch.randn(6, 64).bfloat16()).shape
        torch.Size([6, 4, 64])
    """
    return expand_to_mhc(x, mhc_mult)


@torch.no_grad()
def mhc_prepare_fn(fn: Tensor, norm_weight: Optional[Tensor] = None) -> Tensor:
    """fn times the gain, rounded to TF32: what every projection makes of them, to be kept in their place when a model is
    loaded. As fn, without a gain, it gives the same bits. It has no gradient.

    Args:
        fn: float32 or bfloat16 [num_mixes, num_streams * hidden]
        norm_weight: float32 or bfloat16 [num_streams * hidden], or None

    Returns:
        out: float32 [num_mixes, num_streams * hidden]

    Example:
        >>> residual, fn, gain = torch.randn(6, 4, 64).bfloat16(), torch.randn(24, 256) / 16, torch.rand(256)
        >>> ready = mhc_prepare_fn(fn, gain)
        >>> want, _ = mhc_pre(residual, fn, torch.ones(3), torch.zeros(24), norm_weight=gain)
        >>> torch.equal(mhc_pre(residual, ready, torch.ones(3), torch.zeros(24))[0], want)
        True
    """
    from ...mhc.norm_fn_kernel import round_to_tf32         # which imports this package
    merged = fn.float() if norm_weight is None else fn.float() * norm_weight.float()
    return round_to_tf32(merged.contiguous())


def _check_streams(residual, mhc_mult):
    if residual.shape[-2] != mhc_mult:
        raise ValueError(f"mhc_mult: is {mhc_mult}, want {residual.shape[-2]}, the streams of residual {list(residual.shape)}")


def mhc_pre(residual: Tensor, fn: Tensor, scale: Tensor, base: Tensor, *, norm_weight: Optional[Tensor] = None,
            norm_eps: float = 1e-6, mhc_mult: int = 4, post_mult_value: float = 1.0, pre_eps: float = 1e-6,
            sinkhorn_eps: float = 1e-6, sinkhorn_repeat: int = 10,
            n_splits: int = 16) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Before a sublayer: its input [..., H], and (post_mix, comb_mix), which mhc_post takes with its output. The
    results are the same bits with gradients and without. (DeepSeek-V4 has post_mult_value 2 and sinkhorn_repeat 20.)

    Args:
        residual: bfloat16 [..., num_streams, hidden]
        fn: float32 or bfloat16 [num_mixes, num_streams * hidden], num_mixes = num_streams *
            (num_streams + 2)
        scale: float32 or bfloat16 [3]
        base: float32 or bfloat16 [num_mixes]
        norm_weight: float32 or bfloat16 [num_streams * hidden], the gain of the norm before the
            projection, or None
        norm_eps: float
        mhc_mult: int, num_streams
        post_mult_value: float
        pre_eps: float
        sinkhorn_eps: float
        sinkhorn_repeat: int, iterations
        n_splits: int, ignored

    Returns:
        layer_input: bfloat16 [..., hidden]
        post_mix: float32 [..., num_streams, 1], the first of a pair
        comb_mix: float32 [..., num_streams, num_streams], the second of it

    Example:
        >>> residual, fn = torch.randn(6, 4, 64).bfloat16(), torch.randn(24, 256) / 16
        >>> layer_input, (post_mix, comb_mix) = mhc_pre(residual, fn, torch.ones(3), torch.zeros(24))
        >>> layer_input.shape, comb_mix.shape
        (torch.Size([6, 64]), torch.Size([6, 4, 4]))
    """
    _check_streams(residual, mhc_mult)
    if not wants_gradient(residual, fn, scale, base, norm_weight):
        post_mix, comb_mix, layer_input = pre(residual, fn, norm_weight, scale, base, norm_eps, pre_eps, sinkhorn_eps,
                                              post_mult_value, sinkhorn_repeat)
        return layer_input, (post_mix, comb_mix)
    mixes = mhc_pre_norm_fn(residual, fn, norm_weight, norm_eps, n_splits=n_splits)
    pre_mix, post_mix, comb = mhc_pre_split_mixes(mixes, scale, base, mhc_mult, post_mult_value, pre_eps)
    return mhc_pre_apply_mix(residual, pre_mix), (post_mix, sinkhorn_normalize(comb, sinkhorn_repeat, sinkhorn_eps))


def mhc_head(residual: Tensor, fn: Tensor, scale: Tensor, base: Tensor, *, norm_weight: Optional[Tensor] = None,
             norm_eps: float = 1e-6, mhc_mult: int = 4, pre_eps: float = 1e-6, n_splits: int = 16) -> Tensor:
    """After the last sublayer: the streams as one, [..., H], by a gate of its own. fn is [mhc_mult, columns of all
    streams]; of more rows the first mhc_mult are used.

    Args:
        residual: bfloat16 [..., num_streams, hidden]
        fn: float32 or bfloat16 [num_streams, num_streams * hidden], or of more rows
        scale: float32 or bfloat16 [1]
        base: float32 or bfloat16 [num_streams]
        norm_weight: float32 or bfloat16 [num_streams * hidden], the gain of the norm before the
            projection, or None
        norm_eps: float
        mhc_mult: int, num_streams
        pre_eps: float
        n_splits: int, ignored

    Returns:
        out: bfloat16 [..., hidden]

    Example:
        >>> residual, fn = torch.randn(6, 4, 64).bfloat16(), torch.randn(4, 256) / 16
        >>> mhc_head(residual, fn, torch.ones(1), torch.zeros(4)).shape
        torch.Size([6, 64])
    """
    _check_streams(residual, mhc_mult)
    if fn.shape[0] != mhc_mult:
        fn, whole = fn[:mhc_mult], fn
        if not is_traced():
            fn.tegula_rows_of = whole                   # whose main_grad gets the gradient: rows have none
    if not wants_gradient(residual, fn, scale, base, norm_weight):
        return head(residual, fn, norm_weight, scale, base, norm_eps, pre_eps)
    mixes = mhc_pre_norm_fn(residual, fn, norm_weight, norm_eps, n_splits=n_splits)
    mix = mhc_head_compute_mix(mixes, scale.reshape(1), base, pre_eps)
    return mhc_pre_apply_mix(residual, mix.unsqueeze(-1))


__all__ = ["expand_from_embedding", "mhc_head", "mhc_pre"]
