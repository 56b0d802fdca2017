# SPDX-License-Identifier: MIT
from __future__ import annotations

import torch
from torch import Tensor

from ...torch.mhc import (
    expand_to_mhc_ref, mhc_head_compute_mix_ref, mhc_post_ref, mhc_pre_apply_mix_ref, mhc_pre_norm_fn_ref,
    mhc_pre_split_mixes_ref, sinkhorn_normalize_ref,
)


def mhc_pre_norm_fn_partials_ref(residual: Tensor, mhc_fn: Tensor, n_splits: int) -> tuple[Tensor, Tensor]:
    """What a GEMM with n_splits ranges of columns leaves, for tegula.v2.mhc.mhc_reduce_partials_and_rmsnorm_fwd: products
    [n_splits, T, 1, P] of residual [..., N, H] and the rows of mhc_fn [P, N * H], sums of squares [n_splits, T, 1]. In
    TF32 if torch.backends.cuda.matmul.allow_tf32 is set."""
    columns = residual.reshape(-1, mhc_fn.shape[1]).float().tensor_split(n_splits, 1)
    out_mul = torch.stack([torch.matmul(x, fn.T) for x, fn in zip(columns, mhc_fn.tensor_split(n_splits, 1))])
    sqrsum = torch.stack([x.square().sum(1) for x in columns])
    return out_mul.unsqueeze(2), sqrsum.unsqueeze(2)


__all__ = ["expand_to_mhc_ref", "mhc_head_compute_mix_ref", "mhc_post_ref", "mhc_pre_apply_mix_ref",
           "mhc_pre_norm_fn_partials_ref", "mhc_pre_norm_fn_ref", "mhc_pre_split_mixes_ref", "sinkhorn_normalize_ref"]
