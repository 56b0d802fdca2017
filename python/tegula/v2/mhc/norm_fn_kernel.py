# SPDX-License-Identifier: MIT
import torch
from torch import Tensor

from ... import mhc
from ._outputs import check_outputs


@torch.no_grad()
def mhc_fn_normw_merge_fwd(fn: Tensor, normw: Tensor, out_fn: Tensor) -> None:
    """fn [P, K] * normw [K] to out_fn.

    Args:
        fn: float32 [num_mixes, num_columns]
        normw: float32 [num_columns]
        out_fn: float32 [num_mixes, num_columns]; is written

    Returns:
        None
    """
    check_outputs(fn, normw, out_fn=(out_fn, fn.shape))
    torch.mul(fn, normw, out=out_fn)


def _add_to_float(x, total):
    """float64 x + float32 total, rounded once, to float32. Rounded to float64 first, the sum may become the middle of two
    float32, from which the second rounding would not know the way: so the first is to odd."""
    total = total.double()
    rounded = x + total
    of_total = rounded - x
    error = (x - (rounded - of_total)) + (total - of_total)             # exact; NaN of infinities
    bits = rounded.view(torch.int64)
    is_inexact_and_even = ((error > 0) | (error < 0)) & (bits & 1 == 0)
    odd = torch.where((error > 0) == (rounded > 0), bits + 1, bits - 1)
    return torch.where(is_inexact_and_even, odd, bits).view(torch.float64).float()


@torch.no_grad()
def mhc_fn_normw_merge_bwd(fn: Tensor, normw: Tensor, out_fn_grad: Tensor, fn_grad: Tensor,
                           normw_grad: Tensor) -> None:
    """Adds to fn_grad and normw_grad: to zeros, the bits of mhc_norm_fn_bwd, which sums by fma in the order of rows.

    Args:
        fn: float32 [num_mixes, num_columns]
        normw: float32 [num_columns]
        out_fn_grad: float32 [num_mixes, num_columns]
        fn_grad: float32 [num_mixes, num_columns]; is added to
        normw_grad: float32 [num_columns]; is added to

    Returns:
        None
    """
    check_outputs(fn, normw, out_fn_grad, fn_grad=(fn_grad, fn.shape), normw_grad=(normw_grad, normw.shape))
    of_normw = torch.zeros_like(normw_grad)
    for product in out_fn_grad.double() * fn.double():                  # exact
        of_normw = _add_to_float(product, of_normw)
    fn_grad += out_fn_grad * normw
    normw_grad += of_normw


@torch.no_grad()
def mhc_reduce_partials_and_rmsnorm_fwd(out_mul_splitted: Tensor, sqrsum_splitted: Tensor, out_mul: Tensor,
                                        sqrsum: Tensor, out: Tensor, rms_group_size: int, rms_eps: float,
                                        n_splits: int) -> None:
    """Partial products [n_splits, T, G, P] and sums of squares [n_splits, T, G] of a GEMM, for G groups of columns, to
    their sums, out_mul and sqrsum, and to mixes, out [T, P]: the sum over groups of normed out_mul.

    Args:
        out_mul_splitted: float32 [n_splits, num_tokens, num_groups, num_mixes]
        sqrsum_splitted: float32 [n_splits, num_tokens, num_groups]
        out_mul: float32 [num_tokens, num_groups, num_mixes]; is written
        sqrsum: float32 [num_tokens, num_groups]; is written
        out: float32 [num_tokens, num_mixes]; is written
        rms_group_size: int, columns of a group
        rms_eps: float
        n_splits: int

    Returns:
        None
    """
    splits, num_tokens, groups, rows = out_mul_splitted.shape
    if splits != n_splits:
        raise ValueError(f"out_mul_splitted: shape is {list(out_mul_splitted.shape)}, want [{n_splits}, ...], as n_splits")
    check_outputs(out_mul_splitted, sqrsum_splitted, out_mul=(out_mul, (num_tokens, groups, rows)),
                  sqrsum=(sqrsum, (num_tokens, groups)), out=(out, (num_tokens, rows)))
    tokens = num_tokens * groups                        # a group of a token is a token of its own
    mixes, _, _ = mhc.mhc_norm_fn_finish_fwd(
        out_mul_splitted.view(splits, tokens, rows), sqrsum_splitted.view(splits, tokens), rms_group_size, rms_eps,
        out=(out if groups == 1 else None, out_mul.view(tokens, rows), sqrsum.view(tokens)))
    if groups > 1:
        first, *others = mixes.view(num_tokens, groups, rows).unbind(1)
        out.copy_(first)
        for of_group in others:
            out += of_group


@torch.no_grad()
def mhc_reduce_partials_and_rmsnorm_bwd(out_grad: Tensor, out_mul: Tensor, sqrsum: Tensor, out_mul_grad: Tensor,
                                        sqrsum_grad: Tensor, rms_group_size: int, rms_eps: float) -> None:
    """The gradients of out_mul [T, G, P] and sqrsum [T, G] from that of out [T, P].

    Args:
        out_grad: float32 [num_tokens, num_mixes]
        out_mul: float32 [num_tokens, num_groups, num_mixes]
        sqrsum: float32 [num_tokens, num_groups]
        out_mul_grad: float32 [num_tokens, num_groups, num_mixes]; is written
        sqrsum_grad: float32 [num_tokens, num_groups]; is written
        rms_group_size: int, columns of a group
        rms_eps: float

    Returns:
        None
    """
    check_outputs(out_grad, out_mul, sqrsum, out_mul_grad=(out_mul_grad, out_mul.shape),
                  sqrsum_grad=(sqrsum_grad, sqrsum.shape))
    ones = sqrsum.new_ones(1, sqrsum.numel(), 1)        # whose mixes are the forward's factor, to the bit
    r = mhc.mhc_norm_fn_finish_fwd(ones, sqrsum.view(1, -1), rms_group_size, rms_eps)[0].view(sqrsum.shape)
    out_grad = out_grad.unsqueeze(1)
    torch.mul(out_grad, r.unsqueeze(-1), out=out_mul_grad)
    torch.mul((out_grad * out_mul).sum(-1) * -0.5, r / (sqrsum + rms_eps * rms_group_size), out=sqrsum_grad)


__all__ = ["mhc_fn_normw_merge_bwd", "mhc_fn_normw_merge_fwd", "mhc_reduce_partials_and_rmsnorm_bwd",
           "mhc_reduce_partials_and_rmsnorm_fwd"]
