# SPDX-License-Identifier: MIT
"""The torch half of the package: every row of the table becomes a torch operator with a fake implementation that
Dynamo knows, and the C functions learn how to hand a call to torch. Imported right after torch; does not import
torch._dynamo."""

import torch
from torch._library.autograd import Info, make_autograd_impl

from . import _after_import, _tegula
from ._gradients import GRADIENTS, no_gradient
from ._rows import NAMES, rows, spread

DTYPES = {key: getattr(torch, name) for key, name in NAMES.items() if hasattr(torch, name)}


def _bind(glue):
    """Gives C the objects of torch that it needs, and the functions that it calls often. Returns whether this torch is
    new enough; C refuses tensors of an older one."""
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        glue.bind_torch(torch.Tensor, *[None] * 6, (None,) * 7)
        return False
    # Inductor's allocators take half the time of torch.empty_strided.
    inductor = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    glue.bind_torch(
        torch.Tensor, torch.nn.Parameter, torch.empty_strided, torch.device, DTYPES,
        vars(torch.autograd.forward_ad), torch._C.TensorBase.requires_grad,
        (getattr(inductor, "_empty_strided_cpu", None), getattr(inductor, "_empty_strided_cuda", None),
         torch._C._len_torch_dispatch_stack, torch.is_grad_enabled, torch._C._are_functorch_transforms_active,
         torch._C._increment_version, getattr(torch._C, "_cuda_getDevice", None)))
    return True


def _known(value):
    """An argument for glue.check(): sizes for a tensor, the traced value for a symbolic number."""
    if isinstance(value, torch.Tensor):
        return tuple(map(_known, value.shape))
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value
    if value.node.hint is None:
        raise LookupError("a number that the graph itself computes")
    return value.node.hint


def _reader(glue, row):
    """A function that takes an operator's arguments and returns them as a dict with defaults. It checks what can be
    checked without data: words, numbers and flags, not dtypes."""
    def read(args, kwargs):
        values = row.bind(args, kwargs)
        try:
            known = tuple(_known(values[p.name]) for p in row.params)
        except LookupError:
            return values
        glue.check(row.name, known)
        return values

    return read


def _make_outputs(row, values):
    made = []
    for dtype, size, strides in row.describe_outputs(values):
        dtype = DTYPES[dtype] if isinstance(dtype, int) else dtype.dtype
        first = values[row.first]
        if strides is None:
            made.append(first.new_empty(size, dtype=dtype))
        else:   # columns with padding, as in tensor.c; some ops promise zeros there
            whole = first.new_zeros((size[1], strides[1]), dtype=dtype)
            made.append(whole.as_strided_(size, strides))
    return made


def _check_devices(row, values, outs):
    """If one tensor is on torch's meta device, all must be: nothing is computed, and real memory would look written.
    With fake tensors all are on meta."""
    want = values[row.first].device
    tensors = [(p.name, values[p.name], p.is_on_host) for p in row.params if p.kind == "Tensor"]
    for name, t, is_on_host in tensors + [(name, t, False) for name, t in outs.items()]:
        if t is None or t.device == want or (is_on_host and t.device.type == "cpu"):
            continue
        raise ValueError(f"{name}: is on {t.device}, want {want}")


def _fake(row, read):
    """The op for tensors without data: only makes the outputs."""
    def fake(*args, **kwargs):
        values = read(args, kwargs)
        _check_devices(row, values, {})
        made = _make_outputs(row, values)
        return made[0] if len(made) == 1 else tuple(made) if made else None

    return fake


_ROWS = {}      # (namespace, name): Row; Dynamo does not trace a Row in a closure


def _twin(row, namespace, op, op_out):
    """What Dynamo traces in place of the builtin, and how eager calls reach the dispatcher: it has the builtin's
    signature and calls torch's operators."""
    names, face, name = row.out_names, row.face, row.name
    has_float_output, adapts = row.has_float_output, row.adapts
    public_names = [argument for argument, _ in face or ()]
    if adapts:
        from ._adapt import adapt_call, is_to_adapt
    _ROWS[namespace, name] = row

    def twin(*args, out=None, **kwargs):
        if adapts and is_to_adapt(x := args[0] if args else kwargs.get("x")) and (out is None or len(x.shape) == 2):
            return adapt_call(twin, public_names, args, kwargs if out is None else {**kwargs, "out": out})
        if face is not None:
            args, kwargs = (), spread(name, face, args, kwargs)
        if out is None:
            return op(*args, **kwargs)
        outs = (out,) if len(names) == 1 else out
        tensors = (*args, *kwargs.values(), *outs) if has_float_output else outs
        if torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors):
            raise RuntimeError(f"{name}(): out= has no gradient, but an argument requires one")
        if any(t is None for t in outs):
            known = _ROWS[namespace, name]
            made = _make_outputs(known, known.bind(args, kwargs))
            out = outs = tuple(m if t is None else t for m, t in zip(made, outs))
        op_out(*args, **kwargs, **dict(zip(names, outs)))
        return out

    twin.__name__ = twin.__qualname__ = row.name
    return twin


