# SPDX-License-Identifier: MIT
from ..v2.mhc.pre_big_fuse_kernel import mhc_pre_big_fuse_fwd
from ._factory import ignored


def _mhc_pre_big_fuse(hidden_size, rms_eps, mhc_pre_eps, mhc_sinkhorn_eps, mhc_post_mult_value, sinkhorn_repeat,
                      n_splits=16, mhc_mult=4, **tuning):
    ignored(**tuning)

    def call(gemm_out_mul, gemm_out_sqrsum, mhc_scale, mhc_base, residual, post_mix, comb_mix, layer_input):
        mhc_pre_big_fuse_fwd(gemm_out_mul, gemm_out_sqrsum, mhc_scale, mhc_base, residual, post_mix, comb_mix,
                             layer_input, rms_eps, mhc_pre_eps, mhc_sinkhorn_eps, mhc_post_mult_value, sinkhorn_repeat,
                             n_splits)

    return call


__all__ = []
