# SPDX-License-Identifier: MIT
"""Types in signatures. Only type checkers import this module."""
from typing import Any, Protocol, TypeVar

from torch import Tensor

# Of the argument whose library makes the outputs: torch's tensors, of Parameters too, or another's arrays. To mypy a result of
# this type is Any, so the stubs have two forms of each function (python/src/module_stub.py).
AnyTensor = TypeVar("AnyTensor", Tensor, Any)
Saved = Any         # a tensor for the backward, or None if none was wanted


class Array(Protocol):
    """A tensor of torch, an array of NumPy, CuPy or JAX: whatever speaks DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...
