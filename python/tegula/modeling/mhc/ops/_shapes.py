# SPDX-License-Identifier: MIT
"""Leading dimensions: the C ops have one, of tokens."""
import torch


def is_traced():
    """By torch.compile or torch.func, which know the registered operators and their gradients, and no attributes of
    storages."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def wants_gradient(*tensors):
    """Whether a gradient of these may be wanted. Of what is traced: whether gradients are enabled."""
    if not torch.is_grad_enabled():
        return False
    for t in tensors:
        if t is not None and t.requires_grad:
            return True
    return is_traced()


def flat(t, last):
    """[..., the last dimensions] as [T, the last dimensions], of packed rows."""
    lead = t.ndim - last
    if lead != 1:                       # flatten() costs twice as much
        t = t.reshape(t.shape[:lead].numel(), *t.shape[lead:])
    return t if t.stride(-1) == 1 or t.shape[-1] <= 1 else t.contiguous()


def unflat(t, shape):
    """[T, ...] in a shape with the same last dimensions."""
    return t if t.ndim == len(shape) else t.view(shape)


def packed(t):
    """A parameter, or None, as the C ops want it. In bfloat16 it is widened, which is exact."""
    if t is None:
        return None
    if t.dtype == torch.bfloat16:
        t = t.float()
    return t if t.is_contiguous() else t.contiguous()


def check_lead(name, t, last, residual):
    """t [..., the last dimensions] has the leading dimensions of residual [..., N, H]."""
    want = residual.shape[:-2]
    if t.shape[:t.ndim - last] != want:
        raise ValueError(f"{name}: shape is {list(t.shape)}, want {[*want, *t.shape[t.ndim - last:]]}, as residual "
                         f"{list(residual.shape)}")


def flat_mix(mix, residual):
    """[..., N] or [..., N, 1] as [T, N]: residual is [..., N, H]."""
    last = 1
    if mix.ndim == residual.ndim:
        if mix.shape[-1] != 1:
            raise ValueError(f"mix: shape is {list(mix.shape)}, want [..., {residual.shape[-2]}, 1]")
        last = 2
    check_lead("mix", mix, last, residual)
    if mix.ndim > 2 or last == 2:
        mix = mix.reshape(residual.shape[:-2].numel(), mix.shape[-last])
    return flat(mix, 1).contiguous()


def _span(t):
    """Of addresses, from the first element to behind the last."""
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride()))
    return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()


def overlap(a, b):
    """Whether their spans do. What one leaves out between its rows may be the other's: that counts as well."""
    if a.numel() == 0 or b.numel() == 0:
        return False
    (first_a, end_a), (first_b, end_b) = _span(a), _span(b)
    return first_a < end_b and first_b < end_a


def check_out(out, *saved):
    """out is not what the backward reads."""
    if out is not None and any(t is not None and overlap(out, t) for t in saved):
        raise ValueError("out: shares memory with an argument that the gradients need")


def flat_out(out, shape, last):
    """out, of this shape, as [T, the last dimensions]: its own memory."""
    if out is None:
        return None
    if tuple(out.shape) != tuple(shape):
        raise ValueError(f"out: shape is {list(out.shape)}, want {list(shape)}")
    lead = out.ndim - last
    return out.unsqueeze(0) if lead == 0 else out.view(out.shape[:lead].numel(), *out.shape[lead:])
