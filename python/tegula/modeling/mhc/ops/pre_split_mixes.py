# SPDX-License-Identifier: MIT
from torch import Tensor

from ....mhc import mhc_pre_split_mixes_fwd
from ._shapes import flat, packed, unflat


def mhc_pre_split_mixes(input_mixes: Tensor, mhc_scale: Tensor, mhc_base: Tensor, mhc_mult: int,
                        mhc_post_mult_value: float, mhc_pre_eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mixes [..., N * (N + 2)] to (pre_layer_mix [..., N, 1], post_layer_mix [..., N, 1], comb_res_mix [..., N, N]), of
    which the last has logits, for sinkhorn_normalize.

    Args:
        input_mixes: float32 [..., num_mixes], num_mixes = num_streams * (num_streams + 2)
        mhc_scale: float32 or bfloat16 [3]
        mhc_base: float32 or bfloat16 [num_mixes]
        mhc_mult: int, num_streams
        mhc_post_mult_value: float
        mhc_pre_eps: float

    Returns:
        pre_layer_mix: float32 [..., num_streams, 1]
        post_layer_mix: float32 [..., num_streams, 1]
        comb_res_mix: float32 [..., num_streams, num_streams]

    Example:
        >>> made = mhc_pre_split_mixes(torch.randn(2, 3, 24), torch.ones(3), torch.zeros(24), 4, 2.0, 1e-6)
        >>> [t.shape[2:] for t in made]
        [torch.Size([4, 1]), torch.Size([4, 1]), torch.Size([4, 4])]
    """
    lead, n = input_mixes.shape[:-1], mhc_mult
    pre, post, comb = mhc_pre_split_mixes_fwd(flat(input_mixes, 1), packed(mhc_scale), packed(mhc_base), n,
                                              mhc_post_mult_value, mhc_pre_eps)
    return pre.view(*lead, n, 1), post.view(*lead, n, 1), unflat(comb, (*lead, n, n))
