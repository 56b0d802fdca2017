# SPDX-License-Identifier: MIT
"""Reads the rows of C files (grammar: parse.c) for the build steps that write structs, help and stubs."""
import pathlib
import re
from typing import NamedTuple, Optional

_SPACE = re.compile(r"[\s\\]*")
_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"|(\w+)')
_MACRO = re.compile(r"^#define (\w+)(?:\(([^)]*)\))?((?:.*\\\n)*.*)$", re.MULTILINE)
_FIELD = re.compile(r"\.(text|op|face|doc|is_wrapped) =")
_PARAM = re.compile(r"(?P<name>\w+)(?:\[(?P<dims>[^]]*)\](?P<opt>\??)(?P<write>!?)|"
                    r": (?P<kind>\{[^}]*\}|\w+)(?P<none>\??)(?: = (?P<default>[^,]+))?)")
_RESULT = re.compile(r"(\w+): (\w+)\[([^];]*)(?:;[^]]*)?\](?: if (\w+) else (\w+)\[([^];]*)(?:;[^]]*)?\])?")


class Param(NamedTuple):
    name: str
    kind: str               # tensor, int, float, bool or words
    dims: list              # names of a tensor's dimensions
    words: list             # of which an argument is one
    is_optional: bool
    is_written: bool
    default: Optional[str]  # as Python shows it; None: there is none


class Result(NamedTuple):
    name: str
    dtype: str              # a word of dtype.c, or the name of a parameter
    size: list              # expressions of dimensions and parameters
    chosen_by: str          # "" or what chooses between this form and the other
    other_dtype: str
    other_size: list


class Argument(NamedTuple):
    """Of the public function."""
    name: str
    params: list            # one, or the two of a pair
    default: Optional[str]


class Row(NamedTuple):
    text: str
    name: str
    module: str
    op: str                 # of the library; "": its name begins that of the row
    doc: str
    is_wrapped: bool        # its public function is in Python
    params: list
    results: list
    arguments: list
    num_positions: int      # of the arguments; the others are keywords only


def _text_of(code, macros, at=0):
    """The string that C makes of the literals and macros from `at` on, and where they end."""
    made = ""
    while token := _TOKEN.match(code, _SPACE.match(code, at).end()):
        literal, name = token.groups()
        at = token.end()
        if literal is not None:
            made += literal
            continue
        params, body = macros[name]
        known = dict(macros)
        for param in params:                    # each argument is behind `(` or `,`
            argument, at = _text_of(code, macros, at + 1)
            known[param] = (), f'"{argument}"'
        at += bool(params)
        made += _text_of(body, known)[0]
    return made, at


def _shown(kind, default):
    if kind == "float" and default not in (None, "None"):
        return repr(float(default))
    return repr(default) if kind == "words" and default not in (None, "None") else default


def _params_of(text):
    params = []
    for m in _PARAM.finditer(text):
        if m["kind"] is None:
            params.append(Param(m["name"], "tensor", m["dims"].split(", "), [], bool(m["opt"]), bool(m["write"]),
                                "None" if m["opt"] else None))
            continue
        words = m["kind"].strip("{}").split("|") if "{" in m["kind"] else []
        kind = "words" if words else m["kind"]
        params.append(Param(m["name"], kind, [], words, bool(m["none"]), False, _shown(kind, m["default"])))
    is_followed = False                         # by one without a default: then a tensor has none either
    for i, p in reversed(list(enumerate(params))):
        if p.kind == "tensor" and is_followed:
            params[i] = p._replace(default=None)
        is_followed |= params[i].default is None
    return params


def _split(sizes):
    return [size.strip() for size in sizes.split(",")] if sizes else []


def _arguments_of(face, params):
    if not face:
        return [Argument(p.name, [p], p.default) for p in params], len(params)
    by_name, arguments, num_positions = {p.name: p for p in params}, [], None
    for word in face.split(", "):
        if word == "*":
            num_positions = len(arguments)
            continue
        word, _, default = word.partition(" = ")
        name, _, names = word.rpartition(": ")
        pair = [by_name[n] for n in names.split(" & ")]
        default = default or (pair[0].default if len(pair) == 1 else None)
        arguments.append(Argument(name or pair[0].name, pair, default))
    return arguments, len(arguments) if num_positions is None else num_positions


def _row_of(module, text, op="", face="", doc="", is_wrapped=""):
    name, params, results = re.fullmatch(r"(\w+)\((.*)\) -> (.*)", text).groups()
    params = _params_of(params)
    results = [Result(name, dtype, _split(size), chosen_by, other_dtype, _split(other_size))
               for name, dtype, size, chosen_by, other_dtype, other_size in _RESULT.findall(results)]
    return Row(text, name, module, op, doc.encode().decode("unicode_escape"), is_wrapped == "true", params, results,
               *_arguments_of(face, params))


def read_rows(source):
    """The rows of a C file, in their order."""
    code = pathlib.Path(source).read_text(encoding="utf-8")
    macros = {name: (params.split(", ") if params else (), body) for name, params, body in _MACRO.findall(code)}
    rows = []
    for field in _FIELD.finditer(code):
        name = field[1]
        value = re.match(r"\s*(\w+)", code[field.end():])[1] if name == "is_wrapped" else \
            _text_of(code, macros, field.end())[0]
        if name == "text":
            rows.append({})
        rows[-1][name] = value
    return [_row_of(pathlib.Path(source).stem, **row) for row in rows]
