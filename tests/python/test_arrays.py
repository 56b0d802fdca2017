# SPDX-License-Identifier: MIT
"""Arrays of other libraries: NumPy, and anything with __dlpack__()."""
import sys

import pytest

numpy = pytest.importorskip("numpy")
from tegula import _tegula                                      # noqa: E402
from tegula.transpose import batched_transpose, transpose       # noqa: E402


@pytest.mark.parametrize("dtype", [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
    "complex64", "complex128"])
def test_dtypes(dtype):
    x = numpy.random.default_rng(0).integers(0, 100, (31, 37)).astype(dtype)
    y = transpose(x)
    assert type(y) is numpy.ndarray and y.dtype == x.dtype and y.flags.c_contiguous
    assert (y == x.T).all()


@pytest.mark.parametrize("view", [
    lambda a: a[:, ::-1], lambda a: a[::-2, 1:], lambda a: a.T, lambda a: a[:0],
    lambda a: numpy.broadcast_to(a[:1], (9, 37))], ids=range(5))
def test_strides(view):
    x = view(numpy.arange(31 * 37.0).reshape(31, 37))
    assert (transpose(x) == x.T).all() and transpose(x).shape == x.T.shape


def test_batched():
    x = numpy.arange(2 * 3 * 5).reshape(2, 3, 5)
    assert (batched_transpose(x) == x.transpose(0, 2, 1)).all()


def test_read_only():
    x = numpy.ones((3, 5))
    x.flags.writeable = False
    assert (transpose(x) == 1).all()
    out = numpy.zeros((5, 3))
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out: is read-only"):
        transpose(x, out=out)
    assert (out == 0).all()


def test_out():
    x, out = numpy.arange(15.0).reshape(3, 5), numpy.empty((5, 3))
    assert transpose(x, out=out) is out and (out == x.T).all()
    with pytest.raises(ValueError, match=r"out: shape is \[3, 5\], want \[5, 3\]"):
        transpose(x, out=numpy.empty((3, 5)))


def test_references():
    x = numpy.ones((3, 5))
    count = sys.getrefcount(x)
    for _ in range(100):
        transpose(x)
        with pytest.raises(ValueError):
            batched_transpose(x)
    assert sys.getrefcount(x) == count


class Producer:
    """An array of a library that knows nothing of us."""

    def __init__(self, array, device=(1, 0), is_old=False):
        self.array, self.device, self.is_old, self.asked = array, device, is_old, []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **kwargs):
        self.asked.append(kwargs)
        if self.is_old and "max_version" in kwargs:
            raise TypeError("no such argument")
        if self.device[0] != 1:
            raise BufferError("this GPU is made of paper")
        return self.array.__dlpack__(**kwargs)


@pytest.mark.parametrize("is_old", [False, True])
def test_any_producer(is_old):
    x, out = Producer(numpy.arange(15.0).reshape(3, 5), is_old=is_old), numpy.empty((5, 3))
    assert transpose(x, out=out) is out and (out == x.array.T).all()
    assert x.asked == [{"max_version": (1, 0)}] + [{}] * is_old
    with pytest.raises(TypeError, match="no output can be made for a <class .*Producer'>: give out="):
        transpose(x)


@pytest.mark.parametrize("is_old", [False, True])
def test_cuda_producer_is_told_the_stream(is_old):
    """The legacy default stream is number 1 in DLPack's protocol. What the producer raises is what the
    caller sees."""
    x = Producer(None, device=(2, 0), is_old=is_old)
    with pytest.raises(BufferError, match="^x: cannot be read: this GPU is made of paper$"):
        transpose(x)
    assert x.asked == [{"max_version": (1, 0), "stream": 1}] + [{"stream": 1}] * is_old


def test_unreadable():
    with pytest.raises(TypeError, match="x: is a <class 'object'>, want a tensor"):
        transpose(object())
    for array in (numpy.array([["text"]]), numpy.zeros((2, 3), ">f4"), numpy.zeros((2, 3), "O")):
        with pytest.raises(BufferError, match="^x: cannot be read: .*DLPack"):
            transpose(array)
    with pytest.raises(BufferError, match="^out: cannot be read: .*DLPack"):
        transpose(numpy.zeros((2, 3), "f4"), out=numpy.zeros((3, 2), ">f4"))


