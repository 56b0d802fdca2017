# SPDX-License-Identifier: MIT
import torch


def mhc_fn_normw_merge_fwd(fn, normw, out_fn):
    """fn [P, K] * normw [K] to out_fn."""
    torch.mul(fn, normw, out=out_fn)


def mhc_fn_normw_merge_bwd(fn, normw, out_fn_grad, fn_grad, normw_grad):
    """Adds to fn_grad and normw_grad."""
    fn_grad += out_fn_grad * normw
    normw_grad += (out_fn_grad * fn).sum(0)


def tree(parts):
    """The sum over the first dimension: padded with zeros to a power of two, neighbours added, and so on. Of our own
    partial sums, which are subtrees, that is the sum over all columns to the bit."""
    while parts.shape[0] > 1:
        odd, parts = parts[-1:] if parts.shape[0] % 2 else None, parts[:parts.shape[0] // 2 * 2]
        parts = parts[0::2] + parts[1::2]
        if odd is not None:
            parts = torch.cat([parts, odd + 0.0])
    return parts[0]


def rms(sqrsum, size, eps):
    """1 / sqrt(sqrsum / size + eps), correctly rounded, as the C ops have it."""
    return (1.0 / (sqrsum / size + eps).double().sqrt()).float()


def mhc_reduce_partials_and_rmsnorm_fwd(out_mul_splitted, sqrsum_splitted, out_mul, sqrsum, out, rms_group_size,
                                        rms_eps, n_splits):
    """Partial products [n_splits, T, G, P] and sums of squares [n_splits, T, G] of a GEMM, for G groups of columns, to
    their sums, out_mul and sqrsum, and to mixes, out [T, P]."""
    assert out_mul_splitted.shape[0] == sqrsum_splitted.shape[0] == n_splits
    out_mul.copy_(tree(out_mul_splitted))
    sqrsum.copy_(tree(sqrsum_splitted))
    normed = out_mul * rms(sqrsum, float(rms_group_size), rms_eps).unsqueeze(-1)
    out.copy_(normed[:, 0] if normed.shape[1] == 1 else normed.sum(1))


def mhc_reduce_partials_and_rmsnorm_bwd(out_grad, out_mul, sqrsum, out_mul_grad, sqrsum_grad, rms_group_size, rms_eps):
    """The gradients of out_mul [T, G, P] and sqrsum [T, G] from that of out [T, P]."""
    r, out_grad = rms(sqrsum, float(rms_group_size), rms_eps), out_grad.unsqueeze(1)
    torch.mul(out_grad, r.unsqueeze(-1), out=out_mul_grad)
    torch.mul((out_grad * out_mul).sum(-1) * -0.5, r / (sqrsum + rms_eps * rms_group_size), out=sqrsum_grad)
