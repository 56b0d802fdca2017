# SPDX-License-Identifier: MIT
"""What tests and benchmarks of the ops share; names and meanings are those of TileKernels' testing
package."""

from . import bench, generator, numeric, quant
from .numeric import assert_equal, calc_diff, check_bias, count_bytes
from .quant import clear_unused_sf

__all__ = [
    "assert_equal", "bench", "calc_diff", "check_bias", "clear_unused_sf", "count_bytes", "generator",
    "numeric", "quant",
]
