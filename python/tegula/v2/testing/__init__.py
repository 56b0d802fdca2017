# SPDX-License-Identifier: MIT
"""tegula.testing, with generators that take a level."""
from . import bench, generator, numeric, quant
from .quant import clear_unused_sf

__all__ = ["bench", "clear_unused_sf", "generator", "numeric", "quant"]
