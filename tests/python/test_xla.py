# SPDX-License-Identifier: MIT
"""The handler of xla.c without JAX, on the GPU too: called as XLA calls it, with structs made here."""
import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p

import pytest
import torch

from tegula import _tegula, moe, quant, transpose

DTYPES = {torch.float32: 11, torch.int64: 5, torch.int32: 4}
HEAD = [("struct_size", c_size_t), ("extensions", c_void_p)]


def struct(*fields, head=True):
    return type("Struct", (Structure,), {"_fields_": [*(HEAD if head else []), *fields]})


Version = struct(("major", c_int), ("minor", c_int))
Buffer = struct(("dtype", c_int), ("data", c_void_p), ("rank", c_int64), ("dims", c_void_p))
Text = struct(("text", c_char_p), ("bytes", c_size_t), head=False)
Array = struct(("dtype", c_int), ("count", c_size_t), ("data", c_void_p), head=False)
Buffers = struct(("count", c_int64), ("types", c_void_p), ("items", c_void_p))
Attributes = struct(("count", c_int64), ("types", c_void_p), ("names", c_void_p), ("values", c_void_p))
ErrorArgs = struct(("message", c_char_p), ("code", c_int))
StreamArgs = struct(("context", c_void_p), ("stream", c_void_p))
DeviceArgs = struct(("context", c_void_p), ("device", c_int32))
Create, GetStream, GetDevice = (CFUNCTYPE(c_void_p, POINTER(t)) for t in (ErrorArgs, StreamArgs, DeviceArgs))
Api = struct(("version", Version), ("internal", c_void_p), ("create_error", Create), ("unused", c_void_p * 3),
             ("get_stream", GetStream), ("others", c_void_p * 12), ("get_device", GetDevice))
Frame = struct(("api", POINTER(Api)), ("context", c_void_p), ("stage", c_int), ("args", Buffers), ("rets", Buffers),
               ("attributes", Attributes))
Metadata = struct(("struct_size", c_size_t), ("version", Version), ("traits", c_uint32), head=False)
Question = struct(("struct_size", c_size_t), ("type", c_int), ("next", c_void_p), ("metadata", POINTER(Metadata)), head=False)

get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
get_pointer.restype, get_pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]
HANDLERS = {platform: CFUNCTYPE(c_void_p, POINTER(Frame))(get_pointer(capsule, b"xla._CUSTOM_CALL_TARGET"))
            for platform, capsule in _tegula.xla_handlers().items()}


def array(kind, items):
    return (kind * max(1, len(items)))(*items)


class Call:
    """A frame, and what it points to."""

    def __init__(self, inputs, outputs, op, numbers, stage=3):
        self.message, self.streams = None, 0
        self.kept = [inputs, outputs]
        self.is_cuda = inputs[0].is_cuda
        self.api = Api(ctypes.sizeof(Api), None, Version(), None, Create(self.create), (c_void_p * 3)(),
                       GetStream(self.get_stream), (c_void_p * 12)(), GetDevice(self.get_device))
        numbers = array(c_int64, numbers), len(numbers)
        names = [Text(b"numbers", 7), Text(b"op", 2)]
        values = [Array(5, numbers[1], self.at(numbers[0])), Text(op.encode(), len(op))]
        self.frame = Frame(ctypes.sizeof(Frame), None, ctypes.pointer(self.api), None, stage, self.buffers(inputs),
                           self.buffers(outputs), Attributes(ctypes.sizeof(Attributes), None, 2, self.at(array(c_int, [1, 4])),
                           self.pointers(names), self.pointers(values)))

    def create(self, args):
        self.message = args.contents.code, args.contents.message.decode()
        return 1

    def get_stream(self, args):
        self.streams += 1
        args.contents.stream = torch.cuda.current_stream().cuda_stream
        return None

    def get_device(self, args):
        args.contents.device = torch.cuda.current_device()
        return None

    def at(self, made):
        self.kept.append(made)
        return ctypes.addressof(made)

    def pointers(self, structs):
        return self.at(array(c_void_p, [self.at(s) for s in structs]))

    def buffers(self, tensors):
        made = [Buffer(ctypes.sizeof(Buffer), None, DTYPES[t.dtype], t.data_ptr(), t.ndim, self.at(array(c_int64, t.shape)))
                for t in tensors]
        return Buffers(ctypes.sizeof(Buffers), None, len(made), self.at(array(c_int, [1] * len(made))), self.pointers(made))

    def __call__(self):
        return HANDLERS["CUDA" if self.is_cuda else "cpu"](self.frame)


