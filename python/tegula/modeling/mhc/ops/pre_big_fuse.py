# SPDX-License-Identifier: MIT
import torch

from ....mhc import mhc_pre_fwd
from ._shapes import flat


def pre(residual, fn, norm_weight, scale, base, rms_eps, pre_eps, sinkhorn_eps, post_mult, sinkhorn_repeat):
    """mhc_pre_big_fuse, with a gain."""
    lead, (n, h) = residual.shape[:-2], residual.shape[-2:]
    layer_input, _, post_mix, comb = mhc_pre_fwd(
        flat(residual, 2), fn, scale, base, norm_weight, post_mult=post_mult, rms_eps=rms_eps, pre_eps=pre_eps,
        sinkhorn_eps=sinkhorn_eps, repeat=sinkhorn_repeat)
    return post_mix.view(*lead, n, 1), comb.view(*lead, n, n), layer_input.view(*lead, h)


@torch.no_grad()
def mhc_pre_big_fuse(residual, fn, mhc_scale, mhc_base, rms_eps, mhc_pre_eps, mhc_sinkhorn_eps, mhc_post_mult_value,
                     sinkhorn_repeat, n_splits=16):
    """Before a sublayer, without gradients: (post_mix [..., N, 1], comb_mix [..., N, N], layer_input [..., H]) of
    residual [..., N, H]. Results do not depend on n_splits."""
    return pre(residual, fn, None, mhc_scale, mhc_base, rms_eps, mhc_pre_eps, mhc_sinkhorn_eps, mhc_post_mult_value,
               sinkhorn_repeat)
