# SPDX-License-Identifier: MIT
"""per_token_cast to e5m6, where TileKernels has it."""
from . import per_token_cast
from .._help import helped_by as _helped_by


@_helped_by(per_token_cast)
def per_token_cast_to_e5m6(x, num_per_channels, use_tma_aligned_col_major_sf=False, round_sf=False,
                           use_packed_ue8m0=False, *, out=None):
    """(out, out_sf) of per_token_cast with fmt='e5m6'.

    Args:
        x: bfloat16 or float32 [num_rows, num_cols]

    Returns:
        out: uint8 [num_rows, num_cols * 3 / 2]

    Example:
        >>> data, sf = per_token_cast_to_e5m6(torch.randn(6, 128), 32)
        >>> data.shape, data.dtype
        (torch.Size([6, 192]), torch.uint8)
    """
    return per_token_cast(x, "e5m6", num_per_channels, None, use_tma_aligned_col_major_sf, round_sf,
                          use_packed_ue8m0, out=out)
