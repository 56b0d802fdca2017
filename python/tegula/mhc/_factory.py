# SPDX-License-Identifier: MIT
"""Kernel factories of TileKernels 1.0 that other projects import: sizes first, then a call with tensors. How its
kernels are tuned is accepted and ignored."""


def ignored(**tuning):
    for name, value in tuning.items():
        if "dtype" in name and str(value).removeprefix("torch.") not in ("float32", "fp32"):
            raise ValueError(f"{name}: is {value}, want float32")
