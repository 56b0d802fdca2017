# SPDX-License-Identifier: MIT
"""Manifold hyper-connections: several residual streams per token, mixed by matrices that depend on the token. Functions
are builtins; those here only sort arguments."""
from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .._rows import functions as _functions
from .._tegula import (
    mhc_norm_fn_bwd as _mhc_norm_fn_bwd, mhc_norm_fn_bwd_into as _mhc_norm_fn_bwd_into,
    mhc_norm_fn_bwd_weighted as _mhc_norm_fn_bwd_weighted,
    mhc_norm_fn_bwd_weighted_into as _mhc_norm_fn_bwd_weighted_into, mhc_pre_apply_mix_bwd as _mhc_pre_apply_mix_bwd,
    mhc_pre_apply_mix_bwd_into as _mhc_pre_apply_mix_bwd_into,
)

if _TYPE_CHECKING:
    from typing import Any

    from .._mhc import *            # a stub made from the table of functions
    from .._typing import Array

globals().update(_functions("mhc"))


def mhc_pre_apply_mix_bwd(grad_out: Array, x: Array, mix: Array, grad_x: Array | None = None, *,
                          out: Any = None) -> Any:
    """The gradients of mhc_pre_apply_mix_fwd's arguments: (grad_x, grad_mix). If grad_x is given, that of x is added to
    it, and grad_mix alone is returned.

    Example:
        >>> x, mix = torch.randn(6, 4, 64).bfloat16(), torch.rand(6, 4)
        >>> grad_x, grad_mix = mhc_pre_apply_mix_bwd(x[:, 0], x, mix)
        >>> torch.equal(mhc_pre_apply_mix_bwd(x[:, 0], x, mix, grad_x), grad_mix)       # grad_x is twice as large now
        True
    """
    if grad_x is None:
        return _mhc_pre_apply_mix_bwd(grad_out, x, mix, out=out)
    return _mhc_pre_apply_mix_bwd_into(grad_out, x, mix, grad_x, out=out)


def mhc_norm_fn_bwd(grad_mixes: Array, residual: Array, fn: Array, out_mul: Array, sqrsum: Array,
                    norm_weight: Array | None = None, eps: float = 1e-6, grad_residual: Array | None = None, *,
                    out: Any = None) -> Any:
    """The gradients of mhc_norm_fn_fwd's residual and fn, and of norm_weight if it is given, from that of the mixes. If
    grad_residual is given, that of residual is added to it, and the others alone are returned.

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
            return _mhc_norm_fn_bwd(*args, eps, out=out)
        return _mhc_norm_fn_bwd_into(*args, grad_residual, eps, out=out)
    if grad_residual is None:
        return _mhc_norm_fn_bwd_weighted(*args, norm_weight, eps, out=out)
    return _mhc_norm_fn_bwd_weighted_into(*args, norm_weight, grad_residual, eps, out=out)


del annotations
__all__ = sorted(name for name in globals() if not name.startswith("_"))
