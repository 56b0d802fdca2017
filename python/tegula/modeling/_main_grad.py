# SPDX-License-Identifier: MIT
"""main_grad, the tensor in which trainers such as Megatron gather a parameter's gradient, behind an autograd function. What a
backward unpacks need not be the parameter itself, for hooks on saved tensors and checkpoints give others: so the function
keeps the parameter. Its main_grad is read in the backward, since a trainer may have given it another since the forward."""
import torch


def keep(*weights):
    """The parameters among these, else None: a weight made of parameters is not kept, for hooks may have moved it to save
    memory. Compiled code sees no main_grad."""
    if torch.compiler.is_compiling():
        return (None,) * len(weights)
    return tuple(w if w is not None and (w.is_leaf and w.requires_grad or hasattr(w, "main_grad")) else None
                 for w in weights)


def find(kept):
    """Their main_grads, or None."""
    return [getattr(w, "main_grad", None) for w in kept]
