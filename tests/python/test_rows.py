# SPDX-License-Identifier: MIT
"""The table's grammar, over toy rows (toys.c): optional tensors, scalars of every kind, several
outputs, strided ones, in-place ops, in C and as torch operators."""

import inspect
import pathlib
import re
import subprocess
import sys
import threading

import pytest
import torch

import tegula

toy = pytest.importorskip("_toy", reason="the toy rows were not built")
from tegula import _torch               # noqa: E402
from tegula._rows import KEYS, Row      # noqa: E402

OPS = torch.ops.tegula_toy
LIBRARY = _torch.register(toy, "tegula_toy", {})


def each_way(name):
    """Through C, through the dispatcher, through Dynamo."""
    function, op = getattr(toy, name), getattr(OPS, name)
    compiled = torch.compile(lambda *args, **kwargs: function(*args, **kwargs), fullgraph=True, backend="aot_eager")
    return pytest.mark.parametrize("call", [function, op, compiled], ids=["eager", "op", "compiled"])


def test_signatures():
    assert str(inspect.signature(toy.cast)) == "(x, group=128, fmt='e4m3', round_sf=False, eps=0.0001, *, out=None)"
    assert str(inspect.signature(toy.scale)) == "(x, weight=None, bias=None, clamp=None, *, out=None)"
    assert str(inspect.signature(toy.add_inplace)) == "(x, number)"
    assert str(inspect.signature(toy.pad)) == \
        "(x, weight, extra, is_padded=True, seen=None, col_major=False, *, out=None)"


def test_schemas():
    assert str(OPS.cast.default._schema) == (
        'tegula_toy::cast(Tensor x, int group=128, str fmt="e4m3", bool round_sf=False, float eps=0.0001)'
        " -> (Tensor, Tensor)")
    assert str(OPS.scale.default._schema) == \
        "tegula_toy::scale(Tensor x, Tensor? weight=None, Tensor? bias=None, float? clamp=None) -> Tensor"
    assert str(OPS.add_inplace.default._schema) == "tegula_toy::add_inplace(Tensor(a!) x, int number) -> ()"
    assert str(OPS.cast.out._schema).endswith("*, Tensor(i!) out0, Tensor(j!) out1) -> ()")
    assert str(OPS.pad.default._schema) == (
        "tegula_toy::pad(Tensor x, Tensor? weight, int extra, bool is_padded=True, Tensor(a!)? seen=None, "
        "bool col_major=False) -> (Tensor, Tensor)")


@each_way("cast")
def test_several_outputs(call):
    x = torch.zeros(6, 10)
    out, sf = call(x, 4)
    assert (out.shape, out.dtype) == ((6, 10), torch.float8_e4m3fn) and (out.view(torch.uint8) == 1).all()
    assert (sf.shape, sf.dtype, sf.stride()) == ((6, 3), torch.float32, (1, 8))
    assert torch.equal(sf[2], torch.tensor([4.0001, 1004.0001, 2004.0001]))
    out, sf = call(x, group=3, fmt="e5m2", round_sf=True, eps=2)
    assert out.dtype == torch.float8_e5m2 and (out.view(torch.uint8) == 12).all()
    assert sf.shape == (6, 4) and (sf[:, 0] == 5).all()
    assert call(x[:0])[1].shape == (0, 1)


@each_way("scale")
def test_optional_tensors(call):
    x, w, b = torch.randn(3, 4), torch.randn(4), torch.randn(4)
    assert torch.equal(call(x), x)
    assert torch.equal(call(x, w), x * w)
    assert torch.equal(call(x, None, b), x + b)
    assert torch.equal(call(x, bias=b, weight=w, clamp=0.5), (x * w + b).clamp(max=0.5))
    assert torch.equal(call(x, clamp=None), x)


@each_way("pad")
def test_sums_and_strides(call):
    """Sizes that are sums, of which a bool is a factor; strides that depend on one; an optional tensor that
    is written, and one whose place cannot be left out."""
    x, seen = torch.randn(6, 3), torch.zeros(2, dtype=torch.int64)
    for extra, is_padded, width in ((2, True, 5), (2, False, 3), (-2, False, 3), (0, True, 3), (-3, True, 0)):
        out, sizes = call(x, None, extra, is_padded)
        assert out.shape == (6, width) and torch.equal(out[:, :3], x[:, :width]) and not out[:, 3:].any()
        assert sizes.stride() == (2, 1) and (sizes == torch.tensor([6, width])).all()
    _, sizes = call(x, None, 1, seen=seen, col_major=True)
    assert sizes.stride() == (1, 8) and (sizes == torch.tensor([6, 4])).all()
    call(x, x, 1, True, seen)
    assert seen.tolist() == [2, 2]


