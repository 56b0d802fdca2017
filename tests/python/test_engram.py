# SPDX-License-Identifier: MIT
"""The Engram ops from Python: against plain torch and recorded data, as torch operators, signatures."""
import inspect
import itertools

import numpy
import pytest
import torch

import golden
import tegula.torch as reference
from conftest import check_devices, on_one_device
from tegula import engram
from tegula.testing import assert_equal

OPS = torch.ops.tegula
FUNCTIONS = set(engram.__all__)


def constants(max_ngram, num_layers, num_heads, device, dtype=torch.int32):
    """(multipliers, vocab_sizes, offsets) as in TileKernels' tests."""
    multipliers = torch.randint(0, 100000, (num_layers, max_ngram), device=device)
    vocab_sizes = torch.randint(100000, 1000000, (num_layers, max_ngram - 1, num_heads), dtype=dtype, device=device)
    return multipliers, vocab_sizes, reference.make_offsets(vocab_sizes)


def any_bits(*shape, dtype, device):
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max, shape, dtype=dtype, device=device)


# ---- engram_hash ----

@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["i32", "i64"])
@pytest.mark.parametrize("max_ngram, num_layers, num_heads", [
    (3, 2, 8), (2, 1, 1), (4, 2, 8), (5, 7, 3), (8, 2, 16), (1, 2, 8), (11, 1, 2)])
def test_hash(max_ngram, num_layers, num_heads, dtype, device):
    columns = constants(max_ngram, num_layers, num_heads, device, dtype)
    for num_tokens in (0, 1, 33, 512):
        ids = torch.randint(0, 100000, (num_tokens, max_ngram), dtype=torch.int32, device=device)
        mask = torch.rand(num_tokens, device=device) < 0.1
        assert_equal(engram.engram_hash(ids, *columns), reference.engram_hash_ref(ids, *columns))
        assert_equal(engram.engram_hash(ids, *columns, mask), reference.engram_hash_ref(ids, *columns, mask))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["i32", "i64"])
def test_hash_of_any_bits(dtype, device):
    """Products wrap, hashes are negative, moduli are none, sums are cut."""
    ids, multipliers = any_bits(70, 4, dtype=dtype, device=device), any_bits(3, 4, dtype=torch.int64, device=device)
    sizes, offsets = any_bits(3, 3, 5, dtype=dtype, device=device), any_bits(3, 15, dtype=dtype, device=device)
    sizes[0], sizes[1, 0, 0], sizes[1, 0, 1] = sizes[0] >> 20, 0, 1
    args = ids, multipliers, sizes, offsets
    assert_equal(engram.engram_hash(*args), reference.engram_hash_ref(*args))
    wide = torch.empty(3, 70, 15, dtype=torch.int64, device=device)
    engram.engram_hash(*args, out=wide)
    assert_equal(wide, reference.engram_hash_ref(*args[:3], offsets.long()))


def test_hash_examples(device):
    """Of docs/engram.md."""
    def t(*values, dtype=torch.int32):
        return torch.tensor(values, dtype=dtype, device=device)

    sizes, offsets = t([[101, 103], [107, 109]]), t([0, 101, 204, 311])
    assert_equal(reference.make_offsets(sizes), offsets)
    rows = engram.engram_hash(t([5, 7, 11]), t([3, 1000003, 17], dtype=torch.int64), sizes, offsets)
    assert rows.tolist() == [[[19, 144, 276, 345]]]
    rows = engram.engram_hash(t([2, 9, 4]), t([2**62 + 1, 3, 5], dtype=torch.int64), sizes, offsets)
    assert rows.tolist() == [[[36, 150, 278, 400]]]


# ---- recorded data ----

@pytest.mark.parametrize("case", [c for c in golden.cases("engram") if c.op == "engram_hash"], ids=str)
def test_recorded_hash(case, device):
    for function in (engram.engram_hash, reference.engram_hash_ref):
        case.check("out", function(**case.inputs(device)))


@pytest.mark.parametrize("case", [c for c in golden.cases("engram") if c.op == "make_offsets"], ids=str)
def test_recorded_offsets(case, device):
    case.check("out", reference.make_offsets(**case.inputs(device)))


def test_recorded_data_is_here():
    assert len(golden.cases("engram")) >= 36


# ---- layouts, arrays, out= ----

