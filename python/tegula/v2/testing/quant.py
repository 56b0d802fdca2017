# SPDX-License-Identifier: MIT
from ...testing.quant import clear_unused_sf

__all__ = ["clear_unused_sf"]
