# SPDX-License-Identifier: MIT
"""Routing of tokens to experts: choosing experts, their weights, bookkeeping."""
from ._tegula import (
    inplace_unique_group_indices, mask_indices_by_tp, normalize_weight, topk_gate,
    topk_sum_and_topk_group_idx,
)

__all__ = [
    "inplace_unique_group_indices", "mask_indices_by_tp", "normalize_weight", "topk_gate",
    "topk_sum_and_topk_group_idx",
]
