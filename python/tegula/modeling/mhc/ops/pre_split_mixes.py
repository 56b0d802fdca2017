# SPDX-License-Identifier: MIT
from ....mhc import mhc_pre_split_mixes_fwd
from ._shapes import flat


def mhc_pre_split_mixes(input_mixes, mhc_scale, mhc_base, mhc_mult, mhc_post_mult_value, mhc_pre_eps):
    """Mixes [..., N * (N + 2)] to (pre_layer_mix [..., N, 1], post_layer_mix [..., N, 1], comb_res_mix [..., N, N]), of
    which the last has logits, for sinkhorn_normalize."""
    lead, n = input_mixes.shape[:-1], mhc_mult
    pre, post, comb = mhc_pre_split_mixes_fwd(flat(input_mixes, 1), mhc_scale, mhc_base, n, mhc_post_mult_value,
                                              mhc_pre_eps)
    return pre.view(*lead, n, 1), post.view(*lead, n, 1), comb.view(*lead, n, n)
