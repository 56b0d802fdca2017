# SPDX-License-Identifier: MIT
"""What tests run over, by level: 0 for benchmarks, 1 by default, 2 for everything. TK_TEST_LEVEL sets it."""
import os

from ... import config
from ...testing.generator import generate_rand_float

__all__ = ["generate_num_sms", "generate_rand_float", "get_test_level"]


def get_test_level() -> int:
    text = os.environ.get("TK_TEST_LEVEL", "1")
    if text not in ("0", "1", "2"):
        raise ValueError(f"TK_TEST_LEVEL: is {text!r}, want 0, 1 or 2")
    return int(text)


def generate_num_sms(level: int) -> list[int]:
    """Bounds for persistent kernels, the device's own count last: results must be the same under each."""
    count = config.get_device_num_sms()
    return ([1] if level >= 2 else []) + ([count - 19] if level >= 1 and count > 20 else []) + [count]
