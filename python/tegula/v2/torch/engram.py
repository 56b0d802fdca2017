# SPDX-License-Identifier: MIT
import torch

from ...torch import engram as _v1
from ...torch.engram import (
    engram_hash_ref, engram_sinkhorn_finalize_ref, engram_sinkhorn_momentum_update_ref, make_offsets,
)


def engram_gate_ref(hidden_states, kv, weight_hidden, weight_embed, clamp_value, eps, save_for_backward=False,
                    image_token_mask=None):
    """tegula.torch.engram_gate_ref with keys and value in one tensor [T, H + 1, D]; masked tokens keep their
    hidden_states. What is saved of them is as of any: the op has 0 there. The sign of 0 is 0: the op's default is its
    bit."""
    output, *saved = _v1.engram_gate_ref(hidden_states, kv[..., :-1, :], kv[..., -1, :], weight_hidden, weight_embed,
                                         clamp_value, eps, True)
    if image_token_mask is not None:
        output = torch.where(image_token_mask[..., None, None], hidden_states, output)
    return (output, *saved) if save_for_backward else output


def engram_sinkhorn_step_ref(matrix, row_scale, col_scale, col_sumsq, eps):
    """tegula.torch.engram_sinkhorn_step_ref, with col_sumsq before eps: it is written, and row_norm returned."""
    return _v1.engram_sinkhorn_step_ref(matrix, row_scale, col_scale, eps, col_sumsq)[0]


__all__ = ["engram_gate_ref", "engram_hash_ref", "engram_sinkhorn_finalize_ref", "engram_sinkhorn_momentum_update_ref",
           "engram_sinkhorn_step_ref", "make_offsets"]
