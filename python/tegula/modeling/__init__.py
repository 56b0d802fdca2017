# SPDX-License-Identifier: MIT
"""Layers with gradients, for torch."""
from . import engram

__all__ = ["engram"]
