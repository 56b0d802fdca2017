# SPDX-License-Identifier: MIT
"""The gradient of a residual, from the three ops that read it, in one buffer: autograd would add three, which are two
more passes over the largest tensors there are.

In the order of a backward: that of mhc_post returns its gradient to autograd and leaves it in the attribute
grad_from_mhc_post of the residual's storage. That of mhc_pre_apply_mix adds its own to it, in place, and returns None.
That of mhc_pre_norm_fn (with fuse_grad_acc) does so, too, and removes the attribute. Autograd uses what mhc_post
returned when all three are done. A caller may also set the attribute, to a buffer of as many elements.

What is added in place is lost if autograd no longer has the tensor that mhc_post returned, as when another reader of the
residual has a gradient: autograd then adds the two to a new tensor. Such a buffer is not used, nor one of an earlier
backward, of another tensor in the same storage, such as a view of the residual, or of a residual that two mhc_post read:
each op then returns a gradient of its own, and autograd adds them. A buffer that nobody takes is removed when the backward
ends, so that it does not live as long as the residual."""
import weakref

import torch

_NAME = "grad_from_mhc_post"
_backward_id = getattr(torch._C, "_current_graph_task_id", lambda: -1)       # -1 outside of a backward


def _uses(t):
    """How many tensors and Python objects hold t's memory."""
    return torch._C._storage_Use_Count(t.untyped_storage()._cdata)


_USES_OF_ONE = _uses(torch.empty(1)) if hasattr(torch._C, "_storage_Use_Count") else 0


def _mark(edge):
    """Something that belongs to the tensor that an edge of autograd's graph leads to, and keeps nothing alive."""
    node, index = edge
    return node.metadata.setdefault("tegula_mhc", object()), index


def leave(residual, grad, edge=None):
    """mhc_post's gradient, for the others. edge: where autograd takes grad in the backward that this call is part of."""
    storage = residual.untyped_storage()
    left = (_backward_id(), *_mark(edge)) if edge is not None and _backward_id() >= 0 else None
    if left is not None and getattr(storage, "tegula_mhc_post", None) == left:
        discard(storage)        # a second mhc_post of this residual: autograd adds the two
        return
    # A tensor of its own, not a view, which would hold the memory twice.
    buffer = torch.empty(0, dtype=grad.dtype, device=grad.device).set_(
        grad.untyped_storage(), grad.storage_offset(), grad.shape, grad.stride())
    setattr(storage, _NAME, buffer)
    if left is not None:
        storage.tegula_mhc_post = buffer.tegula_mhc_post = left
        _discard_after_backward(storage, left)


def _discard_after_backward(storage, left):
    """Keeps neither the storage nor the buffer alive until then."""
    to = weakref.ref(storage)

    def callback():
        storage = to()
        if storage is not None and getattr(getattr(storage, _NAME, None), "tegula_mhc_post", None) == left:
            discard(storage)

    torch.autograd.Variable._execution_engine.queue_callback(callback)


def discard(storage):
    if hasattr(storage, _NAME):
        delattr(storage, _NAME)


def find(residual, edge):
    """The buffer for residual [..., N, H] as [T, N, H], or None. edge: where autograd takes residual's gradient."""
    storage = residual.untyped_storage()
    buffer = getattr(storage, _NAME, None)
    if buffer is None:
        return None
    left = getattr(buffer, "tegula_mhc_post", None)         # None: set by the caller
    if left is not None:
        if left[0] != _backward_id() or (_USES_OF_ONE and _uses(buffer) <= _USES_OF_ONE):
            discard(storage)
            return None
        if left[1:] != _mark(edge):
            return None
    if buffer.dtype != residual.dtype or buffer.device != residual.device or buffer.numel() != residual.numel():
        raise ValueError(f"{_NAME}: is {buffer.dtype} {list(buffer.shape)} on {buffer.device}, want {residual.dtype} "
                         f"{list(residual.shape)} on {residual.device}, as the residual")
    return buffer.view(residual.shape[:-2].numel(), *residual.shape[-2:])
