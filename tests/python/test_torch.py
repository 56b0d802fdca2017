# SPDX-License-Identifier: MIT
"""The ops as torch operators: modes, subclasses, gradients, torch.func, torch.compile, torch.export."""
import subprocess
import sys

import pytest
import torch
from torch.autograd import forward_ad
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from tegula.transpose import batched_transpose, transpose

OPS = torch.ops.tegula


# ---- who sees a call ----

def test_plain_calls_go_straight_to_c(device):
    """Neither the dispatcher nor a Python frame is in the way of an ordinary tensor."""
    assert type(transpose).__name__ == "builtin_function_or_method"
    with torch.profiler.profile() as profile:
        transpose(torch.randn(5, 7, device=device))
        OPS.transpose(torch.randn(5, 7, device=device))
    assert [e.name for e in profile.events()].count("tegula::transpose") == 1


def test_subclass(device):
    class Sub(torch.Tensor):
        pass

    x = torch.randn(5, 7, device=device)
    assert type(transpose(x.as_subclass(Sub))) is Sub
    assert type(transpose(torch.nn.Parameter(x, requires_grad=False))) is torch.Tensor


def test_subclass_as_out(device):
    calls = []

    class Sub(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            calls.append(function)
            return super().__torch_function__(function, types, args, kwargs)

    x, out = torch.randn(5, 7, device=device), torch.empty(7, 5, device=device).as_subclass(Sub)
    assert transpose(x, out=out) is out and OPS.transpose.out in calls
    assert torch.equal(out.as_subclass(torch.Tensor), x.t())


def test_torch_function_objects(device):
    calls = []

    class Like:
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            calls.append(function)
            return "seen"

    assert transpose(Like()) == "seen" and calls == [OPS.transpose.default]


def test_dispatch_mode(device):
    calls = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            calls.append(function)
            return function(*args, **(kwargs or {}))

    x, out = torch.randn(5, 7, device=device), torch.empty(7, 5, device=device)
    with Mode():
        transpose(x)
        transpose(x, out=out)
    assert calls == [OPS.transpose.default, OPS.transpose.out]
    assert torch.equal(out, x.t())


def test_modes_do_not_concern_arrays_of_others():
    numpy = pytest.importorskip("numpy")
    with FakeTensorMode(), forward_ad.dual_level():
        assert (transpose(numpy.ones((3, 5))) == 1).all()


def test_default_device_does_not_matter(device):
    x = torch.randn(5, 7, device=device)
    with torch.device("meta"):
        assert transpose(x).device == x.device


def test_fake_and_meta(device):
    with FakeTensorMode() as mode:
        x = mode.from_tensor(torch.randn(5, 7, dtype=torch.float64, device=device))
        y = transpose(x)
        assert (y.shape, y.dtype, y.device.type) == ((7, 5), torch.float64, device)
    assert batched_transpose(torch.empty(2, 3, 4, device="meta")).shape == (2, 4, 3)
    with pytest.raises(ValueError, match="x: has 1 dimensions, want 2"):
        transpose(torch.empty(3, device="meta"))
    out = torch.empty(3, 2, device="meta")
    assert transpose(torch.empty(2, 3, device="meta"), out=out) is out
    with pytest.raises(ValueError, match=f"^out: is on {device}.*, want meta$"):
        transpose(torch.empty(2, 3, device="meta"), out=torch.empty(3, 2, device=device))


def test_make_fx_records_the_op(device):
    graph = make_fx(lambda x: transpose(x) + 1)(torch.randn(5, 7, device=device))
    assert "torch.ops.tegula.transpose.default" in graph.code


def test_fx_symbolic_trace(device):
    graph = torch.fx.symbolic_trace(lambda x: transpose(x) + 1)
    x = torch.randn(5, 7, device=device)
    assert "tegula.transpose" in graph.code and torch.equal(graph(x), x.t() + 1)


# ---- gradients ----

@pytest.mark.parametrize("function, packet, shape", [
    (transpose, OPS.transpose, (5, 7)), (batched_transpose, OPS.batched_transpose, (3, 5, 7))], ids=["transpose", "batched"])
def test_gradients(function, packet, shape, device):
    x = torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True)
    torch.library.opcheck(packet.default, (x,))
    for f in (function, packet):
        assert torch.autograd.gradcheck(f, (x,), check_forward_ad=f is function)
        assert torch.autograd.gradgradcheck(f, (x,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64], ids=str)
def test_gradient_is_exact(dtype, device):
    x = torch.randn(5, 7, dtype=dtype, device=device, requires_grad=True)
    grad = torch.randn(7, 5, dtype=dtype, device=device)
    y = transpose(x)
    y.backward(grad)
    assert y.requires_grad and torch.equal(x.grad, grad.t())


def test_no_gradient_where_none_is_wanted(device):
    x = torch.randn(5, 7, device=device, requires_grad=True)
    with torch.no_grad():
        assert not transpose(x).requires_grad
    with torch.inference_mode():
        y = transpose(x)
        assert y.is_inference() and torch.equal(y, x.t())
        transpose(x, out=y)
    assert not transpose(x.detach()).requires_grad


