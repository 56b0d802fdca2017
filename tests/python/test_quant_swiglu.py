# SPDX-License-Identifier: MIT
"""The casts that are fused with SwiGLU against plain torch: bit for bit on CUDA, where exp is torch's; on the
CPU up to the last bits of exp. With fewer tokens than TileKernels' tests but on a GPU with TK_FULL_TEST=1."""
import itertools

import pytest
import torch

import golden
import tegula.torch as reference
from conftest import HAS_CUDA, IS_FULL
from tegula import moe, quant
from tegula.testing import assert_equal
from tegula.testing.generator import (
    generate_hidden_sizes, generate_moe_params, generate_num_tokens, generate_topk_idx,
)
from tegula.torch.quant import _cast

MOE_PARAMS = list(generate_moe_params())[::1 if IS_FULL and HAS_CUDA else 4]
FLAGS = {"row": (False, False, False), "row_round": (False, True, False), "col_round": (True, True, False),
         "packed": (True, True, True)}
CLAMPS = [None, 10, 0.5, 0.3]
ULP = 2.0**-23


def ordered(t):
    """Codes of e4m3 or pairs of e2m1, or numbers of bf16, as integers in their order."""
    codes = golden.bits(t).int()
    sign = {torch.int8: 0x8, torch.float8_e4m3fn: 0x80, torch.bfloat16: 0x8000}[t.dtype]
    if t.dtype == torch.int8:
        codes = torch.cat([codes & 15, codes >> 4])
    codes &= 2 * sign - 1
    return torch.where(codes >= sign, sign - codes, codes)


def steps_between(seen, want):
    """How many elements differ, by one step; more is an error."""
    steps = (ordered(seen) - ordered(want)).abs()
    assert steps.numel() == 0 or steps.max() <= 1
    return int(steps.sum())


def laid_out(t):
    return t.dtype, t.shape, t.stride() if t.numel() else None


def near(seen, want):
    """exp may differ in its last bits: few elements are then rounded to the other side."""
    assert laid_out(seen) == laid_out(want)
    if seen.device.type == "cuda" or seen.dtype == torch.int32:
        assert_equal(seen, want)
    elif seen.dtype == torch.float32:
        assert torch.allclose(seen, want, rtol=4 * ULP, atol=0)
    else:
        assert steps_between(seen, want) <= 1 + seen.numel() / 1000


def all_near(seen, want):
    for a, b in zip(seen, want, strict=True):
        near(a, b)


def is_large(device):
    return IS_FULL and device == "cuda"


def one_in_turn(sizes, params):
    """For each setting of the routing the next: all settings with all sizes would take hours."""
    return sizes[MOE_PARAMS.index(params) % len(sizes)]


def routed(params, alignment, device):
    """topk_idx and its mapping."""
    num_tokens = params["num_send_tokens"]
    num_tokens = num_tokens if is_large(device) else min(5, num_tokens)
    idx = generate_topk_idx(params | {"num_send_tokens": num_tokens}, device)
    return idx, moe.get_fused_mapping(idx, params["num_experts"], 0, alignment)


def forward(x, fmt, num_per_channels, pos_to_token_topk=None, topk_weights=None, flags=(False,) * 3,
            clamp=None, count=None, sf_clamp_min=None):
    v = reference.swiglu_forward(x, pos_to_token_topk, topk_weights, clamp, count)
    is_col_major, round_sf, is_packed = flags
    return _cast(v, fmt, (1, num_per_channels), round_sf, is_col_major, is_packed, sf_clamp_min)


each_params = pytest.mark.parametrize("params", MOE_PARAMS, ids=lambda p: "-".join(map(str, p.values())))
each_clamp = pytest.mark.parametrize("clamp", CLAMPS)


# ---- forward, per token ----

@each_clamp
@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
@each_params
def test_forward(params, flags, clamp, device):
    idx, mapping = routed(params, 16, device)
    pos_to_expert, pos_to_pair = mapping[0], mapping[2]
    weights = torch.randn(idx.shape, device=device)
    sizes = 1024, 1280, 1536, 2048, 3072, 3584
    for hidden in (one_in_turn(sizes, params),) if is_large(device) else (256,):
        x = torch.randn(len(idx), 2 * hidden, device=device).bfloat16()
        x = moe.expand_to_fused(x, mapping[3], pos_to_expert)
        for has_experts, has_weights, n in itertools.product((False, True), (False, True), (128, 32, hidden)):
            more = (pos_to_pair, weights) if has_weights else (None, None)
            counts = [torch.full((3,), 5, device=device) for _ in range(2)] if clamp else (None, None)
            seen = quant.swiglu_forward_and_per_token_cast(
                x, "e4m3", n, *more, pos_to_expert if has_experts else None, *flags, clamp, counts[0])
            want = forward(x, "e4m3", n, *more, flags, clamp, counts[1])
            if has_experts:                     # skipped rows are as they were: whatever that is
                kept = (pos_to_expert >= 0).nonzero()[:, 0]
                for a, b in zip(seen, want, strict=True):
                    assert laid_out(a) == laid_out(b)
                    near(golden.bits(a)[kept].view(a.dtype), golden.bits(b)[kept].view(b.dtype))
            else:
                all_near(seen, want)
            if clamp:
                assert_equal(*counts)