@pytest.mark.parametrize("methods, message", [
    ({"__dlpack__": lambda self: None}, "x: is a <class '.*Odd'>, want a tensor"),
    ({"__dlpack_device__": lambda self: (1, 0)}, "x: is a <class '.*Odd'>, want a tensor"),
    ({"__dlpack__": lambda self: 5, "__dlpack_device__": lambda self: 5},
     r"x: __dlpack_device__\(\) is 5, want two integers"),
    ({"__dlpack__": lambda self: 5, "__dlpack_device__": lambda self: (1, "a")},
     r"x: __dlpack_device__\(\) is \(1, 'a'\), want two integers"),
    ({"__dlpack__": lambda self, **kw: 5, "__dlpack_device__": lambda self: (1, 0)},
     r"x: __dlpack__\(\) is 5, want a capsule of a tensor"),
], ids=range(5))
def test_odd_producers(methods, message):
    with pytest.raises(TypeError, match=message):
        transpose(type("Odd", (), methods)())


def test_a_device_of_another_kind():
    """OpenCL's, in a capsule of a type that torch would never give."""
    import ctypes

    class Remote(Producer):
        def __dlpack__(self, **kwargs):
            capsule = self.array.__dlpack__()
            pointer = ctypes.pythonapi.PyCapsule_GetPointer
            pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
            ctypes.c_int32.from_address(pointer(capsule, b"dltensor") + 8).value = 4
            return capsule

    with pytest.raises(ValueError, match="^x: is on an unknown device, want CPU or CUDA$"):
        transpose(Remote(numpy.ones((3, 5)), device=(4, 0)), out=numpy.ones((5, 3)))


class Forged:
    """A capsule of whatever is wanted; its memory is a row of 24 doubles unless said otherwise."""

    def __init__(self, is_versioned, ndim=2, shape=(3, 5), strides=None, has_memory=True, dtype=(2, 64, 1)):
        import ctypes

        def array(numbers):
            return None if numbers is None else (ctypes.c_int64 * len(numbers))(*numbers)

        class Tensor(ctypes.Structure):         # DLPack's ABI
            _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64)]

        self.held = memory, sizes, steps = (ctypes.c_double * 24)(*range(24)), array(shape), array(strides)
        tensor = Tensor(ctypes.addressof(memory) if has_memory else None, (1, 0), ndim, *dtype,
                        ctypes.addressof(sizes) if sizes else None, ctypes.addressof(steps) if steps else None, 0)
        before = b"\1" + bytes(31) if is_versioned else b""      # version 1.0, no context, no deleter, no flags
        self.memory = ctypes.create_string_buffer(before + bytes(tensor) + bytes(16))
        self.name = b"dltensor_versioned" if is_versioned else b"dltensor"
        self.make = ctypes.pythonapi.PyCapsule_New
        self.make.restype, self.make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **kwargs):
        return self.make(self.memory, self.name, None)


BIG = 1 << 62


