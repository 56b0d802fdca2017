# SPDX-License-Identifier: MIT
import torch
from torch import Tensor

from ... import mhc


@torch.no_grad()
def mhc_pre_split_mixes_fwd(input_mixes: Tensor, mhc_scale: Tensor, mhc_base: Tensor, pre_layer_mix: Tensor,
                            post_layer_mix: Tensor, comb_res_mix: Tensor, mhc_post_mult_value: float,
                            mhc_pre_eps: float) -> None:
    """Mixes [T, P] to pre_layer_mix [T, N], post_layer_mix [T, N] and the logits comb_res_mix [T, N * N].

    Args:
        input_mixes: float32 [num_tokens, num_mixes]
        mhc_scale: float32 [3]
        mhc_base: float32 [num_mixes]
        pre_layer_mix: float32 [num_tokens, num_streams]; is written
        post_layer_mix: float32 [num_tokens, num_streams]; is written
        comb_res_mix: float32 [num_tokens, num_streams * num_streams]; is written
        mhc_post_mult_value: float
        mhc_pre_eps: float

    Returns:
        None
    """
    n = pre_layer_mix.shape[1]
    mhc.mhc_pre_split_mixes_fwd(input_mixes, mhc_scale, mhc_base, n, mhc_post_mult_value, mhc_pre_eps,
                                out=(pre_layer_mix, post_layer_mix, comb_res_mix.view(-1, n, n)))


@torch.no_grad()
def mhc_pre_split_mixes_bwd(pre_grad: Tensor, post_grad: Tensor, comb_grad: Tensor, input_mixes: Tensor,
                            post_layer_mix: Tensor, mhc_scale: Tensor, mhc_base: Tensor, input_mixes_grad: Tensor,
                            mhc_scale_grad: Tensor, mhc_base_grad: Tensor, mhc_post_mult_value: float) -> None:
    """Writes the gradients of input_mixes, mhc_scale [3] and mhc_base [P].

    Args:
        pre_grad: float32 [num_tokens, num_streams]
        post_grad: float32 [num_tokens, num_streams]
        comb_grad: float32 [num_tokens, num_streams * num_streams]
        input_mixes: float32 [num_tokens, num_mixes]
        post_layer_mix: float32 [num_tokens, num_streams], not read
        mhc_scale: float32 [3]
        mhc_base: float32 [num_mixes]
        input_mixes_grad: float32 [num_tokens, num_mixes]; is written
        mhc_scale_grad: float32 [3]; is written
        mhc_base_grad: float32 [num_mixes]; is written
        mhc_post_mult_value: float

    Returns:
        None
    """
    n = pre_grad.shape[1]
    mhc.mhc_pre_split_mixes_bwd(input_mixes, mhc_scale, mhc_base, pre_grad, post_grad, comb_grad.reshape(-1, n, n),
                                mhc_post_mult_value, out=(input_mixes_grad, mhc_scale_grad, mhc_base_grad))
