# SPDX-License-Identifier: MIT
"""The casts from Python: what Python adds to them, and what they refuse. test_quant_casts.py and test_quant_swiglu.py
compare their results with plain torch; test_ops.py has what holds for all functions."""
import numpy
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tegula.torch as reference
from tegula import quant as q
from tegula.quant.cast_back_e5m6_kernel import cast_back_e5m6
from tegula.quant.per_token_cast_to_e5m6_kernel import per_token_cast_to_e5m6
from tegula.testing import assert_equal


@pytest.mark.parametrize("fmt", ["e5m6", "e5m2", None])
def test_reference_of_other_formats(fmt):
    """Eight numbers of e5m6 share words, which its own reference makes."""
    x = torch.full((1, 8), 1000.0)
    for sf in (None, torch.full((1, 1), 1e-3)):
        with pytest.raises(ValueError, match="^fmt: is .*, want 'e4m3' or 'e2m1'"):
            reference.cast(x, fmt, (1, 8), sf)


# ---- unpack_from_e2m1fn_x2: shapes, strides and dtypes are Python's ----

@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float64], ids=str)
def test_unpack(dtype, device):
    """Of any shape and strides, into an out= of any strides."""
    x = torch.randint(-128, 128, (4, 6), dtype=torch.int8, device=device)
    cube = x.view(2, 2, 6)
    for view in (x, x.view(torch.uint8), x[:, ::2], x[0, ::2], x[:, 0], x[::2], x[:, :3], x.t(), x.t()[::2],
                 x[:1].expand(3, 6), x[0, :1].expand(5), x[:, 1:2], x[1, 1:2], cube, cube[:, 0], cube[..., 1::3],
                 cube.permute(2, 0, 1), x[:0, ::2], x[0, :0:2], cube[..., :0]):
        want = reference.unpack_from_e2m1fn_x2(view.contiguous(), dtype)
        assert_equal(q.unpack_from_e2m1fn_x2(view, dtype), want)
        wide = torch.empty(*want.shape[:-1], 2 * want.shape[-1], dtype=dtype, device=device)
        for out in (torch.empty_like(want), wide[..., :want.shape[-1]], wide[..., ::2]):
            assert q.unpack_from_e2m1fn_x2(view, dtype, out=out) is out
            assert_equal(out.contiguous(), want)


def test_unpack_numpy():
    x = numpy.random.default_rng(0).integers(-128, 128, (4, 6), numpy.int8)
    for view in (x, x[::-1], x[0, ::-1], x[:, ::-2], numpy.broadcast_to(x[0], (3, 6))):
        numbers = reference.unpack_from_e2m1fn_x2(torch.from_numpy(view.copy())).numpy()
        for dtype in (None, numpy.float32, numpy.dtype("float16"), numpy.float64, numpy.int32, torch.float32):
            seen = q.unpack_from_e2m1fn_x2(view, dtype)
            want = numbers.astype("float32" if dtype in (None, torch.float32) else dtype)
            assert seen.dtype == want.dtype and (seen == want).all()
            out = numpy.zeros_like(want)
            assert q.unpack_from_e2m1fn_x2(view, dtype, out=out) is out and (out == want).all()
    with pytest.raises(TypeError, match="^out_dtype: is 'foo', want a dtype$"):
        q.unpack_from_e2m1fn_x2(x, "foo")