def test_out_has_no_gradient(device):
    x, out = torch.randn(5, 7, device=device, requires_grad=True), torch.empty(7, 5, device=device)
    for f in (transpose, torch.compile(transpose, backend="eager")):
        with pytest.raises(RuntimeError, match="out= has no gradient"):
            f(x, out=out)
        with pytest.raises(RuntimeError, match="out= has no gradient"):
            f(x.detach(), out=out.clone().requires_grad_())
    with torch.no_grad():
        assert torch.equal(transpose(x, out=out), x.t())
    if device == "cpu":
        array = x.detach().numpy()
        with pytest.raises(RuntimeError, match="out= has no gradient"):
            transpose(array, out=out.requires_grad_())
        with torch.no_grad():
            version = out._version
            assert transpose(array, out=out)._version > version


def test_functionalize(device):
    """Its wrappers have torch.Tensor's type and no memory."""
    x = torch.randn(5, 7, device=device)
    assert torch.equal(torch.func.functionalize(lambda x: transpose(x.add_(1)))(x.clone()), (x + 1).t())


def test_forward_mode(device):
    x, v = torch.randn(5, 7, device=device), torch.randn(5, 7, device=device)
    with forward_ad.dual_level():
        out = forward_ad.unpack_dual(transpose(forward_ad.make_dual(x, v)))
    assert torch.equal(out.primal, x.t()) and torch.equal(out.tangent, v.t())
    primal, tangent = torch.func.jvp(transpose, (x,), (v,))
    assert torch.equal(primal, x.t()) and torch.equal(tangent, v.t())


@pytest.mark.filterwarnings("error")  # a missing batching rule warns
def test_torch_func(device):
    x, b = torch.randn(5, 7, device=device), torch.randn(3, 5, 7, device=device)
    assert torch.equal(torch.vmap(transpose)(b), b.transpose(1, 2))
    assert torch.equal(torch.vmap(transpose, in_dims=2)(b), b.permute(2, 1, 0))
    two = torch.stack([b, b + 1])
    assert torch.equal(torch.vmap(batched_transpose)(two), two.transpose(2, 3))

    def f(x):
        return (transpose(x) ** 3).sum()

    assert torch.allclose(torch.func.grad(f)(x), 3 * x ** 2)
    assert torch.allclose(torch.vmap(torch.func.grad(f))(b), 3 * b ** 2)
    assert torch.allclose(torch.func.hessian(f)(x).flatten(0, 1).flatten(1).diagonal(), 6 * x.flatten())


# ---- torch.compile, torch.export ----

@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compile(backend, device):
    def f(x, b):
        return transpose(x * 2) + 1, batched_transpose(x=b).sum(0)

    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend=backend)
    for m, n in ((5, 7), (16, 48), (33, 2)):
        # whole numbers: Inductor may sum in another order than torch does
        x, b = (torch.randint(-99, 99, shape, device=device).float() for shape in ((m, n), (3, m, n)))
        for got, want in zip(compiled(x, b), f(x, b)):
            assert torch.equal(got, want)
    x = torch.randn(5, 7, device=device, requires_grad=True)
    compiled(x, x.detach()[None])[0].pow(2).sum().backward()
    assert torch.allclose(x.grad, 4 * (2 * x.detach() + 1))


def test_compile_graph_has_the_op(device):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph

    out = torch.empty(7, 5, device=device)
    compiled = torch.compile(lambda x: transpose(transpose(x, out=out)), fullgraph=True, backend=backend)
    compiled(torch.randn(5, 7, device=device))
    assert len(graphs) == 1 and "tegula.transpose.out" in graphs[0] and "tegula.transpose.default" in graphs[0]


def test_compile_out(device):
    x, out = torch.randn(5, 7, device=device), torch.empty(7, 5, device=device)
    compiled = torch.compile(lambda x, out: transpose(x + 1, out=out) * 2, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, out), 2 * (x + 1).t()) and torch.equal(out, (x + 1).t())


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict, device):
    class Module(torch.nn.Module):
        def forward(self, x):
            return transpose(x) + 1

    x = torch.randn(16, 24, device=device)
    dims = {"x": {0: torch.export.Dim("m", min=2, max=99), 1: torch.export.Dim("n", min=2, max=99)}}
    program = torch.export.export(Module(), (x,), dynamic_shapes=dims, strict=strict)
    assert "tegula.transpose" in str(program.graph)
    assert torch.equal(program.module()(x[:5, :3]), x[:5, :3].t() + 1)


@pytest.mark.parametrize("first, second", [("tegula", "torch"), ("torch", "tegula")])
def test_dynamo_is_taught_but_not_imported(first, second):
    code = f"""if True:
        import importlib.util, sys, {first}
        importlib.util.find_spec("torch")               # looking is not importing
        importlib.util.find_spec("torch._dynamo")
        import {second}
        assert "torch._dynamo" not in sys.modules
        torch.ops.tegula.transpose(torch.ones(4, 9))
        assert tegula.transpose.transpose(torch.ones(4, 9)).shape == (9, 4)
        assert "torch._dynamo" not in sys.modules
        f = torch.compile(lambda x: tegula.transpose.transpose(x + 1), fullgraph=True, backend="eager")
        assert f(torch.ones(4, 9)).shape == (9, 4)
        assert not [f for f in sys.meta_path if "tegula" in type(f).__module__]"""
    subprocess.run([sys.executable, "-c", code], check=True)
