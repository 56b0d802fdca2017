# SPDX-License-Identifier: MIT
import torch

_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def _bits(x):
    """x in a dtype of the same size that torch can copy transposed on every device."""
    return x.view(_OF_SIZE[x.element_size()])


def transpose(x):
    return _bits(x).t().contiguous().view(x.dtype)


def batched_transpose(x):
    return _bits(x).transpose(1, 2).contiguous().view(x.dtype)
