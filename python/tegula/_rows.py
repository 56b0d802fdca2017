# SPDX-License-Identifier: MIT
"""The rows of the table of ops as Python needs them: torch's schemas, defaults, and shapes of outputs, whose sizes may
be symbolic. C parses the rows (python/src/parse.c has the grammar) and exports them (export.c)."""
from typing import NamedTuple, Optional, Union

from . import _tegula

# The one table of dtypes is in python/src/dtype.c. Some words name a format, which has the dtype of its bytes.
KEYS = {word: key for word, key, *_ in _tegula.dtypes() if word}
BITS = {word: bits for word, _, _, bits, *_ in _tegula.dtypes() if word}            # of one value
NAMES = {key: name for _, key, name, *_ in _tegula.dtypes() if name}                # of torch, NumPy and others
WORDS = {name: word for word, _, name, *_ in _tegula.dtypes() if word and name}
VALUES = {name: values for _, _, name, _, values, _ in _tegula.dtypes() if name}    # in an element
_MARKS = "abcdefghijklmnopqrstuvwxyz"       # in torch's schemas, for arguments that an op writes


class Param(NamedTuple):
    name: str
    kind: str                               # Tensor, int, float, bool or str
    dims: list                              # names of a tensor's dimensions
    is_optional: bool
    is_in_place: bool
    is_on_host: bool
    default: tuple                          # (default,) or ()


class Result(NamedTuple):
    name: Optional[str]                     # None for the second form of an output
    dtype: Union[int, str]                  # a dtype's key, or the name of a parameter
    size: list                              # of terms: (operator, parameter or number, axis or -1)
    strides: Optional[list]
    strided_if: Optional[str]               # a bool parameter: if false, the output is packed
    chosen_by: Optional[str]                # a parameter: if neither true nor given, the next Result is used


def name_of(dtype):
    """'float32' of torch.float32, numpy.float32 and numpy.dtype('float32')."""
    return dtype.__name__ if isinstance(dtype, type) else str(dtype).removeprefix("torch.")


def spread(op, face, args, kwargs):
    """The row's arguments by name, from those of its public function. Dynamo traces this."""
    values = {**dict(zip([name for name, _ in face], args)), **kwargs}
    unknown = [name for name in kwargs if name not in [known for known, _ in face]]
    if unknown or len(args) > len(face):
        raise TypeError(f"{op}() has no argument {unknown[0] if unknown else len(args)}")
    made = {}
    for name, params in face:
        if len(params) == 2:
            value = values.get(name)
            made[params[0]], made[params[1]] = value if isinstance(value, (tuple, list)) else (value, None)
        elif name in values:
            made[params[0]] = values[name]
    return made


class Row:
    def __init__(self, name, module, params, results, face, first, is_wrapped, adapts, has_float_output):
        self.name, self.module, self.face, self.first = name, module, face, first
        self.is_wrapped, self.adapts, self.has_float_output = is_wrapped, adapts, has_float_output
        self.params = [Param(*p) for p in params]
        self.results = [[Result(*r) for r in alternatives] for alternatives in results]
        self.defaults = {p.name: p.default[0] for p in self.params if p.default}
        self.out_names = ["out"] if len(results) == 1 else [f"out{i}" for i in range(len(results))]

    def _schema_params(self):
        marks = iter(_MARKS)
        for p in self.params:
            kind = f"Tensor({next(marks)}!)" if p.is_in_place else p.kind
            default = f"={p.default[0]}" if p.default else ""
            if default and isinstance(p.default[0], str):
                default = f'="{p.default[0]}"'
            yield f"{kind}? {p.name}{default}" if p.is_optional else f"{kind} {p.name}{default}"

    def schemas(self):
        """Torch's schema of the op, and the same with out=: an overload that writes to tensors it is given and returns
        nothing."""
        params = ", ".join(self._schema_params())
        results = ", ".join(["Tensor"] * len(self.results))
        if len(self.results) != 1:
            results = f"({results})"
        outs = ", ".join(f"Tensor({mark}!) {name}" for mark, name in zip(_MARKS[8:], self.out_names))
        return f"{self.name}({params}) -> {results}", f"{self.name}.out({params}, *, {outs}) -> ()"

    def bind(self, args, kwargs):
        """The operator's arguments by name, with defaults."""
        return {**self.defaults, **dict(zip([p.name for p in self.params], args)), **kwargs}

    def describe_outputs(self, values):
        """[(dtype, size, strides or None)] for a dict of arguments; sizes may be symbolic. A dtype is a key, or a
        tensor that has it."""
        kinds = {p.name: p.kind for p in self.params}
        for p in self.params:
            if p.kind == "Tensor" and values.get(p.name) is not None and len(values[p.name].shape) != len(p.dims):
                raise ValueError(f"{p.name}: has {len(values[p.name].shape)} dimensions, want {len(p.dims)}")

        def count(name):
            kind, value = kinds[name], values[name]
            if kind == "bool":
                return int(value)           # a symbolic size cannot be multiplied by a bool
            return BITS[value] if kind == "str" else VALUES[name_of(value.dtype)] if kind == "Tensor" else value

        def evaluate(terms):
            total, product = 0, 1
            for op, what, axis in terms:
                x = what if isinstance(what, int) else values[what].shape[axis] if axis >= 0 else count(what)
                if op == "/" and axis < 0 and x <= 0:
                    raise ValueError(f"{what}: is {x}, want >= 1")
                if op == "+":
                    total, product = total + product, x
                else:
                    product = product * x if op == "*" else (product + x - 1) // x
            return total + product

        def dtype_of(r):
            value = r.dtype if isinstance(r.dtype, int) else values[r.dtype]
            return KEYS[value] if isinstance(value, str) else value

        def is_packed(r):
            return r.strides is None or (r.strided_if is not None and not values[r.strided_if])

        def is_chosen(r):
            value = values.get(r.chosen_by)
            return r.chosen_by is None or (value is not None and value is not False)

        chosen = [next(filter(is_chosen, alternatives)) for alternatives in self.results]
        return [(dtype_of(r), tuple(map(evaluate, r.size)),
                 None if is_packed(r) else tuple(map(evaluate, r.strides))) for r in chosen]


_exported = _tegula.table()
_made = None


def rows(glue=_tegula):
    """The Rows of an extension. The package's own are made once and on first use: they take a tenth of its import, and
    calls without torch and JAX need none."""
    if glue is not _tegula:
        return [Row(**row) for row in glue.table()]
    global _made
    if _made is None:
        _made = [Row(**row) for row in _exported]       # two threads at once may make them twice, neither sees a part
    return _made


def functions(module):
    """{name: builtin} of a module's functions that have no wrapper in Python."""
    return {row["name"]: getattr(_tegula, row["name"]) for row in _exported
            if row["module"] == module and not row["is_wrapped"]}
