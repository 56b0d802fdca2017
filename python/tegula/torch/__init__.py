# SPDX-License-Identifier: MIT
"""Plain PyTorch references of the ops: what they compute, without a word about speed."""
from types import FunctionType as _FunctionType

from . import (engram as _engram, mhc as _mhc, moe as _moe, per_channel_cast_fused as _per_channel_cast_fused, quant as _quant,
               transpose as _transpose)

__all__ = []
for _module in (_engram, _mhc, _moe, _per_channel_cast_fused, _quant, _transpose):
    _functions = {name: f for name, f in vars(_module).items()
                  if isinstance(f, _FunctionType) and f.__module__ == _module.__name__ and not name.startswith("_")}
    globals().update(_functions)    # transpose and per_channel_cast_fused take the places of their modules
    __all__ += _functions
