# SPDX-License-Identifier: MIT
from torch import Tensor

from ....mhc import mhc_sinkhorn_fwd
from ._shapes import flat, packed, unflat


def sinkhorn_normalize(x: Tensor, repeat: int = 10, eps: float = 1e-6) -> Tensor:
    """Logits [..., N, N] to nearly doubly stochastic matrices; the last step is over columns.

    Args:
        x: float32 or bfloat16 [..., num_streams, num_streams]
        repeat: int, iterations
        eps: float

    Returns:
        out: float32 [..., num_streams, num_streams]

    Example:
        >>> sinkhorn_normalize(torch.randn(2, 3, 4, 4)).sum(-2).sub(1).abs().max() < 1e-5
        tensor(True)
    """
    return unflat(mhc_sinkhorn_fwd(packed(flat(x, 2)), repeat, eps), x.shape)
