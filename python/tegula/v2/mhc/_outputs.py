# SPDX-License-Identifier: MIT
import torch

from ...modeling.mhc.ops._shapes import is_traced, overlap


def check_outputs(*inputs, **outputs):
    """Of a form that torch computes, which would change a shape, round to any dtype and write over what it has yet to read.
    outputs: each a tensor and its shape; packed float32 on the inputs' device, of memory that nothing else has."""
    others = list(inputs)
    for name, (t, shape) in outputs.items():
        if t.dtype != torch.float32:
            raise ValueError(f"{name}: dtype is {t.dtype}, want torch.float32")
        if tuple(t.shape) != tuple(shape):
            raise ValueError(f"{name}: shape is {list(t.shape)}, want {list(shape)}")
        if not t.is_contiguous():
            raise ValueError(f"{name}: strides are {list(t.stride())}, want packed rows")
        if t.device != inputs[0].device:
            raise ValueError(f"{name}: device is {t.device}, want {inputs[0].device}")
        if not is_traced() and any(overlap(t, other) for other in others):
            raise ValueError(f"{name}: shares memory with another argument")
        others.append(t)
