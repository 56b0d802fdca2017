# SPDX-License-Identifier: MIT
"""transpose and batched_transpose from Python, and what they show of the glue: dtypes, strides, errors, lazy views."""
import os
import sys

import pytest
import torch

import tegula
from tegula.testing import assert_equal
from tegula.transpose import batched_transpose, transpose

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64,
    torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32,
    torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2,
    torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2,
]


def random_bits(shape, dtype, device):
    """Any bit pattern, NaNs of all payloads and -0 among them; but a bool is 0 or 1."""
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, device=device).bool()
    *lead, last = shape
    if last == 0:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.randint(0, 256, (*lead, last * dtype.itemsize), dtype=torch.uint8, device=device).view(dtype)


def oracle(x):
    """Elements as rows of bytes, moved by numpy-style indexing: shares nothing with the library."""
    bytes_of = x.contiguous().view(torch.uint8).view(*x.shape, x.element_size())
    if x.numel() == 0:
        return x.new_empty(*x.shape[:-2], x.shape[-1], x.shape[-2])
    return bytes_of.transpose(-3, -2).contiguous().flatten(-2).view(x.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype, device):
    for shape in ((1, 1), (1, 33), (65, 1), (31, 37), (64, 128), (0, 5), (5, 0)):
        x = random_bits(shape, dtype, device)
        assert_equal(transpose(x), oracle(x))
    for shape in ((3, 31, 37), (2, 64, 64), (0, 4, 4), (7, 0, 3)):
        x = random_bits(shape, dtype, device)
        assert_equal(batched_transpose(x), oracle(x))


@pytest.mark.parametrize("function, view", [
    (transpose, lambda b: b[0].t()),
    (transpose, lambda b: b[0, :, ::2]),
    (transpose, lambda b: b[0, ::3]),
    (transpose, lambda b: b[0, 1:, 1:]),
    (transpose, lambda b: b[0, :1].expand(40, 50)),
    (transpose, lambda b: b[0, :1, :1].expand(40, 50)),
    (transpose, lambda b: b.flatten().as_strided((20, 20), (1, 1))),    # rows overlap
    (transpose, lambda b: b.as_strided((1, 50), (7, 1))),
    (batched_transpose, lambda b: b.permute(2, 1, 0)),
    (batched_transpose, lambda b: b.transpose(1, 2)),
    (batched_transpose, lambda b: b[::2, 1:, ::3]),
    (batched_transpose, lambda b: b[:1].expand(5, 40, 50)),
], ids=range(12))
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.complex128], ids=str)
def test_strides(function, view, dtype, device):
    x = view(random_bits((4, 40, 50), dtype, device))
    assert_equal(function(x), oracle(x))


def test_out_counts_as_a_write(device):
    """autograd must notice that a tensor which it saved was overwritten."""
    w, out = torch.ones(7, 5, device=device, requires_grad=True), torch.empty(7, 5, device=device)
    y = (w * out).sum()
    transpose(torch.randn(5, 7, device=device), out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def empty(x, *shape, **kwargs):
    return torch.empty(*shape, device=x.device, **kwargs)


@pytest.mark.parametrize("call, error, message", [
    (lambda x: transpose(), TypeError, r"transpose\(\): x is missing"),
    (lambda x: transpose(x, x), TypeError, r"transpose\(\) takes 1 positional arguments, got 2"),
    (lambda x: transpose(x, y=1), TypeError, r"transpose\(\) has no argument 'y'"),
    (lambda x: transpose(x, x=x), TypeError, r"transpose\(\): x is given twice"),
    (lambda x: transpose(None), TypeError, r"x: is a <class 'NoneType'>, want a tensor"),
    (lambda x: transpose([[1, 2]]), TypeError, r"x: is a <class 'list'>, want a tensor"),
    (lambda x: transpose(x[0]), ValueError, r"x: has 1 dimensions, want 2"),
    (lambda x: transpose(x.sum()), ValueError, r"x: has 0 dimensions, want 2"),
    (lambda x: batched_transpose(x), ValueError, r"x: has 2 dimensions, want 3"),
    (lambda x: transpose(x, out=3), TypeError, r"out: is a <class 'int'>, want a tensor"),
    (lambda x: transpose(x, out=empty(x, 5, 7)), ValueError, r"out: shape is \[5, 7\], want \[7, 5\]"),
    (lambda x: transpose(x, out=empty(x, 7, 5, 1)), ValueError, r"out: has 3 dimensions, want 2$"),
    (lambda x: transpose(x, out=empty(x, 1, 1, 1, 1, 1, 1, 7, 5)), ValueError, r"out: has 8 dimensions, want 2$"),
    (lambda x: transpose(x, out=empty(x, 7, 5, dtype=torch.int32)), ValueError, r"out: dtype is i32, want f32"),
    (lambda x: transpose(x, out=empty(x, 7, 10)[:, ::2]), ValueError, r"out: strides are \[10, 2\], want \[5, 1\]"),
    (lambda x: transpose(x[:5, :5], out=x.view(-1)[2:27].view(5, 5)), ValueError, r"out: .*overlap"),
    (lambda x: transpose(x.to_sparse()), ValueError, r"x: cannot be read: "),
], ids=range(17))
def test_errors(call, error, message, device):
    x = torch.randn(5, 7, device=device)
    references = sys.getrefcount(x)
    with pytest.raises(error, match="^" + message) as raised:
        call(x)
    assert "\n" not in str(raised.value)
    del raised
    assert sys.getrefcount(x) == references


def test_lazy_views(device):
    """Conjugation and negation that torch has only noted down."""
    z = torch.randn(5, 7, dtype=torch.complex64, device=device)
    for x in (z.conj(), z.conj().imag, z.conj().real, z.conj()[:, ::2], z.conj().imag.t()):
        assert torch.equal(transpose(x), x.resolve_conj().resolve_neg().t())
    with pytest.raises(ValueError, match="out: is conjugated or negated"):
        transpose(z, out=torch.empty(7, 5, dtype=torch.complex64, device=device).conj())


def test_pickle():
    import pickle
    assert pickle.loads(pickle.dumps(transpose)) is transpose


def test_reference(device):
    for dtype in DTYPES:
        x, b = random_bits((5, 7), dtype, device), random_bits((3, 5, 7), dtype, device)
        assert_equal(tegula.torch.transpose(x), oracle(x))
        assert_equal(tegula.torch.batched_transpose(b), oracle(b))


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("TEGULA_TEST_SLOW"), reason="needs 9 GB: TEGULA_TEST_SLOW=1")
def test_more_than_2_to_31_elements(device):
    x = torch.randint(0, 256, (46341, 46343), dtype=torch.uint8, device=device)
    assert torch.equal(transpose(x), x.t())
