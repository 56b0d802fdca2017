# SPDX-License-Identifier: MIT
"""Reads the signatures by which the library checks its calls: strings in its file, made from macros of many sources."""
import pathlib
import re

_FORM = re.compile(rb"(?<=\0)(?:moe_|quant_)?(\w+)\((\w+: [ -~]*?)\)(?: -> ([ -~]*?))?(?: where [ -~]*)?(?=\0)")
TENSOR = re.compile(r"(\w+): (\([^)]*\)|[\w|]+)\[([^]]*)\]([?!]*)([\w ]*)")     # name, dtypes, sizes, marks, layout


def read_signatures(library):
    """{op: [(inputs, outputs), ...]}: texts of each of its forms, the longest last."""
    text = re.sub(rb" \(\w+, \w+\)", b"", pathlib.Path(library).read_bytes())   # a note to a size: "2 * n (gates, ups)"
    found = {}
    for op, inputs, outputs in sorted(_FORM.findall(text), key=lambda words: sum(map(len, words))):
        found.setdefault(op.decode(), []).append((inputs.decode(), outputs.decode()))
    return found


def op_of(row, ops):
    """The one of ops that a row of Python calls; "" if it is none of them."""
    names = row.name, f"{row.module}_{row.name}"        # only some rows begin with their domain
    begins = [op for op in ops if any(name.startswith(op) for name in names)]
    return row.op or max(begins, key=len, default="")
