# SPDX-License-Identifier: MIT
import torch

from .post import mhc_post_fwd
from .pre_apply_mix import mhc_pre_apply_mix


@torch.no_grad()
def mhc_multilayer_recompute(initial_residual, pre_mix_list, layer_output_list, post_mix_list, comb_mix_list,
                             layer_input_list, residual_list):
    """The inputs of consecutive sublayers, and the residuals after them, from the first residual, the mixes and the
    sublayers' outputs: writes layer_input_list, of as many tensors as pre_mix_list has, and residual_list, of as many
    or one less."""
    count, posts = len(pre_mix_list), len(layer_output_list)
    lengths = len(layer_input_list), len(post_mix_list), len(comb_mix_list), len(residual_list)
    if count < 1 or posts not in (count - 1, count) or lengths != (count, posts, posts, posts):
        raise ValueError(f"lists: have {count} mixes, {posts} outputs, then {lengths}; want L >= 1 of pre_mix_list and "
                         "layer_input_list, and L or L - 1 of the others")
    residual = initial_residual
    for i in range(count):
        mhc_pre_apply_mix(residual, pre_mix_list[i], out=layer_input_list[i])
        if i < posts:
            residual = mhc_post_fwd(layer_output_list[i], residual, post_mix_list[i], comb_mix_list[i],
                                    out=residual_list[i])