@each_way("pick")
@pytest.mark.parametrize("dtype, per_element", [(torch.float32, 1), (torch.int8, 2), (torch.uint8, 2)])
@pytest.mark.parametrize("fmt, size, out_dtype", [
    ("e4m3", 8, torch.float8_e4m3fn), ("e2m1", 4, torch.int8), ("e5m6", 12, torch.uint8)])
def test_one_of_two_outputs(call, dtype, per_element, fmt, size, out_dtype):
    """By an optional tensor that is given, whose sizes count then, or by a bool; bits of a word, values in an
    element."""
    x, indices = torch.zeros(6, 10, dtype=dtype), torch.zeros(3)
    width = 10 * per_element * size // 8
    out, sizes = call(x, fmt)
    assert (out.shape, out.dtype, out.stride()) == ((6, width), out_dtype, (width, 1))
    assert (sizes.shape, sizes.dtype, sizes.stride()) == ((6, 5), torch.int32, (5, 1))
    out, sizes = call(x, fmt, indices, True)
    assert (out.shape, out.dtype) == ((3, width), out_dtype)
    assert (sizes.shape, sizes.dtype, sizes.stride()) == ((6, 10), torch.float32, (1, 8))


def test_written_optional_tensor():
    x, seen = torch.randn(6, 3), torch.zeros(2, dtype=torch.int64)
    version = seen._version
    toy.pad(x, None, 1, seen=seen)
    assert seen._version > version
    with pytest.raises(TypeError, match=r"^pad\(\): weight is missing$"):
        toy.pad(x, extra=1)
    with pytest.raises(ValueError, match="^extra: is -4, want >= 0$"):
        toy.pad(x, None, -4)
    with pytest.raises(ValueError, match=r"^pad\(\): output 0 would have an impossible size$"):
        toy.pad(x, None, 1 << 62)
    leaf = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="a write in place has no gradient"):
        toy.pad(x, None, 1, seen=leaf)


@each_way("add_inplace")
def test_in_place(call):
    x = torch.arange(5)
    version = x._version
    assert call(x, 10) in (None, ())
    assert torch.equal(x, torch.arange(10, 15)) and x._version > version


def test_in_place_is_a_write():
    """Refused where torch and NumPy refuse a write of their own."""
    numpy = pytest.importorskip("numpy")
    x = numpy.arange(5)
    x.flags.writeable = False
    with pytest.raises(ValueError, match="^x: is read-only, want writable memory$"):
        toy.add_inplace(x, 10)
    assert (x == numpy.arange(5)).all()
    leaf = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="a write in place has no gradient, but an argument requires one"):
        toy.add_inplace(leaf, 1)
    with torch.no_grad():
        toy.add_inplace(leaf, 0)


def test_out_tuple():
    x = torch.zeros(6, 10)
    outs = torch.empty(6, 10, dtype=torch.float8_e4m3fn), torch.empty(6, 3)
    got = toy.cast(x, 4, out=outs)
    assert got[0] is outs[0] and got[1] is outs[1] and (outs[1][:, 2] == 2004.0001).all()
    for bad in (outs[0], outs[:1], list(outs)):
        with pytest.raises(TypeError, match="out: is a <class .*>, want a tuple of 2 tensors"):
            toy.cast(x, 4, out=bad)
    assert toy.cast(x, 4, out=(None, None))[1].shape == (6, 3)
    with pytest.raises(TypeError, match="^out: is a <class 'tuple'>, want a tensor$"):
        toy.scale(x, out=(None,))
    read_only = outs[1].numpy()
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match=r"^out\[1\]: is read-only, want writable memory$"):
        toy.cast(x, 4, out=(None, read_only))
    with pytest.raises(TypeError, match=r"add_inplace\(\) has no argument 'out'"):
        toy.add_inplace(torch.arange(5), 1, out=outs)


