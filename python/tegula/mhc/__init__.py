# SPDX-License-Identifier: MIT
"""Manifold hyper-connections: several residual streams per token, mixed by matrices that depend on the token. Functions
are builtins; those here only sort arguments."""
from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING, overload as _overload

from .. import _tegula
from .._help import helped_by as _helped_by
from .._rows import functions as _functions

if _TYPE_CHECKING:
    from typing import Any

    from .._mhc import *            # a stub made from the table of functions
    from .._typing import AnyTensor, Array

globals().update(_functions("mhc"))


@_overload
def mhc_pre_apply_mix_bwd(grad_out: AnyTensor, x: Array, mix: Array, grad_x: None = None, *,
                          out: Any = None) -> tuple[AnyTensor, AnyTensor]: ...
@_overload
def mhc_pre_apply_mix_bwd(grad_out: AnyTensor, x: Array, mix: Array, grad_x: Array, *, out: Any = None) -> AnyTensor: ...
@_helped_by(_tegula.mhc_pre_apply_mix_bwd)
def mhc_pre_apply_mix_bwd(grad_out: Array, x: Array, mix: Array, grad_x: Array | None = None, *,
                          out: Any = None) -> Any:
    """The gradients of mhc_pre_apply_mix_fwd's arguments: (grad_x, grad_mix). If grad_x is given, that of x is added to
    it, and grad_mix alone is returned.

    Args:
        grad_x: bfloat16 [num_tokens, num_streams, hidden], or None; is written

    Example:
        >>> x, mix = torch.randn(6, 4, 64).bfloat16(), torch.rand(6, 4)
        >>> grad_x, grad_mix = mhc_pre_apply_mix_bwd(x[:, 0], x, mix)
        >>> torch.equal(mhc_pre_apply_mix_bwd(x[:, 0], x, mix, grad_x), grad_mix)       # grad_x is twice as large now
        True
    """
    if grad_x is None:
        return _tegula.mhc_pre_apply_mix_bwd(grad_out, x, mix, out=out)
    return _tegula.mhc_pre_apply_mix_bwd_into(grad_out, x, mix, grad_x, out=out)


@_helped_by(_tegula.mhc_post_bwd)
def mhc_post_bwd(grad_out: AnyTensor, x: Array, residual: Array, post_mix: Array, comb_mix: Array | None = None, *,
                 out: Any = None) -> tuple[AnyTensor, ...]:
    """The gradients of mhc_post_fwd's arguments: (grad_x, grad_residual, grad_post_mix, grad_comb_mix); without comb_mix
    (grad_x, grad_post_mix), since that of residual is grad_out.

    Args:
        comb_mix: float32 [num_tokens, num_streams, num_streams], or None

    Example:
        >>> residual, post_mix, comb_mix = torch.randn(6, 4, 64).bfloat16(), torch.rand(6, 4), torch.rand(6, 4, 4)
        >>> grads = mhc_post_bwd(residual, residual[:, 0], residual, post_mix, comb_mix)
        >>> grad_x, grad_post_mix = mhc_post_bwd(residual, residual[:, 0], residual, post_mix)
        >>> torch.equal(grad_x, grads[0]) and torch.equal(grad_post_mix, grads[2])
        True
    """
    if comb_mix is None:
        return _tegula.mhc_post_bwd_gates(grad_out, x, post_mix, out=out)
    return _tegula.mhc_post_bwd(grad_out, x, residual, post_mix, comb_mix, out=out)


@_overload
def mhc_norm_fn_bwd(grad_mixes: AnyTensor, residual: Array, fn: Array, out_mul: Array, sqrsum: Array,
                    norm_weight: Array | None = None, eps: float = 1e-6, grad_residual: None = None, *,
                    out: Any = None) -> tuple[AnyTensor, ...]: ...
@_overload
def mhc_norm_fn_bwd(grad_mixes: AnyTensor, residual: Array, fn: Array, out_mul: Array, sqrsum: Array,
                    norm_weight: None = None, eps: float = 1e-6, grad_residual: Array = ..., *,
                    out: Any = None) -> AnyTensor: ...
@_overload
def mhc_norm_fn_bwd(grad_mixes: AnyTensor, residual: Array, fn: Array, out_mul: Array, sqrsum: Array,
                    norm_weight: Array, eps: float = 1e-6, grad_residual: Array = ..., *,
                    out: Any = None) -> tuple[AnyTensor, AnyTensor]: ...
@_helped_by(_tegula.mhc_norm_fn_bwd_weighted)
def mhc_norm_fn_bwd(grad_mixes: Array, residual: Array, fn: Array, out_mul: Array, sqrsum: Array,
                    norm_weight: Array | None = None, eps: float = 1e-6, grad_residual: Array | None = None, *,
                    out: Any = None) -> Any:
    """The gradients of mhc_norm_fn_fwd's residual and fn, and of norm_weight if it is given, from that of the mixes. If
    grad_residual is given, that of residual is added to it, and the others alone are returned.

    Args:
        norm_weight: float32 [num_streams * hidden], or None
        grad_residual: bfloat16 [num_tokens, num_streams, hidden], or None; is written

    Example:
        >>> residual, fn = torch.randn(6, 4, 64).bfloat16(), torch.randn(24, 256) / 16
        >>> mixes, out_mul, sqrsum = tegula.mhc.mhc_norm_fn_fwd(residual, fn)
        >>> grad_residual, grad_fn = mhc_norm_fn_bwd(torch.ones_like(mixes), residual, fn, out_mul, sqrsum)
        >>> grad_fn.shape
        torch.Size([24, 256])
    """
    args = grad_mixes, residual, fn, out_mul, sqrsum
    if norm_weight is None:
        if grad_residual is None:
            return _tegula.mhc_norm_fn_bwd(*args, eps, out=out)
        return _tegula.mhc_norm_fn_bwd_into(*args, grad_residual, eps, out=out)
    if grad_residual is None:
        return _tegula.mhc_norm_fn_bwd_weighted(*args, norm_weight, eps, out=out)
    return _tegula.mhc_norm_fn_bwd_weighted_into(*args, norm_weight, grad_residual, eps, out=out)


