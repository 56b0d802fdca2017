# SPDX-License-Identifier: MIT
"""A build step: what people and their editors read of a function.

    row_help.py LIBRARY OUTPUT.h STUB_FOLDER|- DOMAIN.c...

Writes the docstrings of the builtins, as C strings in the order of the rows, and stubs: of the builtins of each domain,
<folder>/_moe.pyi, of what is written in Python around them, <folder>/moe/__init__.pyi, and of <folder>/jax.py. Rows have
names, defaults and what a function returns; dtypes and the names of sizes come from the signatures by which the library
checks its calls. These are strings in the library: they are made from macros of many files."""
import json
import pathlib
import re
import sys
import textwrap

from module_stub import stub_of_module
from row_examples import EXAMPLES
from row_text import read_rows
from signature_text import TENSOR, op_of, read_signatures

# ---- what the library's signatures say ----

_KEY_AND_VALUE = "bf16", ["num_tokens", "num_streams + 1", "hidden"]
TENSORS = {"kv": _KEY_AND_VALUE, "grad_kv": _KEY_AND_VALUE}     # of rows alone
_TABLE = pathlib.Path(__file__).with_name("dtype.c").read_text(encoding="utf-8")
DTYPES = {**dict(re.findall(r'\{ "(\w+)", \{[^}]*\}, "(\w+)"', _TABLE)),   # the names of words
          "any": "any dtype", "sf": "float32, or packed int32"}
# Formats of other than 8 bits a value: the dtype of their bytes, what is behind the last size, and a note.
FORMATS = {"e2m1": ("int8", " / 2", " of pairs of e2m1"), "e5m6": ("uint8", " * 3 / 2", " of e5m6")}
CHOICE = re.compile(r"\((\S+) if (\w+) else (\S+)\)")


def tensors_of(library):
    """{op: {tensor: (dtypes, sizes)}} of the longest form of each op, with the dtypes of all forms."""
    found = {}
    for op, forms in read_signatures(library).items():
        for inputs, outputs in forms:
            known = found.get(op, {})
            found[op] = {name: (either(words, known.get(name, (words,))[0]), sizes.split(", "))
                         for name, words, sizes, *_ in TENSOR.findall(f"{inputs}, {outputs}")}
    return found


def either(words, others):
    """'e4m3' and 'bf16|e4m3' as 'e4m3|bf16'."""
    return words if "(" in words else "|".join(dict.fromkeys([*words.split("|"), *others.split("|")]))


def signature_of(row, signatures):
    return {**(TENSORS if "_kv_" in row.name else {}), **signatures.get(op_of(row, signatures), {})}


# ---- words for people ----

def joined(words):
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def marks_of(p):
    return ", or None" * p.is_optional + "; is written" * p.is_written


def array_words(text, sizes):
    """'bf16|f32' as 'bfloat16 or float32 [n, m]', 'e4m3|e2m1' as 'float8_e4m3fn [n, m] or int8 [n, m / 2] of pairs of e2m1',
    '(e4m3 if x_sf else bf16)' as 'bfloat16 [n, m], with x_sf float8_e4m3fn [n, m]'."""
    if choice := CHOICE.fullmatch(text):
        return f"{array_words(choice[3], sizes)}, with {choice[2]} {array_words(choice[1], sizes)}"
    words = ["e4m3", *FORMATS] if text == "format" else text.split("|")
    plain = joined([DTYPES.get(word, f"as {word}") for word in words if word not in FORMATS])
    made = [f"{plain} [{sizes}]"] * bool(plain)
    for dtype, factor, note in [FORMATS[word] for word in words if word in FORMATS]:
        made.append(f"{dtype} [{sizes}{factor}]{note}")
    return joined(made)


def quotient(size):
    """A product in which `/` rounds up."""
    made = ""
    for op, factor in re.findall(r"([*/]?) *([\w()]+)", size):
        made = f"ceil({made} / {factor})" if op == "/" else f"{made} * {factor}" if op else factor
    return made