def test_a_call(device):
    x = torch.randn(5, 7, device=device)
    out = torch.zeros(7, 5, device=device)
    call = Call([x], [out], "transpose", [1, 0, -1])
    assert call() is None and torch.equal(out, transpose.transpose(x))
    assert call.streams == (device == "cuda")


def test_column_major(device):
    x = torch.randn(5, 7, device=device)
    out = torch.zeros(5, 7, device=device)
    assert Call([x.view(7, 5)], [out], "transpose", [1, 1, -1])() is None      # [7, 5], by columns
    assert torch.equal(out, x)
    x, columns = torch.randn(5, 128, device=device), torch.zeros(4, 8, device=device)
    numbers = [0b111110001, 0, 0, 0, 0, 0, 32, 1, 0, 0, 5]
    assert Call([x], [columns], "per_token_cast_with_sf_only", numbers)() is None
    assert torch.equal(columns.T[:5], quant.per_token_cast_with_sf_only(x, "e4m3", 32)) and not columns.T[5:].any()


def test_a_workspace(device):
    """On CUDA group_count needs one."""
    groups = torch.randint(-1, 20, (3000, 8), device=device)
    counts = torch.zeros(20, dtype=torch.int32, device=device)
    for _ in range(2):
        assert Call([groups], [counts], "group_count", [3, 0, 20, -1])() is None
        assert torch.equal(counts, moe.group_count(groups, 20))


def test_other_stages_do_nothing(device):
    x, out = torch.ones(5, 7, device=device), torch.zeros(7, 5, device=device)
    for stage in (0, 1, 2):
        assert Call([x], [out], "transpose", [1, 0, -1], stage)() is None
    assert not out.any()


@pytest.mark.parametrize("change, message", [
    ({"op": "transposed"}, "jax: this call was traced by another version of the package"),
    ({"numbers": [1, 0]}, "transpose: this call was traced by another version of the package"),
    ({"numbers": [0, 0, -1]}, "transpose: an array is missing"),
    ({"numbers": [1, 0, 9]}, "transpose: an output has the wrong shape or an unknown dtype"),
    ({"inputs": [torch.zeros(2, 3, 4)]}, "transpose: an array has the wrong number of dimensions or an unknown dtype"),
    ({"outputs": []}, "transpose: an output has the wrong shape or an unknown dtype"),
    ({"outputs": [torch.zeros(5, 7)]}, "transpose: out: shape is [5, 7], want [7, 5]"),
], ids=range(7))
def test_errors(change, message):
    call = Call(**{"inputs": [torch.zeros(5, 7)], "outputs": [torch.zeros(7, 5)], "op": "transpose", "numbers": [1, 0, -1]} | change)
    assert call() == 1 and call.message == (3, f"tegula: {message}")


class CallOnCuda(Call):
    """Of the handler for CUDA, on stream 0 of a device that need not be there."""

    def __init__(self, *args):
        super().__init__(*args)
        self.is_cuda = True

    def get_stream(self, args):
        return None

    get_device = get_stream


def test_memory_of_the_host_that_a_gpu_writes():
    """Refused before the device is asked for anything."""
    table, sf, indices = torch.zeros(4, 32), torch.zeros(4, 1), torch.zeros(2, 3, dtype=torch.int64)
    call = CallOnCuda([indices, table, sf, torch.zeros(99)], [torch.zeros(2, 3, 33)], "engram_lookup_staged",
                      [0b11111, 0, 0, 0, 0, 0, -1])
    assert call() == 1 and call.message == (
        3, "tegula: engram_lookup_staged: writes page-locked memory of the host, which JAX cannot pass on CUDA")


def test_what_the_handler_is():
    about = Metadata(ctypes.sizeof(Metadata), Version(), 99)
    question = Question(24, 1, None, ctypes.pointer(about))
    for handler in HANDLERS.values():
        frame = Frame(ctypes.sizeof(Frame), ctypes.addressof(question))
        assert handler(frame) is None and (about.version.major, about.version.minor, about.traits) == (0, 1, 0)
