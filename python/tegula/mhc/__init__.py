# SPDX-License-Identifier: MIT
"""Manifold hyper-connections: several residual streams per token, mixed by matrices that depend on the token. Functions
are builtins; those here only sort arguments."""
from typing import TYPE_CHECKING as _TYPE_CHECKING

from .._rows import functions as _functions
from .._tegula import (
    mhc_norm_fn_bwd as _mhc_norm_fn_bwd, mhc_norm_fn_bwd_into as _mhc_norm_fn_bwd_into,
    mhc_norm_fn_bwd_weighted as _mhc_norm_fn_bwd_weighted,
    mhc_norm_fn_bwd_weighted_into as _mhc_norm_fn_bwd_weighted_into, mhc_pre_apply_mix_bwd as _mhc_pre_apply_mix_bwd,
    mhc_pre_apply_mix_bwd_into as _mhc_pre_apply_mix_bwd_into,
)

if _TYPE_CHECKING:
    from .._mhc import *            # a stub made from the table of functions

globals().update(_functions("mhc"))


def mhc_pre_apply_mix_bwd(grad_out, x, mix, grad_x=None, *, out=None):
    """The gradients of mhc_pre_apply_mix_fwd's arguments: (grad_x, grad_mix). If grad_x is given, that of x is added to
    it, and grad_mix alone is returned."""
    if grad_x is None:
        return _mhc_pre_apply_mix_bwd(grad_out, x, mix, out=out)
    return _mhc_pre_apply_mix_bwd_into(grad_out, x, mix, grad_x, out=out)


def mhc_norm_fn_bwd(grad_mixes, residual, fn, out_mul, sqrsum, norm_weight=None, eps=1e-6, grad_residual=None, *,
                    out=None):
    """The gradients of mhc_norm_fn_fwd's residual and fn, and of norm_weight if it is given, from that of the mixes. If
    grad_residual is given, that of residual is added to it, and the others alone are returned."""
    args = grad_mixes, residual, fn, out_mul, sqrsum
    if norm_weight is None:
        if grad_residual is None:
            return _mhc_norm_fn_bwd(*args, eps, out=out)
        return _mhc_norm_fn_bwd_into(*args, grad_residual, eps, out=out)
    if grad_residual is None:
        return _mhc_norm_fn_bwd_weighted(*args, norm_weight, eps, out=out)
    return _mhc_norm_fn_bwd_weighted_into(*args, norm_weight, grad_residual, eps, out=out)


__all__ = sorted(name for name in globals() if not name.startswith("_"))
