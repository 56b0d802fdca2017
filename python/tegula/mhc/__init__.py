# SPDX-License-Identifier: MIT
"""Manifold hyper-connections: several residual streams per token, mixed by matrices that depend on the token. Functions
are builtins; those here only sort arguments."""
from .._rows import functions as _functions
from .._tegula import (mhc_pre_apply_mix_bwd as _mhc_pre_apply_mix_bwd,
                       mhc_pre_apply_mix_bwd_into as _mhc_pre_apply_mix_bwd_into)

globals().update(_functions("mhc"))


def mhc_pre_apply_mix_bwd(grad_out, x, mix, grad_x=None, *, out=None):
    """The gradients of mhc_pre_apply_mix_fwd's arguments: (grad_x, grad_mix). If grad_x is given, that of x is added to
    it, and grad_mix alone is returned."""
    if grad_x is None:
        return _mhc_pre_apply_mix_bwd(grad_out, x, mix, out=out)
    return _mhc_pre_apply_mix_bwd_into(grad_out, x, mix, grad_x, out=out)


__all__ = sorted(name for name in globals() if not name.startswith("_"))
