# SPDX-License-Identifier: MIT
from torch import Tensor

from ...modeling.mhc.ops import post
from ...modeling.mhc.ops.post import mhc_post_fwd


def mhc_post_bwd(x: Tensor, residual: Tensor, post_layer_mix: Tensor, comb_res_mix: Tensor,
                 d_o: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of mhc_post_fwd's four tensors.

    Args:
        x: bfloat16 [num_tokens, hidden]
        residual: bfloat16 [num_tokens, num_streams, hidden]
        post_layer_mix: float32 [num_tokens, num_streams, 1] or [num_tokens, num_streams]
        comb_res_mix: float32 [num_tokens, num_streams, num_streams]
        d_o: bfloat16 [num_tokens, num_streams, hidden]

    Returns:
        d_x: bfloat16 [num_tokens, hidden]
        d_residual: bfloat16 [num_tokens, num_streams, hidden]
        d_post_layer_mix: float32, in the shape of post_layer_mix
        d_comb_res_mix: float32 [num_tokens, num_streams, num_streams]
    """
    return post.mhc_post_bwd(x, residual, post_layer_mix, comb_res_mix, d_o, fuse_grad_acc=False)


__all__ = ["mhc_post_bwd", "mhc_post_fwd"]
