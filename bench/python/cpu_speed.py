# SPDX-License-Identifier: MIT
"""CPU ops against the same work in torch, with the same number of threads, in one run.

    PYTHONPATH=build/python python bench/python/cpu_speed.py [--threads N] [--only TEXT] [--json FILE] [--commit TEXT]
                                                              [--seconds S] [--compile] [--check]

Calls take turns, so that drifts of the machine affect all alike. The fastest call of each counts, as on an idle
machine (on a busy one, use --threads 1). Every side allocates its outputs in the call, in memory that was used
before. The columns are our time, that of eager torch, that of a copy that reads half the bytes of inputs and
outputs and writes the other half, and with --compile that of torch.compile; then our speed as a multiple of
eager's and compiled code's.

--check fails if a row misses its goal: as fast as eager code, casts five times as fast, and not slower than
compiled code. A row within 5 % of the copy has met its goal. A new op adds rows to ROWS. Torch's side is what one
would write for speed, not tegula.torch's references; sums in another order are compared within their rounding.
"""

import argparse
import ctypes
import json
import os
import platform
import sys
import time

# Freed memory must stay mapped, else chance decides which side pays for fresh pages. mimalloc, which torch has on
# aarch64, returns it after 10 ms, glibc if there is much of it (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD).
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")
if platform.libc_ver()[0] == "glibc":
    ctypes.CDLL(None).mallopt(-1, 2**31 - 1)
    ctypes.CDLL(None).mallopt(-3, 32 << 20)

import torch
import torch.nn.functional as F

import machine
import tegula
from tegula import engram, moe, quant

DTYPES = {1: torch.uint8, 2: torch.bfloat16, 4: torch.float32, 8: torch.int64}


def matrix(element_bytes, *shape):
    return torch.randint(0, 100, shape).to(DTYPES[element_bytes])


def transpose_rows():
    """(name, ours, torch's, inputs)"""
    for shape in ((4096, 7168), (4095, 7167), (128, 7168)):
        for b in DTYPES:
            name = f"transpose {shape[0]}x{shape[1]}, {b} bytes"
            yield name, tegula.transpose.transpose, lambda x: x.t().contiguous(), (matrix(b, *shape),)
    for b in DTYPES:
        ours = tegula.transpose.batched_transpose
        theirs = lambda x: x.transpose(1, 2).contiguous()
        yield f"batched_transpose 2000x64x64, {b} bytes", ours, theirs, (matrix(b, 2000, 64, 64),)


# ---- routing, in torch ----

def torch_groups(keys, num_groups, num_topk_groups):
    worth = keys.unflatten(1, (num_groups, -1)).topk(2, dim=2).values.sum(dim=2)
    return worth.topk(num_topk_groups, dim=1).indices


def clear_logits(num_tokens, bias, num_groups):
    """Logits whose keys, and whose groups' sums, differ so much that both sides choose the same with any exp."""
    logits, close = torch.randn(num_tokens, len(bias)), torch.ones(num_tokens, dtype=torch.bool)
    while close.any():
        logits[close] = torch.randn(int(close.sum()), len(bias))
        close[:] = False
        for keys in (logits + bias, logits.sigmoid() + bias, F.softplus(logits).sqrt() + bias):
            worth = keys.unflatten(1, (num_groups or 1, -1)).topk(2, dim=2).values.sum(dim=2)
            for values in (keys, worth) if num_groups else (keys,):
                close |= values.sort(dim=1).values.diff(dim=1).min(dim=1).values < 4e-6
    return logits


