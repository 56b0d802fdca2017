# SPDX-License-Identifier: MIT
"""mHC as TileKernels 2 has it: the caller makes the outputs, and does the projection's GEMM. T tokens are one
dimension, N streams, H columns, P = N * (N + 2): num_tokens, num_streams, hidden and num_mixes in the arguments."""
from .expand_kernel import expand_to_mhc_bwd, expand_to_mhc_fwd
from .head_compute_mix_kernel import mhc_head_compute_mix_bwd, mhc_head_compute_mix_fwd
from .multilayer_recompute_kernel import mhc_multilayer_recompute
from .norm_fn_kernel import (mhc_fn_normw_merge_bwd, mhc_fn_normw_merge_fwd, mhc_reduce_partials_and_rmsnorm_bwd,
                             mhc_reduce_partials_and_rmsnorm_fwd)
from .post_kernel import mhc_post_bwd, mhc_post_fwd
from .pre_apply_mix_kernel import mhc_pre_apply_mix_bwd, mhc_pre_apply_mix_fwd
from .pre_big_fuse_kernel import mhc_pre_big_fuse_fwd
from .pre_split_mixes_kernel import mhc_pre_split_mixes_bwd, mhc_pre_split_mixes_fwd
from .sinkhorn_kernel import mhc_sinkhorn_bwd, mhc_sinkhorn_fwd

__all__ = ["expand_to_mhc_bwd", "expand_to_mhc_fwd", "mhc_fn_normw_merge_bwd", "mhc_fn_normw_merge_fwd",
           "mhc_head_compute_mix_bwd", "mhc_head_compute_mix_fwd", "mhc_multilayer_recompute", "mhc_post_bwd",
           "mhc_post_fwd", "mhc_pre_apply_mix_bwd", "mhc_pre_apply_mix_fwd", "mhc_pre_big_fuse_fwd",
           "mhc_pre_split_mixes_bwd", "mhc_pre_split_mixes_fwd", "mhc_reduce_partials_and_rmsnorm_bwd",
           "mhc_reduce_partials_and_rmsnorm_fwd", "mhc_sinkhorn_bwd", "mhc_sinkhorn_fwd"]
