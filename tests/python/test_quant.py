# SPDX-License-Identifier: MIT
"""The casts from Python: names, recorded data, layouts, torch operators, errors. test_quant_casts.py and
test_quant_swiglu.py compare their results with plain torch."""
import importlib
import inspect
import itertools
import subprocess
import sys

import numpy
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import golden
import tegula.torch as reference
from conftest import check_devices, on_one_device
from tegula import quant
from tegula.quant.cast_back_e5m6_kernel import cast_back_e5m6
from tegula.quant.per_token_cast_to_e5m6_kernel import per_token_cast_to_e5m6
from tegula.testing import assert_equal

FUNCTIONS = {name: getattr(quant, name) for name in quant.__all__ if name != "types"}
FUNCTIONS |= {"per_token_cast_to_e5m6": per_token_cast_to_e5m6, "cast_back_e5m6": cast_back_e5m6}
FLAGS = "use_tma_aligned_col_major_sf=False, round_sf=False, use_packed_ue8m0=False"
SIGNATURES = {
    "per_token_cast": f"x, fmt, num_per_channels, x_block_size=None, {FLAGS}, *, out=None",
    "per_token_cast_with_sf_only": f"x, fmt, num_per_channels, x_block_size=None, {FLAGS}, *, out=None",
    "per_token_cast_with_precomputed_sf":
        f"x, fmt, num_per_channels, sf, x_block_size=None, {FLAGS}, *, out=None",
    "per_token_cast_to_e5m6": f"x, num_per_channels, {FLAGS}, *, out=None",
    "per_block_cast": f"x, fmt, block_size, {FLAGS}, *, out=None",
    "per_block_cast_with_sf_only": f"x, fmt, block_size, {FLAGS}, *, out=None",
    "per_block_cast_with_precomputed_sf": f"x, fmt, block_size, sf, {FLAGS}, *, out=None",
    "per_block_cast_lossless": f"x, fmt, x_block_size, out_block_size, {FLAGS}, *, inexact=None, out=None",
    "per_channel_cast": "x, fmt, num_per_tokens, round_sf=False, *, out=None",
    "per_channel_cast_fused": "x, fmt, num_per_tokens, round_sf=False, num_per_channels=None, "
                              "pos_to_token=None, *, out=None",
    "per_channel_cast_and_transpose": "x, fmt, num_per_tokens, round_sf=False, *, out=None",
    "cast_back": "x, fmt, x_block_size, x_special_fmt=None, *, out=None",
    "cast_back_e5m6": "x, fmt, x_block_size, *, out=None",
    "per_token_cast_back": "x, fmt, num_per_channels, x_special_fmt=None, *, out=None",
    "unpack_from_e2m1fn_x2": "x, out_dtype=torch.float32, *, out=None",
    "swiglu_forward_and_per_token_cast":
        f"x, fmt, num_per_channels, pos_to_token_topk=None, topk_weights=None, pos_to_expert=None, {FLAGS}, "
        "swiglu_clamp_value=None, clamped_count=None, sf_clamp_min=None, *, out=None",
    "swiglu_forward_and_per_channel_cast_and_transpose":
        "x, fmt, num_per_tokens, round_sf=False, without_transpose=False, swiglu_clamp_value=None, *, "
        "out=None",
    "swiglu_backward_and_per_token_cast":
        "x, grad_out, weight, pos_to_token_topk, token_topk_to_pos, num_per_channels, round_sf=False, "
        "swiglu_clamp_value=None, *, out=None",
}


def test_signatures():
    assert set(SIGNATURES) == set(FUNCTIONS)
    for name, signature in SIGNATURES.items():
        assert str(inspect.signature(FUNCTIONS[name])) == f"({signature})"
        assert FUNCTIONS[name].__module__.startswith("tegula.quant") and FUNCTIONS[name].__name__ == name
        assert FUNCTIONS[name].__doc__


