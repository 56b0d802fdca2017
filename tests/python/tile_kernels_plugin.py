# SPDX-License-Identifier: MIT
"""For tests/tile_kernels: a pytest plugin under which TileKernels' own tests, as they are, test this package.

tile_kernels is tegula. Where tilelang is not installed, whose target those tests ask for, it is one of CUDA. Where there
is no GPU, tensors that the tests want on "cuda" are made on the CPU, and there are 4 SMs."""
import importlib.util
import sys
import types

import torch
from torch.overrides import TorchFunctionMode

import tegula.as_tile_kernels  # noqa: F401
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


if importlib.util.find_spec("tilelang") is None:
    for _name in ("tilelang", "tilelang.utils", "tilelang.utils.target"):
        sys.modules[_name] = types.ModuleType(_name)
    _target = types.SimpleNamespace(kind=types.SimpleNamespace(name="cuda"))
    sys.modules["tilelang.utils.target"].determine_target = lambda *args, **kwargs: _target
if not torch.cuda.is_available():
    config.get_num_sms = config.get_device_num_sms = lambda *args: 4
    torch.cuda.synchronize = lambda *args: None
    _OnCpu().__enter__()        # until the process ends
