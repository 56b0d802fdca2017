# SPDX-License-Identifier: MIT
"""The names of TileKernels 2, as far as they are here: `import tegula.v2 as tile_kernels`."""
from . import engram

__all__ = ["engram", "mhc", "modeling", "torch"]


def __getattr__(name):
    if name in ("mhc", "modeling", "torch"):        # they import torch
        import importlib
        return importlib.import_module("." + name, __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
