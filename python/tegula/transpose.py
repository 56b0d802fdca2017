# SPDX-License-Identifier: MIT
"""A matrix, or a batch of them, with rows and columns exchanged."""
from ._tegula import batched_transpose, transpose

__all__ = ["batched_transpose", "transpose"]
