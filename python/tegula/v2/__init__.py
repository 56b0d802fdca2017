# SPDX-License-Identifier: MIT
"""The names of TileKernels 2, as far as they are here: `import tegula.v2 as tile_kernels`."""
from . import engram

__all__ = ["engram"]
