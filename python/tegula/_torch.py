# SPDX-License-Identifier: MIT
"""The torch half of the package: every row of the table becomes a torch operator with a fake implementation, known to Dynamo, and the C
functions learn where torch wants to see a call. Runs once torch is imported; does not import torch._dynamo."""
import torch

from . import _after_import, _tegula
from ._rows import Row

WORDS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64, "i32": torch.int32, "i8": torch.int8,
         "u8": torch.uint8, "bool": torch.bool, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e8m0": torch.float8_e8m0fnu,
         "e2m1x2": getattr(torch, "float4_e2m1fn_x2", None)}

_DLPACK = {  # name: (code, bits, lanes)
    "int8": (0, 8, 1), "int16": (0, 16, 1), "int32": (0, 32, 1), "int64": (0, 64, 1),
    "uint8": (1, 8, 1), "uint16": (1, 16, 1), "uint32": (1, 32, 1), "uint64": (1, 64, 1),
    "float16": (2, 16, 1), "float32": (2, 32, 1), "float64": (2, 64, 1), "bfloat16": (4, 16, 1),
    "complex32": (5, 32, 1), "complex64": (5, 64, 1), "complex128": (5, 128, 1), "bool": (6, 8, 1),
    "float8_e4m3fn": (10, 8, 1), "float8_e4m3fnuz": (11, 8, 1), "float8_e5m2": (12, 8, 1), "float8_e5m2fnuz": (13, 8, 1),
    "float8_e8m0fnu": (14, 8, 1), "float4_e2m1fn_x2": (17, 4, 2)}
DTYPES = {code << 24 | bits << 16 | lanes: getattr(torch, name) for name, (code, bits, lanes) in _DLPACK.items() if hasattr(torch, name)}


