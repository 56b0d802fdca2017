# SPDX-License-Identifier: MIT
import torch

from ..utils import align, ceil_div, is_power_of_two

__all__ = ["align", "ceil_div", "dtype_to_str", "is_power_of_two", "next_power_of_two", "str_to_dtype"]

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "e2m1": torch.int8}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def next_power_of_two(x: int) -> int:
    """The smallest power of two that is not below x."""
    return 1 << max(x - 1, 0).bit_length()


def dtype_to_str(dtype: torch.dtype) -> str:
    if dtype not in _NAMES:
        raise ValueError(f"dtype: is {dtype}, want one of {', '.join(map(str, _NAMES))}")
    return _NAMES[dtype]


def str_to_dtype(name: str) -> torch.dtype:
    """int8 holds packed e2m1."""
    if name not in _DTYPES:
        raise ValueError(f"name: is {name!r}, want one of {', '.join(map(repr, _DTYPES))}")
    return _DTYPES[name]
