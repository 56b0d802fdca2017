# SPDX-License-Identifier: MIT
"""Leading dimensions: the C ops have one, of tokens."""
import torch


def is_traced():
    """By torch.compile or torch.func, which know the registered operators and their gradients, and no attributes of
    storages."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def flat(t, last):
    """[..., the last dimensions] as [T, the last dimensions], of packed rows."""
    lead = t.ndim - last
    t = t.unsqueeze(0) if lead == 0 else t.flatten(0, lead - 1)
    return t if t.stride(-1) == 1 or t.shape[-1] <= 1 else t.contiguous()


def packed(t):
    """A parameter, or None, as the C ops want it."""
    return t if t is None or t.is_contiguous() else t.contiguous()


def check_lead(name, t, last, residual):
    """t [..., the last dimensions] has the leading dimensions of residual [..., N, H]."""
    want = residual.shape[:-2]
    if t.shape[:t.ndim - last] != want:
        raise ValueError(f"{name}: shape is {list(t.shape)}, want {[*want, *t.shape[t.ndim - last:]]}, as residual "
                         f"{list(residual.shape)}")


def flat_mix(mix, residual):
    """[..., N] or [..., N, 1] as [T, N]: residual is [..., N, H]."""
    if mix.ndim == residual.ndim:
        if mix.shape[-1] != 1:
            raise ValueError(f"mix: shape is {list(mix.shape)}, want [..., {residual.shape[-2]}, 1]")
        mix = mix.squeeze(-1)
    check_lead("mix", mix, 1, residual)
    return flat(mix, 1).contiguous()


def check_out(out, *saved):
    """out is not what the backward reads."""
    if out is not None and any(t.untyped_storage().data_ptr() == out.untyped_storage().data_ptr() for t in saved):
        raise ValueError("out: shares memory with an argument that the gradients need")


def flat_out(out, shape, last):
    """out, of this shape, as [T, the last dimensions]: its own memory."""
    if out is None:
        return None
    if tuple(out.shape) != tuple(shape):
        raise ValueError(f"out: shape is {list(out.shape)}, want {list(shape)}")
    lead = out.ndim - last
    return out.unsqueeze(0) if lead == 0 else out.view(out.shape[:lead].numel(), *out.shape[lead:])
