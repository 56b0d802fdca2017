# SPDX-License-Identifier: MIT
"""Ops for JAX, traced or not: tegula.jax.topk_gate(scores, num_topk) is tegula.moe.topk_gate for code under jax.jit, on
the CPU and on CUDA. All operators of torch.ops.tegula are here by name. Arguments are those of the public function; where
that is a Python function around the operator, they are the operator's own, with names and an order that may differ, and so
are given by name: engram_lookup(indices=indices, table=table). help() of each has them.

What an op would write in place comes back after its other outputs. There are no gradients (jax.custom_vjp adds one),
and vmap calls an op once for each element."""
import inspect
import re
import sys
import textwrap

import jax
import numpy

from . import _help, _tegula
from ._adapt import adapt_call, is_to_adapt
from ._rows import NAMES, rows, spread

_ROWS = {row.name: row for row in rows()}
_TARGET = "tegula_op"
for _platform, _handler in _tegula.xla_handlers().items():
    jax.ffi.register_ffi_target(_TARGET, _handler, platform=_platform)


def _as_array(name, given):
    """Without x64 JAX makes int32 of int64, and other numbers of those that do not fit."""
    array = jax.numpy.asarray(given)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 4 and not isinstance(given, jax.Array):
        values, info = numpy.asarray(given), numpy.iinfo(array.dtype)
        if values.dtype.itemsize == 8 and values.size and (values.min() < info.min or values.max() > info.max):
            raise ValueError(f"{name}: has values that {array.dtype} does not hold, and JAX has {values.dtype} only with "
                             "jax_enable_x64")
    return array


def _bind(row, args, kwargs):
    """The row's arguments by name, arrays as JAX's."""
    if row.is_wrapped and row.face is None and args:
        raise TypeError(f"{row.name}() takes arguments by name: {', '.join(p.name for p in row.params)}")
    if row.face is not None:
        args, kwargs = (), spread(row.name, row.face, args, kwargs)
    names = [p.name for p in row.params]
    if len(args) > len(names):
        raise TypeError(f"{row.name}() takes {len(names)} positional arguments, got {len(args)}")
    values = row.bind(args, kwargs)
    for name in kwargs:
        if name not in names:
            raise TypeError(f"{row.name}() has no argument {name!r}")
        if name in names[:len(args)]:
            raise TypeError(f"{row.name}(): {name} is given twice")
    for p in row.params:
        if p.is_optional:
            values.setdefault(p.name, None)
        if p.name not in values:
            raise TypeError(f"{row.name}(): {p.name} is missing")
        if p.kind == "Tensor" and values[p.name] is not None:
            values[p.name] = _as_array(p.name, values[p.name])
    return values


def _call(row, *args, **kwargs):
    values = _bind(row, args, kwargs)
    tensors = [p for p in row.params if p.kind == "Tensor" and values[p.name] is not None]
    numbers = _tegula.check(row.name, tuple(
        values[p.name].shape if p in tensors else values[p.name] for p in row.params))
    shapes, transposed = [], []
    for dtype, size, strides in row.describe_outputs(values):
        dtype = jax.dtypes.canonicalize_dtype(NAMES[dtype] if isinstance(dtype, int) else dtype.dtype)
        transposed.append(-1 if strides is None else size[0])     # columns with padding: XLA's buffer has them as rows
        shapes.append(jax.ShapeDtypeStruct(size if strides is None else (size[1], strides[1]), dtype))
    layouts, output_layouts, aliases = [], [tuple(range(len(s.shape))) for s in shapes], {}
    for i, p in enumerate(tensors):
        x = values[p.name]
        is_packed_sf = p.name.endswith("sf") and x.ndim == 2 and x.dtype == numpy.int32     # column-major everywhere
        numbers[1 + row.params.index(p)] = int(is_packed_sf)
        layouts.append((1, 0) if is_packed_sf else tuple(range(x.ndim)))
        if p.is_in_place:
            aliases[i] = len(shapes)
            shapes.append(jax.ShapeDtypeStruct(x.shape, x.dtype))
            output_layouts.append(layouts[i])
    made = jax.ffi.ffi_call(_TARGET, shapes, vmap_method="sequential", input_layouts=layouts, output_layouts=output_layouts,
                            input_output_aliases=aliases)(
        *(values[p.name] for p in tensors), op=row.name, numbers=numpy.array(numbers + transposed, numpy.int64))
    made = [x if rows < 0 else x.T[:rows] for x, rows in zip(made, transposed)] + made[len(transposed):]
    return made[0] if len(made) == 1 else tuple(made)


def _signature(row):
    """The builtin's without out=; by name only, with None for tensors that may be left out, as _bind() has it."""
    params = [p for p in inspect.signature(getattr(_tegula, row.name)).parameters.values() if p.name != "out"]
    if row.is_wrapped and row.face is None:
        optional = {p.name for p in row.params if p.is_optional}
        params = [p.replace(kind=p.KEYWORD_ONLY, default=None if p.default is p.empty and p.name in optional else p.default)
                  for p in params]
    return inspect.Signature(params)


def _docstring(row, signature):
    summary, args, returns, _ = _help.split(getattr(_tegula, row.name).__doc__)
    if not summary:
        names = sys.modules[f"{__package__}.{row.module}"].__all__
        public = max((name for name in names if row.name.startswith(name)), key=len)
        summary = f"An operator behind tegula.{row.module}.{public}()."
    returns = {name: [line.replace("int64", "int64 (int32 without x64)") for line in lines]
               for name, lines in returns.items()}
    for p in row.params:
        if p.is_in_place:
            args[p.name][-1] = args[p.name][-1].replace("; is written", "; comes back written")
            returns[p.name] = [f"as the argument{', if that is given' if p.is_optional else ''}"]
    given = []
    for p in signature.parameters.values():
        if p.default is p.empty:
            words = re.search(r"'\w+'", args[p.name][0])
            given.append(f"{p.name}=" * (p.kind is p.KEYWORD_ONLY) + (words[0] if words else p.name))
    made = ", ".join(name for name, lines in returns.items() if "if that is given" not in lines[0])
    call = f" = tegula.jax.{row.name}({', '.join(given)})"
    is_short = len(made) + len(call.partition(",")[0]) < 96     # it breaks behind the bracket then
    call = textwrap.fill(f"{made if is_short else 'outputs'}{call}", 100, initial_indent="    ",
                         subsequent_indent="        ", break_long_words=False, break_on_hyphens=False)
    return _help.join(summary, {name: args[name] for name in signature.parameters}, returns, f"Example:\n{call}")


def _function(row):
    names = [name for name, _ in row.face or ()]

    def function(*args, **kwargs):
        if row.adapts and is_to_adapt(args[0] if args else kwargs.get("x")):
            return adapt_call(function, names, args, kwargs)
        return _call(row, *args, **kwargs)

    function.__name__ = function.__qualname__ = row.name
    function.__module__ = __name__
    function.__signature__ = _signature(row)
    function.__doc__ = _docstring(row, function.__signature__)
    return function


def __getattr__(name):
    if name not in _ROWS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = function = _function(_ROWS[name])
    return function


def __dir__():
    return sorted(_ROWS)