@pytest.mark.parametrize("is_versioned", [False, True])
@pytest.mark.parametrize("tensor, message", [
    ({"shape": None}, "has 2 dimensions but no shape"),
    ({"shape": None, "strides": (5, 1)}, "has 2 dimensions but no shape"),
    ({"shape": None, "ndim": 1}, "has 1 dimensions but no shape"),
    ({"shape": None, "ndim": 0}, "has 0 dimensions, want 2"),
    ({"ndim": -1}, "has -1 dimensions, want 0 to 64"),
    ({"ndim": -2**31}, "has -2147483648 dimensions, want 0 to 64"),
    ({"ndim": 2**31 - 1}, "has 2147483647 dimensions, want 0 to 64"),
    ({"ndim": 7, "shape": (1,) * 7}, "has 7 dimensions, want 2"),
    ({"has_memory": False}, "has elements but no memory"),
    ({"shape": (3, -5)}, "size 1 is -5, want >= 0"),
    ({"shape": (-2**63, 0)}, "size 0 is -9223372036854775808, want >= 0"),
    ({"shape": (BIG, BIG)}, r"sizes and strides span more than 2\^63 bytes"),
    ({"shape": (BIG, 2)}, r"sizes and strides span more than 2\^63 bytes"),
    ({"strides": (BIG, 1)}, r"sizes and strides span more than 2\^63 bytes"),
    ({"strides": (-2**63, 1)}, r"sizes and strides span more than 2\^63 bytes"),
    ({"strides": (1, -BIG)}, r"sizes and strides span more than 2\^63 bytes"),
    ({"dtype": (2, 0, 1)}, "dtype .*, want .*"), ({"dtype": (2, 64, 0)}, "dtype .*, want .*"),
    ({"dtype": (255, 255, 65535)}, "dtype .*, want .*"),
], ids=str)
def test_forged_capsules(is_versioned, tensor, message):
    """What a capsule says is not taken for granted: a sentence, not a crash."""
    good, out = numpy.zeros((3, 5)), numpy.zeros((5, 3))
    with pytest.raises(ValueError, match=f"^x: {message}$"):
        transpose(Forged(is_versioned, **tensor), out=out)
    with pytest.raises(ValueError, match="^out"):
        transpose(good, out=Forged(is_versioned, **{"shape": (5, 3)} | tensor))
    assert not out.any()


@pytest.mark.parametrize("is_versioned", [False, True])
def test_capsules_that_are_rare_but_right(is_versioned):
    out = numpy.zeros((5, 3))
    want = numpy.arange(24.0)
    assert (transpose(Forged(is_versioned), out=out) == want[:15].reshape(3, 5).T).all()
    transpose(Forged(is_versioned, strides=(8, 1)), out=out)
    assert (out == want.reshape(3, 8)[:, :5].T).all()
    transpose(Forged(is_versioned, strides=(0, 1)), out=out)
    assert (out == want[:5, None]).all()
    row = numpy.zeros((5, 1))
    for stride in (BIG, -2**63):            # of a size of 1 a stride means nothing
        assert (transpose(Forged(is_versioned, shape=(1, 5), strides=(stride, 1)), out=row) == want[:5, None]).all()
    for shape in ((0, 5), (0, BIG)):        # nothing to read: memory and strides do not matter
        empty = Forged(is_versioned, shape=shape, strides=(BIG, BIG), has_memory=False)
        assert _tegula.describe(empty)["shape"] == shape
    transpose(Forged(is_versioned, shape=(0, 5), has_memory=False), out=numpy.zeros((5, 0)))


def test_describe():
    seen = _tegula.describe(numpy.zeros((3, 5), numpy.int16)[1:, ::2])
    assert (seen["dtype"], seen["shape"], seen["strides"], seen["device"]) == ((0, 16, 1), (2, 3), (5, 2), (1, 0))


# ---- dtypes that NumPy itself lacks ----

def values(rows=4, cols=256):
    return numpy.random.default_rng(1).standard_normal((rows, cols), dtype=numpy.float32)


def test_fp8_is_bytes_without_ml_dtypes(monkeypatch):
    from tegula.quant import cast_back, per_token_cast
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    x = values()
    codes, sf = per_token_cast(x, "e4m3", 128)
    assert codes.dtype == numpy.uint8 and codes.shape == x.shape and sf.dtype == numpy.float32
    largest = numpy.abs(x).reshape(4, 2, 128).max(-1)
    assert numpy.allclose(sf, largest / 448, rtol=1e-6)
    assert (codes.reshape(4, 2, 128) & 0x7f).max(-1).tolist() == [[0x7e] * 2] * 4      # 448
    with pytest.raises(TypeError, match="NumPy has no dtype for an output of bfloat16: install ml_dtypes, or give out="):
        cast_back((numpy.zeros((4, 64), "i1"), numpy.ones((4, 1), "f4")), "bf16", (1, 128))