def test_given_outputs_have_the_shape_that_the_arguments_say():
    x = torch.zeros(6, 10)
    data, sf = torch.empty(6, 10, dtype=torch.float8_e4m3fn), torch.empty(6, 3)
    for outs, message in (((data[:5], sf), r"^out\[0\]: shape is \[5, 10\], want \[6, 10\]$"),
                          ((data, sf[:, :2]), r"^out\[1\]: shape is \[6, 2\], want \[6, 3\]$"),
                          ((data, sf[0]), r"^out\[1\]: has 1 dimensions, want 2$")):
        with pytest.raises(ValueError, match=message):
            toy.cast(x, 4, out=outs)
        with pytest.raises(ValueError, match=message):
            OPS.cast.out(x, 4, out0=outs[0], out1=outs[1])
    with pytest.raises(ValueError, match=r"^out: shape is \[10, 6\], want \[6, 10\]$"):
        toy.scale(x, out=torch.empty(10, 6))


def test_given_outputs_have_the_layout_that_an_argument_says():
    x, out = torch.zeros(6, 3), torch.empty(6, 4)
    rows, columns = torch.empty(6, 2, dtype=torch.int32), torch.empty(2, 12, dtype=torch.int32).t()[:6]
    for sizes, col_major in ((rows, False), (columns, True)):
        toy.pad(x, None, 1, col_major=col_major, out=(out, sizes))
        assert (sizes[:, 0] == 6).all() and (sizes[:, 1] == 4).all()
        want = r"\[2, 1\]" if not col_major else r"\[1, 8\], or columns a larger multiple of 16 bytes apart"
        with pytest.raises(ValueError, match=rf"^out\[1\]: strides are .*, want {want}$"):
            toy.pad(x, None, 1, col_major=col_major, out=(out, columns if sizes is rows else rows))
    toy.pad(x[:1], None, 1, col_major=True, out=(out[:1], columns[:1]))
    with pytest.raises(ValueError, match=r"^out\[1\]: strides are \[2, 1\], want \[1, 4\], or"):
        toy.pad(x[:1], None, 1, col_major=True, out=(out[:1], rows[:1]))


def test_given_columns_are_as_tma_wants_them():
    """Columns are a multiple of 16 bytes apart, and begin at one, where an argument asks for columns."""
    def columns(distance, offset=0):
        return torch.zeros(2 * distance + offset, dtype=torch.int32)[offset:].view(2, distance).t()[:6]

    x, out = torch.zeros(6, 3), torch.empty(6, 4)
    for sizes, message in (
            (columns(7), r"strides are \[1, 7\], want \[1, 8\], or columns a larger multiple of 16 bytes apart"),
            (columns(6), r"strides are \[1, 6\], want \[1, 8\], or columns a larger multiple of 16 bytes apart"),
            (columns(8, 1), r"address is 4 bytes past a multiple of 16, want a multiple of 16 \(for TMA\)"),
            (columns(8, 2).numpy(), r"address is 8 bytes past a multiple of 16, want a multiple of 16 \(for TMA\)"),
            (torch.empty(6, 2, dtype=torch.int32).numpy(), r"strides are \[2, 1\], want \[1, 8\], or")):
        with pytest.raises(ValueError, match=rf"^out\[1\]: {message}"):
            toy.pad(x, None, 1, col_major=True, out=(out, sizes))
    for sizes in (columns(8), columns(12), columns(8, 4), columns(8).numpy()):
        toy.pad(x, None, 1, col_major=True, out=(out, sizes))
        assert sizes[5].tolist() == [6, 4]
    toy.pad(x[:0], None, 1, col_major=True, out=(out[:0], columns(7, 1)[:0]))
    with pytest.raises(ValueError, match=r"^out\[1\]: strides are \[3, 1\], want \[1, 8\], or"):
        toy.pick(x, "e4m3", None, True, out=(out[:, :3], torch.empty(6, 3)))    # one of two, chosen by it


