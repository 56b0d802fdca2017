# SPDX-License-Identifier: MIT
"""Plain PyTorch references, with the arguments that TileKernels 2 gives them."""
from .engram import (
    engram_gate_ref, engram_hash_ref, engram_sinkhorn_finalize_ref, engram_sinkhorn_momentum_update_ref,
    engram_sinkhorn_step_ref, make_offsets,
)
from .mhc import (
    expand_to_mhc_ref, mhc_head_compute_mix_ref, mhc_post_ref, mhc_pre_apply_mix_ref, mhc_pre_norm_fn_partials_ref,
    mhc_pre_norm_fn_ref, mhc_pre_split_mixes_ref, sinkhorn_normalize_ref,
)

__all__ = ["engram_gate_ref", "engram_hash_ref", "engram_sinkhorn_finalize_ref", "engram_sinkhorn_momentum_update_ref",
           "engram_sinkhorn_step_ref", "expand_to_mhc_ref", "make_offsets", "mhc_head_compute_mix_ref", "mhc_post_ref",
           "mhc_pre_apply_mix_ref", "mhc_pre_norm_fn_partials_ref", "mhc_pre_norm_fn_ref", "mhc_pre_split_mixes_ref",
           "sinkhorn_normalize_ref"]
