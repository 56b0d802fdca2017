# SPDX-License-Identifier: MIT
"""CPU ops against the same work in torch, with the same number of threads, in one run.

    PYTHONPATH=build/python python bench/python/cpu_speed.py [--threads N] [--only TEXT] [--json FILE]
                                                              [--check]

Calls of both take turns, so that drifts of the machine hit both alike; times are medians, outputs are
allocated in the call on both sides. --check fails if a row of ours is slower than torch's. A new op adds rows
to ROWS. Torch's side is what one would write there for speed, not tegula.torch's references; where it adds in
another order, results are compared within its rounding.
"""

import argparse
import json
import platform
import statistics
import sys
import time

import torch
import torch.nn.functional as F

import tegula
from tegula import moe

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
        yield f"batched_transpose 2000x64x64, {b} bytes", ours, lambda x: x.transpose(1, 2).contiguous(), (
            matrix(b, 2000, 64, 64),
        )


# ---- routing, in torch ----

def torch_groups(keys, num_groups, num_topk_groups):
    worth = keys.unflatten(1, (num_groups, -1)).topk(2, dim=2).values.sum(dim=2)
    return worth.topk(num_topk_groups, dim=1).indices


def clear_logits(num_tokens, bias, num_groups):
    """Logits whose keys, and whose groups' sums, lie apart: both sides choose alike, whatever their exp."""
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


ROWS = [transpose_rows, moe_rows]


def is_same(seen, want):
    """The same bits, or floats that are sums of few terms in another order."""
    if isinstance(seen, tuple):
        return len(seen) == len(want) and all(map(is_same, seen, want))
    if not seen.is_floating_point():
        return torch.equal(seen, want)
    limit = 2e-2 if seen.dtype == torch.bfloat16 else 1e-5
    return torch.allclose(seen.float(), want.float(), rtol=limit, atol=limit)


def compare(ours, theirs, inputs):
    """Median seconds of both; turns until a second has passed, nine at least."""
    times, begin = ([], []), time.perf_counter()
    while len(times[0]) < 11 or time.perf_counter() - begin < 1:
        for f, out in zip((ours, theirs), times):
            start = time.perf_counter()
            f(*inputs)
            out.append(time.perf_counter() - start)
    return statistics.median(times[0][2:]), statistics.median(times[1][2:])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", metavar="FILE", help="append a JSON line per row")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose name contains it")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    tegula.config.set_num_threads(options.threads)
    print(f"{platform.machine()}, {options.threads} threads, torch {torch.__version__}")
    print(f"{'ours us':>10} {'torch us':>10} {'ratio':>6}")
    slower = []
    for name, ours, theirs, inputs in (row for rows in ROWS for row in rows()):
        if options.only not in name:
            continue
        assert is_same(ours(*inputs), theirs(*inputs)), name
        a, b = compare(ours, theirs, inputs)
        print(f"{a * 1e6:10.0f} {b * 1e6:10.0f} {b / a:6.2f}  {name}", flush=True)
        if a > b:
            slower.append(name)
        if options.json:
            with open(options.json, "a") as file:
                row = {"bench": "cpu_speed", "row": name, "machine": platform.machine()}
                row |= {"threads": options.threads, "torch": torch.__version__, "version": tegula.__version__}
                file.write(json.dumps(row | {"us": round(a * 1e6, 1), "torch_us": round(b * 1e6, 1)}) + "\n")
    print(f"slower than torch: {', '.join(slower)}" if slower else "nothing is slower than torch")
    return bool(slower) and options.check


if __name__ == "__main__":
    sys.exit(main())