def test_memory_of_whole_columns():
    """Columns of a multiple of four: a reader may load four at a time, at the end of the last one, too."""
    for num_rows in range(9):
        _, sf = toy.cast(torch.zeros(num_rows, 10), 4)
        length = (num_rows + 3) // 4 * 4
        assert sf.shape == (num_rows, 3) and sf._base is None
        assert sf.untyped_storage().nbytes() == 4 * 3 * length
        if num_rows:
            assert sf.stride() == (1, length) and (sf[:, 2] == 2004.0001).all()
            assert torch.as_strided(sf, (3, length), (length, 1)).shape == (3, length)
    compiled = torch.compile(lambda x: torch.as_strided(toy.cast(x, 4)[1], (3, 8), (8, 1)), fullgraph=True,
                             backend="aot_eager")
    assert compiled(torch.zeros(6, 10))[2, 5] == 2004.0001


def test_bools_of_other_kinds():
    numpy = pytest.importorskip("numpy")
    for true, false in ((1, 0), (numpy.bool_(True), numpy.bool_(False))):
        assert (toy.cast(torch.zeros(6, 10), 4, round_sf=true)[0].view(torch.uint8) == 11).all()
        assert (toy.cast(torch.zeros(6, 10), 4, round_sf=false)[0].view(torch.uint8) == 1).all()
    for other in (1.0, 0.0, torch.tensor(True), torch.tensor([1]), numpy.array(True), numpy.float32(1), None, 10**30):
        with pytest.raises(TypeError, match="^round_sf: is .*, want True or False$"):
            toy.cast(torch.zeros(6, 10), 4, round_sf=other)


@pytest.mark.parametrize("call, error, message", [
    (lambda x: toy.cast(x, 1.5), TypeError, "^group: is 1.5, want an integer$"),
    (lambda x: toy.cast(x, "4"), TypeError, "^group: is '4', want an integer$"),
    (lambda x: toy.cast(x, 2**63), OverflowError, "^group: is 9223372036854775808, want an integer of 64 bits$"),
    (lambda x: toy.cast(x, -2**63 - 1), OverflowError, "^group: is -9223372036854775809, want an integer of"),
    (lambda x: toy.cast(x, None), TypeError, "^group: is None, want an integer$"),
    (lambda x: toy.cast(x, fmt="e9"), ValueError, "fmt: is 'e9', want one of 'e4m3', 'e5m2'"),
    (lambda x: toy.cast(x, fmt=3), ValueError, "fmt: is 3, want one of 'e4m3', 'e5m2'"),
    (lambda x: toy.cast(x, round_sf=2), TypeError, "round_sf: is 2, want True or False"),
    (lambda x: toy.cast(x, round_sf="True"), TypeError, "round_sf: is 'True', want True or False"),
    (lambda x: toy.cast(x, round_sf=x), TypeError, "round_sf: is tensor"),
    (lambda x: toy.cast(x, fmt="E4M3"), ValueError, "fmt: is 'E4M3', want one of 'e4m3', 'e5m2'"),
    (lambda x: toy.cast(x, eps="x"), TypeError, "^eps: is 'x', want a number$"),
    (lambda x: toy.cast(x, eps=10**400), OverflowError, "^eps: is 10*, want a number that a double can hold$"),
    (lambda x: toy.cast(x, 0), ValueError, "^group: is 0, want >= 1$"),
    (lambda x: toy.cast(x, -3), ValueError, "^group: is -3, want >= 1$"),
    (lambda x: OPS.cast(x.to("meta"), 0), ValueError, "^group: is 0, want >= 1$"),
    (lambda x: toy.scale(x, 3), TypeError, "weight: is a <class 'int'>, want a tensor"),
    (lambda x: toy.scale(x, x), ValueError, "weight: has 2 dimensions, want 1"),
    (lambda x: toy.scale(x, clamp="x"), TypeError, "^clamp: is 'x', want a number$"),
    (lambda x: toy.scale(None), TypeError, "x: is a <class 'NoneType'>"),
], ids=range(20))
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.zeros(6, 10))


def test_errors_of_an_argument_are_its_own():
    class Broken:
        def __index__(self):
            raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        toy.cast(torch.zeros(6, 10), Broken())


def test_integers_of_other_libraries():
    numpy = pytest.importorskip("numpy")
    assert toy.cast(torch.zeros(6, 10), numpy.int64(4))[1].shape == (6, 3)