class Sizes:
    """Names for the dimensions of a row."""

    def __init__(self, row, signature):
        self.row, self.signature = row, signature
        self.names = {}
        for p in row.params:
            if p.kind == "tensor" and p.name in signature and len(signature[p.name][1]) == len(p.dims):
                self.names.update(zip(p.dims, signature[p.name][1]))
        self.numbers = {p.name for p in row.params if p.kind in ("int", "bool")}

    def of_tensor(self, name, dims):
        sizes = self.signature[name][1] if name in self.signature else [self.names.get(dim, dim) for dim in dims]
        sizes = list(map(self.named, sizes))
        sizes = [re.sub(r"(\w+) / ([a-z]\w+)", r"ceil(\1 / \2)", size) for size in sizes]
        return ", ".join(re.sub(r"^\((\w+)\)$", r"\1", size) for size in sizes)

    def named(self, size):
        """A size that depends on what else is given has a name here, which the summary explains."""
        is_given = any(word in self.signature for word in re.findall(r"[a-z]\w*", size))
        return size if not is_given and " if " not in size else "num_rows" if "*" in size else "num_scales"

    def of_result(self, result):
        """As the row has it, where that is made of plain names; else as the signature has it, which counts values where
        rows count bytes. Of both forms, if there are two."""
        sizes = [size for size in (result.size, result.other_size) if size]
        if result.name in self.signature and not all(map(self.is_plain, sum(sizes, []))):
            return [self.of_tensor(result.name, ())] * 2
        named = [[re.sub(r"\w+", lambda word: self.names.get(word[0], word[0]), terms) for terms in size]
                 for size in sizes]
        return [", ".join(" + ".join(map(quotient, terms.split(" + "))) for terms in size) for size in named]

    def is_plain(self, terms):
        words = re.findall(r"\w+", terms)
        return terms.isdigit() or all(w in self.numbers or self.names.get(w, "").isidentifier() for w in words)


# ---- docstrings ----

def tensor_words(p, sizes, signature):
    dims = sizes.of_tensor(p.name, p.dims)
    return (array_words(signature[p.name][0], dims) if p.name in signature else f"tensor [{dims}]") + marks_of(p)


def param_words(p, sizes, signature):
    if p.kind == "tensor":
        return tensor_words(p, sizes, signature)
    return (joined([repr(w) for w in p.words]) if p.words else p.kind) + ", or None" * p.is_optional


def argument_words(a, sizes, signature):
    words = [param_words(p, sizes, signature) for p in a.params]
    if len(a.params) == 1:
        return words[0]
    first, second = a.params
    if first.kind != "tensor":
        return f"a pair of {first.kind} ({first.name}, {second.name})" + ", or None" * (a.default == "None")
    words[1] = words[1].removesuffix(", or None")
    pair = f"a pair ({first.name}, {second.name})"
    choice = CHOICE.fullmatch(signature[first.name][0]) if first.name in signature else None
    if choice and choice[2] == second.name:
        alone, paired = (array_words(choice[form], sizes.of_tensor(first.name, first.dims)) for form in (3, 1))
        return f"{alone}, or {pair}; {first.name}: {paired}; {second.name}: {words[1]}"
    return f"{words[0]}, or {pair}; {second.name}: {words[1]}" if second.is_optional else \
        f"{pair}; {first.name}: {words[0]}; {second.name}: {words[1]}"


