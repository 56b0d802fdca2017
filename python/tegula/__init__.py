# SPDX-License-Identifier: MIT
"""Tegula: kernels for LLM training and serving, on NVIDIA GPUs and CPUs.

Functions take torch tensors, NumPy arrays or anything else that speaks DLPack. Importing the package
imports neither torch nor CUDA; if the process uses torch, before or after, the ops are also torch operators
(torch.ops.tegula) that compile, export and differentiate."""

from . import _cubins

_cubins.use()       # the library reads its settings on first use
try:
    from . import _tegula  # noqa: F401  (it loads the library)
except ImportError as e:
    if "libgomp.so" not in str(e):
        raise
    raise ImportError(
        "tegula cannot be loaded without libgomp.so.1, GCC's OpenMP library: install the package libgomp1 (Debian, "
        f"Ubuntu) or libgomp (Fedora, RHEL). The loader says: {e}", name=e.name, path=e.path) from e
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import _after_import, config, engram, mhc, moe, quant, transpose, utils, v2
from ._jit import compile_count, warmup
from ._tegula import Error, version as _version
from .config import get_device_num_sms, get_max_smem_per_sm, get_num_sms, set_num_sms

if _TYPE_CHECKING:
    from . import jax, modeling, testing, torch

__version__: str = _version()
__all__ = [
    "Error", "compile_count", "config", "engram", "get_device_num_sms", "get_max_smem_per_sm", "get_num_sms",
    "mhc", "modeling", "moe", "quant", "set_num_sms", "testing", "torch", "transpose", "utils", "v2", "warmup",
]
_LAZY = ("jax", "modeling", "testing", "torch")  # these import jax or torch


def __getattr__(name):
    if name in _LAZY:
        import importlib
        try:
            return importlib.import_module("." + name, __name__)
        except ModuleNotFoundError as e:        # hasattr() and those that walk over members expect no other error
            raise AttributeError(f"module {__name__!r} has no attribute {name!r} here: {e}", name=name) from e
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted(set(globals()) | set(_LAZY))


def _register():
    from . import _torch  # noqa: F401  (defines torch.ops.tegula)


_after_import.run("torch", _register)
