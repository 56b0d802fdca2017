# SPDX-License-Identifier: MIT
from ..v2.mhc.expand_kernel import expand_to_mhc_bwd, expand_to_mhc_fwd
from ._factory import ignored


def expand_to_mhc_fwd_tl(hidden, mhc_mult, **tuning):
    ignored(**tuning)
    return expand_to_mhc_fwd        # (x, o)


def expand_to_mhc_bwd_tl(hidden, mhc_mult, **tuning):
    ignored(**tuning)
    return expand_to_mhc_bwd        # (o_grad, x_grad)


__all__ = ["expand_to_mhc_bwd_tl", "expand_to_mhc_fwd_tl"]
