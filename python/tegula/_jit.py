# SPDX-License-Identifier: MIT
"""Compiling ahead: kernels are compiled on their first use, or before."""
from . import _tegula
from .config import current_device


def compile_count() -> int:
    """Kernels that this process has compiled so far; not those found in memory or in the disk cache."""
    return _tegula.compile_count()


class warmup:
    """Inside `with tegula.warmup():`, calls of this thread compile or load their kernels and launch nothing. Outputs
    have the right shape and dtype but are not written. Run the model once in it before serving, or before capturing
    a graph.

    device: the CUDA device to prepare; None is the current one. architecture (such as "sm_90a"): compile for it into
    the disk cache instead."""

    def __init__(self, device: int | None = None, architecture: str | None = None) -> None:
        self.device, self.architecture = device, architecture

    def __enter__(self) -> "warmup":
        _tegula.prepare_begin(current_device() if self.device is None else self.device, self.architecture)
        return self

    def __exit__(self, *error: object) -> None:
        _tegula.prepare_end()
