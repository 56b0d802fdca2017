# SPDX-License-Identifier: MIT
"""Engram's gate as TileKernels 2 has it: keys and value in one tensor."""
from ...modeling.engram import EngramGateKvFn as EngramGateFn, engram_gate_kv as engram_gate

__all__ = ["EngramGateFn", "engram_gate"]
