# SPDX-License-Identifier: MIT
"""Plain PyTorch references, with the arguments that TileKernels 2 gives them."""
from .engram import (
    engram_gate_ref, engram_hash_ref, engram_sinkhorn_finalize_ref, engram_sinkhorn_momentum_update_ref,
    engram_sinkhorn_step_ref, make_offsets,
)

__all__ = ["engram_gate_ref", "engram_hash_ref", "engram_sinkhorn_finalize_ref", "engram_sinkhorn_momentum_update_ref",
           "engram_sinkhorn_step_ref", "make_offsets"]
