# SPDX-License-Identifier: MIT
"""DeepGEMM's functions of hyper-connections, under its names: `from tegula.mhc import deep_gemm`."""
from __future__ import annotations

import torch
from torch import Tensor

from .. import mhc


@torch.no_grad()
def tf32_hc_prenorm_gemm(a: Tensor, b: Tensor, d: Tensor, sqr_sum: Tensor, num_splits: int | None = None, *,
                         num_streams: int = 4) -> None:
    """Writes a @ b.T of a [T, K] and b [P, K], in TF32, to d [T, P], and the sums of squares of a's rows to sqr_sum [T],
    without gradients; with num_splits to d [num_splits, T, P] and sqr_sum [num_splits, T], as parts to be added up,
    of which the last may be zeros. Added as mhc_norm_fn_finish_fwd and mhc_pre_finish_fwd do it, parts give the same bits
    for any num_splits: those of mhc_norm_fn_fwd of num_streams streams.

    Example:
        >>> a, b = torch.randn(6, 256).bfloat16(), torch.randn(24, 256) / 16
        >>> d, sqr_sum = torch.empty(16, 6, 24), torch.empty(16, 6)
        >>> tf32_hc_prenorm_gemm(a, b, d, sqr_sum, num_splits=16)
        >>> torch.allclose(d.sum(0), a.float() @ b.T, atol=0.05)
        True
    """
    if num_splits is None:
        d, sqr_sum, num_splits = d[None], sqr_sum[None], 1
    if num_splits < 1 or num_splits != d.shape[0]:
        raise ValueError(f"num_splits: is {num_splits}, want {d.shape[0]}, that of d")
    used = 1 << min(num_splits.bit_length() - 1, 4)     # the op has 1, 2, 4, 8, 16
    mhc.mhc_norm_fn_parts_fwd(a.unflatten(-1, (num_streams, -1)), b, None, used, out=(d[:used], sqr_sum[:used]))
    if used < num_splits:
        d[used:] = sqr_sum[used:] = 0


hc_prenorm_gemm = tf32_hc_prenorm_gemm

__all__ = ["hc_prenorm_gemm", "tf32_hc_prenorm_gemm"]
