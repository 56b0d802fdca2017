# SPDX-License-Identifier: MIT
import torch

from .. import mhc as _mhc
from ..modeling.mhc.ops.post import mhc_post_bwd, mhc_post_fwd
from ._factory import ignored


def _mhc_post_fwd(mhc, hidden, n_thr=128, h_blk=1024, **tuning):
    ignored(**tuning)

    @torch.no_grad()
    def call(comb, residual, post, x, out):
        _mhc.mhc_post_fwd(x, residual, post, comb, out=out)

    return call


def _mhc_post_bwd(mhc, hidden, n_thr=128, h_blk=1024, **tuning):
    """A call that returns (d_comb, d_residual, d_post, d_x)."""
    ignored(**tuning)

    @torch.no_grad()
    def call(d_out, comb, residual, post, x):
        d_x, d_residual, d_post, d_comb = _mhc.mhc_post_bwd(d_out, x, residual, post, comb)
        return d_comb, d_residual, d_post, d_x

    return call


__all__ = ["mhc_post_bwd", "mhc_post_fwd"]
