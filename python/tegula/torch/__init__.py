# SPDX-License-Identifier: MIT
"""Plain PyTorch references of the ops: what they compute, without a word about speed."""
from .moe import (
    aux_fi, expand_to_fused, expand_to_fused_with_sf, get_fused_mapping, group_count, hash_gate,
    inplace_unique_group_indices, mask_indices_by_tp, normalize_weight, reduce_fused, route, stable_topk,
    top2_sum_gate, topk_gate, topk_sum_and_topk_group_idx,
)
from .per_channel_cast_fused import per_channel_cast_fused
from .quant import (
    cast, cast_back, cast_back_from_e5m6, cast_to_e5m6, swiglu_backward, swiglu_forward,
    unpack_from_e2m1fn_x2,
)
from .transpose import batched_transpose, transpose

__all__ = [
    "aux_fi", "batched_transpose", "cast", "cast_back", "cast_back_from_e5m6", "cast_to_e5m6",
    "expand_to_fused", "expand_to_fused_with_sf", "get_fused_mapping", "group_count", "hash_gate",
    "inplace_unique_group_indices", "mask_indices_by_tp", "normalize_weight", "per_channel_cast_fused",
    "reduce_fused", "route", "stable_topk", "swiglu_backward", "swiglu_forward", "top2_sum_gate", "topk_gate",
    "topk_sum_and_topk_group_idx", "transpose", "unpack_from_e2m1fn_x2",
]