@pytest.mark.parametrize("call, error, message", [
    (lambda x: q.unpack_from_e2m1fn_x2(x[0, 0]), ValueError, "x: has 0 dimensions, want 1 or more$"),
    (lambda x: q.unpack_from_e2m1fn_x2(x.float()), ValueError, "x: dtype is f32"),
    (lambda x: q.unpack_from_e2m1fn_x2([1, 2]), TypeError, "x: is a <class 'list'>, want a tensor$"),
    (lambda x: q.unpack_from_e2m1fn_x2(x, "cpu"), TypeError, "out_dtype: is 'cpu', want a dtype$"),
    (lambda x: q.unpack_from_e2m1fn_x2(x, 5), TypeError, "out_dtype: is 5, want a dtype$"),
    (lambda x: q.unpack_from_e2m1fn_x2(x, [torch.float32]), TypeError, "out_dtype: is .torch.float32., want a dtype$"),
    (lambda x: q.unpack_from_e2m1fn_x2(x, out=x.float()), ValueError, r"out: shape is \[3, 5\], want \[3, 10\]$"),
    (lambda x: q.unpack_from_e2m1fn_x2(x, torch.bfloat16, out=x.float().repeat(1, 2)), ValueError,
     "out: dtype is float32, want bfloat16$"),
    (lambda x: q.unpack_from_e2m1fn_x2(x, out=[1]), TypeError, "out: is a <class 'list'>, want a tensor$"),
    (lambda x: q.unpack_from_e2m1fn_x2(x, out="out"), TypeError, "out: is a <class 'str'>, want a tensor$"),
], ids=range(10))
def test_unpack_errors(call, error, message, device):
    with pytest.raises(error, match="^" + message):
        call(torch.zeros(3, 5, dtype=torch.int8, device=device))


# ---- gradients ----

def test_no_gradient(device):
    x = torch.randn(4, 32, device=device)

    def rounded(x):
        return q.per_token_cast_back(q.per_token_cast(x, "e4m3", 32), "fp32", 32)

    for transform in (torch.func.grad(lambda x: rounded(x).sum()), lambda x: torch.func.jvp(rounded, (x,), (x,))):
        with pytest.raises(NotImplementedError, match=r"^per_token_cast(_back)?\(\) has no gradient: "):
            transform(x)
    straight_through = torch.func.grad(lambda x: (x + (rounded(x) - x).detach()).sum())(x)
    assert torch.equal(straight_through, torch.ones_like(x))
    for seen, row in zip(torch.func.vmap(lambda x: rounded(x[None]))(x), x, strict=True):
        assert_equal(seen, rounded(row[None]))


# ---- errors: of flags, words, numbers and dimensions, with data or without ----

def backward_rest(x):
    """Arguments of swiglu_backward_and_per_token_cast after x."""
    slots = torch.zeros(6, dtype=torch.int32, device=x.device)
    return x[:, :32].bfloat16(), torch.ones(3, 2, device=x.device), slots, slots.view(3, 2), 32


