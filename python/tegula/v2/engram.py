# SPDX-License-Identifier: MIT
"""Engram as TileKernels 2 has it."""
from ..engram import (engram_gate_kv_bwd as engram_gate_bwd, engram_gate_kv_fwd as engram_gate_fwd, engram_hash,
                      fused_weight, grad_w_reduce)

__all__ = ["engram_gate_bwd", "engram_gate_fwd", "engram_hash", "fused_weight", "grad_w_reduce"]
