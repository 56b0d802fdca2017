# SPDX-License-Identifier: MIT
"""For tests/tile_kernels, beside tegula.testing.pytest_plugin: where there is no GPU, tensors that TileKernels' tests want on
"cuda" are made on the CPU, there are 4 SMs, and two functions of torch have the bits that tests count on. allow_tf32 means what
it means on a GPU: references of the projection ask for it, and their gradient is far from ours without. exp is the library's, as
both have CUDA's on a GPU: references of SwiGLU's gradient would differ in one of a million elements."""
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tegula import config


class _OnCpu(TorchFunctionMode):
    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        if function is torch.Tensor.cuda:
            return args[0]
        args = tuple("cpu" if self.is_cuda(a) else a for a in args)
        kwargs = {name: "cpu" if self.is_cuda(a) else a for name, a in (kwargs or {}).items()}
        return function(*args, **kwargs)

    @staticmethod
    def is_cuda(value):
        return isinstance(value, (str, torch.device)) and str(value).startswith("cuda")


def _exp(x):
    """By the steps of src/numerics/exp.h."""
    shifted = x.clamp(-104, 89) * float.fromhex("0x1.715476p0") + float.fromhex("0x1.8p23")
    n = shifted - float.fromhex("0x1.8p23")
    r = (x.clamp(-104, 89) - n * float.fromhex("0x1.63p-1")) + n * float.fromhex("0x1.bd0106p-13")
    p = torch.full_like(r, float.fromhex("0x1.6a1a72p-10"))
    for factor in ("0x1.123fc6p-7", "0x1.555916p-5", "0x1.55548ap-3", "0x1.fffffcp-2"):
        p = p * r + float.fromhex(factor)
    half = (n / 2).floor()
    return (p * (r * r) + r + 1) * half.exp2() * (n - half).exp2()


class _Bits(TorchDispatchMode):
    """In backwards too."""

    products = {torch.ops.aten.mm, torch.ops.aten.bmm}

    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        if torch.backends.cuda.matmul.allow_tf32 and function.overloadpacket in self.products:
            args = tuple(self.rounded(a) if a.dtype == torch.float32 else a for a in args)
        if function is torch.ops.aten.exp.default and args[0].dtype == torch.float32:
            return _exp(args[0])
        return function(*args, **(kwargs or {}))

    @staticmethod
    def rounded(t):
        """To nearest; what is not finite stays."""
        bits = (t.contiguous().view(torch.int32) + 0x1000) & ~0x1fff
        return torch.where(t.isfinite(), bits.view(torch.float32), t)


if not torch.cuda.is_available():
    config.set_num_sms(4)
    _Generator = torch.Generator
    torch.Generator = lambda device=None: _Generator()      # making one is no torch function
    torch.cuda.synchronize = lambda *args: None
    _modes = _OnCpu(), _Bits()      # until the process ends; torch, printing a tensor, drops its own reference
    for _mode in _modes:
        _mode.__enter__()
