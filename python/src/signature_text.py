# SPDX-License-Identifier: MIT
"""Reads the signatures by which the library checks its calls: strings in its file, made from macros of many sources."""
import pathlib
import re

_FORM = re.compile(rb"(?<=\0)(?:moe_|quant_)?(\w+)\((\w+: [ -~]*?)\)(?: -> ([ -~]*?))?(?: where [ -~]*)?(?=\0)")
TENSOR = re.compile(r"(\w+): (\([^)]*\)|[\w|]+)\[([^]]*)\]([?!]*)([\w ]*)")     # name, dtypes, sizes, marks, layout
# Of rows of Python whose names do not begin with that of their op.
_OTHER_NAMES = {"per_token_cast_back": "cast_back", "short_conv": "engram_short_conv_fwd",
                "short_conv_alone": "engram_short_conv_fwd", "short_conv_bwd": "engram_short_conv_bwd",
                "engram_gate_scores": "engram_gate_fwd", "engram_gate_kv_fwd": "engram_gate_fwd",
                "engram_gate_kv_fwd_alone": "engram_gate_fwd", "engram_gate_kv_fwd_inplace": "engram_gate_fwd",
                "engram_gate_kv_bwd": "engram_gate_bwd"}


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
    return _OTHER_NAMES.get(row.name, max(begins, key=len, default=""))
