# SPDX-License-Identifier: MIT
"""cast_back from e5m6, where TileKernels has it."""
from . import cast_back


def cast_back_e5m6(x, fmt, x_block_size, *, out=None):
    """cast_back with x_special_fmt='e5m6'."""
    return cast_back(x, fmt, x_block_size, "e5m6", out=out)
