# SPDX-License-Identifier: MIT
"""cast_back from e5m6, where TileKernels has it."""
from . import cast_back
from .._help import helped_by as _helped_by


@_helped_by(cast_back)
def cast_back_e5m6(x, fmt, x_block_size, *, out=None):
    """cast_back with x_special_fmt='e5m6'.

    Args:
        x: a pair (x, x_sf); x: uint8 [num_rows, num_cols * 3 / 2]; x_sf: float32, or packed int32
            [ceil(num_rows / x_num_per_tokens), ceil(num_cols / x_num_per_channels)]

    Example:
        >>> pair = tegula.quant.per_token_cast(torch.ones(6, 128), "e5m6", 32)
        >>> cast_back_e5m6(pair, "bf16", (1, 32)).shape
        torch.Size([6, 128])
    """
    return cast_back(x, fmt, x_block_size, "e5m6", out=out)
