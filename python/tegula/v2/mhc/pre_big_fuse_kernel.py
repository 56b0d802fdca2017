# SPDX-License-Identifier: MIT
import torch

from ... import mhc
from .norm_fn_kernel import mhc_reduce_partials_and_rmsnorm_fwd


def mhc_pre_big_fuse_fwd(gemm_out_mul, gemm_out_sqrsum, mhc_scale, mhc_base, residual, post_mix, comb_mix, layer_input,
                         rms_eps, mhc_pre_eps, mhc_sinkhorn_eps, mhc_post_mult_value, sinkhorn_repeat, n_splits=16):
    """From a GEMM's partial products [n_splits, T, P] and sums of squares [n_splits, T] of residual [T, N, H]: writes
    post_mix [T, N], comb_mix [T, N * N] and layer_input [T, H]."""
    num_tokens, n, hidden = residual.shape
    out_mul = gemm_out_mul.new_empty(num_tokens, 1, gemm_out_mul.shape[-1])
    mixes = torch.empty_like(out_mul[:, 0])
    mhc_reduce_partials_and_rmsnorm_fwd(gemm_out_mul.unsqueeze(2), gemm_out_sqrsum.unsqueeze(2), out_mul,
                                        out_mul.new_empty(num_tokens, 1), mixes, n * hidden, rms_eps, n_splits)
    pre_mix, _, comb = mhc.mhc_pre_split_mixes_fwd(mixes, mhc_scale, mhc_base, n, mhc_post_mult_value, mhc_pre_eps,
                                                   out=(None, post_mix.view(num_tokens, n), None))
    mhc.mhc_sinkhorn_fwd(comb, sinkhorn_repeat, mhc_sinkhorn_eps, out=comb_mix.view(num_tokens, n, n))
    mhc.mhc_pre_apply_mix_fwd(residual, pre_mix, out=layer_input)