def torch_gate(logits, bias, num_topk, num_topk_groups, num_groups, *rest):
    scoring_func, factor = rest[-1], rest[2]
    if scoring_func == "softmax":
        scores, keys = logits.softmax(dim=1), logits + bias
    else:
        scores = logits.sigmoid() if scoring_func == "sigmoid" else F.softplus(logits).sqrt()
        keys = scores + bias
    if num_groups != num_topk_groups:
        left = torch.zeros(len(keys), num_groups, dtype=torch.bool)
        left.scatter_(1, torch_groups(keys, num_groups, num_topk_groups), True)
        keys = keys.masked_fill(~left.repeat_interleave(keys.shape[1] // num_groups, dim=1), float("-inf"))
    idx = keys.topk(num_topk, dim=1).indices
    weights = scores.gather(1, idx)
    return idx, weights / (weights.sum(dim=1, keepdim=True) + 1e-20) * factor


def torch_hash_gate(logits, ids, table, factor):
    idx = table[ids]
    weights = F.softplus(logits.gather(1, idx)).sqrt()
    return idx, weights / (weights.sum(dim=1, keepdim=True) + 1e-20) * factor


def torch_mask(indices, n, num_ep_ranks, tp_rank, num_tp_ranks):
    rank = indices // (n // num_ep_ranks)
    mine = rank // num_tp_ranks * (n // num_ep_ranks) + indices % (n // num_ep_ranks)
    return torch.where((indices >= 0) & (rank % num_tp_ranks == tp_rank), mine, -1)


def torch_normalize(weights):
    total = weights.sum(dim=1) + 1e-20
    return total, weights / total[:, None]


def torch_unique(groups):
    ordered, place = groups.sort(dim=1, stable=True)
    again = F.pad((ordered.diff(dim=1) == 0) & (ordered[:, 1:] >= 0), (1, 0))
    return groups.masked_fill(torch.zeros_like(again).scatter_(1, place, again), -1)


def ours_unique(groups):
    groups = groups.clone()
    moe.inplace_unique_group_indices(groups, 64)
    return groups


def torch_count(idx, num_groups):
    return (idx + 1).flatten().bincount(minlength=num_groups + 1)[1:].int()


def torch_mapping(idx, num_experts, num_positions, alignment):
    flat = idx.flatten()
    experts, pairs = flat.sort(stable=True)
    empty = int((flat < 0).sum())
    experts, pairs = experts[empty:], pairs[empty:]
    count = experts.bincount(minlength=num_experts)
    length = (count + alignment - 1) // alignment * alignment
    end = length.cumsum(0)
    start = end - length
    pos = torch.arange(len(pairs)) + (start - (count.cumsum(0) - count))[experts]

    def scatter(size, at, values):
        return torch.full((size,), -1, dtype=torch.int32).index_put_((at,), values.int())

    return (scatter(num_positions, pos, experts), scatter(num_positions, pos, pairs // idx.shape[1]),
            scatter(num_positions, pos, pairs), scatter(flat.numel(), pairs, pos).view(idx.shape),
            start.int(), end.int(), length.int())


def torch_expand(x, token_topk_to_pos, pos_to_expert):
    out = torch.zeros(len(pos_to_expert), x.shape[1], dtype=x.dtype)
    tokens, slots = (token_topk_to_pos >= 0).nonzero(as_tuple=True)
    out[token_topk_to_pos[tokens, slots]] = x[tokens]
    return out


def torch_reduce(x, weights, token_topk_to_pos):
    weights = weights.masked_fill(token_topk_to_pos < 0, 0)
    return (x[token_topk_to_pos.clamp(min=0)].float() * weights[:, :, None]).sum(dim=1).to(x.dtype)


def moe_rows():
    for num_tokens in (64, 4096):
        for num_experts, num_groups, num_topk_groups in ((256, 8, 4), (384, 0, 0)):
            bias = torch.randn(num_experts)
            logits = clear_logits(num_tokens, bias, num_groups)
            size = f"{num_tokens}x{num_experts}"
            yield f"topk_gate {size}", moe.topk_gate, lambda x, k: x.topk(k, dim=1).indices, (logits, 8)
            for scoring_func in ("sigmoid", "sqrtsoftplus", "softmax"):
                args = logits, bias, 8, num_topk_groups, num_groups, False, 0, 1.5, 0, 1, 0, 1, scoring_func
                name = f"{size}, {num_groups} groups, {scoring_func}"
                yield f"top2_sum_gate {name}", moe.top2_sum_gate, torch_gate, args
            num_positions = num_tokens * 8 + 127 * num_experts
            yield f"route {name}", lambda *a: moe.route(*a[:-2], a[0].shape[1], *a[-2:]), \
                lambda *a: (*(g := torch_gate(*a[:-2])), *torch_mapping(g[0], a[0].shape[1], *a[-2:])), \
                (*args, num_positions, 128)
        groups = logits[:, :256].unflatten(1, (8, 32)).contiguous()
        yield f"topk_sum_and_topk_group_idx {num_tokens}x8x32", moe.topk_sum_and_topk_group_idx, \
            lambda x, _, k: torch_groups(x.flatten(1), 8, k), (groups, 2, 4)
        ids, table = torch.randint(0, 129280, (num_tokens,)), torch.randint(0, 384, (129280, 6))
        yield f"hash_gate {num_tokens}x384", moe.hash_gate, torch_hash_gate, (logits, ids, table, 1.5)
        idx, weights = logits.topk(8, dim=1).indices, torch.rand(num_tokens, 8)
        idx = idx.masked_fill(torch.rand(idx.shape) < 0.2, -1)
        yield f"mask_indices_by_tp {num_tokens}x8", moe.mask_indices_by_tp, torch_mask, (idx, 384, 8, 1, 2)
        yield f"normalize_weight {num_tokens}x8", moe.normalize_weight, torch_normalize, (weights,)
        yield f"inplace_unique_group_indices {num_tokens}x8", ours_unique, torch_unique, (idx // 48,)
        yield f"group_count {num_tokens}x8", moe.group_count, torch_count, (idx, 384)
        yield f"aux_fi {num_tokens}x8", moe.aux_fi, \
            lambda i, e, k: torch_count(i, e) * (e / (len(i) * k)), (idx, 384, 8)
        args = idx, 384, num_tokens * 8 + 127 * 384, 128
        yield f"get_fused_mapping {num_tokens}x8", lambda *a: moe.get_fused_mapping(*a)[:7], \
            torch_mapping, args
    for num_tokens, num_experts, k in ((16, 16384, 1024), (64, 4096, 512), (4096, 256, 32)):
        scores = torch.rand(num_tokens, num_experts).argsort(dim=1).float()         # no two are equal
        yield f"topk_gate {num_tokens}x{num_experts}, top {k}", moe.topk_gate, \
            lambda x, k: x.topk(k, dim=1).indices, (scores, k)
    for size, num_topk_sum, k in (((4096, 256, 1), 1, 128), ((64, 8, 1024), 100, 4)):
        scores = torch.rand(size).flatten(1).argsort(dim=1).float().sqrt().view(size)
        yield f"topk_sum_and_topk_group_idx {'x'.join(map(str, size))}, sum of {num_topk_sum}, top {k}", \
            moe.topk_sum_and_topk_group_idx, \
            lambda x, n, k: x.topk(n, dim=2).values.sum(dim=2).topk(k, dim=1).indices, \
            (scores, num_topk_sum, k)
    yield "normalize_weight 4096x512", moe.normalize_weight, torch_normalize, (torch.rand(4096, 512),)
    mapping = moe.get_fused_mapping(idx[:512], 384, 0, 16)
    for dtype in (torch.bfloat16, torch.float32):
        x = torch.randn(512, 7168).to(dtype)
        name = f"512x7168, {str(dtype)[6:]}"
        yield f"expand_to_fused {name}", moe.expand_to_fused, torch_expand, (x, mapping[3], mapping[0])
        y = moe.expand_to_fused(x, mapping[3], mapping[0])
        yield f"reduce_fused {name}", moe.reduce_fused, torch_reduce, (y, weights[:512], mapping[3])
    sf = torch.rand(512, 56)
    yield "expand_to_fused_with_sf 512x7168, e4m3", \
        lambda x, *a: moe.expand_to_fused_with_sf((x.view(torch.float8_e4m3fn), sf), 128, *a)[1], \
        lambda x, *a: (torch_expand(x, *a), torch_expand(sf, *a))[1], \
        (torch.randint(0, 255, (512, 7168), dtype=torch.uint8), mapping[3], mapping[0])


# ---- casts, in torch ----

def torch_blocks(x, rows, cols):
    return x.float().view(x.shape[0] // rows, rows, x.shape[1] // cols, cols)


def torch_factors(x, rows, cols, largest, floor=1e-4):
    """Blocks, their factors and what to multiply them with."""
    blocks = torch_blocks(x, rows, cols)
    dims = [dim for dim, size in ((1, rows), (3, cols)) if size > 1]       # one of size 1 would cost time
    a = blocks.abs().amax(dim=dims, keepdim=True).clamp(min=floor)
    return blocks, (a / torch.tensor(largest))[:, 0, :, 0], torch.tensor(largest) / a


def torch_e4m3(v):
    """Of products with factors made for them, which need no clamp."""
    return v.to(torch.float8_e4m3fn)


def torch_e2m1(v):
    """Adding 2^22 times a magnitude's power of two, but at least 1, rounds it to one bit behind the point."""
    a = v.abs().clamp(max=6)
    power = a.view(torch.int32).clamp(min=0x3F800000) & 0x7F800000
    rounded = (a + (power + (22 << 23)).view(torch.float32)).view(torch.int32) & 7
    codes = rounded + (power - 0x3F800000 >> 22) | v.view(torch.int32) >> 28 & 8
    return (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.int8)


def torch_e5m6(v):
    bits = v.view(torch.int32)
    a = bits & 0x7FFFFFFF
    cut = torch.where(a >= 0x38800000, (a >> 17) - (112 << 6), (v.abs().clamp(max=1) * 2.0**20).int())
    c = (cut + ((cut & 1) + (bits & 0x1FFFF) > 0x10000) | bits >> 20 & 0x800).unflatten(1, (-1, 8)).unbind(2)
    words = torch.stack([c[0] << 20 | c[1] << 8 | c[2] >> 4, c[2] << 28 | c[3] << 16 | c[4] << 4 | c[5] >> 8,
                         c[5] << 24 | c[6] << 12 | c[7]], dim=2)
    return words.view(torch.uint8).flatten(1)


TORCH_FORMATS = {"e4m3": (torch_e4m3, 448.0, 1e-4), "e2m1": (torch_e2m1, 6.0, 6 * 2.0**-126),
                 "e5m6": (torch_e5m6, 65024.0, 1e-4)}


def torch_cast(x, fmt, rows, cols):
    encode, largest, floor = TORCH_FORMATS[fmt]
    blocks, sf, inv = torch_factors(x, rows, cols, largest, floor)
    return encode((blocks * inv).view(x.shape)), sf


def torch_recast(x, x_sf, fmt, cols, *x_block_size):
    return torch_cast((torch_blocks(x, *x_block_size) * x_sf[:, None, :, None]).view(x.shape), fmt, 1, cols)


def torch_given(x, fmt, rows, cols, sf):
    inv = (torch.tensor(1.0) / sf)[:, None, :, None]
    return TORCH_FORMATS[fmt][0]((torch_blocks(x, rows, cols) * inv).view(x.shape).clamp(-448, 448))


PAIRS = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
PAIRS = torch.stack([PAIRS.repeat(16), PAIRS.repeat_interleave(16)], dim=1)     # of every byte
PAIRS = {t: PAIRS.to(t).view(word).flatten()                                        # a word each
         for t, word in ((torch.float32, torch.int64), (torch.bfloat16, torch.int32))}


def torch_unpack(x, dtype=torch.float32):
    pairs = PAIRS[dtype].index_select(0, x.view(torch.uint8).int().flatten())
    return pairs.view(dtype).view(len(x), -1)


def torch_lossless(x, x_sf, cols):
    sf = (x_sf.unflatten(1, (-1, cols // 32)).amax(dim=2) * 2.0**-6).clamp(min=2.0**-126)
    ratio = x_sf / sf.repeat_interleave(cols // 32, dim=1)
    return (torch_unpack(x).unflatten(1, (-1, 32)) * ratio[:, :, None]).flatten(1).to(torch.float8_e4m3fn), sf


def torch_back(x, sf, dtype, rows, cols):
    return (torch_blocks(x, rows, cols) * sf[:, None, :, None]).view(x.shape).to(dtype)


def torch_back_e5m6(x, sf, dtype):
    w = x.view(torch.int32).unflatten(1, (-1, 3)).unbind(2)
    codes = torch.stack([w[0] >> 16, w[0] >> 4, w[0] << 8 | w[1] >> 24 & 0xF0, w[1] >> 12, w[1],
                         w[1] << 12 | w[2] >> 20 & 0xFF0, w[2] >> 8, w[2] << 4], dim=2) & 0xFFF0
    return (codes.to(torch.int16).view(torch.float16).flatten(1).float() * sf).to(dtype)


def torch_gathered(x, x_sf, rows, pos):
    values = torch_back(x, x_sf, torch.float32, 1, 128)[pos.clamp(min=0)]
    return torch_cast(values.masked_fill(pos[:, None] < 0, 0), "e4m3", rows, 1)


def torch_transposed(made):
    return made[0].view(torch.uint8).t().contiguous().view(torch.float8_e4m3fn), made[1]


def torch_swiglu(x):
    gate, up = x.float().chunk(2, dim=1)
    return F.silu(gate) * up


def torch_swiglu_backward(x, x_sf, grad_out, weight, pairs, positions):
    l, r = torch_back(x, x_sf, torch.float32, 1, 128).chunk(2, dim=1)
    g, w, s = grad_out.float(), weight.flatten()[pairs][:, None], l.sigmoid()
    act = l * s * r
    ws = g * w * s
    x_grad = torch.cat([ws * r * (l * (1 - s) + 1), ws * l], dim=1)
    weight_grad = (g * act).sum(dim=1)[positions]
    return (act * w).bfloat16(), *torch_cast(x_grad, "e4m3", 1, 128), x_grad.bfloat16(), weight_grad


def ours_backward(x, x_sf, *rest):
    out, pair, *grads = quant.swiglu_backward_and_per_token_cast((x, x_sf), *rest, 128)
    return out, *pair, *grads


def quant_rows():
    for num_tokens in (8, 1024):
        x, size = torch.randn(num_tokens, 7168).bfloat16(), f"{num_tokens}x7168"
        for fmt, cols in (("e4m3", 128), ("e4m3", 7168), ("e2m1", 32), ("e5m6", 7168)):
            yield f"per_token_cast {size} bf16 to {fmt}, 1x{cols}", \
                lambda x, fmt, rows, cols: quant.per_token_cast(x, fmt, cols), torch_cast, (x, fmt, 1, cols)
    yield f"per_token_cast {size} f32 to e4m3, 1x128", \
        lambda x, fmt, rows, cols: quant.per_token_cast(x, fmt, cols), torch_cast, (x.float(), "e4m3", 1, 128)
    e4m3, sf = quant.per_token_cast(x, "e4m3", 128)
    coarse = quant.per_block_cast(x, "e4m3", (128, 128))
    yield f"per_token_cast {size} e4m3 128x128 to e2m1, 1x32", \
        lambda x, x_sf, fmt, cols, *block: quant.per_token_cast((x, x_sf), fmt, cols, block), torch_recast, \
        (*coarse, "e2m1", 32, 128, 128)
    yield f"per_token_cast_with_sf_only {size} bf16, 1x128", \
        lambda x: quant.per_token_cast_with_sf_only(x, "e4m3", 128), \
        lambda x: torch_factors(x, 1, 128, 448.0)[1], (x,)
    yield f"per_token_cast_with_precomputed_sf {size} bf16 to e4m3, 1x128", \
        lambda x, fmt, rows, cols, sf: quant.per_token_cast_with_precomputed_sf(x, fmt, cols, sf), \
        torch_given, (x, "e4m3", 1, 128, sf)
    for fmt, n in (("e4m3", 128), ("e2m1", 32)):
        yield f"per_block_cast {size} bf16 to {fmt}, {n}x{n}", \
            lambda x, fmt, *block: quant.per_block_cast(x, fmt, block), torch_cast, (x, fmt, n, n)
    yield f"per_block_cast_with_sf_only {size} bf16, 128x128", \
        lambda x: quant.per_block_cast_with_sf_only(x, "e4m3", (128, 128)), \
        lambda x: torch_factors(x, 128, 128, 448.0)[1], (x,)
    yield f"per_block_cast_with_precomputed_sf {size} bf16 to e4m3, 128x128", \
        lambda x, fmt, rows, cols, sf: quant.per_block_cast_with_precomputed_sf(x, fmt, (rows, cols), sf), \
        torch_given, (x, "e4m3", 128, 128, coarse[1])
    e2m1 = quant.per_token_cast(x, "e2m1", 32, round_sf=True)
    yield f"per_block_cast_lossless {size}, 1x32 to 1x128", \
        lambda x, x_sf, cols: quant.per_block_cast_lossless((x, x_sf), "e4m3", (1, 32), (1, cols)), \
        torch_lossless, (*e2m1, 128)
    yield f"per_channel_cast {size} bf16, 128x1", \
        lambda x, fmt, rows, cols: quant.per_channel_cast(x, fmt, rows), torch_cast, (x, "e4m3", 128, 1)
    pos = torch.randint(-1, 1024, (1024,), dtype=torch.int32)
    yield f"per_channel_cast_fused {size} e4m3, 128x1, gathered", \
        lambda x, x_sf, rows, pos: quant.per_channel_cast_fused((x, x_sf), "e4m3", rows, False, 128, pos), \
        torch_gathered, (e4m3, sf, 128, pos)
    yield f"per_channel_cast_and_transpose {size} bf16, 128x1", \
        lambda x: quant.per_channel_cast_and_transpose(x, "e4m3", 128), \
        lambda x: torch_transposed(torch_cast(x, "e4m3", 128, 1)), (x,)
    for dtype, word in ((torch.bfloat16, "bf16"), (torch.float32, "fp32")):
        yield f"cast_back {size} e4m3 to {word}, 1x128", \
            lambda x, sf, dtype, *block, word=word: quant.cast_back((x, sf), word, block), torch_back, \
            (e4m3, sf, dtype, 1, 128)
    yield f"cast_back {size} e5m6 to bf16, 1x7168", \
        lambda x, sf, dtype: quant.cast_back((x, sf), "bf16", (1, 7168), "e5m6"), torch_back_e5m6, \
        (*quant.per_token_cast(x, "e5m6", 7168), torch.bfloat16)
    for dtype in (torch.float32, torch.bfloat16):
        yield f"unpack_from_e2m1fn_x2 {size} to {str(dtype)[6:]}", quant.unpack_from_e2m1fn_x2, \
            torch_unpack, (e2m1[0], dtype)
    yield f"swiglu_forward_and_per_token_cast {num_tokens}x3584 bf16, 1x128", \
        lambda x: quant.swiglu_forward_and_per_token_cast(x, "e4m3", 128), \
        lambda x: torch_cast(torch_swiglu(x), "e4m3", 1, 128), (x,)
    yield f"swiglu_forward_and_per_channel_cast_and_transpose {num_tokens}x3584 bf16, 128x1", \
        lambda x: quant.swiglu_forward_and_per_channel_cast_and_transpose(x, "e4m3", 128), \
        lambda x: torch_transposed(torch_cast(torch_swiglu(x).bfloat16(), "e4m3", 128, 1)), (x,)
    maps = torch.randperm(1024, dtype=torch.int32), torch.empty(1024, dtype=torch.int32)
    maps[1][maps[0]] = torch.arange(1024, dtype=torch.int32)
    yield f"swiglu_backward_and_per_token_cast {num_tokens}x3584, 1x128", ours_backward, \
        torch_swiglu_backward, (e4m3, sf, x[:, :3584].contiguous(), torch.rand(512, 2), maps[0],
                                maps[1].view(512, 2))


# ---- Engram, in torch ----

def torch_gate_scores(x, k, weight):
    rstd = (x.square().mean(-1) + 1e-20).rsqrt() * (k.square().mean(-1) + 1e-20).rsqrt()
    score = (x * weight * k).sum(-1) * rstd * x.shape[-1]**-0.5
    return torch.sigmoid(score.abs().clamp(min=1e-6).sqrt() * score.sign())


def torch_engram_gate(x, k, v, weight):
    wide = x.float()
    return (wide + torch_gate_scores(wide, k.float(), weight)[..., None] * v.float()[:, None]).bfloat16()


def torch_gradients(function, grad, *leaves):
    leaves = [t.detach().requires_grad_() for t in leaves]
    with torch.enable_grad():
        return torch.autograd.grad(function(*leaves), leaves, grad)


def torch_short_conv(x, norm, taps):
    """Tokens lie behind channels for the convolution, as Conv1d wants them."""
    wide = x.float()
    a = (wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * norm.float()).bfloat16().flatten(1)
    reach = (taps.shape[1] - 1) * 3
    z = F.conv1d(F.pad(a.float().t()[None], (reach, 0)), taps.float()[:, None], dilation=3, groups=a.shape[1])[0].t()
    return F.silu(z).bfloat16().view(x.shape)


def torch_lookup(table, indices, sf):
    values = table.view(torch.uint8)[indices].view(table.dtype).float()
    factors = sf[indices].view(torch.float8_e8m0fnu).float()
    return (values.unflatten(2, (-1, 32)) * factors[..., None]).flatten(2).bfloat16()


def torch_lookup_bwd(grad, indices, num_rows):
    made = torch.zeros(num_rows, grad.shape[2])
    return made.index_add_(0, indices.flatten(), grad.flatten(0, 1).float())


def ours_lookup_bwd(grad, indices, num_rows):
    made = torch.zeros(num_rows, grad.shape[2])
    engram.engram_lookup_bwd(grad, indices, num_rows, grad_table=made)
    return made


def torch_grad_w(partial, hidden, embed):
    whole = partial.sum(0)
    return whole * embed.float(), whole * hidden.float()


def ours_grad_w(partial, hidden, embed):
    made = torch.zeros(hidden.shape), torch.zeros(hidden.shape)
    engram.grad_w_reduce(partial, hidden, embed, *made)
    return made


def engram_rows():
    table, sf = torch.randn(100000, 256).to(torch.float8_e4m3fn), torch.randint(120, 134, (100000, 8), dtype=torch.uint8)
    for num_tokens in (1, 128):
        x, k = torch.randn(2, num_tokens, 4, 2560).bfloat16()
        v, norm, taps = torch.randn(num_tokens, 2560).bfloat16(), torch.rand(4, 2560).bfloat16(), torch.randn(10240, 4).bfloat16()
        weights, grad, size = (torch.rand(4, 2560).bfloat16(), norm), torch.randn_like(x), f"{num_tokens}x4x2560"
        fused = engram.fused_weight(*weights)
        yield f"engram_gate_fwd {size}", lambda *a: engram.engram_gate_fwd(*a, 1e-20, 1e-6, False)[0], \
            torch_engram_gate, (x, k, v, fused)
        yield f"engram_gate forward and backward {size}", \
            lambda x, k, v, fused, grad: engram.engram_gate_bwd(
                grad, x, k, v, fused, *engram.engram_gate_fwd(x, k, v, fused, 1e-20, 1e-6)[1:], 1e-6,
                wanted=(True, True, True, False))[:3], \
            lambda x, k, v, fused, grad: torch_gradients(lambda *a: torch_engram_gate(*a, fused), grad, x, k, v), \
            (x, k, v, fused, grad)
        yield f"short_conv {size}", lambda *a: engram.short_conv(*a, save_for_backward=False)[0], torch_short_conv, \
            (x, norm, taps)
        yield f"short_conv forward and backward {size}", \
            lambda x, norm, taps, grad: engram.short_conv_bwd(
                grad, x, norm, taps, engram.short_conv(x, norm, taps)[1], wanted=(True, False, False, False))[0], \
            lambda x, norm, taps, grad: torch_gradients(lambda x: torch_short_conv(x, norm, taps), grad, x)[0], \
            (x, norm, taps, grad)
        indices = torch.randint(0, 100000, (num_tokens, 24))    # the table is no input: few of its bytes are read
        yield f"engram_lookup {num_tokens}x24x256, e4m3", lambda i: engram.engram_lookup(table, i, sf), \
            lambda i: torch_lookup(table, i, sf), (indices,)
        grad = torch.randn(num_tokens, 24, 256).bfloat16()
        yield f"engram_lookup_bwd {num_tokens}x24x256, dense", ours_lookup_bwd, torch_lookup_bwd, \
            (grad, indices % 10000, 10000)
    yield "grad_w_reduce 66x4x2560", ours_grad_w, torch_grad_w, (torch.randn(66, 4, 2560), *weights)


ROWS = [(transpose_rows, 1), (moe_rows, 1), (quant_rows, 5), (engram_rows, 1)]      # how many times as fast as eager to be


def is_same(seen, want, is_compiled=False):
    """Integers are equal. Floats, which may be sums in another order, agree within a fraction of the largest. e4m3
    codes agree but for a thousandth, since exp may differ. Compiled code omits roundings to bf16."""
    if isinstance(seen, tuple):
        return len(seen) == len(want) and all(is_same(a, b, is_compiled) for a, b in zip(seen, want))
    if seen.dtype == torch.float8_e4m3fn:
        wrong = seen.view(torch.uint8) != want.view(torch.uint8)
        return wrong.sum() <= wrong.numel() * (0.05 if is_compiled else 0.001)
    if not seen.is_floating_point():
        return torch.equal(seen, want)
    limit = 2e-2 if seen.dtype == torch.bfloat16 or is_compiled else 1e-5
    seen, want = seen.float(), want.float()
    return torch.allclose(seen, want, rtol=limit, atol=limit * max(1, float(want.abs().max())))


def tensors_of(values):
    """The distinct tensors among arguments or results, also within tuples."""
    found = {}
    for value in values if isinstance(values, (tuple, list)) else (values,):
        if isinstance(value, torch.Tensor):
            found[value.data_ptr()] = value
        elif isinstance(value, (tuple, list)):
            found |= {t.data_ptr(): t for t in tensors_of(value)}
    return list(found.values())


def copy_of(*values):
    """A call that moves as many bytes as the tensors have: half of them are read, half written."""
    num_bytes = sum(t.numel() * t.element_size() for t in tensors_of(values))
    source = torch.ones(num_bytes // 2, dtype=torch.uint8)
    return lambda *inputs: source.clone()


def fastest(functions, inputs, seconds):
    """The minimum seconds of each: they take turns until the time is over, at least eleven times."""
    times, begin = [[] for _ in functions], time.perf_counter()
    while len(times[0]) < 11 or time.perf_counter() - begin < seconds:
        for f, out in zip(functions, times):
            start = time.perf_counter()
            f(*inputs)
            out.append(time.perf_counter() - start)
    return [min(out) for out in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=1, help="of a row")
    parser.add_argument("--json", metavar="FILE", help="append a JSON line per row")
    parser.add_argument("--commit", default=machine.commit(), metavar="TEXT", help="what to write as commit")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--compile", action="store_true", help="also torch's side compiled; takes minutes")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose name contains it")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    tegula.config.set_num_threads(options.threads)
    about = {"machine": platform.machine(), "cpu": machine.cpu(), "threads": options.threads}
    about |= {"torch": torch.__version__, "version": tegula.__version__, "commit": options.commit}
    print(f"{about['cpu']}, {options.threads} threads, torch {torch.__version__}; microseconds")
    columns = ["ours", "eager", "copy"] + ["compiled"] * options.compile
    print(" ".join(f"{column:>8}" for column in columns), "  times eager's", ", compiled's" * options.compile)
    missed = []
    for (name, ours, theirs, inputs), goal in ((row, goal) for rows, goal in ROWS for row in rows()):
        if options.only not in name:
            continue
        made = ours(*inputs)
        functions = [ours, theirs, copy_of(inputs, made)]
        if options.compile:
            torch._dynamo.reset()
            functions.append(torch.compile(theirs, fullgraph=True))
        for f in functions[1:2] + functions[3:]:
            assert is_same(made, f(*inputs), f is not theirs), name
        us = dict(zip(columns, (t * 1e6 for t in fastest(functions, inputs, options.seconds))))
        ratios = [us[column] / us["ours"] for column in ("eager", "compiled") if column in us]
        is_met = ratios[0] >= goal and min(ratios) >= 1 or us["ours"] <= 1.05 * us["copy"]
        print(" ".join(f"{us[column]:8.0f}" for column in columns), *(f"{ratio:6.2f}" for ratio in ratios),
              f" {name}" + ("" if is_met else ": missed"), flush=True)
        missed += [] if is_met else [name]
        if options.json:
            with open(options.json, "a") as file:
                row = {"bench": "cpu_speed", "row": name, **about}
                row |= {{"ours": "us"}.get(k, f"{k}_us"): round(us[k], 1) for k in columns}
                file.write(json.dumps(row) + "\n")
    print(f"{len(missed)} rows missed their goal" if missed else "every row met its goal")
    return bool(missed) and options.check


if __name__ == "__main__":
    sys.exit(main())
