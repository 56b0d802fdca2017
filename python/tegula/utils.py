# SPDX-License-Identifier: MIT
"""Arithmetic of sizes, where TileKernels has it."""


def ceil_div(x, y):
    """x / y, rounded up."""
    return -(-x // y)


def align(x, y):
    """The smallest multiple of y that is not below x."""
    return ceil_div(x, y) * y


def is_power_of_two(x):
    return x > 0 and x & (x - 1) == 0
