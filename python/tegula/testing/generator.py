# SPDX-License-Identifier: MIT
"""Sizes and data to test with. TK_FULL_TEST=1 adds the edge cases."""
import os

import torch

from .. import config


def _is_full():
    return os.environ.get("TK_FULL_TEST") in ("1", "true", "True")


def generate_num_tokens(alignment=1, is_benchmark=False):
    """Token counts, odd on purpose, rounded up to a multiple of alignment."""
    counts = [0] if _is_full() and not is_benchmark else []
    return counts + [-(-n // alignment) * alignment for n in (4001, 8001)]


def generate_hidden_sizes(align=64):
    """Hidden sizes of published models that are multiples of align."""
    return [n for n in (576, 2048, 2560, 3072, 4096, 6144, 7168) if n % align == 0]


def generate_num_sms():
    """Bounds for persistent kernels: results must be the same under each."""
    count = config.get_device_num_sms()
    return ([1] if _is_full() else []) + [count - 20, count]


def generate_moe_params(is_benchmark=False):
    """Settings of routing tests: tokens that a rank sends, experts per token and per rank, ranks."""
    full = _is_full()
    if full and not is_benchmark:
        yield {"num_send_tokens": 0, "num_topk": 1, "num_experts": 1, "num_ep_ranks": 1}
    for num_topk in (2, 6, 8, 9, 1, 7)[:6 if full else 4]:
        for num_experts in (72, 256, 288, 384)[:4 if full else 2]:
            for num_ep_ranks in (8, 64, 1, 72, 256)[:5 if full else 2]:
                if num_experts % num_ep_ranks == 0:
                    yield {"num_send_tokens": 4001, "num_topk": num_topk,
                           "num_experts": num_experts // num_ep_ranks, "num_ep_ranks": num_ep_ranks}


def _device(device):
    """On the GPU where there is one."""
    return device or ("cuda" if torch.cuda.is_available() else "cpu")


def generate_rand_float(shape, device=None):
    """Normal numbers times a power of two, the same for all: from 2^-110 to 2^126, held to an eighth of the
    largest float."""
    scale = 2.0 ** int(torch.randint(-110, 127, ()))
    limit = torch.finfo(torch.float32).max / 8
    x = torch.randn(shape, device=_device(device)) * scale
    return x.nan_to_num(0, limit, -limit).clamp(-limit, limit)


def generate_e5m6_inputs(num_tokens, hidden, dtype, device=None):
    """(x, is_special): normal numbers, then numbers around e5m6's smallest ones, beside its largest in the
    last column, which makes the factor 1."""
    yield torch.randn(num_tokens, hidden, device=_device(device), dtype=dtype), False
    for number in (2.0**-20, 2.0**-14 * 63 / 64, 2.0**-14):
        x = torch.full((num_tokens, hidden), number, device=_device(device), dtype=dtype)
        x[:, -1] = 65024
        yield x, True


def generate_topk_idx(params, device=None):
    """The experts on one rank that the tokens of all ranks want: -1 stands for an expert elsewhere, and
    tokens that want none here are left out. On the GPU where there is one."""
    num_experts, num_ranks = params["num_experts"], params["num_ep_ranks"]
    device = _device(device)
    parts = [torch.empty(0, params["num_topk"], dtype=torch.int64, device=device)]
    for _ in range(num_ranks):      # one rank's tokens at a time: all of them at once would take gigabytes
        scores = torch.rand(params["num_send_tokens"], num_experts * num_ranks, device=device)
        wanted = scores.topk(params["num_topk"], dim=1, sorted=False).indices
        wanted = wanted.masked_fill(wanted >= num_experts, -1)
        parts.append(wanted[(wanted >= 0).any(dim=1)])
    return torch.cat(parts)
