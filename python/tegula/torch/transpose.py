# SPDX-License-Identifier: MIT
import torch

_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def _bits(x):
    """x in a dtype of the same size that torch can copy transposed on every device."""
    return x.view(_OF_SIZE[x.element_size()])


def _packed(x):
    """A copy with the strides of its shape; contiguous() leaves those of a dimension of 1 as they are."""
    return x.clone(memory_format=torch.contiguous_format)


def transpose(x):
    """tegula.transpose.transpose: a packed copy of x [rows, columns], transposed."""
    return _packed(_bits(x).t()).view(x.dtype)


def batched_transpose(x):
    """tegula.transpose.batched_transpose: of each matrix of x [batch, rows, columns]."""
    return _packed(_bits(x).transpose(1, 2)).view(x.dtype)
