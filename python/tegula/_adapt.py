# SPDX-License-Identifier: MIT
"""Calls of ops by row with an x that their kernels do not take but whose rows are the same: of more dimensions, or of float16,
which float32 holds exactly."""
import math

from ._rows import name_of, rows

_FACES = {row.name: [name for name, _ in row.face or ()] for row in rows() if row.adapts}


def adapt(_op, *args, **kwargs):
    from . import _tegula
    return adapt_call(getattr(_tegula, _op), _FACES[_op], args, kwargs)


def is_to_adapt(x):
    """Whether adapt_call() is for this x; Dynamo traces both."""
    return hasattr(x, "shape") and (len(x.shape) > 2 or name_of(x.dtype) == "float16")


def adapt_call(function, names, args, kwargs):
    """`names` are those of the function's arguments, x first."""
    given = {**dict(zip(names, args)), **kwargs}
    x = given.pop("x")
    if name_of(x.dtype) == "float16":
        x = x.float() if hasattr(x, "float") else x.astype("float32")
    rows = x.shape[:-1]
    if len(rows) == 1:
        return function(x, **given)
    if given.get("use_tma_aligned_col_major_sf"):
        raise ValueError(f"x: has {len(x.shape)} dimensions, want 2 with use_tma_aligned_col_major_sf")
    outs = function(x.reshape((math.prod(rows), x.shape[-1])), **given)
    return tuple(out.reshape((*rows, out.shape[-1])) for out in outs)