def test_statuses():
    """Every status of the C API as an exception."""
    x = torch.zeros(3)
    assert toy.fail(x, 0).shape == (6,)
    names = [None, None, "WORKSPACE", "DEVICE", "COMPILE", "CAPTURE", None, "CUDA", "PEER", "INTERNAL"]
    for status, name in enumerate(names):
        if name:
            with pytest.raises(toy.Error) as raised:
                toy.fail(x, status)
            assert raised.value.status == "TGL_ERR_" + name
    with pytest.raises(ValueError):
        toy.fail(x, 1)
    with pytest.raises(MemoryError):
        toy.fail(x, 6)


def test_numpy_outputs(monkeypatch):
    numpy = pytest.importorskip("numpy")
    x = numpy.ones((3, 4), numpy.float32)
    assert (toy.scale(x, numpy.full(4, 2, numpy.float32)) == 2).all()
    assert toy.fail(x[0], 0).dtype == numpy.int64
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert toy.cast(x)[0].dtype == numpy.uint8          # e4m3; test_arrays.py has more


# ---- faces: what the public function takes ----

def test_face():
    """A pair to two parameters, in every way that a call can go."""
    x, sf, seen = torch.randn(2, 3), torch.tensor([2.0, 3.0]), torch.zeros(1, dtype=torch.int64)
    want = x * sf[:, None] + 104
    out = torch.empty(2, 3)
    compiled = torch.compile(lambda *a, **k: toy.weigh(*a, **k), fullgraph=True, backend="aot_eager")
    for weigh in (toy.weigh, compiled):
        for pair, block_size in (((x, sf), (1, 4)), ([x, sf], [1, 4])):
            assert torch.equal(weigh(pair, block_size), want)
            assert torch.equal(weigh(x=pair, block_size=block_size, kind="plain"), want)
        assert torch.equal(weigh(x), x) and torch.equal(weigh((x, None)), x)
        weigh((x, sf), (1, 4), None, seen=seen, out=out)
        assert torch.equal(out, want)
    assert seen.tolist() == [2]
    assert torch.equal(OPS.weigh(x, sf, 1, 4, seen=seen), want) and seen.tolist() == [3]
    sub = toy.weigh((x.as_subclass(type("Sub", (torch.Tensor,), {})), sf), (1, 4))
    assert torch.equal(sub.as_subclass(torch.Tensor), want)
    assert str(inspect.signature(toy.weigh)) == "(x, block_size=None, kind=None, *, seen=None, out=None)"


@pytest.mark.parametrize("call, error, message", [
    (lambda x: toy.weigh(), TypeError, r"^weigh\(\): x is missing$"),
    (lambda x: toy.weigh((x, x[:, 0], x)), ValueError, "^x: has 3 items, want 2$"),
    (lambda x: toy.weigh((x, x[:, 0]), 4), TypeError, "^block_size: is <class 'int'>, want a pair$"),
    (lambda x: toy.weigh((x, x[:, 0]), (1,)), ValueError, "^block_size: has 1 items, want 2$"),
    (lambda x: toy.weigh((x, x[:, 0]), (1, "a")), TypeError, "^block_size: is 'a', want an integer$"),
    (lambda x: toy.weigh(x, (1, 4)), ValueError, "^block_size: is given, want None without sf$"),
    (lambda x: toy.weigh(x, None, "other"), ValueError, "^kind: is 'other', want None or 'plain'$"),
    (lambda x: toy.weigh(x, None, None, x), TypeError, "takes 3 positional arguments, got 4$"),
    (lambda x: toy.weigh(x, rows=1), TypeError, r"^weigh\(\) has no argument 'rows'$"),
    (lambda x: toy.weigh(x, x=x), TypeError, r"^weigh\(\): x is given twice$"),
    (lambda x: OPS.weigh(x, None, 1, 4), ValueError, "^block_size: is given, want None without sf$"),
    (lambda x: OPS.weigh(x.to("meta"), None, 1, 4), ValueError, "^block_size: is given, want None without sf$"),
    (lambda x: toy.weigh(x.to("meta"), None, "other"), ValueError, "^kind: is 'other', want None or 'plain'$"),
    (lambda x: toy.weigh(x[0].to("meta")), ValueError, "^x: has 1 dimensions, want 2$"),
    (lambda x: OPS.weigh.out(x.to("meta"), None, 1, 4, out=x.to("meta")), ValueError, "^block_size: is given"),
], ids=range(15))
def test_face_errors(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.randn(2, 3))


