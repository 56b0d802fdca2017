# SPDX-License-Identifier: MIT
"""The Python half of the table of ops: reads a row's text (its grammar is in python/src/rows.c) and computes
schemas and shapes from it."""
import re
from typing import NamedTuple, Optional


class Param(NamedTuple):
    name: str
    kind: str                # Tensor, int, float, bool or str
    dims: tuple              # names of a tensor's dimensions
    optional: bool
    in_place: bool
    default: Optional[str]   # as torch's schema language writes it; None: no default


class Result(NamedTuple):
    dtype: str               # a dtype's word, or the name of a parameter
    size: tuple              # expressions
    strides: Optional[tuple]
    strided_if: Optional[str]   # a bool parameter without which the output is packed
    chosen_by: Optional[str]    # a parameter that must be true or given; else the output is the next Result


_PARAM = re.compile(r"(\w+)(?:\[([^]]*)\](\??!?)|: (\{[^}]*\}|\w+)(\??)(?: = ([^,]+))?)(?:, |$)")
_RESULT = re.compile(r"(\w+)\[([^];]*)(?:; ([^]]*?)(?: if (\w+))?)?\](?: if (\w+) else |, |$)")
_ARGUMENT = re.compile(r"(\*)(?:, |$)|(\w+)(?:: (\w+))?(?: & (\w+))?( = None)?(?:, |$)")
_OPERATOR = re.compile(r" ([*/]) ")
_READ = {"int": int, "float": float, "bool": "True".__eq__, "str": lambda text: text.strip('"')}
_BITS = {"e4m3": 8, "e2m1": 4, "e5m6": 12}     # of a value, where a word counts in a size
_MARKS = "abcdefghijklmnopqrstuvwxyz"  # of torch's schemas: which argument an op writes to


def _read_all(pattern, text):
    """The groups of every match; the matches must be the whole text."""
    matches = list(pattern.finditer(text))
    if "".join(m[0] for m in matches) != text:
        raise ValueError(f"not a row's grammar, or its spaces: {text!r}")
    return [m.groups() for m in matches]


def _split(text):
    return tuple(text.split(", ")) if text else None


def _values_per_element(dtype):
    """A byte, signed or not, is a pair of e2m1."""
    return 2 if str(dtype).endswith(("int8", "e2m1fn_x2")) else 1


def spread(op, face, args, kwargs):
    """The row's arguments, by name, for those of its public function. Dynamo traces this."""
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
    def __init__(self, text, has_float_output=False, face=None):
        self.text, self.has_float_output = text, has_float_output
        self.name, params, results = re.fullmatch(r"(\w+)\((.*)\) -> (.*)", text).groups()
        self.params = []
        for name, dims, mark, kind, optional, default in _read_all(_PARAM, params):
            if dims:
                default = "None" if "?" in mark else None
                param = Param(name, "Tensor", _split(dims), "?" in mark, "!" in mark, default)
            elif kind.startswith("{"):
                quoted = f'"{default}"' if default and default != "None" else default
                param = Param(name, "str", (), bool(optional), False, quoted or None)
            else:
                param = Param(name, kind, (), bool(optional), False, default or None)
            self.params.append(param)
        required = max(i for i, p in enumerate(self.params) if p.default is None)
        self.params[:required] = [p._replace(default=None) if p.kind == "Tensor" else p
                                  for p in self.params[:required]]
        self.results, other = [], False     # a list of alternatives for each
        for dtype, size, strides, *names in _read_all(_RESULT, results.removesuffix("None")):
            result = Result(dtype, _split(size), _split(strides), *names)
            self.results[-1].append(result) if other else self.results.append([result])
            other = result.chosen_by is not None
        self.face = None     # or a tuple of the public function's arguments: (name, parameters of the row)
        if face is not None:
            self.face = tuple((name, (first or name, second)[:2 if second else 1])
                              for star, name, first, second, _ in _read_all(_ARGUMENT, face) if not star)
        self.defaults = {p.name: None if p.default == "None" else _READ[p.kind](p.default)
                         for p in self.params if p.default is not None}
        self.first = next(p.name for p in self.params if p.kind == "Tensor" and not p.optional)
        self.out_names = ["out"] if len(self.results) == 1 else [f"out{i}" for i in range(len(self.results))]

    def _schema_params(self):
        marks = iter(_MARKS)
        for p in self.params:
            kind = (f"Tensor({next(marks)}!)" if p.in_place else p.kind) + "?" * p.optional
            yield f"{kind} {p.name}" + (f"={p.default}" if p.default is not None else "")

    def schema(self):
        """Torch's schema of the op."""
        results = ", ".join(["Tensor"] * len(self.results))
        if len(self.results) != 1:
            results = f"({results})"
        return f"{self.name}({', '.join(self._schema_params())}) -> {results}"

    def out_schema(self):
        """The same with out=: an overload that writes to tensors it is given and returns nothing."""
        outs = ", ".join(f"Tensor({mark}!) {name}" for mark, name in zip(_MARKS[8:], self.out_names))
        return f"{self.name}.out({', '.join(self._schema_params())}, *, {outs}) -> ()"

    def bind(self, args, kwargs):
        """The operator's arguments by name, with defaults."""
        return {**self.defaults, **dict(zip([p.name for p in self.params], args)), **kwargs}

    def describe_outputs(self, values):
        """[(dtype, size, strides or None)] for arguments by name; sizes may be symbolic. A dtype is a word, or
        a tensor to take it from."""
        sizes, scalars = {}, {p.name for p in self.params if p.kind == "int"}
        for p in sorted(self.params, key=lambda p: p.optional):     # sizes of what is always there first
            value = values.get(p.name)
            if p.kind in ("int", "bool"):
                sizes[p.name] = value
            elif p.kind == "str":
                sizes[p.name] = _BITS.get(value)
            elif p.kind == "Tensor" and value is not None:
                if len(value.shape) != len(p.dims):
                    raise ValueError(f"{p.name}: has {len(value.shape)} dimensions, want {len(p.dims)}")
                sizes[p.name] = _values_per_element(value.dtype)
                for name, size in zip(p.dims, value.shape):
                    sizes.setdefault(name, size)

        def multiply(expression):
            first, *rest = _OPERATOR.split(expression)
            terms = [int(t) if t.isdigit() else sizes[t] for t in [first, *rest[1::2]]]
            result = terms[0]
            for op, x, name in zip(rest[::2], terms[1:], rest[1::2]):
                if op == "/" and name in scalars and x <= 0:
                    raise ValueError(f"{name}: is {x}, want >= 1")
                result = result * x if op == "*" else (result + x - 1) // x
            return result

        def evaluate(expressions):
            return tuple(sum(map(multiply, e.split(" + "))) for e in expressions)

        def is_packed(r):
            return r.strides is None or (r.strided_if is not None and not values[r.strided_if])

        def is_chosen(r):
            value = values.get(r.chosen_by)
            return r.chosen_by is None or (value is not None and value is not False)

        chosen = [next(filter(is_chosen, alternatives)) for alternatives in self.results]
        return [(values.get(r.dtype, r.dtype), evaluate(r.size),
                 None if is_packed(r) else evaluate(r.strides)) for r in chosen]
