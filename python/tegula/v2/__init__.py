# SPDX-License-Identifier: MIT
"""The names of TileKernels 2, as far as they are here: `import tegula.v2 as tile_kernels`."""
from . import config, engram
from .config import get_device_num_sms, get_max_smem_per_sm, get_num_sms, get_pdl, set_num_sms, set_pdl

_LAZY = ("mhc", "modeling", "rand", "testing", "torch", "utils")    # they import torch
__all__ = ["config", "engram", "get_device_num_sms", "get_max_smem_per_sm", "get_num_sms", "get_pdl", "mhc", "modeling", "rand",
           "set_num_sms", "set_pdl", "testing", "torch", "utils"]


def __getattr__(name):
    if name in _LAZY:
        import importlib
        return importlib.import_module("." + name, __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
