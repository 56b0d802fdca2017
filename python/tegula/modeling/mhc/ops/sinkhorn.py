# SPDX-License-Identifier: MIT
from ....mhc import mhc_sinkhorn_fwd
from ._shapes import flat


def sinkhorn_normalize(x, repeat=10, eps=1e-6):
    """Logits [..., N, N] to nearly doubly stochastic matrices; the last step is over columns."""
    return mhc_sinkhorn_fwd(flat(x, 2).contiguous(), repeat, eps).view(x.shape)
