# SPDX-License-Identifier: MIT
"""Engram as TileKernels 2 has it."""
from ..engram import (
    engram_gate_kv_bwd as engram_gate_bwd, engram_gate_kv_fwd as engram_gate_fwd, engram_hash,
    engram_sinkhorn_finalize as _finalize, engram_sinkhorn_momentum_update, engram_sinkhorn_step,
    engram_sinkhorn_step_reduce, fused_weight, grad_w_reduce,
)


def engram_sinkhorn_finalize(matrix, row_scale, col_scale, eps, alpha, out=None):
    """tegula.engram.engram_sinkhorn_finalize; out may be given by position."""
    return _finalize(matrix, row_scale, col_scale, eps, alpha, out=out)


__all__ = ["engram_gate_bwd", "engram_gate_fwd", "engram_hash", "engram_sinkhorn_finalize",
           "engram_sinkhorn_momentum_update", "engram_sinkhorn_step", "engram_sinkhorn_step_reduce", "fused_weight",
           "grad_w_reduce"]