def test_strided_windows(device):
    """Windows of a sequence are rows that overlap."""
    columns, ids = constants(3, 2, 8, device), torch.randint(0, 100000, (40,), dtype=torch.int32, device=device)
    for windows in (ids.as_strided((38, 3), (1, 1)), ids.view(10, 4)[:, 1:], ids[:3].expand(7, 3)):
        assert_equal(engram.engram_hash(windows, *columns), reference.engram_hash_ref(windows, *columns))


def test_numpy():
    ids, multipliers = numpy.array([[5, 7, 11]], numpy.int32), numpy.array([[3, 1000003, 17]])
    sizes, offsets = numpy.array([[[101, 103], [107, 109]]], numpy.int32), numpy.array([[0, 101, 204, 311]], numpy.int32)
    assert numpy.asarray(engram.engram_hash(ids, multipliers, sizes, offsets)).tolist() == [[[19, 144, 276, 345]]]


def test_out(device):
    columns, ids = constants(3, 2, 8, device), torch.randint(0, 100000, (9, 3), device=device)
    out = torch.empty(2, 9, 16, dtype=torch.int32, device=device)
    assert engram.engram_hash(ids, *columns, out=out) is out
    assert_equal(out, reference.engram_hash_ref(ids, *columns))


# ---- errors ----

@pytest.mark.parametrize("call, message", [
    (lambda i, m, s, o: engram.engram_hash(i.float(), m, s, o), "ngram_token_ids: dtype is f32, want i32 or i64"),
    (lambda i, m, s, o: engram.engram_hash(i, m.int(), s, o), "multipliers: dtype is i32, want i64"),
    (lambda i, m, s, o: engram.engram_hash(i[:, :2], m, s, o), r"multipliers: shape is \[2, 3\], want \[2, 2\]"),
    (lambda i, m, s, o: engram.engram_hash(i, m, s, o[:, :5].contiguous()), r"offsets: shape is \[2, 5\], want \[2, 16\]"),
    (lambda i, m, s, o: engram.engram_hash(i.t(), m, s, o), "ngram_token_ids: strides are"),
    (lambda i, m, s, o: engram.engram_hash(i, m, s, o, i[:, 0]), "image_token_mask: dtype is i64, want bool"),
], ids=range(6))
def test_errors(call, message, device):
    with pytest.raises(ValueError, match="^" + message):
        call(torch.randint(0, 9, (5, 3), device=device), *constants(3, 2, 8, device))


# ---- as torch operators ----

def cases(device):
    """(function, arguments) for every function, and every way of it with other shapes."""
    columns, ids = constants(3, 2, 4, device), torch.randint(0, 100000, (6, 3), device=device)
    mask = torch.arange(6, device=device) < 4
    yield "engram_hash", (ids, *columns)
    yield "engram_hash", (ids.int(), *columns, mask)


SIGNATURES = {
    "engram_hash": "ngram_token_ids, multipliers, vocab_sizes, offsets, image_token_mask=None, *, out=None",
}


def test_signatures():
    assert set(SIGNATURES) == FUNCTIONS
    for name, signature in SIGNATURES.items():
        function = getattr(engram, name)
        assert str(inspect.signature(function)) == f"({signature})"
        assert function.__module__ == "tegula.engram" and function.__name__ == name and function.__doc__


def test_every_function_has_cases():
    assert {name for name, _ in cases("cpu")} == FUNCTIONS


CASES = [f"{i}-{name}" for i, (name, _) in enumerate(cases("cpu"))]


def case_of(identity, device):
    return next(itertools.islice(cases(device), int(identity.split("-")[0]), None))


def tensors_in(tree):
    return [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


@on_one_device
@pytest.mark.parametrize("case", CASES)
def test_opcheck(case, device):
    name, args = case_of(case, device)
    op = getattr(OPS, name)
    torch.library.opcheck(op.default, args)
    out = op.default(*args)
    torch.library.opcheck(op.out, args, {"out": out})
    check_devices(op, args, (out,))


@on_one_device
@pytest.mark.parametrize("case", CASES)
def test_compile(case, device):
    name, args = case_of(case, device)
    function = getattr(engram, name)
    assert_equal(torch.compile(function, fullgraph=True, backend="aot_eager")(*args), function(*args))


@on_one_device
@pytest.mark.parametrize("case", CASES)
def test_fake_tensors(case, device):
    """Shapes, strides and dtypes of tensors without data, through the public function."""
    name, args = case_of(case, device)

    def described(tree):
        return [(t.dtype, t.shape, t.stride(), t.device.type) for t in tensors_in(tree)]

    want = described(getattr(engram, name)(*args))
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode() as mode:
        fakes = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, args)
        assert described(getattr(engram, name)(*fakes)) == want