def test_a_list_that_loses_its_tensors():
    """Another thread empties it while the call runs."""
    x, sf = torch.randn(2000, 500), torch.rand(2000)
    pair, want, stop = [], x * sf[:, None], threading.Event()

    def work():
        while not stop.is_set():
            pair[:] = [x.clone(), sf.clone()]
            pair.clear()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(200):
            try:
                assert torch.equal(toy.weigh(pair), want)
            except ValueError as e:
                assert "has 0 items" in str(e)
    finally:
        stop.set()
        thread.join()


def test_opcheck():
    x = torch.randn(6, 10)
    torch.library.opcheck(OPS.cast.default, (x, 4))
    torch.library.opcheck(OPS.scale.out, (x,), {"out": torch.empty(6, 10)})
    torch.library.opcheck(OPS.scale.default, (x, None, torch.randn(10)), {"clamp": 0.5})
    for indices in (None, torch.zeros(3)):
        torch.library.opcheck(OPS.pick.default, (x, "e5m6", indices, indices is None))
    torch.library.opcheck(OPS.weigh.default, (x, torch.rand(6), 1, 2))
    torch.library.opcheck(OPS.add_inplace.default, (torch.arange(5), 3))
    for seen in (None, torch.arange(3)):
        torch.library.opcheck(OPS.pad.default, (x, None, 2), {"seen": seen, "col_major": True})
        torch.library.opcheck(OPS.pad.default, (x, None, 2, False, seen))


def test_fake_matches_real():
    """Shapes, strides and dtypes that Python computes from a row are those that C makes."""
    for t, h, group in ((6, 10, 4), (0, 10, 3), (5, 0, 128), (1, 1, 1), (7, 129, 128)):
        for fmt in ("e4m3", "e5m2"):
            real = toy.cast(torch.zeros(t, h), group, fmt)
            fake = OPS.cast(torch.empty(t, h, device="meta"), group, fmt)
            for r, f in zip(real, fake):
                assert (r.shape, r.stride(), r.dtype) == (f.shape, f.stride(), f.dtype)


def parsed(text, face=None):
    return Row(**toy.parse(text, face))


def test_parser():
    row = parsed("f(x[T, H], y[T]!, w[H]?, n: int = -1, s: {a|b}? = None) -> p: x[H / 2 * 4, n], q: f32[T; 2]")
    assert [p.name for p in row.params] == ["x", "y", "w", "n", "s"] and row.first == "x"
    assert row.schemas()[0] == "f(Tensor x, Tensor(a!) y, Tensor? w=None, int n=-1, str? s=None) -> (Tensor, Tensor)"
    made = row.describe_outputs({"x": torch.empty(3, 5), "w": None, "n": 9, "s": "a", "y": torch.empty(3)})
    assert [(size, strides) for _, size, strides in made] == [((12, 9), None), ((3,), (2,))]
    assert parsed("f(x[T]!) -> None").schemas()[0] == "f(Tensor(a!) x) -> ()"
    row = parsed("f(x[T], w[N]?, b: bool = False) -> p: x[N + T] if w else i32[T], q: f32[T; 2 if b] if b else x[1]")
    assert row.schemas()[0] == "f(Tensor x, Tensor? w=None, bool b=False) -> (Tensor, Tensor)"
    x, words = torch.empty(3), {key: word for word, key in KEYS.items() if word in ("i32", "f32")}
    for w, b, want in ((None, False, [("i32", (3,), None), (x, (1,), None)]),
                       (torch.empty(9), True, [(x, (12,), None), ("f32", (3,), (2,))])):
        made = row.describe_outputs({"x": x, "w": w, "b": b})
        assert [(t if t is x else words[t], *rest) for t, *rest in made] == want
    row = parsed("f(w[N]?, x[T, N], k: int, y[T]?! host, b: bool = False) -> out: f32[N + k * b + 1; 2 if b]")
    assert row.schemas()[0] == "f(Tensor? w, Tensor x, int k, Tensor(a!)? y=None, bool b=False) -> Tensor"
    assert row.first == "x" and [p.name for p in row.params if p.is_on_host] == ["y"]
    for b, want in ((False, ((5 + 1,), None)), (True, ((5 + 7 + 1,), (2,)))):
        values = {"w": torch.empty(99), "x": torch.empty(3, 5), "k": 7, "y": None, "b": b}
        assert [made[1:] for made in row.describe_outputs(values)] == [want]
    assert parsed("f(x[T],s[T]?,a:int?,b:int?)->out:x[T]", "x & s, size: a & b = None").face == [
        ("x", ("x", "s")), ("size", ("a", "b"))]
    assert parsed("f(x[T], s: {a|b} = b, e: float = 1e-4) -> None").defaults == {"s": "b", "e": 1e-4}