def test_as_tile_kernels():
    """As TileKernels' own tests import things; a function and a module of one name are both there."""
    code = """if True:
        import tegula.as_tile_kernels
        import tile_kernels, torch
        from tile_kernels.quant.types import QuantTensor
        from tile_kernels.quant import per_token_cast, cast_back
        from tile_kernels.quant.per_token_cast_to_e5m6_kernel import per_token_cast_to_e5m6
        from tile_kernels.quant.cast_back_e5m6_kernel import cast_back_e5m6
        from tile_kernels.torch import cast, cast_back_from_e5m6, swiglu_forward
        from tile_kernels.torch.per_channel_cast_fused import per_channel_cast_fused
        from tile_kernels.testing.generator import generate_e5m6_inputs, generate_rand_float
        from tile_kernels.testing.quant import clear_unused_sf
        assert tile_kernels.torch.per_channel_cast_fused is per_channel_cast_fused
        assert tile_kernels.quant.types.QuantTensor is QuantTensor
        x = torch.randn(4, 64)
        seen = tile_kernels.quant.per_token_cast(x, 'e5m6', 64)
        assert torch.equal(seen[0], per_token_cast_to_e5m6(x, 64)[0])
        import sys
        assert sys.modules['tile_kernels.torch.per_channel_cast_fused'].per_channel_cast_fused \\
            is per_channel_cast_fused"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("fmt", ["e5m6", "e5m2", None])
def test_reference_of_other_formats(fmt):
    """Eight numbers of e5m6 share words, which its own reference makes."""
    x = torch.full((1, 8), 1000.0)
    for sf in (None, torch.full((1, 1), 1e-3)):
        with pytest.raises(ValueError, match="^fmt: is .*, want 'e4m3' or 'e2m1'"):
            reference.cast(x, fmt, (1, 8), sf)


def test_references_are_modules_too():
    module = importlib.import_module("tegula.torch.per_channel_cast_fused")
    assert module.per_channel_cast_fused is reference.per_channel_cast_fused


# ---- recorded data ----

def flat(outputs):
    return [t for o in (outputs if isinstance(outputs, tuple) else (outputs,)) for t in
            (o if isinstance(o, tuple) else (o,))]


def arguments(case, device):
    """Of a recorded case, as the function takes them."""
    inputs, args = case.inputs(device), dict(case.args)
    if "x_sf" in inputs:
        inputs["x"] = inputs["x"], inputs.pop("x_sf")
    if "out_dtype" in args:
        args["out_dtype"] = golden.DTYPES[args["out_dtype"]]
    return inputs | args


def check_recorded(case, made, inputs):
    for name, row in case.rows.items():
        if row["role"] == "out" and name != "dequantized":
            case.check(name, inputs[row["updates"]] if "updates" in row else made.pop(0))
    assert not made


@pytest.mark.parametrize("case", golden.cases("quant"), ids=str)
def test_recorded(case, device):
    inputs = arguments(case, device)
    made = flat(FUNCTIONS[case.op](**inputs))
    if "dequantized" in case.rows:
        args = case.args["x_block_size"], case.args["out_block_size"]
        for pair, block_size in zip((inputs["x"], tuple(made)), args):
            case.check("dequantized", quant.cast_back(pair, "fp32", block_size))
    check_recorded(case, made, inputs)


def by_reference(op, x, fmt=None, num_per_channels=None, num_per_tokens=None, block_size=None, sf=None,
                 round_sf=False, use_tma_aligned_col_major_sf=False, use_packed_ue8m0=False,
                 x_block_size=None, pos_to_token=None, out_dtype=None, **rest):
    """What an op gives, composed of the references."""
    layout = {"use_tma_aligned_col_major_sf": use_tma_aligned_col_major_sf,
              "use_packed_ue8m0": use_packed_ue8m0, "round_sf": round_sf}
    if op == "per_token_cast_to_e5m6":
        return reference.cast_to_e5m6(x, num_per_channels, **layout)
    if op.startswith(("per_token_cast", "per_block_cast")):
        block_size = block_size or (1, num_per_channels)
        made = reference.cast(x, fmt, block_size, sf, x_block_size, **layout)
        return made[1] if op.endswith("sf_only") else made
    if op.startswith("per_channel_cast"):
        out, out_sf = reference.per_channel_cast_fused(x, num_per_tokens, num_per_channels, round_sf,
                                                       pos_to_token)
        return (reference.transpose(out), out_sf) if op.endswith("transpose") else (out, out_sf)
    if op == "unpack_from_e2m1fn_x2":
        return reference.unpack_from_e2m1fn_x2(x, out_dtype)
    back = reference.cast_back_from_e5m6 if op == "cast_back_e5m6" else reference.cast_back
    return back(x, fmt, x_block_size)


CASTS = [case for case in golden.cases("quant") if "swiglu" not in case.op and "lossless" not in case.op]


@pytest.mark.parametrize("case", CASTS, ids=str)
def test_recorded_by_reference(case, device):
    inputs = arguments(case, device)
    check_recorded(case, flat(by_reference(case.op, **inputs)), inputs)


def test_recorded_data_is_here():
    assert len(golden.cases("quant")) >= 91
    assert {case.op for case in golden.cases("quant")} == set(FUNCTIONS) - {"per_token_cast_back"}


# ---- layouts ----

LAYOUTS = [(False, False, False), (False, True, False), (True, False, False), (True, True, False),
           (True, True, True)]


def layout_of(num_rows, num_factors, is_col_major, round_sf, is_packed):
    """dtype, shape and strides of the factors."""
    if is_packed:
        num_factors = -(-num_factors // 4)
    strides = (1, -(-num_rows // 4) * 4) if is_col_major else (num_factors, 1)
    return torch.int32 if is_packed else torch.float32, (num_rows, num_factors), strides


def described(t):
    return t.dtype, t.shape, t.stride()


@pytest.mark.parametrize("flags", LAYOUTS, ids=str)
def test_layouts(flags, device):
    """Also of a single row and a single column."""
    for num_rows, num_cols in ((0, 640), (1, 64), (3, 64), (5, 640), (8, 576), (9, 128)):
        x = torch.randn(num_rows, num_cols, device=device)
        num_per_channels = 128 if num_cols % 128 == 0 else num_cols
        for fmt, dtype, width in (("e4m3", torch.float8_e4m3fn, num_cols),
                                  ("e2m1", torch.int8, num_cols // 2),
                                  ("e5m6", torch.uint8, num_cols * 3 // 2)):
            out, sf = quant.per_token_cast(x, fmt, num_per_channels, None, *flags)
            assert described(out) == (dtype, (num_rows, width), (width, 1))
            want = layout_of(num_rows, num_cols // num_per_channels, *flags)
            assert described(sf) == want
            alone = quant.per_token_cast_with_sf_only(x, fmt, num_per_channels, None, *flags)
            assert described(alone) == want
            if fmt != "e5m6":
                out, sf = quant.per_block_cast(x, fmt, (2, 32), *flags)
                assert described(out) == (dtype, (num_rows, width), (width, 1))
                assert described(sf) == layout_of(-(-num_rows // 2), num_cols // 32, *flags)
                assert described(quant.per_block_cast_with_sf_only(x, fmt, (2, 32), *flags)) == described(sf)
        out, sf = quant.swiglu_forward_and_per_token_cast(x, "e4m3", 32, None, None, None, *flags)
        assert described(out)[:2] == (torch.float8_e4m3fn, (num_rows, num_cols // 2))
        assert described(sf) == layout_of(num_rows, num_cols // 64, *flags)


def test_padding_is_not_written(device):
    """Of columns in memory that is given; codes past the last factor are."""
    memory = torch.full((2, 8), -1, dtype=torch.int32, device=device)
    outs = torch.empty(5, 640, dtype=torch.float8_e4m3fn, device=device), memory.t()[:5]
    x = torch.ones(5, 640, device=device)
    assert quant.per_token_cast(x, "e4m3", 128, None, True, True, True, out=outs)[1] is outs[1]
    code = 127 - 8                                          # 1 / 448 is above 2^-9
    assert memory.tolist() == [[code * 0x01010101] * 5 + [-1] * 3, [code] * 5 + [-1] * 3]


@pytest.mark.parametrize("is_packed", [False, True])
def test_columns_as_tma_wants_them(is_packed, device):
    """All functions that make column-major factors take them by out= only as the flag promises them."""
    x = torch.randn(6, 512, device=device)
    e2m1 = quant.per_token_cast(x, "e2m1", 32, round_sf=True)
    flags = (True, True, True) if is_packed else (True,)
    for function, args, num_rows, num_cols, is_alone in (
            (quant.per_token_cast, (x, "e4m3", 32, None), 6, 16, False),
            (quant.per_token_cast, (x, "e5m6", 32, None), 6, 16, False),
            (quant.per_token_cast, (e2m1, "e4m3", 64, (1, 32)), 6, 8, False),
            (quant.per_token_cast_with_sf_only, (x, "e4m3", 32, None), 6, 16, True),
            (per_token_cast_to_e5m6, (x, 32), 6, 16, False),
            (quant.per_block_cast, (x, "e2m1", (2, 32)), 3, 16, False),
            (quant.per_block_cast_with_sf_only, (x, "e4m3", (2, 32)), 3, 16, True),
            (quant.per_block_cast_lossless, (e2m1, "e4m3", (1, 32), (2, 64)), 3, 8, False),
            (quant.swiglu_forward_and_per_token_cast, (x, "e4m3", 32, None, None, None), 6, 8, False)):
        def columns(distance, offset=0):
            dtype, count = (torch.int32, num_cols // 4) if is_packed else (torch.float32, num_cols)
            memory = torch.zeros(count * distance + offset, dtype=dtype, device=device)
            return memory[offset:].view(count, distance).t()[:num_rows]

        want = function(*args, *flags)
        for good in (columns(8), columns(12), columns(8, 4)):
            function(*args, *flags, out=good if is_alone else (None, good))
            assert_equal(good.contiguous(), (want if is_alone else want[1]).contiguous())
        for bad, message in (
                (columns(7), r"strides are \[1, 7\], want \[1, .\], or columns a larger multiple of 16 bytes"),
                (columns(8, 1), r"address is 4 bytes past a multiple of 16, must be a multiple of 16 \(for TMA\)"),
                (torch.empty_like(columns(8).contiguous()), r"strides are .*, want \[1, .\], or columns")):
            with pytest.raises(ValueError, match=rf"^out(\[1\])?: {message}"):
                function(*args, *flags, out=bad if is_alone else (None, bad))


# ---- examples ----

def test_examples(device):
    """Of docs/quant.md."""
    def codes(t):
        return t.cpu().contiguous().view(torch.uint8).numpy().tobytes().hex()

    x = torch.tensor([[1, -2, 0.5, 3, -0.25, 0, -0.0, 1.5]], device=device)
    for fmt, round_sf, factor, want in (("e4m3", False, 3 / 448, "71f9697ee1008076"),
                                        ("e4m3", True, 2**-7, "70f8687ce0008074"),
                                        ("e2m1", False, 0.5, "e4720958"), ("e2m1", True, 0.5, "e4720958")):
        out, sf = quant.per_token_cast(x, fmt, 8, round_sf=round_sf)
        assert codes(out) == want and sf.item() == pytest.approx(factor, rel=1e-7)
    x = torch.tensor([[1, -1, 0.5, 2, -3, 0.1, 0, -0.0]], device=device)
    out, sf = quant.per_token_cast(x, "e5m6", 8, round_sf=True)
    assert codes(out) == "70400f7406fa800700080066" and sf.item() == 2**-14
    assert quant.cast_back((out, sf), "fp32", (1, 8), "e5m6").tolist() == [
        [1, -1, 0.5, 2, -3, 0.099609375, 0, -0.0]]
    x = torch.tensor([[1, -2], [0.5, 3]], device=device)
    block, sf = quant.per_block_cast(x, "e4m3", (2, 2), round_sf=True)
    assert codes(block) == "70f8687c" and sf.tolist() == [[2**-7]]
    x = torch.tensor([[1, 0.5, -3, 0], [-8, 2, 0.25, -0.0]], device=device).t()
    for function, want in ((quant.per_channel_cast, "70f86868fc500080"),
                           (quant.per_channel_cast_and_transpose, "7068fc00f8685080")):
        out, sf = function(x.contiguous(), "e4m3", 4, True)
        assert codes(out) == want and sf.tolist() == [[2**-7, 2**-5]]
    bytes_of_e2m1 = torch.tensor([0xE4 - 256, 0x72], dtype=torch.int8, device=device)
    assert quant.unpack_from_e2m1fn_x2(bytes_of_e2m1).tolist() == [2, -4, 1, 6]


def test_unpack(device):
    x = torch.randint(-128, 128, (3, 2, 5), dtype=torch.int8, device=device)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float64):
        want = reference.unpack_from_e2m1fn_x2(x, dtype)
        assert_equal(quant.unpack_from_e2m1fn_x2(x, dtype), want)
        assert_equal(quant.unpack_from_e2m1fn_x2(x.view(torch.uint8), out_dtype=dtype), want)
    for part in (x[0, 0], x[:, :1], x[..., ::2], x[:0], x[..., :0], x.transpose(0, 2)):
        assert_equal(quant.unpack_from_e2m1fn_x2(part), reference.unpack_from_e2m1fn_x2(part.contiguous()))
    with pytest.raises(ValueError, match="^x: has 0 dimensions, want 1 or more$"):
        quant.unpack_from_e2m1fn_x2(x[0, 0, 0])
    with pytest.raises(ValueError, match="x: dtype is f32"):
        quant.unpack_from_e2m1fn_x2(torch.zeros(3, device=device))
    with pytest.raises(TypeError, match="^x: is a <class 'list'>, want a tensor$"):
        quant.unpack_from_e2m1fn_x2([1, 2])
    for bad in ("foo", "cpu", 5, [torch.float32]):
        with pytest.raises(TypeError, match="^out_dtype: is .*, want a dtype$"):
            quant.unpack_from_e2m1fn_x2(x, bad)


def test_unpack_out(device):
    x = torch.randint(-128, 128, (3, 5), dtype=torch.int8, device=device)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        wide = torch.empty(3, 20, dtype=dtype, device=device)
        for out in (wide[:, :10].contiguous(), wide[:, :10], wide[:, ::2]):
            assert quant.unpack_from_e2m1fn_x2(x, dtype, out=out) is out
            assert_equal(out.contiguous(), reference.unpack_from_e2m1fn_x2(x, dtype))
    with pytest.raises(ValueError, match=r"^out: shape is \[3, 5\], want \[3, 10\]$"):
        quant.unpack_from_e2m1fn_x2(x, out=torch.empty(3, 5, device=device))
    with pytest.raises(ValueError, match="^out: dtype is float32, want bfloat16$"):
        quant.unpack_from_e2m1fn_x2(x, torch.bfloat16, out=torch.empty(3, 10, device=device))
    for bad in ([1], 5, "out"):
        with pytest.raises(TypeError, match="^out: is a <class .*>, want a tensor$"):
            quant.unpack_from_e2m1fn_x2(x, out=bad)


def test_unpack_strided(device):
    """Any shape and strides, as plain torch takes them."""
    x = torch.randint(-128, 128, (4, 6), dtype=torch.int8, device=device)
    cube = x.view(2, 2, 6)
    views = [x[:, ::2], x[0, ::2], x[:, 0], x[::2], x[:, :3], x.t(), x.t()[::2], x[:1].expand(3, 6),
             x[0, :1].expand(5), x[:, 1:2], x[1, 1:2], cube[:, 0], cube[..., 1::3], cube.permute(2, 0, 1),
             x[:0, ::2], x[0, :0:2]]
    for view in views:
        want = reference.unpack_from_e2m1fn_x2(view.contiguous())
        assert_equal(quant.unpack_from_e2m1fn_x2(view), want)
        assert_equal(quant.unpack_from_e2m1fn_x2(view, out=torch.empty_like(want)), want)
        assert_equal(quant.unpack_from_e2m1fn_x2(view, torch.float64), want.double())
        if device == "cpu":
            assert (quant.unpack_from_e2m1fn_x2(view.numpy()) == want.numpy()).all()
    array = x.cpu().numpy()
    for view in (array[::-1], array[0, ::-1], array[:, ::-2], numpy.broadcast_to(array[0], (3, 6))):
        want = reference.unpack_from_e2m1fn_x2(torch.from_numpy(view.copy()))
        assert (quant.unpack_from_e2m1fn_x2(view) == want.numpy()).all()


def test_numpy():
    """Where NumPy has the dtypes."""
    x = numpy.random.default_rng(0).standard_normal((5, 64), numpy.float32)
    for fmt, back in (("e2m1", None), ("e5m6", "e5m6")):
        out, sf = quant.per_token_cast(x, fmt, 32)
        want = quant.per_token_cast(torch.from_numpy(x), fmt, 32)
        assert isinstance(out, numpy.ndarray) and (out == want[0].numpy()).all()
        assert isinstance(sf, numpy.ndarray) and (sf == want[1].numpy()).all()
        numbers = quant.cast_back((out, sf), "fp32", (1, 32), back)
        assert (numbers == quant.cast_back(want, "fp32", (1, 32), back).numpy()).all()
    numbers = quant.unpack_from_e2m1fn_x2(torch.from_numpy(out))
    assert (quant.unpack_from_e2m1fn_x2(out) == numbers.numpy()).all()
    for dtype in (None, numpy.float32, numpy.dtype("float16"), numpy.float64, numpy.int32, torch.float32):
        seen = quant.unpack_from_e2m1fn_x2(out, dtype)
        want = numbers.numpy().astype("float32" if dtype in (None, torch.float32) else dtype)
        assert seen.dtype == want.dtype and (seen == want).all()
        given = numpy.zeros_like(want)
        assert quant.unpack_from_e2m1fn_x2(out, dtype, out=given) is given and (given == want).all()
    with pytest.raises(TypeError, match="^out_dtype: is 'foo', want a dtype$"):
        quant.unpack_from_e2m1fn_x2(out, "foo")
    with pytest.raises(TypeError, match="NumPy has no dtype for this output: give out="):
        quant.per_token_cast(x, "e4m3", 32)
    with pytest.raises(TypeError, match="give out="):
        quant.per_token_cast(x, "e2m1", 32, None, True)


# ---- out= ----

def cases(device):
    """(function, arguments) for every function, and every way of it with other operators or other shapes."""
    x = torch.randn(6, 64, device=device)
    e4m3, sf = reference.cast(x, "e4m3", (1, 32), round_sf=True)
    e2m1 = reference.cast(x, "e2m1", (2, 16), round_sf=True, use_tma_aligned_col_major_sf=True,
                          use_packed_ue8m0=True)
    rows = torch.tensor([3, 0, -1, 5, 5, 1, 2], dtype=torch.int32, device=device)
    weights = torch.rand(3, 2, device=device)
    pairs = torch.tensor([4, 0, -1, 5, 3, 1], dtype=torch.int32, device=device)
    positions = torch.tensor([[1, 5], [-1, 4], [0, 3]], dtype=torch.int32, device=device)
    counts = torch.zeros(3, dtype=torch.int64, device=device)
    for flags in ((), (True,), (True, True, True)):
        for fmt in ("e4m3", "e2m1"):
            yield "per_token_cast", (x.bfloat16(), fmt, 16, None, *flags)
            yield "per_block_cast", (x, fmt, (4, 16), *flags)
        yield "per_token_cast", (x, "e5m6", 64, None, *flags)
        yield "per_token_cast", ((e4m3, sf), "e2m1", 16, (1, 32), *flags)
        yield "per_token_cast", (e2m1, "e4m3", 32, (2, 16), *flags)
        yield "per_token_cast_with_sf_only", (x, "e4m3", 16, None, *flags)
        yield "per_token_cast_with_sf_only", (e2m1, "e4m3", 16, (2, 16), *flags)
        yield "per_token_cast_to_e5m6", (x, 32, *flags)
        yield "per_block_cast_with_sf_only", (x, "e2m1", (4, 16), *flags)
        yield "per_block_cast_lossless", (e2m1, "e4m3", (2, 16), (4, 32), *flags)
        yield "swiglu_forward_and_per_token_cast", (x, "e4m3", 32, pairs, weights, None,
                                                    *(flags or (False,)), *(False,) * (2 - len(flags[1:])),
                                                    0.5, counts)
    yield "per_token_cast_with_precomputed_sf", (x, "e2m1", 32, sf)
    yield "per_token_cast_with_precomputed_sf", ((e4m3, sf), "e4m3", 32, sf * 2, (1, 32))
    yield "per_block_cast_with_precomputed_sf", (x, "e4m3", (1, 32), sf)
    yield "per_channel_cast", (x, "e4m3", 4)
    yield "per_channel_cast_fused", (x.bfloat16(), "e4m3", 4, True)
    yield "per_channel_cast_fused", (x, "e4m3", 4, False, None, rows)
    yield "per_channel_cast_fused", ((e4m3, sf), "e4m3", 4, False, 32, rows)
    yield "per_channel_cast_and_transpose", (x, "e4m3", 4, True)
    yield "cast_back", ((e4m3, sf), "bf16", (1, 32))
    yield "cast_back", (e2m1, "fp32", (2, 16))
    yield "cast_back", (reference.cast_to_e5m6(x, 32), "fp32", (1, 32), "e5m6")
    yield "cast_back_e5m6", (reference.cast_to_e5m6(x, 32), "bf16", (1, 32))
    yield "per_token_cast_back", ((e4m3, sf), "fp32", 32)
    yield "unpack_from_e2m1fn_x2", (e2m1[0],)
    yield "unpack_from_e2m1fn_x2", (e2m1[0], torch.bfloat16)
    yield "swiglu_forward_and_per_token_cast", (x.bfloat16(), "e2m1", 16)
    for is_plain in (False, True):
        yield "swiglu_forward_and_per_channel_cast_and_transpose", (x, "e4m3", 4, True, is_plain, 0.5)
    rest = x[:, :32].bfloat16(), weights, pairs, positions, 32
    yield "swiglu_backward_and_per_token_cast", ((e4m3, sf), *rest)
    yield "swiglu_backward_and_per_token_cast", ((e4m3.view(2, 3, 64), sf.view(2, 3, 2)), *rest, True, 0.5)


def clone(t):
    """With its strides: they tell the layout of factors."""
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(t)


def copies(tree):
    return tree_map_only(torch.Tensor, clone, tree)


def tensors_in(*trees):
    return [t for t in tree_leaves(trees) if isinstance(t, torch.Tensor)]


CASES = [f"{i}-{name}" for i, (name, _) in enumerate(cases("cpu"))]


def case_of(identity, device):
    return next(itertools.islice(cases(device), int(identity.split("-")[0]), None))


def test_every_function_has_cases():
    assert {name for name, _ in cases("cpu")} == set(FUNCTIONS)


@pytest.mark.parametrize("case", CASES)
def test_out(case, device):
    name, args = case_of(case, device)
    want = FUNCTIONS[name](*copies(args))
    outs = tuple(torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device) for t in flat(want))
    seen = FUNCTIONS[name](*copies(args), out=outs if len(outs) > 1 else outs[0])
    for a, b, given in zip(flat(seen), flat(want), outs, strict=True):
        assert a is given
        assert_equal(a, b)


def check_some_of_out(function, call, args, device):
    """None stands for what is to be made; of the others each is given once."""
    want = flat(function(*copies(args)))
    for i, t in enumerate(want):
        out = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device)
        version = out._version
        seen = flat(call(copies(args), tuple(out if j == i else None for j in range(len(want)))))
        assert seen[i] is out and out._version > version
        for a, b in zip(seen, want, strict=True):
            assert described(a) == described(b)
            assert_equal(a, b)


def test_some_of_out(device):
    for name, args in cases(device):
        function = FUNCTIONS[name]
        if isinstance(function(*copies(args)), tuple):
            check_some_of_out(function, lambda args, out: function(*args, out=out), args, device)


@on_one_device
def test_some_of_out_compiled(device):
    x = torch.randn(6, 64, device=device)
    for function, args in ((quant.per_token_cast, (x, "e2m1", 16, None, True, True, True)),
                           (quant.per_channel_cast_fused, (x, "e4m3", 4))):
        call = torch.compile(lambda args, out: function(*args, out=out), fullgraph=True, backend="aot_eager")
        check_some_of_out(function, call, args, device)


def test_none_of_out(device):
    x = torch.randn(6, 64, device=device)
    for a, b in zip(quant.per_token_cast(x, "e4m3", 32, out=(None, None)), quant.per_token_cast(x, "e4m3", 32)):
        assert_equal(a, b)
    for bad in ((None,), (None,) * 3, [None, None]):
        with pytest.raises(TypeError, match="^out: is a <class .*>, want a tuple of 2 tensors$"):
            quant.per_token_cast(x, "e4m3", 32, out=bad)
    pair = quant.per_token_cast(x, "e4m3", 32)
    with pytest.raises(TypeError, match="^out: is a <class 'tuple'>, want a tensor$"):
        quant.cast_back(pair, "fp32", (1, 32), out=(None,))


# ---- as torch operators ----

class Recorder(TorchDispatchMode):
    """The calls of our operators."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "tegula":
            self.calls.append((function, copies(args), copies(kwargs or {})))
        return function(*args, **(kwargs or {}))


