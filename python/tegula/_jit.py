# SPDX-License-Identifier: MIT
"""Compiling ahead: kernels are compiled on their first use, or before."""
from . import _tegula
from .config import current_device


def compile_count():
    """Kernels that this process has compiled so far; not those found in memory or in the disk cache."""
    return _tegula.compile_count()


class warmup:
    """Inside `with tegula.warmup():`, calls of this thread compile or load the kernels that they need and
    launch nothing: outputs have their shape and dtype, but nothing is written to them. Run the model once
    in it before serving, or before capturing a graph.

    device: the CUDA device to prepare, the current one if None. architecture ("sm_90a"): compile for that
    one into the disk cache instead."""

    def __init__(self, device=None, architecture=None):
        self.device, self.architecture = device, architecture

    def __enter__(self):
        _tegula.prepare_begin(current_device() if self.device is None else self.device, self.architecture)
        return self

    def __exit__(self, *error):
        _tegula.prepare_end()