@pytest.mark.parametrize("text, face", [
    ("f(x[T]) -> x[T]", None), ("f(x[T]) -> out: x[T], ", None), ("f(x[T]) -> out: x[U]", None),
    ("f(x[T]) -> out: y[T]", None), ("f(x[T]) -> out: x[T] if b else x[T]", None), ("f(x[T]) -> None, None", None),
    ("f(x[T]?) -> None", None), ("f(n: int) -> None", None), ("f(x[T], n: text) -> None", None),
    ("f(x[T], n: int = a) -> None", None), ("f(x[T], s: {a|b} = c) -> None", None), ("f(x[T], w[N]?) -> out: x[N]", None),
    ("f(x[T], s: {a|b}) -> out: s[T]", None), ("f(x[T]!?) -> None", None), ("f(x[T]", None),
    ("f(x[T]) -> None", "y"), ("f(x[T]) -> None", "x & y"), ("f(x[T]) -> None", "*, x, *"), ("f(x[T]) -> None", "x, "),
])
def test_parser_refuses(text, face):
    with pytest.raises(ValueError, match="^bad row: "):
        toy.parse(text, face)


def test_dtypes(device):
    """The table's words are those of the library's messages, its keys what DLPack says of torch's dtypes."""
    for word, key, name, bits, values, _ in toy.dtypes():
        if name is None or not hasattr(torch, name):
            continue
        dtype = getattr(torch, name)
        x = torch.zeros(16, 16 * dtype.itemsize, dtype=torch.uint8, device=device).view(dtype)
        code, width, lanes = toy.describe(x)["dtype"]
        assert key == code << 24 | width << 16 | lanes and bits == width
        assert values == (2 if name in ("int8", "uint8", "float4_e2m1fn_x2") else 1)
        if name not in ("int64", "int32"):
            word = f"code {code} with .*" if word in (None, "c32") else word        # the library names neither
            with pytest.raises(ValueError, match=f"^topk_idx: dtype is {word}, want "):
                tegula.moe.aux_fi(x, 4, 1)
    by_word = {word: (key, bits) for word, key, _, bits, *_ in toy.dtypes()}
    assert by_word["fp32"] == by_word["f32"]
    assert by_word["e2m1"] == (by_word["i8"][0], 4) and by_word["e5m6"] == (by_word["u8"][0], 12)


# ---- the build step that names a row's arguments ----

def test_row_args(tmp_path):
    """A struct has the row's names in its order, whichever macros its text is made of."""
    rows = tmp_path / "rows.c"
    rows.write_text('''
#define TWO(a, b) a "[T], " \\
    b ": int, "
#define LAST "s: {u|v}? = None"
op_row rows[] = { { .text = "f(" TWO("x", "n") "y[T, H]?! host, e: float? = 1e-4, "
                             LAST ") -> p: x[T], q: f32[T; 2 if b] if b else x[1]", .call = f } };
''')
    program = pathlib.Path(__file__).parents[2] / "python/src/row_args.py"
    subprocess.run([sys.executable, program, tmp_path / "row_args.h", rows], check=True)
    made = (tmp_path / "row_args.h").read_text()
    assert re.findall(r"struct { DLTensor (.*?); }", made) == ["*p, *q"]
    assert re.findall(r"_Alignas\(value\) (.*)", made) == [
        "const DLTensor *x;", "int64_t n;", "DLTensor *y;", "double e; bool has_e;", "int64_t s; bool has_s;"]
    assert "} f_args;" in made and "offsetof(frame, arg[5])" in made and "#define DOMAINS(each) each(rows)" in made
