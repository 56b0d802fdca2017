# SPDX-License-Identifier: MIT
"""A row of the glue, and a row of a header, says the same of an op's tensors as the signature that the library checks a
call by."""
import pathlib
import re
import sys

import pytest

import tegula
from tegula._rows import KEYS, rows

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python/src"))
from row_text import read_rows                              # noqa: E402
from signature_text import TENSOR, op_of, read_signatures   # noqa: E402

SIGNATURES = read_signatures(max(pathlib.Path(tegula.__file__).parent.glob("libtegula.so*")))

SOURCES = [ROOT / f"python/src/{module}.c" for module in sorted({row.module for row in rows()})]
OPS = {row.name: op_of(row, SIGNATURES) for source in SOURCES for row in read_rows(source)}


def signature_of(row):
    assert OPS[row.name] in SIGNATURES, row.name
    return SIGNATURES[OPS[row.name]]


def tensors_of(forms):
    """{name: what the longest form says of it, with the dtypes of all}, and the names of outputs."""
    inputs, outputs = ([t for text in texts for t in TENSOR.findall(text)] for texts in zip(*forms))
    known = {}
    for name, words, dims, marks, layout in inputs + outputs:
        known[name] = "|".join([words, *known.get(name, ())[:1]]), dims.split(", "), marks, layout
    return known, [name for name, *_ in outputs]


def words_of(text):
    return set(re.findall(r"\w+", text))


ROWS = [row for row in rows() if "_kv_" not in row.name]      # kv are two tensors of the signature, k and v
LEFT_OUT = {"engram_gate_scores": {"v", "output"}}            # the glue gives any v


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_row_and_signature(row):
    known, outputs = tensors_of(signature_of(row))
    known = {name: said for name, said in known.items() if name not in LEFT_OUT.get(row.name, ())}
    given, made = {p.name: p for p in row.params if p.kind == "Tensor"}, {both[0].name: both for both in row.results}
    assert given.keys() | made.keys() <= known.keys()
    for name, (_, _, marks, _) in known.items():
        is_needed = name in made or (name in given and not given[name].is_optional)
        assert is_needed or "?" in marks, name
        is_written = name in made or (name in given and given[name].is_in_place)
        assert is_written == ("!" in marks or name in outputs) or name not in given, name
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
            assert result.dtype in words_of(words) or words_of(known[result.dtype][0]) <= words_of(words), name
        elif isinstance(result.dtype, int):             # else what a word says
            assert result.dtype in [KEYS.get(word) for word in words_of(words)] or words == "sf", name


# ---- rows of headers ----

HEADERS = [path.read_text() for path in (ROOT / "include/tegula").glob("*.h")]
BLOCKS = {op: block for text in HEADERS
          for op, block in re.findall(r"\* tgl_(?:moe_|quant_)?(\w+)\(\) - (.*?)\*/", text, re.S) if op in SIGNATURES}
HEADER_ROW = re.compile(r"^ \*   (\w+(?:, \w+)*) +(in/?out|in|out)\b(.*(?:\n \*     .*)*)", re.M)
DTYPES = set("any bool i8 u8 i32 i64 e2m1 e4m3 ue8m0 f16 bf16 f32".split())


def dtypes_said(text, known, formats):
    """Dtypes by their names, or by that of a tensor that has them."""
    text = re.sub(r"(with|if) \w+", "", text.replace("e2m1x2, i8 or u8", "e2m1").replace("elements of", "any"))
    words = words_of(text)
    return (words & DTYPES).union(formats if "format" in words else (), *(
        dtypes_said(known[name][0], known, formats) for name in words & known.keys()))


def test_every_op_is_in_a_header():
    assert BLOCKS.keys() == SIGNATURES.keys()


@pytest.mark.parametrize("op", BLOCKS)
def test_header_and_signature(op):
    """All that rows say; some only refer to others (as above), or to the prose on layouts of scale factors."""
    block, forms = BLOCKS[op], SIGNATURES[op]
    known, outputs = tensors_of(forms)
    formats = words_of("".join(re.findall(r"format: ({.*?)[,)]", forms[-1][0] + ","))) & (DTYPES | {"e5m6"})
    structs = re.findall(r"\w+\{(\w+: [^}]*)", " ".join(forms[-1]))
    if op not in ("route", "mhc_head_compute_mix_bwd"):         # whose arguments are those of others
        assert known.keys() - {t[0] for struct in structs for t in TENSOR.findall(struct)} <= words_of(block)
    sizes = {}                                                  # a size in the header: what the signature has there
    for names, direction, says in HEADER_ROW.findall(block):
        says = says.replace("3, 2 or 1", "num_groups").replace("columns of mixes", "n * (n + 2)")
        names, shapes = names.split(", "), re.findall(r"\[([^]]*)\]", says)
        for i, name in enumerate(names):
            words, dims, marks, _ = known[name]
            assert direction.replace("/", "") == ("inout" if "!" in marks else "out" if name in outputs else "in"), name
            assert "?" in marks or "NULL" not in says, name
            if not shapes:
                continue
            may_be_null = re.search("NULL|given with", says) or re.search("all or none|may (all )?be NULL", block)
            assert "?" not in marks or may_be_null, name
            column = re.sub(r"\[[^]]*\]", "", says[:says.rindex("[")]).strip() or says
            if "as above" not in column:
                assert dtypes_said(column, known, formats) == dtypes_said(words, known, formats), name
            shape = shapes[i if len(shapes) == len(names) else 0].split(", ")
            assert len(shape) == len(dims), name
            for size, dim in zip(shape, dims):
                dim = re.sub(r"^\((\w+)\)$", r"\1", dim)
                if " if " in dim:
                    continue
                assert sizes.setdefault(size, dim) == dim, name
                for word in re.findall(r"[a-z]\w+", size):              # shared: num_shared_experts; n and M are any
                    assert any(word in other for other in words_of(dim)), f"{name}: {word}"


def test_any_strides_is_said_only_where_it_is_true():
    claims = 0
    for op, block in BLOCKS.items():
        for name in re.findall(r"^ \*   (\w+) .*\bany strides?\b", block, re.M):
            layouts = {layout.split()[0] if layout.split() else "packed" for form in SIGNATURES[op] for text in form
                       for tensor, _, _, _, layout in TENSOR.findall(text) if tensor == name}
            assert layouts == {"strided"}, f"{op}: {name}"
            claims += 1
    assert claims >= 8