LABELLED = numpy.dtype("uint8", metadata={"tegula": "float8_e4m3fn"})


def test_labelled_bytes_are_fp8(monkeypatch):
    """Without ml_dtypes what a cast returns is read back as what it is, not as pairs of e2m1."""
    from tegula.quant import cast_back, per_channel_cast_fused, per_token_cast, per_token_cast_with_precomputed_sf
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    x = values(8, 64)
    codes, sf = per_token_cast(x, "e4m3", 128)
    assert codes.dtype.metadata == LABELLED.metadata
    magnitudes = (codes & 0x7f).astype(int)
    numbers = numpy.where(magnitudes < 8, magnitudes * 2.0**-9, (8 + magnitudes % 8) * 2.0**(magnitudes // 8 - 10))
    want = (numpy.where(codes >= 128, -numbers, numbers) * sf).astype(numpy.float32)
    assert numpy.abs(want - x).max() <= numpy.abs(x).max() / 16
    for again in (codes, codes.copy(), codes.T.copy().T.copy(), codes.view("uint8").view(LABELLED)):
        back = cast_back((again, sf), "fp32", (1, 128))
        assert back.shape == x.shape and (back == want).all()
    assert (cast_back((codes[2:], sf[2:]), "fp32", (1, 128)) == want[2:]).all()
    once_more, factors = per_token_cast((codes, sf), "e4m3", 128, x_block_size=(1, 128))
    assert (once_more == codes).all() and numpy.allclose(factors, sf, rtol=1e-6)
    assert (per_token_cast_with_precomputed_sf(x, "e4m3", 128, sf) == codes).all()
    assert per_channel_cast_fused((codes, sf), "e4m3", 128, num_per_channels=128)[0].dtype.metadata == LABELLED.metadata
    turned = transpose(codes)
    assert turned.dtype.metadata == LABELLED.metadata and (turned == codes.T).all()
    out = numpy.zeros(x.shape, LABELLED), numpy.zeros_like(sf)
    assert per_token_cast(x, "e4m3", 128, out=out) is out and (out[0] == codes).all()
    other = numpy.zeros((2, 3), numpy.dtype("uint8", metadata={"tegula": "float64", "another": 1}))
    assert _tegula.describe(other)["dtype"] == (1, 8, 1)


def test_bytes_of_numpy_are_not_guessed():
    """They may be e4m3 or pairs of e2m1: no call that goes by the dtype takes them."""
    from tegula import quant as q
    codes, sf = numpy.zeros((8, 64), "u1"), numpy.ones((8, 1), "f4")
    for call in (lambda x: q.cast_back((x, sf), "fp32", (1, 128)), lambda x: q.per_token_cast_back([x, sf], "fp32", 128),
                 lambda x: q.per_token_cast((x, sf), "e4m3", 128, x_block_size=(1, 128)),
                 lambda x: q.per_token_cast_with_sf_only((x, sf), "e4m3", 128, x_block_size=(1, 128)),
                 lambda x: q.per_token_cast_with_precomputed_sf((x, sf), "e4m3", 128, sf, x_block_size=(1, 128)),
                 lambda x: q.per_block_cast_lossless((x, sf), "e4m3", (1, 128), (8, 128))):
        with pytest.raises(ValueError, match=r"^x: is uint8, want int8 for e2m1 or ml_dtypes.float8_e4m3fn for e4m3: "
                                             r"view\(\) it as one$"):
            call(codes)
        call(codes.view("i1"))
    assert q.cast_back((codes[:, :48], sf), "fp32", (1, 128), x_special_fmt="e5m6").shape == (8, 32)
    with pytest.raises(ValueError, match="^x: dtype is u8, want "):
        q.per_token_cast(codes, "e4m3", 128)


def test_bytes_of_torch_are_e2m1():
    """It has a dtype for e4m3, so bytes can be nothing else."""
    torch = pytest.importorskip("torch")
    from tegula.quant import cast_back
    x = torch.full((2, 32), 0x21, dtype=torch.uint8)
    assert cast_back((x, torch.ones(2, 1)), "fp32", (1, 64)).equal(torch.tensor([0.5, 1.0]).repeat(2, 32))


def test_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    from tegula.quant import cast_back, per_token_cast
    x = values().astype(ml_dtypes.bfloat16)
    codes, sf = per_token_cast(x, "e4m3", 128)
    assert codes.dtype == ml_dtypes.float8_e4m3fn
    scaled = x.astype(numpy.float64).reshape(4, 2, 128) / sf.astype(numpy.float64)[..., None]
    assert (numpy.abs(scaled.reshape(4, 256) - codes.astype(numpy.float64)) <= numpy.abs(scaled.reshape(4, 256)) / 16 + 2**-9).all()
    back = cast_back((codes, sf), "bf16", (1, 128))
    want = (codes.astype(numpy.float32).reshape(4, 2, 128) * sf[..., None]).reshape(4, 256)
    assert back.dtype == ml_dtypes.bfloat16 and (back == want.astype(ml_dtypes.bfloat16)).all()
    y = transpose(x)
    assert y.dtype == x.dtype and (y == x.T).all()


def test_ml_dtypes_with_strides_out_and_read_only_memory():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu):
        x = numpy.arange(1, 61).reshape(6, 10).astype(dtype)
        x.flags.writeable = False
        assert (transpose(x[::-2, 1::3]) == x[::-2, 1::3].T).all()
        out = numpy.zeros((10, 6), dtype)
        assert transpose(x, out=out) is out and (out == x.T).all()
        with pytest.raises(ValueError, match="out: is read-only"):
            transpose(out, out=x)
    with pytest.raises(BufferError, match="x: cannot be read"):          # a value in each byte: not our pairs
        transpose(numpy.zeros((2, 3), ml_dtypes.float4_e2m1fn))
    from tegula.quant import cast_back
    with pytest.raises(ValueError, match="x: dtype is bf16, want "):
        cast_back((numpy.zeros((2, 128), ml_dtypes.bfloat16), numpy.ones((2, 1), "f4")), "fp32", (1, 128))


def test_jax_arrays():
    """Those of the CPU get outputs of JAX; none is written."""
    jax = pytest.importorskip("jax")
    from tegula.moe import topk_gate
    from tegula.quant import cast_back, per_token_cast
    x = jax.numpy.asarray(values()).astype(jax.numpy.bfloat16)
    want = per_token_cast(numpy.asarray(x), "e4m3", 128)
    codes, sf = per_token_cast(x, "e4m3", 128)
    assert isinstance(codes, jax.Array) and codes.dtype == jax.numpy.float8_e4m3fn and isinstance(sf, jax.Array)
    assert (numpy.asarray(codes).view("uint8") == want[0].view("uint8")).all() and (numpy.asarray(sf) == want[1]).all()
    back = cast_back((codes, sf), "fp32", (1, 128))
    assert isinstance(back, jax.Array) and (numpy.asarray(back) == cast_back(want, "fp32", (1, 128))).all()
    pairs = jax.numpy.full((4, 64), 0x21, "uint8")          # e2m1: JAX has a dtype for e4m3
    assert (cast_back((pairs, jax.numpy.ones((4, 1))), "fp32", (1, 128)) == jax.numpy.tile(jax.numpy.array([0.5, 1]), 64)).all()
    assert (topk_gate(x.astype("float32"), 2) == jax.lax.top_k(x, 2)[1]).all()
    out = tuple(map(numpy.empty_like, want))
    assert per_token_cast(x, "e4m3", 128, out=out) is out and (out[1] == want[1]).all()
    with pytest.raises(ValueError, match="out: is read-only"):
        transpose(x, out=jax.numpy.zeros(x.shape[::-1], x.dtype))
    with pytest.raises(TypeError, match="no output can be made for a <class 'jax.*'>: give out="):
        per_token_cast(x, "e4m3", 128, use_tma_aligned_col_major_sf=True)      # columns with padding
