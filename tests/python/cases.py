# SPDX-License-Identifier: MIT
"""Calls of every public function: one for each operator behind it and for each shape of its outputs. test_ops.py
puts all of them through the same tests."""
import functools

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

import tegula.torch as reference
from tegula import engram, mhc, moe, quant, transpose
from tegula.quant.cast_back_e5m6_kernel import cast_back_e5m6
from tegula.quant.per_token_cast_to_e5m6_kernel import per_token_cast_to_e5m6

FUNCTIONS = {name: f for module in (engram, mhc, moe, quant, transpose) for name, f in vars(module).items()
             if name in module.__all__ and callable(f) and not isinstance(f, type)}
FUNCTIONS |= {"per_token_cast_to_e5m6": per_token_cast_to_e5m6, "cast_back_e5m6": cast_back_e5m6}


def module_of(name):
    return FUNCTIONS[name].__module__.split(".")[1]


def transpose_cases(device):
    yield "transpose", torch.randn(5, 7, device=device)
    yield "batched_transpose", torch.randn(3, 5, 7, device=device)


def engram_cases(device):
    ids, multipliers = torch.randint(0, 100000, (6, 3), device=device), torch.randint(0, 100000, (2, 3), device=device)
    sizes = torch.randint(100000, 1000000, (2, 2, 4), dtype=torch.int32, device=device)
    offsets = reference.make_offsets(sizes)
    yield "engram_hash", ids, multipliers, sizes, offsets
    mask = torch.arange(6, device=device) < 4
    yield "engram_hash", ids.int(), multipliers, sizes, offsets, mask
    ids, history, cu = ids[:, 0] % 9, ids[:2, :2], torch.tensor([0, 2, 6], device=device)
    lookup, ring = torch.arange(8, device=device).int() % 5, torch.zeros(2, 9, dtype=torch.int32, device=device)
    yield "ngram_windows", ids, 3, 2
    yield "ngram_windows", ids, 3, 2, cu, history, lookup, 5
    ngram = engram.NGram(multipliers, sizes, offsets, 2)
    yield "engram_rows", ids, ngram
    yield "engram_rows", ids, ngram._replace(token_map=lookup, stop_id=5), cu, cu[1:], history, None, None, mask
    table, sf = torch.randn(20, 64, device=device), torch.randint(120, 132, (20, 2), dtype=torch.uint8, device=device)
    rows, codes = torch.randint(-3, 25, (6, 3), device=device), table.to(torch.float8_e4m3fn)
    yield "engram_lookup", table, rows, {"dtype": torch.bfloat16}
    yield "engram_lookup", table.half(), rows.int(), {"row_begin": 2}
    yield "engram_lookup", codes, rows, table[0, :1]
    yield "engram_lookup", codes, rows, sf, {"num_sms": 2}
    yield "engram_lookup", table, None, None, {"dtype": torch.bfloat16}
    yield "engram_lookup", codes, None, sf
    yield "engram_lookup", codes, rows, sf, {"packed": True}
    yield "engram_lookup", codes, rows, sf, {"dtype": torch.float8_e4m3fn,
                                             "out_sf": torch.zeros(2, 6, dtype=torch.int32, device=device).t()}
    staging = torch.empty(256 + 18 * 66, dtype=torch.uint8, pin_memory=device == "cuda")
    yield "engram_lookup_staged", codes.cpu(), rows, sf.cpu(), staging, {"row_begin": 2}
    grad = torch.randn(6, 3, 64, device=device)
    every = torch.arange(18, device=device).view(6, 3).flip(0)      # so that all of grad_rows is written
    yield "engram_lookup_bwd", grad.bfloat16(), every, 20
    yield "engram_lookup_bwd", grad, rows, 20, {"grad_table": table}
    yield "engram_rows", ids, ngram, cu, cu[1:], None, ring, cu[:2] % 2, {"null_slot": 5}
    x, kv = torch.randn(6, 2, 40, device=device).bfloat16(), torch.randn(6, 3, 40, device=device).bfloat16()
    k, v, weights = kv[:, :2], kv[:, 2], (x[0].clone(), x[1].clone())
    fused = weights[0].float() * weights[1].float()
    yield "fused_weight", *weights
    yield "engram_gate_fwd", x, k, v, fused, 1e-20, 1e-6
    yield "engram_gate_fwd", x, k, v, None, 1e-6, 0.5, False, {
        "weights": weights, "image_token_mask": mask, "add_residual": False, "zero_centered": True, "sign": "bit"}
    yield "engram_gate_scores", x, k, fused, 1e-20, 1e-6
    yield "engram_gate_scores", x, k, None, 1e-6, 0.5, {"weights": weights, "image_token_mask": mask, "sign": "bit"}
    yield "engram_gate_kv_fwd", x, kv, fused, 1e-20, 1e-6
    yield "engram_gate_kv_fwd", x, kv, None, 1e-20, 1e-6, False, mask, {"weights": weights}
    yield "engram_gate_kv_fwd", x, kv, fused, 1e-20, 1e-6, False, mask, True
    saved = reference.engram_gate_ref(x, k, v, *weights, 1e-6, 1e-20, True)[1:]
    yield "engram_gate_bwd", x, x, k, v, fused, *saved, 1e-6
    yield "engram_gate_kv_bwd", x, x, kv, None, *saved, 1e-6, mask, {"weights": weights, "add_residual": False}
    yield "grad_w_reduce", torch.randn(3, 2, 40, device=device), *weights, fused, fused + 1
    taps, state = torch.randn(80, 4, device=device).bfloat16(), torch.zeros(3, 11, 2, 40, device=device).bfloat16()
    yield "short_conv", x, weights[0], taps
    yield "short_conv", x, weights[0].float(), taps[:, :3].float(), 2, 1e-6, "none", fused.view(-1), True, x.clone(), {
        "cu_seqlens": cu, "mask": mask, "zero_centered": True}
    yield "short_conv", x, weights[0], taps, 3, 1e-5, "silu", None, True, None, cu, None, False, {
        "ring": state, "slots": cu[:2] % 3, "start_pos": cu[1:], "round_each": True}
    yield "engram_gate_conv_fwd", x, k, v, fused, 1e-20, 1e-6, weights[0], taps
    yield "engram_gate_conv_fwd", x, k, v, None, 1e-6, 0.5, fused, taps[:, :3].float(), 2, 1e-6, "none", {
        "bias": fused.view(-1), "cu_seqlens": cu, "weights": weights, "mask": mask, "add_residual": False,
        "zero_centered": True, "sign": "bit", "norm_zero_centered": True}
    yield "engram_gate_conv_fwd", x, k, v, fused, 1e-20, 1e-6, weights[0], taps, {
        "cu_seqlens": cu, "ring": state.clone(), "slots": cu[:2] % 3, "start_pos": cu[1:], "round_each": True}
    rstd = reference.short_conv_ref(x, weights[0], taps)[1]
    yield "short_conv_bwd", x, x, weights[0], taps, rstd
    yield "short_conv_bwd", x, x, weights[0], taps, rstd, 2, "none", fused.view(-1), True, cu, {"mask": mask}
    matrix, scales = torch.randn(20, 8, device=device), torch.rand(20, device=device) + 0.5
    sums = torch.zeros(8, device=device)
    yield "engram_sinkhorn_momentum_update", matrix, torch.randn(20, 8, device=device), 0.95
    yield "engram_sinkhorn_momentum_update", matrix.bfloat16(), torch.randn(20, 8, device=device).bfloat16(), 0.9, False
    yield "engram_sinkhorn_step", matrix, scales, scales[:8], 1e-20
    yield "engram_sinkhorn_step", matrix, scales, scales[:8], 1e-20, sums
    yield "engram_sinkhorn_step_reduce", matrix, sums
    yield "engram_sinkhorn_finalize", matrix, scales, scales[:8], 1e-20, 3.0


