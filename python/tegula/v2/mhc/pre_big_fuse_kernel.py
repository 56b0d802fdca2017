# SPDX-License-Identifier: MIT
import torch
from torch import Tensor

from ... import mhc


@torch.no_grad()
def mhc_pre_big_fuse_fwd(gemm_out_mul: Tensor, gemm_out_sqrsum: Tensor, mhc_scale: Tensor, mhc_base: Tensor,
                         residual: Tensor, post_mix: Tensor, comb_mix: Tensor, layer_input: Tensor, rms_eps: float,
                         mhc_pre_eps: float, mhc_sinkhorn_eps: float, mhc_post_mult_value: float, sinkhorn_repeat: int,
                         n_splits: int = 16) -> None:
    """From a GEMM's partial products [n_splits, T, P] and sums of squares [n_splits, T] of residual [T, N, H]: writes
    post_mix [T, N], comb_mix [T, N * N] and layer_input [T, H].

    Args:
        gemm_out_mul: float32 [n_splits, num_tokens, num_mixes]
        gemm_out_sqrsum: float32 [n_splits, num_tokens]
        mhc_scale: float32 [3]
        mhc_base: float32 [num_mixes]
        residual: bfloat16 [num_tokens, num_streams, hidden]
        post_mix: float32 [num_tokens, num_streams]; is written
        comb_mix: float32 [num_tokens, num_streams * num_streams]; is written
        layer_input: bfloat16 [num_tokens, hidden]; is written
        rms_eps: float
        mhc_pre_eps: float
        mhc_sinkhorn_eps: float
        mhc_post_mult_value: float
        sinkhorn_repeat: int, iterations
        n_splits: int

    Returns:
        None
    """
    if gemm_out_mul.shape[0] != n_splits:
        raise ValueError(f"gemm_out_mul: shape is {list(gemm_out_mul.shape)}, want [{n_splits}, ...], as n_splits")
    num_tokens, n, _ = residual.shape
    mhc.mhc_pre_finish_fwd(
        residual, gemm_out_mul, gemm_out_sqrsum, mhc_scale, mhc_base, rms_eps, mhc_pre_eps, mhc_sinkhorn_eps,
        mhc_post_mult_value, repeat=sinkhorn_repeat,
        out=(layer_input, None, post_mix.view(num_tokens, n), comb_mix.view(num_tokens, n, n)))


__all__ = ["mhc_pre_big_fuse_fwd"]
