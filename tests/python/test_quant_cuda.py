# SPDX-License-Identifier: MIT
"""The casts on a GPU: graphs, threads, compiled code, one launch a call."""
import pytest
import torch

import tegula
from cases import IDS, Call, module_of, tensors_in
from conftest import needs_cuda
from in_threads import in_threads
from tegula import quant
from tegula.testing import assert_equal
from test_moe_cuda import names_of_work

pytestmark = needs_cuda

CASES = [case for case in IDS if module_of(case.split("-")[1]) == "quant"]
PACKED = {"use_tma_aligned_col_major_sf": True, "round_sf": True, "use_packed_ue8m0": True}


def some_rows(x):
    """A map to as many rows, its own inverse: backwards, some of them absent."""
    rows = torch.arange(len(x), dtype=torch.int32, device=x.device)
    return torch.where((rows % 3 == 0) | (rows.flip(0) % 3 == 0), -1, rows.flip(0))


def factors(x, num_rows, num_cols):
    """Many, the same on every device; few are powers of two."""
    return (torch.arange(num_rows * num_cols, device=x.device) % 61 + 20).view(num_rows, num_cols) / 64


def swiglu_with_all(x):
    """Weights, rows that are skipped (and say nothing), values that are clamped and counted."""
    rows, count = some_rows(x), torch.zeros(3, dtype=torch.int64, device=x.device)
    out, sf = quant.swiglu_forward_and_per_token_cast(
        x, "e4m3", 128, rows, factors(x, len(x), 1), rows, **PACKED, swiglu_clamp_value=0.5,
        clamped_count=count)
    return out.view(torch.uint8)[rows >= 0], sf[rows >= 0], count


def swiglu_count(x, num_per_channels):
    count = torch.zeros(3, dtype=torch.int64, device=x.device)
    return *quant.swiglu_forward_and_per_token_cast(x, "e4m3", num_per_channels, swiglu_clamp_value=0.5,
                                                    clamped_count=count), count


