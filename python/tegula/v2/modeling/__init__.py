# SPDX-License-Identifier: MIT
from . import engram

__all__ = ["engram"]
