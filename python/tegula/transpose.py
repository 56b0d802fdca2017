# SPDX-License-Identifier: MIT
"""A matrix, or a batch of them, with rows and columns exchanged."""
from typing import TYPE_CHECKING as _TYPE_CHECKING

from ._rows import functions as _functions

if _TYPE_CHECKING:
    from ._transpose import *       # a stub made from the table of functions

globals().update(_functions("transpose"))
__all__ = sorted(_functions("transpose"))
