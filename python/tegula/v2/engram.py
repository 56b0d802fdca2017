# SPDX-License-Identifier: MIT
"""Engram as TileKernels 2 has it."""
from ..engram import engram_hash

__all__ = ["engram_hash"]
