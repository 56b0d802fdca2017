# SPDX-License-Identifier: MIT
"""A row of the glue says the same of an op's tensors as the signature that the library checks a call by."""
import pathlib
import re

import pytest

import tegula
from tegula._rows import KEYS, rows

TENSOR = re.compile(r"(\w+): (\([^)]*\)|[\w|]+)\[([^]]*)\]([?!]*)([\w ]*)")


def signatures():
    """{op: [(text of inputs, of outputs), ...]}: the strings in the library that look like one, of each form of an op."""
    library = max(pathlib.Path(tegula.__file__).parent.glob("libtegula.so*")).read_bytes()
    library = re.sub(rb" \(\w+, \w+\)", b"", library)      # a note to a size: "2 * num_cols (gates, ups)"
    text = rb"(?<=\0)(?:moe_|quant_)?(\w+)\((\w+: [ -~]*?)\)(?: -> ([ -~]*?))?(?: where [ -~]*)?(?=\0)"
    found = {}
    for op, inputs, outputs in sorted(re.findall(text, library), key=lambda words: sum(map(len, words))):
        found.setdefault(op.decode(), []).append((inputs.decode(), outputs.decode()))
    return found


SIGNATURES = signatures()
OTHER_NAMES = {"per_token_cast_back": "cast_back",       # of a row whose op's name does not begin its own
               "short_conv": "engram_short_conv_fwd", "short_conv_alone": "engram_short_conv_fwd"}


def signature_of(row):
    names = row.name, f"{row.module}_{row.name}"         # only some rows begin with their domain
    begins = [op for op in SIGNATURES if any(name.startswith(op) for name in names)]
    return SIGNATURES[OTHER_NAMES.get(row.name, max(begins, key=len, default=row.name))]


def dtypes_of(text):
    return set(re.findall(r"\w+", text))


ROWS = [row for row in rows() if "_kv_" not in row.name]      # kv are two tensors of the signature, k and v


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_row_and_signature(row):
    inputs, outputs = ([t for text in texts for t in TENSOR.findall(text)] for texts in zip(*signature_of(row)))
    known = {}                                          # what the longest form says, with the dtypes of all
    for name, words, dims, marks, layout in inputs + outputs:
        known[name] = "|".join([words, *known.get(name, ())[:1]]), dims.split(", "), marks, layout
    given, made = {p.name: p for p in row.params if p.kind == "Tensor"}, {both[0].name: both for both in row.results}
    assert given.keys() | made.keys() <= known.keys()
    for name, (_, _, marks, _) in known.items():
        is_needed = name in made or (name in given and not given[name].is_optional)
        assert is_needed or "?" in marks, name
        is_written = name in made or (name in given and given[name].is_in_place)
        assert is_written == ("!" in marks or name in [n for n, *_ in outputs]) or name not in given, name
    sizes = {}                                          # a name in the row: what the signature has there
    for name, p in given.items():
        _, dims, _, layout = known[name]
        assert "..." in dims or len(p.dims) == len(dims), name
        may_be = bool({"host", "anywhere"} & set(layout.split()))
        says_where = name == row.first and not p.is_on_host         # outputs are
        assert p.is_on_host == may_be or says_where, name
        for dim, size in zip(p.dims, dims):
            assert sizes.setdefault(dim, size) == size, (name, dim)
    for name, result in [(name, result) for name, both in made.items() for result in both]:
        words, dims, *_ = known[name]
        assert "..." in dims or len(result.size) == len(dims), name
        if result.dtype in given:                       # as this tensor
            assert result.dtype in dtypes_of(words) or dtypes_of(known[result.dtype][0]) <= dtypes_of(words), name
        elif isinstance(result.dtype, int):             # else what a word says
            assert result.dtype in [KEYS.get(word) for word in dtypes_of(words)] or words == "sf", name


def test_any_strides_is_said_only_where_it_is_true():
    root, claims = pathlib.Path(__file__).resolve().parents[2], 0
    for header in (root / "include/tegula").glob("*.h"):
        for op, block in re.findall(r"/\* tgl_(\w+)\(\) - (.*?)\*/", header.read_text(), re.S):
            for name in re.findall(r"^ \*   (\w+) .*\bany strides?\b", block, re.M):
                forms = SIGNATURES[op.removeprefix("moe_").removeprefix("quant_")]
                layouts = {layout.split()[0] if layout.split() else "packed" for form in forms for text in form
                           for tensor, _, _, _, layout in TENSOR.findall(text) if tensor == name}
                assert layouts == {"strided"}, f"{op}: {name}"
                claims += 1
    assert claims >= 8
