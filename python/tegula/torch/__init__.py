# SPDX-License-Identifier: MIT
"""Plain PyTorch references of the ops: what they compute, without a word about speed."""
from .transpose import batched_transpose, transpose

__all__ = ["batched_transpose", "transpose"]
