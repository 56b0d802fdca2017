# SPDX-License-Identifier: MIT
"""Settings, which are those of tegula.config, and what TileKernels 2's tests ask about the device."""
from ..config import get_device_num_sms, get_max_smem_per_sm, get_num_sms, get_pdl, set_num_sms, set_pdl

__all__ = ["get_device", "get_device_num_sms", "get_max_smem_per_sm", "get_num_sms", "get_pdl", "is_ascend", "set_num_sms",
           "set_pdl"]


def get_device() -> str:
    """Where tests make their tensors: "cuda", or "cpu" if torch sees no GPU, as with CUDA_VISIBLE_DEVICES=""."""
    import torch
    return "cuda" if torch.cuda.is_available() else "cpu"


def is_ascend() -> bool:
    return False
