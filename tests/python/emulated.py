# SPDX-License-Identifier: MIT
"""The CUDA path from Python on the emulated device (tests/emulator): each function is a test, run by
test_emulated.py in a process of its own whose libcuda and libnvrtc are the emulator's."""
import ctypes
import os
import sys
import threading
import time
import types

import numpy

import tegula
from in_threads import in_threads
from tegula import config
from tegula.transpose import batched_transpose, transpose

cuda = ctypes.CDLL(os.environ["TEGULA_LIBCUDA"])


def check(status):
    assert status == 0, f"the emulated driver says {status}"


def raises(kind, message, call):
    """The error that a call raises; its message contains `message`."""
    try:
        call()
    except kind as e:
        assert message in str(e), str(e)
        return e
    raise ValueError(f"no error that says: {message}")


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_uint64), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]    # a DLManagedTensor has these two behind


class Array:
    """An array in the device's memory, of a library that speaks DLPack 0.x."""

    def __init__(self, host, dtype=numpy.float32):
        host = numpy.ascontiguousarray(host, dtype)
        self.shape, self.nbytes, self.data, self.streams = host.shape, host.nbytes, ctypes.c_uint64(), []
        self.dtype = host.dtype
        check(cuda.cuMemAlloc_v2(ctypes.byref(self.data), ctypes.c_size_t(self.nbytes)))
        check(cuda.cuMemcpyHtoD_v2(self.data, ctypes.c_void_p(host.ctypes.data), ctypes.c_size_t(self.nbytes)))

    def get(self):
        host = numpy.empty(self.shape, self.dtype)
        check(cuda.cuCtxSynchronize())
        check(cuda.cuMemcpyDtoH_v2(ctypes.c_void_p(host.ctypes.data), self.data, ctypes.c_size_t(self.nbytes)))
        return host

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, *, stream):
        self.streams.append(stream)
        self.sizes = (ctypes.c_int64 * len(self.shape))(*self.shape)
        self.tensor = DLTensor(self.data.value, 2, 0, len(self.shape), "iuf".index(self.dtype.kind),
                               self.dtype.itemsize * 8, 1, self.sizes, None, 0, None, None)
        return make_capsule(ctypes.addressof(self.tensor), b"dltensor", None)


BORROW = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_uint64))


class ExchangeAPI(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("older", ctypes.c_void_p),
                ("unused", ctypes.c_void_p * 3), ("borrow", BORROW), ("stream", STREAM)]


class Native(Array):
    """The same of a library with DLPack's C exchange API, as torch has it, and a current stream."""
    current, asked = ctypes.c_uint64(), []

    @BORROW
    def borrow(self, out):
        self.__dlpack__(stream=None)
        ctypes.memmove(out, ctypes.addressof(self.tensor), 48)
        return 0

    @STREAM
    def current_stream(device_type, device_id, out):
        Native.asked.append((device_type, device_id))
        out[0] = Native.current.value
        return 0

    api = ExchangeAPI(1, 3, None, (ctypes.c_void_p * 3)(), borrow, current_stream)


make_capsule = ctypes.pythonapi.PyCapsule_New
make_capsule.restype, make_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
Native.__dlpack_c_exchange_api__ = make_capsule(ctypes.addressof(Native.api), b"dlpack_exchange_api", None)


class Cupy(Native):
    """An array of a library that makes arrays, as CuPy does; they are full of rubbish."""
    __module__, made = "cupy", []


def make_cupy():
    def empty(shape, dtype):
        Cupy.made.append(Cupy(numpy.full(shape, 0x55, dtype), dtype))
        return Cupy.made[-1]

    sys.modules["cupy"] = types.ModuleType("cupy")
    sys.modules["cupy"].empty = empty


def scratch(x, *args, raw=False):
    """(address, how many of its bytes are not 0) of the workspace that a call is given."""
    import _toy
    out = Native(numpy.zeros(3), numpy.int64)
    (_toy.scratch_raw if raw else _toy.scratch)(x, *args, out=out)
    address, size, dirty = out.get().tolist()
    assert size == args[0] and address % 256 == 0
    return address, dirty


def new_stream():
    """Makes another stream the current one."""
    check(cuda.cuStreamCreate(ctypes.byref(Native.current), 1))


class Graph:
    """with Graph() as graph: captures what is called on the current stream."""

    def __enter__(self):
        check(cuda.cuStreamBeginCapture_v2(Native.current, 2))      # relaxed: the arrays here just allocate
        return self

    def __exit__(self, *error):
        self.graph, self.exec, count = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t()
        check(cuda.cuStreamEndCapture(Native.current, ctypes.byref(self.graph)))
        check(cuda.cuGraphInstantiateWithFlags(ctypes.byref(self.exec), self.graph, ctypes.c_uint64(0)))
        check(cuda.cuGraphGetNodes(self.graph, None, ctypes.byref(count)))
        self.num_nodes = count.value

    def replay(self):
        check(cuda.cuGraphLaunch(self.exec, Native.current))


