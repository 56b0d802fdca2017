# SPDX-License-Identifier: MIT
from ... import mhc


def mhc_pre_apply_mix_fwd(x, mix, o):
    """The streams of x [T, N, H], weighted by mix [T, N], to o [T, H]."""
    mhc.mhc_pre_apply_mix_fwd(x, mix, out=o)


def mhc_pre_apply_mix_bwd(o_grad, x, mix, x_grad):
    """Adds the gradient of x to x_grad; returns that of mix."""
    return mhc.mhc_pre_apply_mix_bwd(o_grad, x, mix, x_grad)