def backward(x, num_per_channels):
    hidden = x.shape[1] // 2
    rows, codes = some_rows(x), quant.per_token_cast(x, "e4m3", 128)[0]
    sf = factors(x, len(x), 2 * -(-hidden // num_per_channels)) / 256
    return quant.swiglu_backward_and_per_token_cast(
        (codes, sf), x[:, :hidden].contiguous(), factors(x, len(x), 1), rows, rows[:, None], num_per_channels,
        swiglu_clamp_value=1.5)


CALLS = {       # of a bfloat16 tensor: every op with its own kernel
    "per_token_e4m3": lambda x: quant.per_token_cast(x, "e4m3", 128),
    "per_token_e2m1": lambda x: quant.per_token_cast(x, "e2m1", 32, **PACKED),
    "per_token_e5m6": lambda x: quant.per_token_cast(x, "e5m6", 64),
    "sf_only": lambda x: quant.per_token_cast_with_sf_only(x, "e4m3", 128),
    "again": lambda x: quant.per_token_cast(quant.per_token_cast(x, "e4m3", 128), "e2m1", 32, (1, 128)),
    "per_block": lambda x: quant.per_block_cast(x, "e4m3", (128, 128)),
    "lossless": lambda x: quant.per_block_cast_lossless(
        quant.per_block_cast(x, "e2m1", (1, 32), round_sf=True), "e4m3", (1, 32), (128, 128)),
    "per_channel": lambda x: quant.per_channel_cast(x, "e4m3", 128),
    "per_channel_and_transpose": lambda x: quant.per_channel_cast_and_transpose(x, "e4m3", 128),
    "given": lambda x: quant.per_token_cast_with_precomputed_sf(
        x, "e4m3", 128, factors(x, len(x), x.shape[1] // 128)),
    "given_blocks": lambda x: quant.per_block_cast_with_precomputed_sf(
        x, "e2m1", (32, 64), factors(x, -(-len(x) // 32), x.shape[1] // 64)),
    "gathered": lambda x: quant.per_channel_cast_fused(x, "e4m3", 128, pos_to_token=some_rows(x)),
    "gathered_codes": lambda x: quant.per_channel_cast_fused(
        quant.per_token_cast(x, "e4m3", 128), "e4m3", 128, True, 128, some_rows(x)),
    "back": lambda x: quant.cast_back(quant.per_token_cast(x, "e4m3", 128), "bf16", (1, 128)),
    "unpack": lambda x: quant.unpack_from_e2m1fn_x2(quant.per_token_cast(x, "e2m1", 32)[0]),
    "swiglu": lambda x: quant.swiglu_forward_and_per_token_cast(x, "e4m3", 64, swiglu_clamp_value=2.0),
    "swiglu_with_all": swiglu_with_all,
    "swiglu_count": lambda x: swiglu_count(x, 128),
    "swiglu_count_in_odd_blocks": lambda x: swiglu_count(x, 100),
    "backward": lambda x: backward(x, 128),
    "backward_in_odd_blocks": lambda x: backward(x, 100),
    "swiglu_per_channel": lambda x: quant.swiglu_forward_and_per_channel_cast_and_transpose(x, "e4m3", 128),
}


def make(num_tokens, hidden=512):
    return torch.randn(num_tokens, hidden, device="cuda").bfloat16()


def same(seen, want):
    for a, b in zip(tensors_in(seen), tensors_in(want), strict=True):
        assert_equal(a, b)


def reversed_rows(t):
    """Other numbers, as likely as those there are; integers stay."""
    if not t.is_floating_point():
        return t
    return t.view(torch.uint8).flip(0).view(t.dtype) if t.dtype == torch.float8_e4m3fn else t.flip(0)


@pytest.mark.parametrize("case", CASES)
def test_graph(case):
    """Captured once, replayed with other numbers: what an eager call gives for them, in place too."""
    Call(case, "cuda")()
    held = Call(case, "cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = held()
    for change in (lambda t: t, reversed_rows):
        fresh = Call(case, "cuda")
        for to, t in zip(tensors_in(held.args), tensors_in(fresh.args), strict=True):
            to.copy_(t.copy_(change(t)))
        graph.replay()
        want = fresh()
        torch.cuda.synchronize()
        same((made, held.args), (want, fresh.args))


def test_graph_with_out():
    x, y = make(100), make(100)
    outs = quant.per_token_cast(x, "e4m3", 128)
    back = quant.cast_back(outs, "bf16", (1, 128))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert quant.per_token_cast(x, "e4m3", 128, out=outs)[0] is outs[0]
        assert quant.cast_back(outs, "bf16", (1, 128), out=back) is back
    x.copy_(y)
    graph.replay()
    torch.cuda.synchronize()
    same(outs, quant.per_token_cast(y, "e4m3", 128))
    assert_equal(back, CALLS["back"](y))


def test_threads():
    """A stream each, and kernels that one of them is the first to want."""
    inputs = [make(n, 1280) for n in (1, 33, 300, 1000)]
    functions = CALLS.values()
    torch.cuda.synchronize()

    def work(pair):
        x, made = pair
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(10):
                made[:] = [function(x) for function in functions]
            torch.cuda.current_stream().synchronize()

    made = [[] for _ in inputs]
    in_threads(work, zip(inputs, made))
    for x, seen in zip(inputs, made):
        same(seen, [function(x) for function in functions])


def test_cuda_graph_trees():
    """torch.compile's own graphs, with operators of ours between kernels of torch's."""
    def twice(x):
        pair = quant.per_token_cast(x * 2, "e4m3", 128)
        return *pair, quant.cast_back(pair, "bf16", (1, 128)) * 2

    compiled = torch.compile(twice, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        x = make(64)
        torch.compiler.cudagraph_mark_step_begin()
        same(compiled(x), twice(x))


def test_compiled_with_out():
    def cast(x, out, out_sf):
        quant.per_token_cast(x * 2, "e4m3", 128, out=(out, out_sf))

    x = make(64)
    outs = [torch.zeros_like(t) for t in quant.per_token_cast(x, "e4m3", 128)]
    torch.compile(cast, fullgraph=True, backend="aot_eager")(x, *outs)
    same(outs, quant.per_token_cast(x * 2, "e4m3", 128))


@pytest.mark.parametrize("name", CALLS)
def test_nothing_compiles_after_the_warm_up(name):
    """Whatever the number of tokens."""
    function = CALLS[name]
    with tegula.warmup():
        function(make(64, 768))
    count = tegula.compile_count()
    for num_tokens in (1, 64, 300, 5000):
        function(make(num_tokens, 768))
    assert tegula.compile_count() == count


def test_one_launch_a_call():
    """Of every function, and nothing beside it: no memset, no copy."""
    calls = [Call(case, "cuda") for case in CASES]
    for call in calls:
        call()
    names = names_of_work(lambda: [call() for call in calls])
    assert len(names) == len(calls), names


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_other_than_the_current_device():
    x = make(100)
    for function in CALLS.values():
        for a, b in zip(tensors_in(function(x.to("cuda:1"))), tensors_in(function(x)), strict=True):
            assert a.device.index == 1
            assert_equal(a.to("cuda:0"), b, check_stride=False)