def result_words(row, result, sizes):
    kinds = {p.name: p.kind for p in row.params}
    words = next((p.words for p in row.params if p.name == result.dtype), None) or ()
    if FORMATS.keys() & words and not result.chosen_by:
        dims, = sizes.of_result(result)[:1]
        others = [f"; with {result.dtype} {word!r} {FORMATS[word][0]} [{dims}{FORMATS[word][1]}]" for word in words
                  if word in FORMATS]
        return f"{DTYPES[words[0]]} [{dims}]{''.join(others)}"
    dtypes = [f"in {dtype}" if kinds.get(dtype) == "words" else f"as {dtype}" if dtype in kinds else DTYPES[dtype]
              for dtype in (result.dtype, result.other_dtype) if dtype]
    made, *other = forms = [f"[{size}]" for size in sizes.of_result(result)]
    if result.chosen_by and sizes.signature.get(result.name, ("",))[0] == "sf":
        return f"float32 {made}; with {result.chosen_by} four factors per int32"
    if len(set(dtypes)) == len(set(forms)) == 2:
        return f"{dtypes[0]} {made} if {result.chosen_by} else {dtypes[1]} {other[0]}"
    return " ".join(words[0] if len(set(words)) == 1 else f"{words[0]} if {result.chosen_by} else {words[1]}"
                    for words in (dtypes, forms))


def usage(row, package):
    """A call with the arguments that have no default."""
    arguments = [a.params[0].words and repr(a.params[0].words[0]) or a.name for a in row.arguments[:row.num_positions]
                 if a.default is None]
    results = ", ".join(result.name for result in row.results)
    return f"{results} = " * bool(results) + f"{package}.{row.module}.{row.name}({', '.join(arguments)})"


def wrapped(text, indent, hanging=""):
    return textwrap.fill(text, 100, initial_indent=indent, subsequent_indent=indent + hanging,
                         break_long_words=False, break_on_hyphens=False)


def docstring_of(row, signatures, package):
    signature = signature_of(row, signatures)
    sizes = Sizes(row, signature)
    items = [(a.name, argument_words(a, sizes, signature)) for a in row.arguments]
    if row.results:
        items.append(("out", "a tensor to write to" if len(row.results) == 1 else
                      f"{len(row.results)} tensors to write to, a tuple; those that are None are made"))
    parts = [wrapped(row.doc, ""), ""] if row.doc else []
    parts += ["Args:", *(wrapped(f"{name}: {words}", "    ", "    ") for name, words in items), "", "Returns:"]
    parts += [wrapped(f"{r.name}: {result_words(row, r, sizes)}", "    ", "    ")
              for r in row.results] or ["    None"]
    given = textwrap.indent(EXAMPLES.get(row.name, "").strip(), "    ")
    return "\n".join([*parts, "", "Example:", *filter(None, [given]), wrapped(usage(row, package), "    ", "    ")])


def head_of(row):
    """The arguments as inspect.signature() shows them."""
    words = [a.name + (f"={a.default}" if a.default is not None else "") for a in row.arguments]
    if row.num_positions < len(words) or row.results:
        words.insert(row.num_positions, "*")
    return ", ".join(words + ["out=None"] * bool(row.results))


# ---- stubs ----

PACKAGE = pathlib.Path(__file__).parent.parent / "tegula"