ERRORS = {      # x is a matrix, p a pair
    "use_packed_ue8m0: is True, want use_tma_aligned_col_major_sf and round_sf True, too": [
        lambda x, p: q.per_token_cast(x, "e4m3", 32, None, False, True, True),
        lambda x, p: q.per_token_cast(x, "e4m3", 32, None, True, False, True),
        lambda x, p: torch.ops.tegula.per_token_cast(x, None, None, None, "e4m3", 32, True, False, True),
        lambda x, p: q.per_token_cast_with_sf_only(x, "e4m3", 32, use_packed_ue8m0=True),
        lambda x, p: q.per_token_cast_with_precomputed_sf(x, "e4m3", 32, p[1], use_packed_ue8m0=True),
        lambda x, p: q.per_block_cast(x, "e4m3", (4, 32), use_packed_ue8m0=True),
        lambda x, p: q.per_block_cast_with_sf_only(x, "e4m3", (4, 32), use_packed_ue8m0=True),
        lambda x, p: q.swiglu_forward_and_per_token_cast(x, "e4m3", 32, use_packed_ue8m0=True)],
    "use_packed_ue8m0: is True, want use_tma_aligned_col_major_sf True, too": [
        lambda x, p: q.per_block_cast_lossless(p, "e4m3", (1, 32), (1, 64), False, True, True)],
    "use_tma_aligned_col_major_sf: is True, want False: sf's dtype and strides tell its layout": [
        lambda x, p: q.per_block_cast_with_precomputed_sf(x, "e4m3", (1, 32), p[1], True)],
    "use_packed_ue8m0: is True, want False: sf's dtype and strides tell its layout": [
        lambda x, p: q.per_block_cast_with_precomputed_sf(x, "e4m3", (1, 32), p[1], False, True, True)],
    "x: is a pair (data, sf), want a tensor for e5m6": [
        lambda x, p: q.per_token_cast(p, "e5m6", 32, (1, 32)),
        lambda x, p: per_token_cast_to_e5m6(p, 32)],
    "x: has 3 items, want 2": [
        lambda x, p: q.swiglu_backward_and_per_token_cast((*p, x), *backward_rest(x))],
    "x: has 1 dimensions, want 2": [lambda x, p: q.per_token_cast(x[0], "e4m3", 32)],
    "grad_out: has 0 dimensions, want 2": [
        lambda x, p: q.swiglu_backward_and_per_token_cast(p, x.flatten()[0], *backward_rest(x)[1:])],
    "fmt: is 'e5m2', want one of 'e4m3', 'e2m1', 'e5m6'": [lambda x, p: q.per_token_cast(x, "e5m2", 32)],
    "fmt: is 'e5m6', want one of 'e4m3', 'e2m1'": [lambda x, p: q.per_block_cast(x, "e5m6", (4, 32))],
    "fmt: is 'e2m1', want one of 'e4m3'": [lambda x, p: q.per_channel_cast(x, "e2m1", 4)],
    "fmt: is 'fp16', want one of 'bf16', 'fp32'": [lambda x, p: q.cast_back(p, "fp16", (1, 32))],
    "x_special_fmt: is 'e3m8', want None or 'e5m6'": [lambda x, p: q.cast_back(p, "fp32", (1, 32), "e3m8")],
    "x_block_size: is (1, 32), want None where x comes without sf": [
        lambda x, p: q.per_token_cast(x, "e4m3", 32, (1, 32)),
        lambda x, p: q.per_token_cast((x, None), "e4m3", 32, (1, 32))],
    "x_block_size: is None, want two integers where x is a pair (data, sf)": [
        lambda x, p: q.per_token_cast(p, "e4m3", 32)],
    "x_block_size: is (0, 32), want two integers >= 1": [
        lambda x, p: q.per_token_cast(p, "e4m3", 32, (0, 32)),
        lambda x, p: q.cast_back(p, "fp32", (0, 32)),
        lambda x, p: cast_back_e5m6(p, "fp32", (0, 32)),
        lambda x, p: q.per_block_cast_lossless(p, "e4m3", (0, 32), (0, 0))],
    "block_size: is (4, -1), want two integers >= 1": [
        lambda x, p: q.per_block_cast(x, "e4m3", (4, -1)),
        lambda x, p: q.per_block_cast_with_sf_only(x, "e4m3", (4, -1)),
        lambda x, p: q.per_block_cast_with_precomputed_sf(x, "e4m3", (4, -1), p[1])],
    "out_block_size: is (0, 0), want two integers >= 1": [
        lambda x, p: q.per_block_cast_lossless(p, "e4m3", (1, 32), (0, 0))],
    "out_block_size: is (3, 32), want multiples of x_block_size, (2, 32)": [
        lambda x, p: q.per_block_cast_lossless(p, "e4m3", (2, 32), (3, 32))],
    "out_block_size: is (1, 48), want multiples of x_block_size, (1, 32)": [
        lambda x, p: q.per_block_cast_lossless(p, "e4m3", (1, 32), (1, 48))],
    "num_per_channels: is 0, want >= 1": [
        lambda x, p: q.per_token_cast(x, "e4m3", 0),
        lambda x, p: q.per_token_cast_with_precomputed_sf(x, "e4m3", 0, p[1]),
        lambda x, p: q.per_token_cast_back(p, "fp32", 0),
        lambda x, p: q.per_channel_cast_fused(p, "e4m3", 4, False, 0)],
    "num_per_channels: is 32, want None where x comes without sf": [
        lambda x, p: q.per_channel_cast_fused(x, "e4m3", 4, False, 32)],
    "num_per_channels: is None, want an integer where x is a pair (data, sf)": [
        lambda x, p: q.per_channel_cast_fused(p, "e4m3", 4)],
    "num_per_tokens: is 0, want >= 1": [lambda x, p: q.per_channel_cast(x, "e4m3", 0)],
    "clamped_count: is given, want None where swiglu_clamp_value is None": [
        lambda x, p: q.swiglu_forward_and_per_token_cast(
            x, "e4m3", 32, clamped_count=torch.zeros(3, dtype=torch.int64, device=x.device))],
}
ERRORS_OF_DTYPES = {        # while tracing there is none
    "x: dtype is bf16, want i8, u8, e4m3 or e2m1x2": [
        lambda x, p: q.cast_back((x.bfloat16(), p[1]), "fp32", (1, 32))],
    "x: dtype is f64, want i8, u8, e4m3 or e2m1x2": [
        lambda x, p: q.per_token_cast_back((x.double(), p[1]), "fp32", 32)],
    "x: dtype is code 13 with 8 bits, want i8, u8, e4m3 or e2m1x2": [
        lambda x, p: q.cast_back((x.to(torch.float8_e5m2fnuz), p[1]), "fp32", (1, 32))],
    "x: dtype is e4m3, want u8": [lambda x, p: q.cast_back(p, "fp32", (1, 32), "e5m6")],
}