# One operator for every number of scales: an operator's outputs are fixed.
_PRE = {1: _tegula.mhc_pre_fwd_head, 2: _tegula.mhc_pre_fwd_gates}
_PRE_FINISH = {1: _tegula.mhc_pre_finish_fwd_head, 2: _tegula.mhc_pre_finish_fwd_gates}


@_helped_by(_tegula.mhc_pre_fwd)
def mhc_pre_fwd(residual: AnyTensor, fn: Array, scale: Array, base: Array, norm_weight: Array | None = None,
                input_weight: Array | None = None, norm: bool = False, rms_eps: float = 1e-6, pre_eps: float = 1e-6,
                sinkhorn_eps: float = 1e-6, norm_eps: float = 1e-6, post_mult: float = 2.0, post_eps: float = 0.0,
                norm_scale: float = 1.0, repeat: int = 20, *, out: Any = None) -> tuple[AnyTensor, ...]:
    """The input of a sublayer from the residual, in one launch: (out, pre_mix, post_mix, comb_mix). mhc_norm_fn_fwd,
    mhc_pre_split_mixes_fwd, mhc_sinkhorn_fwd and mhc_pre_apply_mix_fwd, the same bits; with norm then RMSNorm, with gain
    input_weight * norm_scale. With two scales there is no comb_mix, with one (a learned head) no post_mix either.

    Example:
        >>> residual, fn = torch.randn(6, 4, 64).bfloat16(), torch.randn(24, 256) / 16
        >>> out, pre_mix, post_mix, comb_mix = mhc_pre_fwd(residual, fn, torch.ones(3), torch.zeros(24))
        >>> head, head_mix = mhc_pre_fwd(residual, fn[:4], torch.ones(1), torch.zeros(4))
        >>> torch.equal(head, out)
        True
    """
    op = _PRE.get(scale.shape[0], _tegula.mhc_pre_fwd)
    return op(residual, fn, scale, base, norm_weight, input_weight, norm, rms_eps, pre_eps, sinkhorn_eps, norm_eps,
              post_mult, post_eps, norm_scale, repeat, out=out)


@_helped_by(_tegula.mhc_pre_finish_fwd)
def mhc_pre_finish_fwd(residual: AnyTensor, out_mul_parts: Array, sqrsum_parts: Array, scale: Array, base: Array,
                       rms_eps: float = 1e-6, pre_eps: float = 1e-6, sinkhorn_eps: float = 1e-6, post_mult: float = 2.0,
                       post_eps: float = 0.0, repeat: int = 20, *, out: Any = None) -> tuple[AnyTensor, ...]:
    """mhc_pre_fwd from the parts of a projection on: mhc_norm_fn_finish_fwd, mhc_pre_split_mixes_fwd, mhc_sinkhorn_fwd and
    mhc_pre_apply_mix_fwd in one launch, the same bits; outputs as mhc_pre_fwd's.

    Example:
        >>> residual, fn = torch.randn(6, 4, 64).bfloat16(), torch.randn(24, 256) / 16
        >>> parts, squares = tegula.mhc.mhc_norm_fn_parts_fwd(residual, fn, num_splits=4)
        >>> out, pre_mix, post_mix, comb_mix = mhc_pre_finish_fwd(residual, parts, squares, torch.ones(3), torch.zeros(24))
        >>> torch.equal(out, tegula.mhc.mhc_pre_fwd(residual, fn, torch.ones(3), torch.zeros(24))[0])
        True
    """
    op = _PRE_FINISH.get(scale.shape[0], _tegula.mhc_pre_finish_fwd)
    return op(residual, out_mul_parts, sqrsum_parts, scale, base, rms_eps, pre_eps, sinkhorn_eps, post_mult, post_eps,
              repeat, out=out)


@_helped_by(_tegula.mhc_pre_split_mixes_fwd)
def mhc_pre_split_mixes_fwd(mixes: AnyTensor, scale: Array, base: Array, num_streams: int, post_mult: float = 2.0,
                            pre_eps: float = 1e-6, post_eps: float = 0.0, *, out: Any = None) -> tuple[AnyTensor, ...]:
    """The mixes of a token, n of pre, n of post, n * n of comb, to (pre_mix, post_mix, comb): the pre gate, sigmoid(z) +
    pre_eps, the post gate, sigmoid(z) * post_mult + post_eps, and comb's logits z, with z = mixes * scale + base. With two
    scales there is no comb.

    Example:
        >>> pre_mix, post_mix, comb = mhc_pre_split_mixes_fwd(torch.zeros(6, 24), torch.ones(3), torch.zeros(24), 4)
        >>> pre_mix, post_mix = mhc_pre_split_mixes_fwd(torch.zeros(6, 8), torch.ones(2), torch.zeros(8), 4)
        >>> post_mix[0, 0].item()
        1.0
    """
    op = _tegula.mhc_pre_split_mixes_fwd_gates if scale.shape[0] == 2 else _tegula.mhc_pre_split_mixes_fwd
    return op(mixes, scale, base, num_streams, post_mult, pre_eps, post_eps, out=out)


del annotations
__all__ = sorted(name for name in globals() if not name.startswith("_"))
