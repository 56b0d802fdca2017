# SPDX-License-Identifier: MIT
"""Names of benchmark and test cases."""
import torch

# int8 holds packed e2m1
_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float8_e4m3fn: "e4m3", torch.int8: "e2m1"}


def dtype_to_str(dtype):
    return _NAMES[dtype] if dtype in _NAMES else str(dtype).removeprefix("torch.")


def _text(value):
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return dtype_to_str(value) if isinstance(value, torch.dtype) else str(value)


def make_param_id(params):
    """{"block_size": (128, 128), "dtype": torch.bfloat16} to "block_size=128x128-dtype=bf16": a test's id."""
    return "-".join(f"{key}={_text(value)}" for key, value in params.items()) or "default"


def make_param_key(params):
    """The same in sorted order, as one string to look a record up by."""
    return ",".join(f"{key}={_text(value)}" for key, value in sorted(params.items()))
