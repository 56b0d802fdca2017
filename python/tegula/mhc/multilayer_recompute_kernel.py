# SPDX-License-Identifier: MIT
from ..modeling.mhc.ops.multilayer_recompute import mhc_multilayer_recompute

__all__ = ["mhc_multilayer_recompute"]