def open_device():
    device, context = ctypes.c_int(), ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDeviceGet(ctypes.byref(device), 0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(cuda.cuCtxSetCurrent(context))


def ticks_during(work):
    """How often another Python thread, which wants to every millisecond, could run meanwhile; and the seconds."""
    ticks, done = [], threading.Event()

    def count():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    time.sleep(0.05)
    begin = time.perf_counter()
    work()
    end = time.perf_counter()
    done.set()
    thread.join()
    return sum(begin < t < end for t in ticks), end - begin


def results():
    a, b = numpy.random.default_rng(0).random((33, 65)), numpy.random.default_rng(1).random((3, 20, 31))
    x, y, out, outs = Array(a), Array(b), Array(numpy.zeros((65, 33))), Array(numpy.zeros((3, 31, 20)))
    assert transpose(x, out=out) is out and (out.get() == x.get().T).all()
    assert batched_transpose(y, out=outs) is outs and (outs.get() == y.get().transpose(0, 2, 1)).all()
    assert x.streams == out.streams == [1]      # the legacy default stream


def streams():
    """A call runs on the current stream of the library that has one; arrays of others are made ready for it."""
    check(cuda.cuStreamCreate(ctypes.byref(Native.current), 1))
    a = numpy.random.default_rng(0).random((33, 65))
    for x, out in [(Native(a), Native(a.T)), (Native(a), Array(a.T)), (Array(a), Native(a.T))]:
        Native.asked.clear()
        check(cuda.cuMemsetD8_v2(out.data, ctypes.c_ubyte(0), ctypes.c_size_t(out.nbytes)))
        assert transpose(x, out=out) is out and (out.get() == x.get().T).all()
        assert Native.asked == [(2, 0)]
        for array in (x, out):
            assert type(array) is Native or array.streams == [Native.current.value]
    out = Native(a.T)
    check(cuda.cuStreamDestroy_v2(Native.current))
    error = raises(tegula.Error, "", lambda: transpose(x, out=out))
    assert error.status == "TGL_ERR_CUDA"       # so the launch was given that stream


def gil():
    """Given away while a kernel is compiled; kept by a warm call, which on a GPU is but a launch."""
    small, small_out = Array(numpy.zeros((3, 3001))), Array(numpy.zeros((3001, 3)))
    x, out = Array(numpy.zeros((3000, 3001))), Array(numpy.zeros((3001, 3000)))
    ticks, seconds = ticks_during(lambda: transpose(small, out=small_out))
    assert tegula.compile_count() > 0 and seconds > 0.1, seconds
    assert ticks > 20, ticks
    ticks, seconds = ticks_during(lambda: transpose(x, out=out))    # the emulated kernel runs in the launch
    assert seconds > 0.05, seconds              # in which the other thread could run some 50 times
    assert ticks < 10, ticks                    # in __dlpack__(), not in the launch


def warmup():
    x, out = Array(numpy.ones((33, 65))), Array(numpy.zeros((65, 33)))
    with tegula.warmup():
        transpose(x, out=out)
    compiled = tegula.compile_count()
    assert compiled > 0 and (out.get() == 0).all()
    transpose(x, out=out)
    assert tegula.compile_count() == compiled and (out.get() == 1).all()


def warmup_architecture():
    """Kernels for another architecture land in the disk cache; nothing runs."""
    x, out = Array(numpy.ones((33, 65))), Array(numpy.zeros((65, 33)))
    before = len(os.listdir(config.get_cache_dir()))
    with tegula.warmup(architecture="sm_80"):
        transpose(x, out=out)
    assert tegula.compile_count() > 0 and (out.get() == 0).all()
    assert len(os.listdir(config.get_cache_dir())) > before


def jit_never():
    config.set_jit_mode("never")
    x, out = Array(numpy.ones((33, 65))), Array(numpy.zeros((65, 33)))
    assert raises(tegula.Error, "transpose", lambda: transpose(x, out=out)).status == "TGL_ERR_COMPILE"


def errors():
    x, out = Array(numpy.ones((33, 65))), Array(numpy.zeros((33, 65)))
    raises(ValueError, "out: shape is [33, 65], want [65, 33]", lambda: transpose(x, out=out))
    raises(ValueError, "out: ", lambda: transpose(x, out=numpy.zeros((65, 33), numpy.float32)))
    raises(TypeError, "give out=", lambda: transpose(x))


def num_sms():
    assert config.get_device_num_sms() == config.get_num_sms() == 4 and config.get_max_smem_per_sm() > 0
    config.set_num_sms(3)
    assert config.get_num_sms() == 3
    for bad in (0, 5):
        raises(AssertionError, f"num_sms: is {bad}, want 1..4", lambda: config.set_num_sms(bad))


def threads():
    arrays = [(Array(numpy.full((10 + i, 20), i)), Array(numpy.zeros((20, 10 + i)))) for i in range(4)]

    def work(pair):
        for _ in range(20):
            transpose(pair[0], out=pair[1])     # in a thread without a context of its own

    in_threads(work, arrays)
    assert all((out.get() == x.get().T).all() for x, out in arrays)


def workspaces():
    """One per stream, for the public function and for what torch's dispatcher calls; zero, also after a
    failure."""
    import _toy
    x = Native(numpy.zeros(3))
    address, dirty = scratch(x, 1000)
    assert address and dirty == 0
    assert scratch(x, 1000) == scratch(x, 10) == scratch(x, 1000, raw=True) == (address, 0)
    assert scratch(x, 0) == (0, 0)
    larger, dirty = scratch(x, 1 << 20)
    assert larger != address and dirty == 0
    for status in (1, 7, 9):
        out = Native(numpy.zeros(3), numpy.int64)
        raises((ValueError, _toy.Error), "", lambda: _toy.scratch(x, 1 << 20, 0xEE, status, out=out))
        assert scratch(x, 1 << 20) == (larger, 0)
    scratch(x, 1 << 20, 0xEE)                   # an op with a bug: the next one sees it
    assert scratch(x, 1 << 20) == (larger, 1 << 20)
    new_stream()
    other, dirty = scratch(x, 1000)
    assert other not in (address, larger) and dirty == 0
    assert scratch(Array(numpy.zeros(3)), 1000) == (other, 0)      # of a library that makes no arrays


def workspaces_while_preparing():
    """Nothing is launched then, and there is none."""
    import _toy
    x = Native(numpy.zeros(3))
    _toy.prepare_begin(0, None)
    assert _toy.is_preparing()
    out = Native(numpy.ones(3), numpy.int64)
    _toy.scratch(x, 1000, out=out)
    _toy.prepare_end()
    assert not _toy.is_preparing() and not out.get().any()
    assert scratch(x, 1000)[1] == 0


def workspaces_of_threads():
    """Two threads, a stream each, and both grow."""
    import _toy
    streams = [ctypes.c_uint64(), ctypes.c_uint64()]
    for s in streams:
        check(cuda.cuStreamCreate(ctypes.byref(s), 1))

    class Mine(Native):
        own = threading.local()

        @STREAM
        def current_stream(device_type, device_id, out):
            out[0] = Mine.own.stream
            return 0

        api = ExchangeAPI(1, 3, None, (ctypes.c_void_p * 3)(), Native.borrow, current_stream)

    Mine.__dlpack_c_exchange_api__ = make_capsule(ctypes.addressof(Mine.api), b"dlpack_exchange_api", None)
    seen = [set(), set()]

    def work(i):
        open_device()
        Mine.own.stream = streams[i].value
        x, out = Mine(numpy.zeros(3)), Mine(numpy.zeros(3), numpy.int64)
        for n in range(1, 200):
            _toy.scratch(x, 1000 * n, out=out)
            address, _, dirty = out.get().tolist()
            assert dirty == 0
            seen[i].add(address)

    in_threads(work, range(2))
    assert not seen[0] & seen[1]


def moe_ops():
    """On the device as on the host, on one stream and on another; then captured, one node a call, and replayed
    between eager calls."""
    from tegula import moe
    make_cupy()
    rng = numpy.random.default_rng(0)

    def counts_and_mapping(idx):
        num_positions = idx.shape[0] * 4 + 9 * 7
        mapping = moe.get_fused_mapping(idx, 9, num_positions, 8, with_psum=True)
        return moe.group_count(idx, 9), moe.aux_fi(idx, 9, 2), *mapping[:7], *mapping[8:]

    def same(here, there):
        assert all((a.get() == b).all() for a, b in zip(here, there, strict=True))

    for _ in range(2):
        for num_tokens in (3, 3000):            # without a workspace, and with one
            idx = rng.integers(-1, 9, (num_tokens, 4))
            here, there = counts_and_mapping(Cupy(idx, numpy.int64)), counts_and_mapping(idx)
            same(here, there)
            x = rng.random((num_tokens, 33), numpy.float32)
            moved = moe.expand_to_fused(Cupy(x), here[5], here[2])
            assert (moved.get() == moe.expand_to_fused(x, there[5], there[2])).all()
            seen = moe.reduce_fused(moved, None, here[5])
            assert (seen.get() == moe.reduce_fused(moved.get(), None, there[5])).all()
        new_stream()
    on_device = Cupy(idx, numpy.int64)
    with Graph() as graph:
        captured = counts_and_mapping(on_device)
    assert graph.num_nodes == 3
    for _ in range(2):
        graph.replay()
        same(counts_and_mapping(on_device), there)
        same(captured, there)


CASES = [results, streams, gil, warmup, warmup_architecture, jit_never, errors, num_sms, threads,
         workspaces, workspaces_while_preparing, workspaces_of_threads, moe_ops]

if __name__ == "__main__":
    open_device()
    {case.__name__: case for case in CASES}[sys.argv[1]]()
