# SPDX-License-Identifier: MIT
"""What tests run over, by level: 0 for benchmarks, 1 by default, 2 for everything. TK_TEST_LEVEL sets it."""
import itertools
import os
from collections.abc import Iterable, Iterator

from ... import config
from ...testing.generator import generate_rand_float

__all__ = ["generate_hidden_sizes", "generate_num_sms", "generate_num_tokens", "generate_rand_float", "generate_samples",
           "get_test_level"]


def get_test_level() -> int:
    text = os.environ.get("TK_TEST_LEVEL", "1")
    if text not in ("0", "1", "2"):
        raise ValueError(f"TK_TEST_LEVEL: is {text!r}, want 0, 1 or 2")
    return int(text)


def generate_num_sms(level: int) -> list[int]:
    """Bounds for persistent kernels, the device's own count last: results must be the same under each."""
    count = config.get_device_num_sms()
    return ([1] if level >= 2 else []) + ([count - 19] if level >= 1 and count > 20 else []) + [count]


def generate_num_tokens(level: int, alignment: int = 1, backward_only: bool = False) -> list[int]:
    """Token counts, rounded up to a multiple of alignment; with backward_only level 0 has the large one alone."""
    counts = ([0, 1] if level >= 2 else []) + ([8001] if backward_only and level == 0 else [512, 8001])
    return [-(-n // alignment) * alignment for n in counts]


def generate_hidden_sizes(align: int = 64) -> list[int]:
    """Hidden sizes that are multiples of align."""
    return [n for n in (128, 192, 384, 768, 2048, 2560, 3072, 4096, 6144, 7168) if n % align == 0]


def generate_samples(level: int, **dimensions: Iterable) -> Iterator[dict]:
    """Settings of parameters that do not depend on each other: all products of their values at level 2, below it only as many
    that every value occurs."""
    values = [list(v) for v in dimensions.values()]
    rows = itertools.product(*values) if level >= 2 else (
        [v[i % len(v)] for v in values] for i in range(max(map(len, values))))
    return (dict(zip(dimensions, row)) for row in rows)
