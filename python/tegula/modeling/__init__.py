# SPDX-License-Identifier: MIT
"""Layers with gradients, for torch."""
from . import engram, mhc

__all__ = ["engram", "mhc"]
