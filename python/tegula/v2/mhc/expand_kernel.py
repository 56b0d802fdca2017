# SPDX-License-Identifier: MIT
from ... import mhc


def expand_to_mhc_fwd(x, o):
    """x [T, H] to all streams of o [T, N, H]."""
    mhc.mhc_expand_fwd(x, o.shape[1], out=o)


def expand_to_mhc_bwd(o_grad, x_grad):
    """The sum of o_grad's streams to x_grad."""
    mhc.mhc_expand_bwd(o_grad, out=x_grad)
