# SPDX-License-Identifier: MIT
"""The gradient of a residual, from the three ops that read it, in one buffer: autograd would add three, which are two
more passes over the largest tensors there are.

In the order of a backward: that of mhc_post returns its gradient to autograd and leaves it in the attribute
grad_from_mhc_post of the residual's storage. That of mhc_pre_apply_mix adds its own to it, in place, and returns None.
That of mhc_pre_norm_fn (with fuse_grad_acc) does so, too, and removes the attribute. Autograd uses what mhc_post
returned when all three are done. A caller may also set the attribute, to a buffer of as many elements.

What is added in place is lost if autograd no longer has the tensor that mhc_post returned, as when another reader of the
residual has a gradient: autograd then adds the two to a new tensor. Whether it has it is known from the tensor's
references in C++ and from those to its memory; without these counts, and if a hook has seen the tensor and may have made
more of them, no buffer is used. Nor is one of an earlier backward or of another tensor in the same storage, such as a view
of the residual. Each op then returns a gradient of its own, and autograd adds them. A buffer that nobody takes is removed
when the backward ends, so that it does not live as long as the residual."""
import weakref

import torch

_NAME = "grad_from_mhc_post"
_backward_id = getattr(torch._C, "_current_graph_task_id", lambda: -1)       # -1 outside of a backward
_current_node = getattr(torch._C, "_current_autograd_node", lambda: None)


def _alias(t, shape):
    """The memory of a packed t as another tensor: a view would hold t."""
    return torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage(), t.storage_offset(), shape)


def _uses(t):
    """How many tensors have t's memory."""
    return torch._C._storage_Use_Count(t.untyped_storage()._cdata)


def _uses_of_two():
    t = torch.empty(1)
    alias = _alias(t, t.shape)
    return _uses(t) if alias._use_count() == 1 else 0


_CAN_COUNT = hasattr(torch._C, "_storage_Use_Count") and hasattr(torch.Tensor, "_use_count")
_USES_OF_TWO = _uses_of_two() if _CAN_COUNT else 0          # 0: it is not known what the counts mean


def _mark(edge):
    """Something that belongs to the tensor that an edge of autograd's graph leads to, and keeps nothing alive."""
    node, index = edge
    return (node.metadata.setdefault("tegula_mhc", object()), index) if node is not None else None


def _has_hooks(node):
    handle = node.register_hook(lambda *grads: None)
    hooks = handle.hooks_dict_ref()
    handle.remove()
    return len(hooks) > 0


class _Left:
    """A buffer's part in a backward: which one, the edges by which autograd may have got it, and what it has got."""

    def __init__(self, backward, marks, returned):
        self.backward, self.marks, self.returned = backward, marks, returned

    def is_held(self, buffer):
        """By autograd. Besides there are the Python object of what was returned, and buffer."""
        return _USES_OF_TWO > 0 and _uses(buffer) == _USES_OF_TWO and self.returned._use_count() == 2


def leave(residual, grad, edge=None):
    """grad [T, N, H], of mhc_post, for the others; returns it in residual's shape, for autograd. edge: by which autograd
    takes it, if the caller's node is known; else it is one of the edges of the node that runs."""
    storage, backward, returned = residual.untyped_storage(), _backward_id(), _alias(grad, residual.shape)
    if backward >= 0:
        node = _current_node()
        if node is None or _has_hooks(node):
            discard(storage)
            return returned
        marks = [_mark(e) for e in (node.next_functions if edge is None else [edge])]
        grad.tegula_mhc_post = _Left(backward, marks, returned)
        _discard_after_backward(storage, backward)
    setattr(storage, _NAME, grad)
    return returned


def _discard_after_backward(storage, backward):
    """Keeps neither the storage nor the buffer alive until then."""
    to = weakref.ref(storage)

    def callback():
        storage = to()
        left = getattr(getattr(storage, _NAME, None), "tegula_mhc_post", None)
        if left is not None and left.backward == backward:
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
        if left.backward != _backward_id() or not left.is_held(buffer):
            discard(storage)
            return None
        if _mark(edge) not in left.marks:
            return None
    if buffer.dtype != residual.dtype or buffer.device != residual.device or buffer.numel() != residual.numel():
        raise ValueError(f"{_NAME}: is {buffer.dtype} {list(buffer.shape)} on {buffer.device}, want {residual.dtype} "
                         f"{list(residual.shape)} on {residual.device}, as the residual")
    return buffer.view(residual.shape[:-2].numel(), *residual.shape[-2:])
