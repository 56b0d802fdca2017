# SPDX-License-Identifier: MIT
"""The projection in parts. DeepGEMM takes them where modeling.mhc.ops has no MHCGemmWithSqrsum."""
import math

import torch

from .. import mhc
from ..v2.mhc.norm_fn_kernel import (mhc_fn_normw_merge_bwd, mhc_fn_normw_merge_fwd,
                                     mhc_reduce_partials_and_rmsnorm_bwd, mhc_reduce_partials_and_rmsnorm_fwd)
from ._factory import ignored


_LARGEST = torch.finfo(torch.float32).max


def _cut(t):
    """Without the low 13 bits, which a tensor core ignores. Callers round before, by TileKernels' round_to_tf32, which
    leaves them there: to round once more would round half of all numbers up."""
    return (t.view(torch.int32) & ~0x1fff).view(torch.float32)


@torch.no_grad()
def round_to_tf32(x):
    """float32 to the nearest TF32, ties away from zero; infinities and NaN stay."""
    rounded = ((x.view(torch.int32) + 0x1000) & ~0x1fff).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x)


def _streams(mhc_mult3, size):
    """Of a group of columns, as rows of streams: sums are then those of the whole op, to the bit."""
    n = math.isqrt(mhc_mult3 + 1) - 1
    return n if n >= 1 and n * (n + 2) == mhc_mult3 and size % n == 0 else 1


def _mhc_fn_normw_merge_fwd(m, n, **tuning):
    ignored(**tuning)
    return mhc_fn_normw_merge_fwd   # (fn, normw, out_fn)


def _mhc_fn_normw_merge_bwd(m, n, **tuning):
    ignored(**tuning)
    return mhc_fn_normw_merge_bwd   # (fn, normw, out_fn_grad, fn_grad, normw_grad), which are added to


def _mhc_pre_norm_fn_fwd_mul(mhc_mult3, n_rms_group, rms_group_size, token_block=32, hidden_block=256, **tuning):
    ignored(**tuning)
    n = _streams(mhc_mult3, rms_group_size)

    @torch.no_grad()
    def call(x, fn, out, sqrsum):
        fn = _cut(fn).view(mhc_mult3, n_rms_group, rms_group_size)
        for g in range(n_rms_group):
            columns = x.view(x.shape[0], n_rms_group, n, rms_group_size // n)[:, g]
            _, out[:, g], sqrsum[:, g] = mhc.mhc_norm_fn_fwd(columns, fn[:, g].contiguous())

    return call


def _mhc_pre_norm_fn_fwd_norm(mhc_mult3, n_rms_group, rms_group_size, rms_eps, n_splits=1, **tuning):
    ignored(**tuning)

    def call(out_mul_splitted, sqrsum_splitted, out_mul, sqrsum, out):
        mhc_reduce_partials_and_rmsnorm_fwd(out_mul_splitted, sqrsum_splitted, out_mul, sqrsum, out, rms_group_size,
                                            rms_eps, n_splits)

    return call


def _mhc_pre_norm_fn_bwd_norm(mhc_mult3, n_rms_group, rms_group_size, rms_eps, **tuning):
    ignored(**tuning)

    def call(out_grad, out_mul, sqrsum, out_mul_grad, sqrsum_grad):
        mhc_reduce_partials_and_rmsnorm_bwd(out_grad, out_mul, sqrsum, out_mul_grad, sqrsum_grad, rms_group_size,
                                            rms_eps)

    return call


def _mhc_pre_norm_fn_bwd_mul(mhc_mult3, n_rms_group, rms_group_size, token_block=128, hidden_block=128, **tuning):
    """x_grad += out_mul_grad fn + 2 x sqrsum_grad; fn_grad = out_mul_grad^T x.

    tgl_mhc_norm_fn_bwd computes these two with out_mul_grad = grad_mixes * r and sqrsum_grad = -(sum of grad_mixes *
    out_mul) / 2 * r / sqrsum. With sqrsum = columns and eps = 0, r is 1; one more row, of zeros in fn, brings
    sqrsum_grad in: its gradient is 1 and its product -2 * columns * sqrsum_grad. The op has at most 80 rows: with one
    more torch computes it, in float32."""
    ignored(**tuning)
    n = _streams(mhc_mult3, rms_group_size)

    @torch.no_grad()
    def call(out_mul_grad, sqrsum_grad, x, fn, x_grad, fn_grad):
        num_tokens, shape = x.shape[0], (x.shape[0], n_rms_group, n, rms_group_size // n)
        fn = _cut(fn).view(mhc_mult3, n_rms_group, rms_group_size)
        for g in range(n_rms_group):
            grad = _cut(out_mul_grad.view(num_tokens, n_rms_group, mhc_mult3)[:, g].contiguous())
            of_squares = sqrsum_grad.view(num_tokens, n_rms_group)[:, g]
            to_x, to_fn = x_grad.view(shape)[:, g], fn_grad.view(mhc_mult3, n_rms_group, rms_group_size)[:, g]
            if mhc_mult3 == 80:
                columns = x.view(shape)[:, g].flatten(1).float()
                to_x.copy_((to_x.flatten(1) + grad @ fn[:, g] + 2 * columns * of_squares.unsqueeze(1)).view(to_x.shape))
                to_fn.copy_(grad.T @ columns)
                continue
            # Infinity times a row's product, 0, would be NaN in the sum. The largest float32 is not, and as TF32, which no
            # other number that is cut rounds to, it is infinite.
            grad = grad.clamp(-_LARGEST, _LARGEST)
            grad = torch.cat([grad, torch.ones_like(grad[:, :1])], 1)
            rows = torch.cat([fn[:, g], torch.zeros_like(fn[:1, g])])
            out_mul = torch.zeros_like(grad)
            out_mul[:, -1] = -2.0 * rms_group_size * of_squares
            squares = torch.full_like(grad[:, 0], float(rms_group_size))
            to_fn.copy_(mhc.mhc_norm_fn_bwd(grad, x.view(shape)[:, g], rows, out_mul, squares, None, 0.0, to_x)[:-1])

    return call


__all__ = ["round_to_tf32"]
