# SPDX-License-Identifier: MIT
"""Engram, a memory that a layer looks up by the last few token ids: from ids to rows of its table."""
from .._rows import functions as _functions

globals().update(_functions("engram"))
__all__ = sorted(_functions("engram"))
