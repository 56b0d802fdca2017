# SPDX-License-Identifier: MIT
"""For tests/tile_kernels, beside tegula.testing.pytest_plugin: where there is no GPU, tensors that TileKernels' tests want on
"cuda" are made on the CPU, there are 4 SMs, and allow_tf32 means what it means on a GPU: references of the projection ask for
it, and their gradient is far from ours without."""
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


class _Tf32(TorchDispatchMode):
    """Products of matrices, in backwards too."""

    products = {torch.ops.aten.mm, torch.ops.aten.bmm}

    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        if torch.backends.cuda.matmul.allow_tf32 and function.overloadpacket in self.products:
            args = tuple(self.rounded(a) if a.dtype == torch.float32 else a for a in args)
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
    _modes = _OnCpu(), _Tf32()      # until the process ends; torch, printing a tensor, drops its own reference
    for _mode in _modes:
        _mode.__enter__()
