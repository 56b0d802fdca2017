# SPDX-License-Identifier: MIT
from ... import mhc


def mhc_sinkhorn_fwd(comb_res_mix, out, repeat, eps):
    """Logits [T, N, N] to nearly doubly stochastic matrices, out, which may be comb_res_mix."""
    mhc.mhc_sinkhorn_fwd(comb_res_mix, repeat, eps, out=out)


def mhc_sinkhorn_bwd(grad_output, x, grad_input, repeat, eps):
    """The gradient of the logits x to grad_input."""
    mhc.mhc_sinkhorn_bwd(grad_output, x, repeat, eps, out=grad_input)