@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
def test_forward_sizes(dtype, fmt, device):
    for num_tokens, hidden, n in itertools.product((0, 1, 9), (8, 100, 576), (16, 100, 1000)):
        x = (torch.randn(num_tokens, 2 * hidden, device=device) * 3).to(dtype)
        for floor in (None, 0.01, 0.0):
            seen = quant.swiglu_forward_and_per_token_cast(x, fmt, n, sf_clamp_min=floor)
            all_near(seen, forward(x, fmt, n, sf_clamp_min=floor))


# ---- forward, per channel ----

@each_clamp
@pytest.mark.parametrize("round_sf", [False, True])
@pytest.mark.parametrize("without_transpose", [False, True])
def test_forward_per_channel(without_transpose, round_sf, clamp, device):
    sizes = [(0, 64), (1, 8), (128, 64), (200, 100), (256, 576)]
    if is_large(device):
        sizes += itertools.product(generate_num_tokens(128), generate_hidden_sizes())
    for (num_tokens, hidden), n in itertools.product(sizes, (32, 128)):
        x = torch.randn(num_tokens, 2 * hidden, device=device)
        for x in (x.bfloat16(), x):
            v = reference.swiglu_forward(x, swiglu_clamp_value=clamp).bfloat16()
            out, sf = reference.cast(v, "e4m3", (n, 1), round_sf=round_sf)
            want = out if without_transpose else reference.transpose(out), sf
            seen = quant.swiglu_forward_and_per_channel_cast_and_transpose(x, "e4m3", n, round_sf,
                                                                           without_transpose, clamp)
            if device == "cuda":
                all_near(seen, want)
                continue
            # v is rounded to bf16 before its largest magnitude is taken: a step there moves a whole factor
            assert [laid_out(t) for t in seen] == [laid_out(t) for t in want]
            moved = int((seen[1] != want[1]).sum())
            assert torch.allclose(seen[1], want[1], rtol=2**-7, atol=0) and moved <= 1 + sf.numel() / 1000
            assert steps_between(seen[0], want[0]) <= moved * n + 1 + out.numel() / 1000


# ---- backward ----

def cast_halves(x, n, round_sf=False):
    """Groups do not cross from gates to ups."""
    halves = [reference.cast(h.contiguous(), "e4m3", (1, n), round_sf=round_sf) for h in x.chunk(2, dim=1)]
    codes, sf = (torch.cat([golden.bits(t) for t in parts], dim=1) for parts in zip(*halves))
    return codes.view(torch.float8_e4m3fn), sf.view(torch.float32)


def backward(x, grad_out, weight, pairs, positions, n, round_sf, clamp):
    out, x_grad, weight_grad = reference.swiglu_backward(x, grad_out, weight, pairs, positions, n, clamp)
    return out.bfloat16(), cast_halves(x_grad, n, round_sf), x_grad.bfloat16(), weight_grad


def check_backward(seen, want):
    near(seen[0], want[0])
    all_near(seen[1], want[1])
    near(seen[2], want[2])
    torch.testing.assert_close(seen[3], want[3], rtol=1e-4, atol=1e-4)


@each_clamp
@pytest.mark.parametrize("round_sf", [False, True])
@pytest.mark.parametrize("n", [32, 64, 128])
@each_params
def test_backward(params, n, round_sf, clamp, device):
    idx, mapping = routed(params, n, device)
    weight = torch.rand(idx.shape, device=device)
    sizes = 2048, 2560, 3072, 4096, 6144, 7168
    for hidden in [one_in_turn(sizes, params)] if is_large(device) else [384]:
        x = torch.randn(len(idx), 2 * hidden, device=device).bfloat16()
        pair = quant.per_token_cast(moe.expand_to_fused(x, mapping[3], mapping[0]), "e4m3", n)
        grad_out = torch.randn(len(mapping[0]), hidden, device=device).bfloat16()
        args = pair, grad_out, weight, mapping[2], mapping[3], n, round_sf, clamp
        check_backward(quant.swiglu_backward_and_per_token_cast(*args), backward(*args))


# ---- recorded data, by the references ----

@pytest.mark.parametrize("case", [c for c in golden.cases("quant") if "swiglu" in c.op], ids=str)
def test_recorded_by_reference(case, device):
    inputs, args = case.inputs(device), dict(case.args)
    if case.op == "swiglu_backward_and_per_token_cast":
        x = inputs["x"], inputs["x_sf"]
        out, (codes, sf), *grads = backward(
            x, inputs["grad_out"], inputs["weight"], inputs["pos_to_token_topk"], inputs["token_topk_to_pos"],
            args["num_per_channels"], args["round_sf"], args["swiglu_clamp_value"])
        made = {"out": out, "x_grad_fp8": codes, "x_grad_sf": sf, "x_grad": grads[0], "weight_grad": grads[1]}
    elif "num_per_tokens" in args:
        v = reference.swiglu_forward(inputs["x"], swiglu_clamp_value=args["swiglu_clamp_value"]).bfloat16()
        out, sf = reference.cast(v, "e4m3", (args["num_per_tokens"], 1), round_sf=args["round_sf"])
        made = {"out": out if args["without_transpose"] else reference.transpose(out), "out_sf": sf}
    else:
        flags = args["use_tma_aligned_col_major_sf"], args["round_sf"], args["use_packed_ue8m0"]
        made = dict(zip(("out", "out_sf"), forward(
            inputs["x"], args["fmt"], args["num_per_channels"], inputs.get("pos_to_token_topk"),
            inputs.get("topk_weights"), flags, args["swiglu_clamp_value"],
            sf_clamp_min=args.get("sf_clamp_min"))))
    for name, tensor in made.items():
        case.check(name, tensor)
