# SPDX-License-Identifier: MIT
"""torch's random numbers, where TileKernels 2 has those of several devices."""
from torch import manual_seed as set_seed, randn, randn_like

__all__ = ["randn", "randn_like", "set_seed"]
