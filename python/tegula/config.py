# SPDX-License-Identifier: MIT
"""Settings of the process. Results never depend on them. Each is also an environment variable:
docs/environment.md."""

import operator
import sys

from . import _tegula

__all__ = [
    "get_cache_dir", "get_device_num_sms", "get_jit_mode", "get_max_smem_per_sm", "get_num_sms",
    "get_num_threads", "get_pdl", "set_cache_dir", "set_jit_mode", "set_num_sms", "set_num_threads",
    "set_pdl",
]

# Those of an H200, reported if there is no GPU: code that subtracts some SMs from the count still runs.
_NO_GPU_NUM_SMS = 132
_NO_GPU_SMEM_PER_SM = 233472
_no_gpu_num_sms = 0  # set by set_num_sms() if there is no GPU; 0: not set

_JIT_MODES = ("auto", "never")


def current_device() -> int:
    """torch's current CUDA device; 0 if torch is not imported or has not used CUDA."""
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_initialized() else 0


def get_device_num_sms() -> int:
    """Multiprocessors of the current device; 132 if there is no GPU."""
    try:
        return _tegula.get_device_num_sms(current_device())
    except _tegula.Error:
        return _NO_GPU_NUM_SMS


def get_max_smem_per_sm() -> int:
    """Bytes of shared memory per multiprocessor of the current device; 233472 if there is no GPU."""
    try:
        return _tegula.get_max_smem_per_sm(current_device())
    except _tegula.Error:
        return _NO_GPU_SMEM_PER_SM


def set_num_sms(num_sms: int) -> None:
    """Sets how many multiprocessors persistent kernels may use, on every device; the rest stays free for other work."""
    global _no_gpu_num_sms
    try:
        num_sms = operator.index(num_sms)
    except TypeError:
        raise TypeError(f"num_sms: is {num_sms!r}, want an integer") from None
    assert 0 < num_sms <= get_device_num_sms(), f"num_sms: is {num_sms}, want 1..{get_device_num_sms()}"
    device = 0
    try:
        while True:
            _tegula.set_num_sms(device, min(num_sms, _tegula.get_device_num_sms(device)))
            device += 1
    except _tegula.Error:  # past the last device
        if device == 0:
            _no_gpu_num_sms = num_sms


def get_num_sms() -> int:
    """The bound in force: what was set, or all of the current device."""
    try:
        _tegula.get_device_num_sms(current_device())
    except _tegula.Error:
        return _no_gpu_num_sms or _NO_GPU_NUM_SMS
    return _tegula.get_num_sms(current_device())


def set_num_threads(num_threads: int) -> None:
    """CPU threads of an op; 0 means what OpenMP would use."""
    _tegula.set_num_threads(num_threads)


def get_num_threads() -> int:
    """CPU threads of an op: what was set, or what OpenMP would use."""
    return _tegula.get_num_threads()


def set_pdl(use_pdl: bool) -> None:
    """Programmatic dependent launch: a kernel starts while the one before it ends. On by default, if the GPU has it."""
    _tegula.set_pdl(use_pdl)


def get_pdl() -> bool:
    """Whether programmatic dependent launch is used, where the GPU has it."""
    return _tegula.get_pdl()


def set_jit_mode(mode: str) -> None:
    """'auto' compiles kernels that are not cached; 'never' raises an error that names the kernel."""
    if mode not in _JIT_MODES:
        raise ValueError(f"mode: is {mode!r}, want one of {', '.join(map(repr, _JIT_MODES))}")
    _tegula.set_jit_mode(_JIT_MODES.index(mode))


def get_jit_mode() -> str:
    """'auto' or 'never': see set_jit_mode()."""
    return _JIT_MODES[_tegula.get_jit_mode()]


def set_cache_dir(path: str | None) -> None:
    """Folder of compiled kernels. None is the default folder, "" no disk cache."""
    _tegula.set_cache_dir(path)


def get_cache_dir() -> str:
    """The folder in use, "" if there is none."""
    return _tegula.get_cache_dir()