def _bind(glue):
    """Hands the C side what it asks of torch, in the order of glue.h's torch_table."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)  # Inductor's allocators, half the price of torch.empty_strided
    glue.bind_torch(torch.Tensor, torch.nn.Parameter, torch.empty_strided, getattr(guards, "_empty_strided_cpu", None),
                    getattr(guards, "_empty_strided_cuda", None), torch.device, DTYPES, torch._C._len_torch_dispatch_stack,
                    torch._C.is_grad_enabled if hasattr(torch._C, "is_grad_enabled") else torch.is_grad_enabled,
                    torch._C._are_functorch_transforms_active, vars(torch.autograd.forward_ad), torch._C._increment_version,
                    torch._C.TensorBase.requires_grad)


class Gradient:
    """How to differentiate an op: save(ctx, inputs, output) and backward(ctx, *grads), as torch.library.register_autograd wants them, and
    jvp(ctx, *tangents) for forward mode; vmap(info, in_dims, *args), as torch.library.register_vmap wants it."""

    def __init__(self, backward, jvp=None, save=lambda ctx, inputs, output: None, vmap=None):
        self.backward, self.jvp, self.save, self.vmap = backward, jvp, save, vmap

    def functions(self, raw, op):
        """The two autograd.Functions of an eager call. The second is what torch.func asks for, and costs four times as much."""
        save = self.save

        class Direct(torch.autograd.Function):
            @staticmethod
            def forward(ctx, *inputs):
                output = raw(*inputs)
                save(ctx, inputs, output)
                return output

            backward = staticmethod(self.backward)

        class Transform(torch.autograd.Function):
            generate_vmap_rule = True
            forward = staticmethod(op)
            setup_context, backward = staticmethod(save), staticmethod(self.backward)
            if self.jvp:
                jvp = staticmethod(self.jvp)

        return Direct.apply, Transform.apply


def _fake(row):
    names, defaults = [p.name for p in row.params], {p.name: p for p in row.params}

    def fake(*args, **kwargs):
        values = dict(zip(names, args), **kwargs)
        for name, p in defaults.items():
            if name not in values:
                values[name] = None if p.default == "None" else p.default.strip('"') if p.kind == "str" else \
                    {"int": int, "float": float, "bool": lambda t: t == "True"}[p.kind](p.default)
        first, made = values[row.first], []
        for dtype, size, strides in row.describe_outputs(values):
            dtype = WORDS[dtype] if isinstance(dtype, str) else dtype.dtype
            made.append(first.new_empty(size, dtype=dtype) if strides is None else first.new_empty_strided(size, strides, dtype=dtype))
        return made[0] if len(made) == 1 else tuple(made) if made else None

    return fake


def _twin(row, op, op_out):
    """The op as Dynamo traces it, and as eager calls reach the dispatcher: the builtin's signature, torch's operators."""
    names, differentiable = row.out_names, row.differentiable

    def twin(*args, out=None, **kwargs):
        if out is None:
            return op(*args, **kwargs)
        outs = (out,) if len(names) == 1 else out
        if torch.is_grad_enabled() and any(t.requires_grad for t in (*(args if differentiable else ()), *outs) if isinstance(t, torch.Tensor)):
            raise RuntimeError("out= has no gradient, but an argument requires one")
        op_out(*args, **kwargs, **dict(zip(names, outs)))
        return out

    twin.__name__ = twin.__qualname__ = row.name
    return twin


def register(glue, namespace, gradients):
    """Defines torch.ops.<namespace>.<op> for every row of an extension's table. The Library returned must be kept."""
    _bind(glue)
    library = torch.library.Library(namespace, "DEF")
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):  # torch before 2.10: calls say so
        return library
    twins = {}
    for row in (Row(text, differentiable) for text, _, differentiable in glue.table()):
        raw = getattr(glue, row.name + "_raw")
        library.define(row.schema(), tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.register_fake(f"{namespace}::{row.name}", _fake(row), lib=library)
        packet = getattr(torch.ops, namespace)
        op, op_out = getattr(packet, row.name).default, None
        for key in ("CPU", "CUDA"):
            library.impl(row.name, raw, key)
        if row.results:
            library.define(row.out_schema(), tags=(torch.Tag.pt2_compliant_tag,))

            def write(*args, _raw=raw, _names=row.out_names, **kwargs):
                outs = tuple(kwargs.pop(name) for name in _names)
                _raw(*args, **kwargs, out=outs[0] if len(outs) == 1 else outs)

            for key in ("CPU", "CUDA"):
                library.impl(row.name + ".out", write, key)
            library.impl(row.name + ".out", lambda *args, **kwargs: None, "Meta")
            library.impl(row.name + ".out", torch.library.fallthrough_kernel, "Autograd")
            op_out = getattr(packet, row.name).out
        twins[row.name] = _twin(row, op, op_out)
        functions = (None, None)
        if row.differentiable:
            gradient = gradients[row.name]
            torch.library.register_autograd(f"{namespace}::{row.name}", gradient.backward, setup_context=gradient.save, lib=library)
            if gradient.vmap:
                torch.library.register_vmap(f"{namespace}::{row.name}", gradient.vmap, lib=library)
            functions = gradient.functions(raw, op)
        else:
            library.impl(row.name, torch.library.fallthrough_kernel, "Autograd")  # autograd passes it by, without a warning
        glue.bind_op(row.name, twins[row.name], *functions)

    def teach_dynamo():
        for name, twin in twins.items():
            torch.compiler.substitute_in_graph(getattr(glue, name), skip_signature_check=True)(twin)

    _after_import.run("torch._dynamo", teach_dynamo)
    return library


def _linear(function, vmap):
    """The gradient of an op that only moves elements and undoes itself: the gradient, moved back."""
    return Gradient(backward=lambda ctx, grad: function(grad), jvp=lambda ctx, tangent: function(tangent), vmap=vmap)


def _transpose_vmap(info, in_dims, x):
    return torch.ops.tegula.batched_transpose(x.movedim(in_dims[0], 0)), 0


def _batched_transpose_vmap(info, in_dims, x):
    x = x.movedim(in_dims[0], 0)
    return torch.ops.tegula.batched_transpose(x.flatten(0, 1)).unflatten(0, x.shape[:2]), 0


library = register(_tegula, "tegula", {
    "transpose": _linear(_tegula.transpose, _transpose_vmap),
    "batched_transpose": _linear(_tegula.batched_transpose, _batched_transpose_vmap),
})