def operator_of(case, device):
    """The operator that a case calls, and its arguments."""
    name, args = case_of(case, device)
    with Recorder() as recorder:
        FUNCTIONS[name](*args)
    call, = recorder.calls
    return call


@on_one_device
@pytest.mark.parametrize("case", CASES)
def test_opcheck(case, device):
    op, args, kwargs = operator_of(case, device)
    outs = flat(op(*copies(args), **kwargs))
    names = ["out"] if len(outs) == 1 else [f"out{i}" for i in range(len(outs))]

    def tests(*compared):
        """torch cannot compare tensors of e4m3, to see whether they were written to."""
        is_fp8 = any(t.dtype == torch.float8_e4m3fn for t in tensors_in(compared))
        return ["test_schema"][is_fp8:] + [
            "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]

    torch.library.opcheck(op, args, kwargs, test_utils=tests(args))
    packet = getattr(torch.ops.tegula, op.__name__.split(".")[0])
    torch.library.opcheck(packet.out, args, dict(zip(names, outs)), test_utils=tests(args, outs))


@on_one_device
@pytest.mark.parametrize("case", CASES)
def test_one_tensor_on_meta(case, device):
    op, args, kwargs = operator_of(case, device)
    args = [kwargs.get(a.name, a.default_value) if i >= len(args) else args[i]
            for i, a in enumerate(op._schema.arguments)]
    check_devices(getattr(torch.ops.tegula, op.__name__.split(".")[0]), args, flat(op(*copies(args))))


@on_one_device
@pytest.mark.parametrize("case", CASES)
def test_compile(case, device):
    name, args = case_of(case, device)
    mine, theirs = copies(args), copies(args)
    seen = torch.compile(FUNCTIONS[name], fullgraph=True, backend="aot_eager")(*mine)
    want = FUNCTIONS[name](*theirs)
    for a, b in zip(tensors_in(seen, mine), tensors_in(want, theirs), strict=True):
        assert_equal(a, b)


@on_one_device
@pytest.mark.parametrize("case", CASES)
def test_fake_tensors(case, device):
    """Shapes, strides and dtypes of tensors without data, through the public function."""
    name, args = case_of(case, device)
    want = [described(t) for t in tensors_in(FUNCTIONS[name](*copies(args)))]
    with FakeTensorMode() as mode:
        fakes = tree_map_only(torch.Tensor, mode.from_tensor, args)
        assert [described(t) for t in tensors_in(FUNCTIONS[name](*fakes))] == want


def test_compiled_pipeline(device):
    """An expert's two products as a model writes them, with a token count that changes."""
    up, down = (torch.randn(64, 64, device=device) for _ in range(2))

    def expert(x):
        pair = quant.per_token_cast(x, "e4m3", 32, None, True, True, True)
        hidden = quant.per_token_cast_back(pair, "bf16", 32).float() @ up
        pair = quant.swiglu_forward_and_per_token_cast(hidden, "e4m3", 16, swiglu_clamp_value=10.0)
        out = quant.cast_back(pair, "fp32", (1, 16)) @ down[:32]
        return out, quant.per_channel_cast_fused(x, "e4m3", 8)[1]

    compiled = torch.compile(expert, fullgraph=True, dynamic=True, backend="aot_eager")
    for num_tokens in (3, 17, 64):
        x = torch.randn(num_tokens, 64, device=device)
        for seen, want in zip(compiled(x), expert(x), strict=True):
            assert_equal(seen, want)


def test_no_gradient(device):
    x = torch.randn(4, 32, device=device)

    def rounded(x):
        return quant.per_token_cast_back(quant.per_token_cast(x, "e4m3", 32), "fp32", 32)

    for transform in (torch.func.grad(lambda x: rounded(x).sum()), lambda x: torch.func.jvp(rounded, (x,), (x,))):
        with pytest.raises(NotImplementedError, match=r"^per_token_cast(_back)?\(\) has no gradient: "):
            transform(x)
    straight_through = torch.func.grad(lambda x: (x + (rounded(x) - x).detach()).sum())(x)
    assert torch.equal(straight_through, torch.ones_like(x))
    for seen, row in zip(torch.func.vmap(lambda x: rounded(x[None]))(x), x, strict=True):
        assert_equal(seen, rounded(row[None]))


# ---- errors ----

PACKED = "^use_packed_ue8m0: is True, want use_tma_aligned_col_major_sf and round_sf True, too$"


def backward_rest(x):
    """Arguments of swiglu_backward_and_per_token_cast after x."""
    slots = torch.zeros(6, dtype=torch.int32, device=x.device)
    return x[:, :32].bfloat16(), torch.ones(3, 2, device=x.device), slots, slots.view(3, 2), 32


# What flags, words, block sizes and dimensions tell, with data or without.
ERRORS = [
    (lambda x, p: quant.per_token_cast(x, "e4m3", 32, None, False, True, True), PACKED),
    (lambda x, p: quant.per_token_cast(x, "e4m3", 32, None, True, False, True), PACKED),
    (lambda x, p: quant.per_token_cast_with_sf_only(x, "e4m3", 32, use_packed_ue8m0=True), PACKED),
    (lambda x, p: quant.per_block_cast(x, "e4m3", (4, 32), use_packed_ue8m0=True), PACKED),
    (lambda x, p: quant.per_block_cast_with_sf_only(x, "e4m3", (4, 32), use_packed_ue8m0=True), PACKED),
    (lambda x, p: quant.swiglu_forward_and_per_token_cast(x, "e4m3", 32, use_packed_ue8m0=True), PACKED),
    (lambda x, p: quant.per_block_cast_lossless(p, "e4m3", (1, 32), (1, 64), False, True, True),
     "^use_packed_ue8m0: is True, want use_tma_aligned_col_major_sf True, too$"),
    (lambda x, p: quant.per_token_cast(x, "e4m3", 32, (1, 32)),
     r"^x_block_size: is \(1, 32\), want None where x comes without sf$"),
    (lambda x, p: quant.per_token_cast((x, None), "e4m3", 32, (1, 32)),
     r"^x_block_size: is \(1, 32\), want None where x comes without sf$"),
    (lambda x, p: quant.per_token_cast(p, "e4m3", 32),
     r"^x_block_size: is None, want two integers where x is a pair \(data, sf\)$"),
    (lambda x, p: quant.per_token_cast(x, "e5m2", 32),
     "^fmt: is 'e5m2', want one of 'e4m3', 'e2m1', 'e5m6'$"),
    (lambda x, p: quant.per_block_cast(x, "e5m6", (4, 32)), "^fmt: is 'e5m6', want one of 'e4m3', 'e2m1'$"),
    (lambda x, p: quant.per_channel_cast(x, "e2m1", 4), "^fmt: is 'e2m1', want one of 'e4m3'$"),
    (lambda x, p: quant.per_token_cast(x, "e4m3", 0), "^num_per_channels: is 0, want >= 1$"),
    (lambda x, p: quant.per_channel_cast(x, "e4m3", 0), "^num_per_tokens: is 0, want >= 1$"),
    (lambda x, p: quant.per_channel_cast_fused(x, "e4m3", 4, False, 32),
     "^num_per_channels: is 32, want None where x comes without sf$"),
    (lambda x, p: quant.per_channel_cast_fused(p, "e4m3", 4),
     r"^num_per_channels: is None, want an integer where x is a pair \(data, sf\)$"),
    (lambda x, p: quant.cast_back(p, "fp16", (1, 32)), "^fmt: is 'fp16', want one of 'bf16', 'fp32'$"),
    (lambda x, p: quant.cast_back(p, "fp32", (1, 32), "e3m8"),
     "^x_special_fmt: is 'e3m8', want None or 'e5m6'$"),
    (lambda x, p: quant.swiglu_forward_and_per_token_cast(
        x, "e4m3", 32, clamped_count=torch.zeros(3, dtype=torch.int64, device=x.device)),
     "^clamped_count: is given, want None where swiglu_clamp_value is None$"),
    (lambda x, p: quant.per_token_cast_with_precomputed_sf(x, "e4m3", 32, p[1], use_packed_ue8m0=True),
     PACKED),
    (lambda x, p: quant.per_block_cast_with_precomputed_sf(x, "e4m3", (1, 32), p[1], True),
     "^use_tma_aligned_col_major_sf: is True, want False: sf's dtype and strides tell its layout$"),
    (lambda x, p: quant.per_block_cast_with_precomputed_sf(x, "e4m3", (1, 32), p[1], False, True, True),
     "^use_packed_ue8m0: is True, want False: sf's dtype and strides tell its layout$"),
    (lambda x, p: quant.per_token_cast(p, "e5m6", 32, (1, 32)),
     r"^x: is a pair \(data, sf\), want a tensor for e5m6$"),
    (lambda x, p: per_token_cast_to_e5m6(p, 32), r"^x: is a pair \(data, sf\), want a tensor for e5m6$"),
    (lambda x, p: quant.per_block_cast(x, "e4m3", (-1, 32)),
     r"^block_size: is \(-1, 32\), want two integers >= 1$"),
    (lambda x, p: quant.per_block_cast_with_sf_only(x, "e4m3", (4, 0)),
     r"^block_size: is \(4, 0\), want two integers >= 1$"),
    (lambda x, p: quant.per_block_cast_with_precomputed_sf(x, "e4m3", (0, 32), p[1]),
     r"^block_size: is \(0, 32\), want two integers >= 1$"),
    (lambda x, p: quant.per_token_cast_with_precomputed_sf(x, "e4m3", 0, p[1]),
     "^num_per_channels: is 0, want >= 1$"),
    (lambda x, p: quant.per_token_cast(p, "e4m3", 32, (0, 32)),
     r"^x_block_size: is \(0, 32\), want two integers >= 1$"),
    (lambda x, p: quant.cast_back(p, "fp32", (1, -32)),
     r"^x_block_size: is \(1, -32\), want two integers >= 1$"),
    (lambda x, p: cast_back_e5m6(p, "fp32", (0, 0)), r"^x_block_size: is \(0, 0\), want two integers >= 1$"),
    (lambda x, p: quant.per_token_cast_back(p, "fp32", -1), "^num_per_channels: is -1, want >= 1$"),
    (lambda x, p: quant.per_channel_cast_fused(p, "e4m3", 4, False, 0),
     "^num_per_channels: is 0, want >= 1$"),
    (lambda x, p: quant.per_block_cast_lossless(p, "e4m3", (0, 32), (0, 0)),
     r"^x_block_size: is \(0, 32\), want two integers >= 1$"),
    (lambda x, p: quant.per_block_cast_lossless(p, "e4m3", (1, 32), (0, 0)),
     r"^out_block_size: is \(0, 0\), want two integers >= 1$"),
    (lambda x, p: quant.per_block_cast_lossless(p, "e4m3", (2, 32), (3, 32)),
     r"^out_block_size: is \(3, 32\), want multiples of x_block_size, \(2, 32\)$"),
    (lambda x, p: quant.per_block_cast_lossless(p, "e4m3", (1, 32), (1, 48)),
     r"^out_block_size: is \(1, 48\), want multiples of x_block_size, \(1, 32\)$"),
    (lambda x, p: quant.swiglu_backward_and_per_token_cast((*p, x), *backward_rest(x)),
     "^x: has 3 items, want 2$"),
    (lambda x, p: quant.swiglu_backward_and_per_token_cast(p, x.flatten()[0], *backward_rest(x)[1:]),
     "^grad_out: has 0 dimensions, want 2$"),
    (lambda x, p: quant.per_token_cast(x[0], "e4m3", 32), "^x: has 1 dimensions, want 2$"),
]
# What needs the tensors themselves.
ERRORS_OF_DATA = [
    (lambda x, p: quant.per_token_cast(x[:, :63], "e2m1", 32), "^x: columns are 63, want a multiple of 2"),
    (lambda x, p: quant.per_token_cast(x[:, :60], "e5m6", 64), "^x: columns are 60, want a multiple of 8"),
    (lambda x, p: quant.per_token_cast_with_sf_only(x[:, :63], "e2m1", 32),
     "^x: columns are 63, want a multiple of 2"),
    (lambda x, p: quant.per_token_cast_with_sf_only(x[:, :60], "e5m6", 64),
     "^x: columns are 60, want a multiple of 8"),
    (lambda x, p: quant.per_block_cast_with_sf_only(x[:, :63], "e2m1", (4, 32)),
     "^x: columns are 63, want a multiple of 2"),
    (lambda x, p: quant.per_token_cast(x.half(), "e4m3", 32), "^x: dtype is f16, want "),
    (lambda x, p: quant.per_token_cast(x.t(), "e4m3", 32), "^x: strides are"),
    (lambda x, p: quant.per_token_cast_with_precomputed_sf(x, "e4m3", 32, p[1][:, :1]), "^sf: "),
    (lambda x, p: quant.cast_back(p, "fp32", (1, 32), "e5m6"), "^x: dtype is e4m3, want u8"),
    (lambda x, p: quant.cast_back(p, "fp32", (1, 16)), "^x_sf: "),
    (lambda x, p: quant.cast_back((x.bfloat16(), p[1]), "fp32", (1, 32)),
     "^x: dtype is bf16, want i8, u8, e4m3 or e2m1x2$"),
    (lambda x, p: quant.per_token_cast_back((x, p[1]), "fp32", 32), "^x: dtype is f32, want i8, u8, e4m3 or e2m1x2$"),
    (lambda x, p: quant.per_token_cast_back((x.double(), p[1]), "fp32", 32),
     "^x: dtype is f64, want i8, u8, e4m3 or e2m1x2$"),
    (lambda x, p: quant.cast_back((x.to(torch.float8_e5m2fnuz), p[1]), "fp32", (1, 32)),
     "^x: dtype is code 13 with 8 bits, want i8, u8, e4m3 or e2m1x2$"),
    (lambda x, p: quant.swiglu_forward_and_per_token_cast(x[:, :63], "e4m3", 32),
     "^x: columns are 63, want an even number"),
    (lambda x, p: quant.swiglu_forward_and_per_token_cast(
        x, "e4m3", 32, torch.zeros(6, dtype=torch.int32, device=x.device)), "^topk_weights: "),
    (lambda x, p: quant.swiglu_forward_and_per_token_cast(x, "e4m3", 32, swiglu_clamp_value=-1.0),
     "^swiglu_clamp_value: is -1, want >= 0"),
]


@pytest.mark.parametrize("call, message", ERRORS + ERRORS_OF_DATA, ids=range(len(ERRORS + ERRORS_OF_DATA)))
def test_errors(call, message, device):
    x = torch.randn(6, 64, device=device)
    pair = reference.cast(x, "e4m3", (1, 32))
    with pytest.raises(ValueError, match=message):
        call(x, pair)


@pytest.mark.parametrize("call, message", ERRORS, ids=range(len(ERRORS)))
def test_errors_without_data(call, message):
    """Tracing refuses what the call will."""
    x = torch.randn(6, 64)
    pair = reference.cast(x, "e4m3", (1, 32))
    with FakeTensorMode() as mode, pytest.raises(ValueError, match=message):
        call(mode.from_tensor(x), tuple(map(mode.from_tensor, pair)))


def test_errors_of_types(device):
    x = torch.randn(6, 64, device=device)
    sf = quant.per_token_cast_with_sf_only(x, "e4m3", 32)
    for function, block in ((quant.per_token_cast_with_precomputed_sf, 32),
                            (quant.per_block_cast_with_precomputed_sf, (1, 32))):
        for name in ("use_tma_aligned_col_major_sf", "round_sf", "use_packed_ue8m0"):
            for flag in ("yes", object()):
                with pytest.raises(TypeError, match=f"^{name}: is .*, want True or False$"):
                    function(x, "e4m3", block, sf, **{name: flag})
        for flag in (True, 1, 0, numpy.True_, numpy.False_):
            assert_equal(function(x, "e4m3", block, sf, round_sf=flag), function(x, "e4m3", block, sf))
    with pytest.raises(TypeError, match="^block_size: is 'a', want an integer$"):
        quant.per_block_cast(x, "e4m3", (1, "a"))
    pair = quant.per_token_cast(x, "e4m3", 32)
    for bad in (x, None):
        with pytest.raises(TypeError, match="^x: is <class .*>, want a pair$"):
            quant.swiglu_backward_and_per_token_cast(bad, *backward_rest(x))
    with pytest.raises(TypeError, match="^grad_out: is a <class 'NoneType'>, want a tensor$"):
        quant.swiglu_backward_and_per_token_cast(pair, None, *backward_rest(x)[1:])


def test_errors_of_tracing(device):
    """As eager calls have them, torch's words around; sizes may be symbolic."""
    x = torch.randn(6, 64, device=device)
    for call, message in (
            (lambda x: quant.per_token_cast(x, "e5m2", 32), "fmt: is 'e5m2', want one of"),
            (lambda x: quant.per_block_cast(x, "e4m3", (0, x.shape[1])), r"block_size: is \(0, 64\)")):
        with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match=message):
            torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")(x)

    class Packed(torch.nn.Module):
        def forward(self, x):
            return torch.ops.tegula.per_token_cast(x, None, None, None, "e4m3", 32, False, False, True)

    with pytest.raises(Exception, match="use_packed_ue8m0: is True, want"):
        torch.export.export(Packed(), (x,))


def test_operators_refuse_unrounded_packed_factors(device):
    with pytest.raises(ValueError, match="round_sf"):
        x = torch.randn(6, 64, device=device)
        torch.ops.tegula.per_token_cast(x, None, 1, 0, "e4m3", 32, True, False, True)