def write(folder, name, text):
    path = pathlib.Path(folder, name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


STUB = '''# Made from the rows of python/src/{module}.c.
from typing import Any, Literal, overload

from torch import Tensor

from ._typing import Array
'''


def kind_of(p, tensor):
    kind = tensor if p.kind == "tensor" else f"Literal[{', '.join(map(repr, p.words))}]" if p.words else p.kind
    return f"{kind} | None" if p.is_optional else kind


def annotation_of(a, first, others="Array"):
    """`first` is the type of the tensor that sets the type of the outputs."""
    kinds = [kind_of(p, first if p is a.params[0] else others) for p in a.params]
    if len(kinds) == 1:
        return kinds[0]
    if a.params[0].kind != "tensor":
        return f"tuple[{', '.join(p.kind for p in a.params)}]" + " | None" * (a.default == "None")
    pair = f"tuple[{', '.join(kinds)}]"
    return f"{kinds[0]} | {pair}" if a.params[1].is_optional else pair


def stub_of(row, docstring):
    decides = next(a for a in row.arguments if a.params[0].kind == "tensor" and not a.params[0].is_optional)
    made = []
    for tensor in ("Tensor", "Array"):
        words = []
        for i, a in enumerate(row.arguments):
            if i == row.num_positions:
                words.append("*")
            kind = annotation_of(a, tensor if a is decides else "Array")
            words.append(f"{a.name}: {kind}" + (f" = {a.default}" if a.default is not None else ""))
        count = len(row.results)
        if count:
            one = "Array | None"
            out = one if count == 1 else f"tuple[{', '.join([one] * count)}] | None"
            words += ["*"] * (row.num_positions == len(row.arguments)) + [f"out: {out} = None"]
        returns = "None" if not count else tensor if tensor == "Tensor" and count == 1 else \
            f"tuple[{', '.join(['Tensor'] * count)}]" if tensor == "Tensor" else \
            "Any" if count == 1 else f"tuple[{', '.join(['Any'] * count)}]"
        made.append((f"def {row.name}({', '.join(words)}) -> {returns}:", returns))
    text = textwrap.indent(f'"""{docstring}\n"""', "    ", lambda line: line.strip())
    if made[0][1] == made[1][1]:                # no output: one form
        return f"\n\n{made[1][0]}\n{text}\n"
    return f"\n\n@overload\n{made[0][0]}\n{text}\n\n\n@overload\n{made[1][0]} ...\n"


JAX_STUB = '''# Made from the rows.
from typing import Any, Literal
'''


def jax_stub_of(row):
    """Tensors are whatever jax.numpy.asarray() takes."""
    is_by_name = row.is_wrapped and all(len(a.params) == 1 for a in row.arguments)
    words = []
    for i, a in enumerate(row.arguments):
        if i == (0 if is_by_name else row.num_positions):
            words.append("*")
        default = "None" if is_by_name and a.default is None and a.params[0].is_optional else a.default
        words.append(f"{a.name}: {annotation_of(a, 'Any', 'Any')}" + f" = {default}" * (default is not None))
    written = [p.is_optional for p in row.params if p.is_written]
    fewest, most = len(row.results) + written.count(False), len(row.results) + len(written)
    returns = "Any" if fewest == 1 else "tuple[Any, ...]" if fewest < most else f"tuple[{', '.join(['Any'] * most)}]"
    return f"\n\ndef {row.name}({', '.join(words)}) -> {returns}: ...\n"


def main(library, output, folder, *sources):
    signatures = tensors_of(library)
    package = "tegula" if folder != "-" else "toy"
    helps, for_jax = [], []
    for source in sources:
        rows = read_rows(source)
        docstrings = [docstring_of(row, signatures, package) for row in rows]
        helps += [f"{row.name}({head_of(row)})\n--\n\n{text}" for row, text in zip(rows, docstrings)]
        if folder != "-":
            public = [stub_of(row, text) for row, text in zip(rows, docstrings) if not row.is_wrapped]
            module = pathlib.Path(source).stem
            write(folder, f"_{module}.pyi", STUB.format(module=module) + "".join(public))
            written = PACKAGE / module / "__init__.py"
            if written.exists():
                by_name = {row.name: text for row, text in zip(rows, docstrings)}
                write(folder, f"{module}/__init__.pyi", stub_of_module(written, by_name))
            for_jax += map(jax_stub_of, rows)
    if folder != "-":
        write(folder, "jax.pyi", JAX_STUB + "".join(for_jax))
    # json.dumps() writes ASCII strings as C reads them.
    lines = ",\n".join("    " + "\n    ".join(json.dumps(line) for line in text.splitlines(keepends=True))
                       for text in helps)
    pathlib.Path(output).write_text(f"/* Made by row_help.py. */\nstatic const char *const row_help[] = {{\n{lines},\n}};\n",
                                    encoding="utf-8")


main(*sys.argv[1:])
