# SPDX-License-Identifier: MIT
import torch
from torch import Tensor

from ... import mhc


@torch.no_grad()
def mhc_sinkhorn_fwd(comb_res_mix: Tensor, out: Tensor, repeat: int, eps: float) -> None:
    """Logits [T, N, N] to nearly doubly stochastic matrices, out, which may be comb_res_mix.

    Args:
        comb_res_mix: float32 [num_tokens, num_streams, num_streams]
        out: float32 [num_tokens, num_streams, num_streams]; is written
        repeat: int, iterations
        eps: float

    Returns:
        None
    """
    mhc.mhc_sinkhorn_fwd(comb_res_mix, repeat, eps, out=out)


@torch.no_grad()
def mhc_sinkhorn_bwd(grad_output: Tensor, x: Tensor, grad_input: Tensor, repeat: int, eps: float) -> None:
    """The gradient of the logits x to grad_input.

    Args:
        grad_output: float32 [num_tokens, num_streams, num_streams]
        x: float32 [num_tokens, num_streams, num_streams]
        grad_input: float32 [num_tokens, num_streams, num_streams]; is written
        repeat: int, iterations
        eps: float

    Returns:
        None
    """
    mhc.mhc_sinkhorn_bwd(grad_output, x, repeat, eps, out=grad_input)