def check_errors(errors, x):
    pair = reference.cast(x, "e4m3", (1, 32))
    for message, calls in errors.items():
        for i, call in enumerate(calls):
            with pytest.raises(ValueError) as raised:
                call(x, pair)
            assert str(raised.value) == message, i


def test_errors(device):
    check_errors(ERRORS | ERRORS_OF_DTYPES, torch.randn(6, 64, device=device))


def test_errors_without_data():
    """Tracing refuses what the call will."""
    with FakeTensorMode():
        check_errors(ERRORS, torch.randn(6, 64))


def test_errors_of_types(device):
    x = torch.randn(6, 64, device=device)
    sf = q.per_token_cast_with_sf_only(x, "e4m3", 32)
    for function, block in ((q.per_token_cast_with_precomputed_sf, 32),
                            (q.per_block_cast_with_precomputed_sf, (1, 32))):
        for name in ("use_tma_aligned_col_major_sf", "round_sf", "use_packed_ue8m0"):
            for flag in ("yes", object()):
                with pytest.raises(TypeError, match=f"^{name}: is .*, want True or False$"):
                    function(x, "e4m3", block, sf, **{name: flag})
        for flag in (True, 1, 0, numpy.True_, numpy.False_):
            assert_equal(function(x, "e4m3", block, sf, round_sf=flag), function(x, "e4m3", block, sf))
    with pytest.raises(TypeError, match="^block_size: is 'a', want an integer$"):
        q.per_block_cast(x, "e4m3", (1, "a"))
    pair = q.per_token_cast(x, "e4m3", 32)
    for bad in (x, None):
        with pytest.raises(TypeError, match="^x: is <class .*>, want a pair$"):
            q.swiglu_backward_and_per_token_cast(bad, *backward_rest(x))
    with pytest.raises(TypeError, match="^grad_out: is a <class 'NoneType'>, want a tensor$"):
        q.swiglu_backward_and_per_token_cast(pair, None, *backward_rest(x)[1:])


def test_errors_of_tracing(device):
    """As eager calls have them, torch's words around; sizes may be symbolic."""
    x = torch.randn(6, 64, device=device)
    for call, message in (
            (lambda x: q.per_token_cast(x, "e5m2", 32), "fmt: is 'e5m2', want one of"),
            (lambda x: q.per_block_cast(x, "e4m3", (0, x.shape[1])), r"block_size: is \(0, 64\)")):
        with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match=message):
            torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")(x)

    class Packed(torch.nn.Module):
        def forward(self, x):
            return torch.ops.tegula.per_token_cast(x, None, None, None, "e4m3", 32, False, False, True)

    with pytest.raises(Exception, match="use_packed_ue8m0: is True, want"):
        torch.export.export(Packed(), (x,))
