# SPDX-License-Identifier: MIT
import torch


def expand_to_mhc_ref(hidden, mhc_mult):
    """tegula.modeling.mhc.ops.expand_to_mhc: [..., H] to mhc_mult equal streams."""
    return hidden.unsqueeze(-2).expand(*hidden.shape[:-1], mhc_mult, hidden.shape[-1]).contiguous()


def sinkhorn_normalize_ref(x, repeat=10, eps=1e-6):
    """tegula.modeling.mhc.ops.sinkhorn_normalize, of logits [..., N, N]."""
    x = x.softmax(-1) + eps
    x = x / (x.sum(-2, keepdim=True) + eps)
    for _ in range(repeat - 1):
        x = x / (x.sum(-1, keepdim=True) + eps)
        x = x / (x.sum(-2, keepdim=True) + eps)
    return x


def mhc_head_compute_mix_ref(input_mix, mhc_scale, mhc_base, mhc_pre_eps):
    """tegula.modeling.mhc.ops.mhc_head_compute_mix: a gate from its logits [..., N]."""
    return torch.sigmoid(input_mix * mhc_scale + mhc_base) + mhc_pre_eps


def mhc_pre_split_mixes_ref(input_mixes, mhc_scale, mhc_base, mhc_mult, mhc_post_mult_value, mhc_pre_eps):
    """tegula.modeling.mhc.ops.mhc_pre_split_mixes: (pre, post, logits of comb) of mixes [..., N * (N + 2)]."""
    n = mhc_mult
    pre, post, comb = ((input_mixes[..., begin:end] * mhc_scale[i] + mhc_base[begin:end])
                       for i, (begin, end) in enumerate(((0, n), (n, 2 * n), (2 * n, n * (n + 2)))))
    return ((torch.sigmoid(pre) + mhc_pre_eps).unsqueeze(-1), (torch.sigmoid(post) * mhc_post_mult_value).unsqueeze(-1),
            comb.unflatten(-1, (n, n)))


def mhc_pre_apply_mix_ref(x, mix):
    """tegula.modeling.mhc.ops.mhc_pre_apply_mix, of x [..., N, H] and mix [..., N, 1]."""
    return (x.float() * mix).sum(-2).to(x.dtype)


def mhc_post_ref(x, residual, post_layer_mix, comb_res_mix):
    """tegula.modeling.mhc.ops.mhc_post, of x [..., H], residual [..., N, H] and mixes [..., N, 1] and [..., N, N]."""
    mixed = torch.einsum("...io,...ih->...oh", comb_res_mix, residual.float())
    return (mixed + x.float().unsqueeze(-2) * post_layer_mix).to(residual.dtype)


def mhc_pre_norm_fn_ref(residual, mhc_fn, mhc_norm_weight, mhc_norm_eps):
    """In TF32 if torch.backends.cuda.matmul.allow_tf32 is set."""
    fn = mhc_fn if mhc_norm_weight is None else mhc_fn * mhc_norm_weight
    x = residual.flatten(-2).float()
    return torch.matmul(x, fn.T) * (x.square().mean(-1, keepdim=True) + mhc_norm_eps).rsqrt()
