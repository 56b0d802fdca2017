# SPDX-License-Identifier: MIT
from ..v2.mhc.sinkhorn_kernel import mhc_sinkhorn_bwd, mhc_sinkhorn_fwd
from ._factory import ignored


def _mhc_sinkhorn_fwd(hidden_size, token_block_size, repeat, eps, **tuning):
    """hidden_size is the number of streams."""
    ignored(**tuning)
    return lambda x, out: mhc_sinkhorn_fwd(x, out, repeat, eps)


def _mhc_sinkhorn_bwd(hidden_size, token_block_size, repeat, eps, **tuning):
    ignored(**tuning)
    return lambda grad_output, x, grad_input: mhc_sinkhorn_bwd(grad_output, x, grad_input, repeat, eps)


__all__ = []
