# SPDX-License-Identifier: MIT
import torch
from torch import Tensor

from ...._tegula import mhc_pre_fwd, mhc_pre_fwd_head
from ._shapes import flat, packed, unflat


def pre(residual, fn, norm_weight, scale, base, rms_eps, pre_eps, sinkhorn_eps, post_mult, sinkhorn_repeat):
    """mhc_pre_big_fuse, with a gain."""
    lead, (n, h) = residual.shape[:-2], residual.shape[-2:]
    layer_input, _, post_mix, comb = mhc_pre_fwd(
        flat(residual, 2), packed(fn), packed(scale), packed(base), packed(norm_weight), post_mult=post_mult,
        rms_eps=rms_eps, pre_eps=pre_eps, sinkhorn_eps=sinkhorn_eps, repeat=sinkhorn_repeat)
    return post_mix.view(*lead, n, 1), unflat(comb, (*lead, n, n)), unflat(layer_input, (*lead, h))


def head(residual, fn, norm_weight, scale, base, rms_eps, pre_eps):
    """The streams as one, by a gate of their own."""
    made, _ = mhc_pre_fwd_head(flat(residual, 2), packed(fn), packed(scale).reshape(1), packed(base), packed(norm_weight),
                               rms_eps=rms_eps, pre_eps=pre_eps)
    return unflat(made, (*residual.shape[:-2], residual.shape[-1]))


@torch.no_grad()
def mhc_pre_big_fuse(residual: Tensor, fn: Tensor, mhc_scale: Tensor, mhc_base: Tensor, rms_eps: float,
                     mhc_pre_eps: float, mhc_sinkhorn_eps: float, mhc_post_mult_value: float, sinkhorn_repeat: int,
                     n_splits: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    """Before a sublayer, without gradients: (post_mix [..., N, 1], comb_mix [..., N, N], layer_input [..., H]) of
    residual [..., N, H]. Results do not depend on n_splits.

    Args:
        residual: bfloat16 [..., num_streams, hidden]
        fn: float32 or bfloat16 [num_mixes, num_streams * hidden], num_mixes = num_streams *
            (num_streams + 2)
        mhc_scale: float32 or bfloat16 [3]
        mhc_base: float32 or bfloat16 [num_mixes]
        rms_eps: float
        mhc_pre_eps: float
        mhc_sinkhorn_eps: float
        mhc_post_mult_value: float
        sinkhorn_repeat: int, iterations
        n_splits: int, ignored

    Returns:
        post_mix: float32 [..., num_streams, 1]
        comb_mix: float32 [..., num_streams, num_streams]
        layer_input: bfloat16 [..., hidden]

    Example:
        >>> residual, fn = torch.randn(2, 3, 4, 64).bfloat16(), torch.randn(24, 256) / 16
        >>> made = mhc_pre_big_fuse(residual, fn, torch.ones(3), torch.zeros(24), 1e-6, 1e-6, 1e-6, 2.0, 20)
        >>> [t.shape[2:] for t in made]
        [torch.Size([4, 1]), torch.Size([4, 4]), torch.Size([64])]
    """
    return pre(residual, fn, None, mhc_scale, mhc_base, rms_eps, mhc_pre_eps, mhc_sinkhorn_eps, mhc_post_mult_value,
               sinkhorn_repeat)