def mhc_cases(device):
    x, y = torch.randn(6, 3, 40, device=device).bfloat16(), torch.randn(6, 40, device=device).bfloat16()
    mixes, scale, base = (torch.randn(*shape, device=device) for shape in ((6, 15), (3,), (15,)))
    gate, comb = torch.rand(6, 3, device=device), torch.randn(6, 3, 3, device=device)
    yield "mhc_expand_fwd", y, 3
    yield "mhc_expand_bwd", x
    for dtype in (torch.float16, torch.float32):
        yield "mhc_expand_fwd", y.to(dtype), 3
        yield "mhc_expand_bwd", x.to(dtype)
    yield "mhc_pre_apply_mix_fwd", x, gate
    yield "mhc_pre_apply_mix_bwd", y, x, gate
    yield "mhc_pre_apply_mix_bwd", y, x, gate, x.clone()
    yield "mhc_post_fwd", y, x, gate, comb
    yield "mhc_post_fwd", y, x, gate
    yield "mhc_post_bwd", x, y, x, gate, comb
    yield "mhc_post_bwd", x, y, x, gate
    fn = torch.randn(15, 120, device=device)
    yield "mhc_norm_fn_fwd", x, fn
    yield "mhc_norm_fn_fwd", x, fn, torch.rand(120, device=device), 1e-2
    yield "mhc_norm_fn_bwd", mixes, x, fn, mixes, base.square()[:6] + 1
    yield "mhc_norm_fn_bwd", mixes, x, fn, mixes, base.square()[:6] + 1, torch.rand(120, device=device), 1e-2
    yield "mhc_norm_fn_bwd", mixes, x, fn, mixes, base.square()[:6] + 1, None, 1e-2, x.clone()
    yield "mhc_norm_fn_bwd", mixes, x, fn, mixes, base.square()[:6] + 1, torch.rand(120, device=device), 1e-2, x.clone()
    yield "mhc_pre_fwd", x, fn, scale, base
    yield "mhc_pre_fwd", x, fn, scale, base, torch.rand(120, device=device), y[0], True, 1e-5, 1e-2, {"repeat": 3}
    yield "mhc_pre_fwd", x, fn[:6], scale[:2], base[:6], None, y[0], True, {"post_eps": 1e-6}
    yield "mhc_pre_fwd", x, fn[:3], scale[:1], base[:3]
    parts, squares = torch.randn(5, 6, 15, device=device), torch.rand(5, 6, device=device)
    yield "mhc_norm_fn_parts_fwd", x, fn
    yield "mhc_norm_fn_parts_fwd", x, fn, torch.rand(120, device=device), 4
    yield "mhc_norm_fn_finish_fwd", parts, squares, 120, 1e-2
    yield "mhc_pre_finish_fwd", x, parts, squares, scale, base, 1e-5, {"repeat": 3}
    few = torch.randn(5, 6, 6, device=device)
    yield "mhc_pre_finish_fwd", x, few, squares, scale[:2], base[:6], {"post_eps": 1e-6}
    yield "mhc_pre_finish_fwd", x, few[:, :, :3].contiguous(), squares, scale[:1], base[:3], 1e-5, 0.0
    yield "mhc_split_sinkhorn_fwd", mixes, scale, base, 3, 1.0, 1e-2
    yield "mhc_split_sinkhorn_bwd", mixes, scale, base, gate, gate, comb, 1.0, 3, 1e-2
    yield "mhc_split_sinkhorn_bwd", mixes, scale, base, None, gate, None
    yield "mhc_pre_split_mixes_fwd", mixes, scale, base, 3, 1.0, 1e-2
    yield "mhc_pre_split_mixes_fwd", mixes[:, :6], scale[:2], base[:6], 3, 1.0, 1e-2, 1e-3
    yield "mhc_pre_split_mixes_bwd", mixes, scale, base, gate, gate, comb
    yield "mhc_pre_split_mixes_bwd", mixes, scale, base, None, gate, None, 1.0
    yield "mhc_head_compute_mix_fwd", mixes[:, :3], scale[:1], base[:3], 0.0
    yield "mhc_head_compute_mix_bwd", mixes[:, :3], scale[:1], base[:3], gate
    yield "mhc_sinkhorn_fwd", comb, 10
    yield "mhc_sinkhorn_bwd", comb, comb, 2, 1e-2


