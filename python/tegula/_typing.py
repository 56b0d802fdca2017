# SPDX-License-Identifier: MIT
"""Types in signatures. Only type checkers import this module."""
from typing import Any, Protocol


class Array(Protocol):
    """A tensor of torch, an array of NumPy, CuPy or JAX: whatever speaks DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...
