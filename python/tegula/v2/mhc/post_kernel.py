# SPDX-License-Identifier: MIT
from torch import Tensor

from ...modeling.mhc.ops import post
from ...modeling.mhc.ops.post import mhc_post_fwd


def mhc_post_bwd(x: Tensor, residual: Tensor, post_layer_mix: Tensor, comb_res_mix: Tensor,
                 d_o: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of mhc_post_fwd's four tensors."""
    return post.mhc_post_bwd(x, residual, post_layer_mix, comb_res_mix, d_o, fuse_grad_acc=False)


__all__ = ["mhc_post_bwd", "mhc_post_fwd"]
