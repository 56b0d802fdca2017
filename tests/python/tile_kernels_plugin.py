# SPDX-License-Identifier: MIT
"""For tests/tile_kernels, beside tegula.testing.pytest_plugin: where there is no GPU, tensors that TileKernels' tests want on
"cuda" are made on the CPU, and there are 4 SMs."""
import torch
from torch.overrides import TorchFunctionMode

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


if not torch.cuda.is_available():
    config.get_num_sms = config.get_device_num_sms = lambda *args: 4
    torch.cuda.synchronize = lambda *args: None
    _OnCpu().__enter__()        # until the process ends
