# SPDX-License-Identifier: MIT
"""Sizes to test with. TK_FULL_TEST=1 adds the edge cases."""
import os

from .. import config


def _is_full():
    return os.environ.get("TK_FULL_TEST") in ("1", "true", "True")


def generate_num_tokens(alignment=1, is_benchmark=False):
    """Token counts, odd on purpose, rounded up to a multiple of alignment."""
    counts = [0] if _is_full() and not is_benchmark else []
    return counts + [-(-n // alignment) * alignment for n in (4001, 8001)]


def generate_hidden_sizes(align=64):
    """Hidden sizes of published models that are multiples of align."""
    return [n for n in (576, 2048, 2560, 3072, 4096, 6144, 7168) if n % align == 0]


def generate_num_sms():
    """Bounds for persistent kernels: results must be the same under each."""
    count = config.get_device_num_sms()
    return ([1] if _is_full() else []) + [count - 20, count]