def moe_cases(device):
    scores, indices = torch.randn(6, 8, device=device), torch.randint(-1, 8, (6, 4), device=device)
    mask, pos = torch.arange(6, device=device) < 4, torch.randperm(40, device=device)[:24].int().view(6, 4)
    physical = torch.arange(18, device=device).int().view(9, 2) % 9
    count = torch.ones_like(physical[:, 0])
    owner, x = torch.full((40,), -1, device=device).int(), torch.randn(40, 5, device=device)
    owner[pos.flatten().long()] = 0         # all other positions are padding
    gate = scores, scores[0], 3, 2, 4, False, 0, 1.5, 0, 2, 1, 2, "sigmoid"
    shared = scores, None, 3, 0, 0, True, 1, 1.5, 0, 2, 1, 2, "softmax"
    ids, table = torch.arange(6, device=device), torch.randint(-1, 8, (5, 3), device=device)
    sf = torch.rand(6, 2, device=device)
    yield "topk_gate", scores, 3
    yield "topk_sum_and_topk_group_idx", scores.view(6, 4, 2), 2, 3
    yield "mask_indices_by_tp", indices, 8, 4, 1, 2
    yield "normalize_weight", scores.abs()
    yield "inplace_unique_group_indices", indices, 8
    yield "top2_sum_gate", *gate
    yield "top2_sum_gate", *gate, mask, mask, None, None, indices[:, :3].clamp(0)
    yield "top2_sum_gate", *shared, mask, None, physical, count
    yield "hash_gate", scores, ids, table, 1.5
    yield ("hash_gate", scores, ids, table, 1.5, "identity", False, mask, True, 1, 0, 1, 0, 1, physical, count,
           indices[:, :3], 0.5)
    yield "group_count", indices, 8
    yield "aux_fi", indices, 8, 2
    for with_psum in (False, True):
        yield "get_fused_mapping", indices, 8, 40, 3, {"with_psum": with_psum}
        yield "route", *gate, 8, 50, 4, {"with_psum": with_psum}
    yield "route", *shared, 9, 50, 4, mask, mask, physical, count, indices[:, :3].clamp(0)
    yield "expand_to_fused", x[:6], pos, owner
    for is_col_major in (False, True):
        yield "expand_to_fused_with_sf", (x[:6], sf), 3, pos, owner, is_col_major
    yield "reduce_fused", x, None, pos
    yield "reduce_fused", (x.half(), x[:, 0].contiguous()), scores[:, :4], pos
    yield "reduce_fused", (x, x[:, 0].contiguous()), scores[:, :4], pos, "e4m3", sf[0, :1]