def _writer(raw, names):
    """The out= overload of an op: takes its outputs by name and returns nothing."""
    def write(*args, **kwargs):
        outs = tuple(kwargs.pop(name) for name in names)
        raw(*args, **kwargs, out=outs[0] if len(outs) == 1 else outs)

    return write


def _refuse_gradient(row, op, what, reads):
    """An op for autograd that only writes, to out= or in place: like torch's own out=, it refuses tensors that require
    a gradient, those that it reads if a gradient could come from them."""
    def kernel(keyset, *args, **kwargs):
        tensors = (*args, *kwargs.values()) if reads else kwargs.values()
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*tensors):
            raise RuntimeError(f"{row.name}(): {what} has no gradient, but an argument requires one")
        with torch._C._AutoDispatchBelowAutograd():
            return op().redispatch(keyset & torch._C._after_autograd_keyset, *args, **kwargs)

    return kernel


def _check_out(row, read):
    """The out= overload on tensors without data."""
    def check(*args, **kwargs):
        _check_devices(row, read(args, kwargs), {name: kwargs[name] for name in row.out_names})

    return check


def _once(make):
    """make() at the first call, what it gave later. With functools.cache() our import took 3 ms more."""
    made = []

    def get():
        if not made:
            made.append(make())
        return made[0]

    return get


def _define(library, row, raw, read, gradient):
    """Registers one row. Returns a function that makes its twin, and its autograd.Functions. These are made on first
    use: torch's objects for an operator take 0.2 ms per row, the classes 0.5 ms."""
    def define(schema):         # Library.define() and impl() without their look-ups, a third of the time of our import
        library.m.define(schema, "", (torch.Tag.pt2_compliant_tag,))

    def impl(name, kernel, key, with_keyset=False):
        library.m.impl(name, key, kernel, with_keyset)

    schema, out_schema = row.schemas()
    define(schema)
    impl(row.name, _fake(row, read), "Meta")    # fake tensors use it; register_fake() costs 0.2 ms more
    impl(row.name, raw, "CompositeExplicitAutograd")    # every device: C refuses by name what it lacks
    if row.results:
        define(out_schema)
        impl(row.name + ".out", _writer(raw, row.out_names), "CompositeExplicitAutograd")
        impl(row.name + ".out", _check_out(row, read), "Meta")
        impl(row.name + ".out", _refuse_gradient(row, lambda: packet().out, "out=", row.has_float_output), "Autograd",
             with_keyset=True)

    def packet():
        return getattr(getattr(torch.ops, library.ns), row.name)

    twin = _once(lambda: _twin(row, library.ns, packet().default, packet().out if row.results else None))
    if not row.results:
        impl(row.name, _refuse_gradient(row, lambda: packet().default, "a write in place", True), "Autograd",
             with_keyset=True)
        return twin, (None, None)
    if not row.has_float_output:
        impl(row.name, torch.library.fallthrough_kernel, "Autograd")  # no gradient, no warning
        return twin, (None, None)
    # As torch.library.register_autograd() does it, plus our Functions.
    names = [p.name for p in row.params]
    kernel = _once(lambda: make_autograd_impl(packet().default, Info(*gradient.for_torch(names)[::-1])))
    impl(row.name, lambda *args, **kwargs: kernel()(*args, **kwargs), "Autograd", with_keyset=True)
    if gradient.vmap:
        torch.library.register_vmap(f"{library.ns}::{row.name}", gradient.vmap, lib=library)
    functions = _once(lambda: gradient.functions(names, raw, packet().default))
    return twin, (lambda *args: functions()[0](*args), lambda *args: functions()[1](*args))


def register(glue, namespace, gradients):
    """Defines torch.ops.<namespace>.<op> for every row of an extension's table. The Library that it returns
    must be kept."""
    if not _bind(glue):
        return None
    library = torch.library.Library(namespace, "DEF")
    twins = {}
    for row in rows(glue):
        raw = getattr(glue, row.name + "_raw")
        gradient = gradients.get(row.name) or no_gradient(row.name)
        twin, functions = _define(library, row, raw, _reader(glue, row), gradient)
        glue.bind_op(row.name, lambda *args, twin=twin, **kwargs: twin()(*args, **kwargs), *functions)
        twins[getattr(glue, row.name)] = twin

    def teach_dynamo():
        for function, twin in twins.items():
            torch.compiler.substitute_in_graph(function, skip_signature_check=True)(twin())

    _after_import.run("torch._dynamo", teach_dynamo)
    return library


library = register(_tegula, "tegula", GRADIENTS)
