# SPDX-License-Identifier: MIT
"""Comparisons of tensors."""
import math

import torch


def _bytes(x):
    return x.detach().clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def _first_difference(x, y):
    width = x.element_size()
    at = int((_bytes(x) != _bytes(y)).nonzero()[0]) // width
    index, rest = [], at
    for size in reversed(x.shape):
        index.insert(0, rest % size)
        rest //= size
    wrong = int((_bytes(x) != _bytes(y)).view(-1, width).any(1).sum())

    def code(t):
        return "0x" + bytes(_bytes(t)[at * width:(at + 1) * width].tolist())[::-1].hex()

    return f"{wrong} of {x.numel()} elements differ, first at {index}: {code(x)}, want {code(y)}"


def assert_equal(x, y, check_dtype=True, check_shape=True, check_stride=True):
    """The same bits: a NaN equals only itself, -0 is not 0. Also the same device, and dtype, shape and
    (unless empty) strides if asked."""
    if check_dtype:
        assert x.dtype == y.dtype, f"dtype is {x.dtype}, want {y.dtype}"
    if check_shape:
        assert x.shape == y.shape, f"shape is {list(x.shape)}, want {list(y.shape)}"
    if check_stride and x.numel() > 0:
        assert x.stride() == y.stride(), f"strides are {x.stride()}, want {y.stride()}"
    assert x.device == y.device, f"device is {x.device}, want {y.device}"
    if x.numel() == y.numel() == 0:
        return
    assert _bytes(x).numel() == _bytes(y).numel(), f"{_bytes(x).numel()} bytes, want {_bytes(y).numel()}"
    assert torch.equal(_bytes(x), _bytes(y)), _first_difference(x, y)


def calc_diff(x, y):
    """1 - 2 sum(xy) / sum(x^2 + y^2) in double: half the squared relative error. 0 where both are all zero;
    NaN if there is one."""
    x, y = x.detach().double(), y.detach().double()
    scale = (x * x + y * y).sum()
    return float(1 - 2 * (x * y).sum() / scale) if scale != 0 else 0.0


def check_bias(x, ref_x):
    """Asserts that x lies above ref_x as often as below, within ten standard deviations of a fair coin:
    rounding that leans to a side fails. Nothing leans where there are no elements."""
    count = x.numel()
    if count == 0:
        return
    x, ref_x = x.double(), ref_x.double()
    below = (int((x < ref_x).sum()) + int((x == ref_x).sum()) / 2) / count
    limit = 10 / math.sqrt(count)
    assert abs(below - 0.5) < limit, f"{below:.4f} of {count} elements are below, want 0.5 within {limit:.4f}"


def count_bytes(*tensors):
    """Bytes of the elements of tensors; lists and tuples of them count too, None is nothing."""
    def count(t):
        return count_bytes(*t) if isinstance(t, (list, tuple)) else t.numel() * t.element_size()

    return sum(count(t) for t in tensors if t is not None)
