# SPDX-License-Identifier: MIT
"""A matrix, or a batch of them, with rows and columns exchanged."""
from ._rows import functions as _functions

globals().update(_functions("transpose"))
__all__ = sorted(_functions("transpose"))