def quant_cases(device):
    x = torch.randn(6, 128, device=device)
    e4m3, sf = reference.cast(x, "e4m3", (1, 32), round_sf=True)
    e2m1 = reference.cast(x, "e2m1", (2, 16), round_sf=True, use_tma_aligned_col_major_sf=True, use_packed_ue8m0=True)
    pair = reference.cast(x, "e2m1", (2, 16), round_sf=True)
    rows = torch.tensor([3, 0, -1, 5, 5, 1, 2], dtype=torch.int32, device=device)
    weights = torch.rand(3, 2, device=device)
    pairs = torch.tensor([4, 0, -1, 5, 3, 1], dtype=torch.int32, device=device)
    positions = torch.tensor([[1, 5], [-1, 4], [0, 3]], dtype=torch.int32, device=device)
    counts = torch.zeros(3, dtype=torch.int64, device=device)
    for flags in ((False, False, False), (True, False, False), (True, True, True)):
        for fmt in ("e4m3", "e2m1"):
            yield "per_token_cast", x.bfloat16(), fmt, 16, None, *flags
            yield "per_block_cast", x, fmt, (4, 16), *flags
        yield "per_token_cast", x, "e5m6", 16, None, *flags
        yield "per_token_cast", (e4m3, sf), "e2m1", 16, (1, 32), *flags
        yield "per_token_cast", e2m1, "e4m3", 16, (2, 16), *flags
        yield "per_token_cast_with_sf_only", x, "e4m3", 16, None, *flags
        yield "per_token_cast_with_sf_only", e2m1, "e4m3", 16, (2, 16), *flags
        yield "per_token_cast_to_e5m6", x, 16, *flags
        yield "per_block_cast_with_sf_only", x, "e2m1", (4, 16), *flags
        yield "per_block_cast_lossless", pair, "e4m3", (2, 16), (4, 16), *flags
        yield "swiglu_forward_and_per_token_cast", x, "e4m3", 8, pairs, weights, None, *flags, 0.5, counts
    yield "per_token_cast_with_precomputed_sf", x, "e2m1", 32, sf
    yield "per_token_cast_with_precomputed_sf", (e4m3, sf), "e4m3", 32, sf * 2, (1, 32)
    yield "per_block_cast_with_precomputed_sf", x, "e4m3", (1, 32), sf
    yield "per_channel_cast", x, "e4m3", 4
    yield "per_channel_cast_fused", x.bfloat16(), "e4m3", 4, True
    yield "per_channel_cast_fused", x, "e4m3", 4, False, None, rows
    yield "per_channel_cast_fused", (e4m3, sf), "e4m3", 4, False, 32, rows
    yield "per_channel_cast_and_transpose", x, "e4m3", 4, True
    yield "cast_back", (e4m3, sf), "bf16", (1, 32)
    yield "cast_back", e2m1, "fp32", (2, 16)
    yield "cast_back", reference.cast_to_e5m6(x, 32), "fp32", (1, 32), "e5m6"
    yield "cast_back_e5m6", reference.cast_to_e5m6(x, 32), "bf16", (1, 32)
    yield "per_token_cast_back", (e4m3, sf), "fp32", 32
    yield "unpack_from_e2m1fn_x2", e2m1[0]
    yield "unpack_from_e2m1fn_x2", e2m1[0], torch.bfloat16
    yield "swiglu_forward_and_per_token_cast", x.bfloat16(), "e2m1", 16
    for without_transpose in (False, True):
        yield "swiglu_forward_and_per_channel_cast_and_transpose", x, "e4m3", 4, True, without_transpose, 0.5
    rest = x[:, :64].bfloat16(), weights, pairs, positions, 32
    yield "swiglu_backward_and_per_token_cast", (e4m3, sf), *rest
    yield "swiglu_backward_and_per_token_cast", (e4m3.view(2, 3, 128), sf.view(2, 3, 4)), *rest, True, 0.5


@functools.cache
def cases(device):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return [*transpose_cases(device), *engram_cases(device), *mhc_cases(device), *moe_cases(device),
                *quant_cases(device)]


IDS = [f"{i}-{name}" for i, (name, *_) in enumerate(cases("cpu"))]


def clone(t):
    """With its strides: they tell the layout of factors."""
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(t)


def copies(tree):
    return tree_map_only(torch.Tensor, clone, tree)


class Call:
    """One of them, with copies of its tensors: some functions write to them."""

    def __init__(self, identity, device):
        self.name, *self.args = copies(cases(device)[int(identity.split("-")[0])])
        self.kwargs = self.args.pop() if isinstance(self.args[-1], dict) else {}
        self.function = FUNCTIONS[self.name]

    def __call__(self, **more):
        return self.function(*self.args, **self.kwargs, **more)


def tensors_in(*trees):
    return [t for t in tree_leaves(trees) if isinstance(t, torch.Tensor)]
