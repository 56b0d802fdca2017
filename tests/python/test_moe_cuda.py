# SPDX-License-Identifier: MIT
"""The routing ops on a GPU: workspaces, graphs, streams, threads, waiting for a mapping."""
import threading

import pytest
import torch

import tegula
import tegula.torch as reference
from conftest import needs_cuda
from tegula import _tegula, moe
from tegula.testing import assert_equal
from tegula.testing.generator import generate_num_sms
from test_moe_gate import PLAIN, make_inputs

pytestmark = needs_cuda

NUM_EXPERTS = 64


def random_indices(num_tokens, num_topk=8):
    return torch.randint(-1, NUM_EXPERTS, (num_tokens, num_topk), device="cuda")


def counts_and_mapping(idx):
    """Ops that want a workspace, one after the other, for whatever size idx has."""
    num_positions = idx.numel() + 15 * NUM_EXPERTS
    return (moe.group_count(idx, NUM_EXPERTS), moe.aux_fi(idx, NUM_EXPERTS, 2),
            *moe.get_fused_mapping(idx, NUM_EXPERTS, num_positions, 16, with_psum=True))


def expected(idx):
    num_positions = idx.numel() + 15 * NUM_EXPERTS
    return (reference.group_count(idx, NUM_EXPERTS), reference.aux_fi(idx, NUM_EXPERTS, 2),
            *reference.get_fused_mapping(idx, NUM_EXPERTS, num_positions, 16, with_psum=True))


def same(seen, want):
    for a, b in zip(seen, want, strict=True):
        if isinstance(b, list):
            assert a == b
        else:
            assert_equal(a, b)


def captured(function):
    """A graph of a function that was called before, and what it returned while it was captured."""
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = function()
    return graph, made


SIZES = [1, 100, 5000, 60000]


@pytest.mark.parametrize("num_tokens", SIZES)
def test_graph(num_tokens):
    idx = random_indices(num_tokens)
    graph, made = captured(lambda: counts_and_mapping(idx))
    for _ in range(3):
        idx.copy_(random_indices(num_tokens))
        graph.replay()
        torch.cuda.synchronize()
        same(made, expected(idx))


def test_a_graph_keeps_no_workspace():
    """What a capture takes belongs to the graph: nothing new is kept, and nothing kept is used."""
    idx = random_indices(60000)
    counts_and_mapping(idx)
    before = _tegula.workspaces()
    graph, made = captured(lambda: counts_and_mapping(idx))
    assert _tegula.workspaces() == before
    graph.replay()
    eager = counts_and_mapping(idx)
    torch.cuda.synchronize()
    same(made, eager)
    del graph, made
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    same(counts_and_mapping(idx), expected(idx))


@pytest.mark.parametrize("num_tokens", SIZES)
def test_two_graphs_at_once(num_tokens):
    """On two streams, many times, with eager calls on a third: none sees another's workspace."""
    indices = [random_indices(num_tokens) for _ in range(3)]
    wants = [expected(idx) for idx in indices]
    graphs = [captured(lambda idx=idx: counts_and_mapping(idx)) for idx in indices[:2]]
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for _ in range(50):
        for (graph, _), stream in zip(graphs, streams):
            with torch.cuda.stream(stream):
                graph.replay()
        with torch.cuda.stream(streams[2]):
            eager = counts_and_mapping(indices[2])
    torch.cuda.synchronize()
    for (_, made), want in zip(graphs, wants):
        same(made, want)
    same(eager, wants[2])


def test_two_branches_of_one_capture():
    """A capture that forks: the branches run at the same time."""
    indices = [random_indices(60000) for _ in range(2)]
    for idx in indices:
        counts_and_mapping(idx)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        first = counts_and_mapping(indices[0])
        with torch.cuda.stream(side):
            second = counts_and_mapping(indices[1])
        torch.cuda.current_stream().wait_stream(side)
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    same(first, expected(indices[0]))
    same(second, expected(indices[1]))


def test_cuda_graph_trees():
    """torch.compile's own graphs look for memory that is left behind in their pool."""
    compiled = torch.compile(lambda idx: counts_and_mapping(idx * 1), fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        idx = random_indices(60000)
        same(compiled(idx), expected(idx))


def test_streams_have_their_own():
    idx, wants = random_indices(60000), None
    counts_and_mapping(idx)
    torch.cuda.synchronize()
    wants, count = expected(idx), len(_tegula.workspaces())
    streams = [torch.cuda.Stream() for _ in range(3)]
    made = []
    for _ in range(20):
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                made.append(counts_and_mapping(idx))
    torch.cuda.synchronize()
    for seen in made:
        same(seen, wants)
    listed = _tegula.workspaces()
    assert len({stream for _, stream, _, _ in listed}) == len(listed) >= count
    assert all(is_clean for *_, is_clean in listed)


def test_threads():
    """A stream each, with sizes that make the workspaces grow."""
    errors = []

    def work(seed):
        try:
            generator = torch.Generator(device="cuda").manual_seed(seed)
            with torch.cuda.stream(torch.cuda.Stream()):
                for num_tokens in (1, 10, 300, 5000, 60000, 20):
                    idx = torch.randint(-1, NUM_EXPERTS, (num_tokens, 8), device="cuda", generator=generator)
                    for _ in range(10):
                        seen = counts_and_mapping(idx)
                    same(seen, expected(idx))
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


def test_results_do_not_depend_on_num_sms():
    idx = random_indices(60000)
    logits, bias = make_inputs(200, 64, "sigmoid", device="cuda")
    args = PLAIN | {"num_topk": 8, "num_experts": 64, "num_expanded_tokens": 10000, "alignment": 128}
    x = torch.randn(5000, 512, device="cuda").bfloat16()
    want, routed = expected(idx), moe.route(logits, bias, **args)
    few = random_indices(5000)
    mapping = moe.get_fused_mapping(few, NUM_EXPERTS, 0, 16)
    expanded = moe.expand_to_fused(x, mapping[3], mapping[0])
    reduced = moe.reduce_fused(expanded, None, mapping[3])
    before = tegula.config.get_num_sms()
    try:
        for n in {1, 2, 7, *generate_num_sms()}:
            tegula.config.set_num_sms(n)
            same(counts_and_mapping(idx), want)
            same(moe.route(logits, bias, **args), routed)
            same(moe.get_fused_mapping(few, NUM_EXPERTS, 0, 16), mapping)
            assert_equal(moe.expand_to_fused(x, mapping[3], mapping[0]), expanded)
            assert_equal(moe.reduce_fused(expanded, None, mapping[3]), reduced)
    finally:
        tegula.config.set_num_sms(before)


def test_waiting_for_a_mapping():
    """The list is there on return, on whatever stream, and no copy to the host was made for it."""
    idx = random_indices(5000)
    moe.get_fused_mapping(idx, NUM_EXPERTS, 0, 128)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(50_000_000)
        later = idx.flip(0) * 1
        seen = moe.get_fused_mapping(later, NUM_EXPERTS, 0, 128)
    same(seen, reference.get_fused_mapping(idx.flip(0), NUM_EXPERTS, 0, 128))
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        moe.get_fused_mapping(idx, NUM_EXPERTS, 0, 128)
        torch.cuda.synchronize()
    names = [event.name for event in profiler.events()]
    assert any("mapping" in n for n in names), names
    assert not any("Memcpy" in n or "Memset" in n for n in names), names


def test_waiting_in_threads():
    """Several at once, with as many experts: each has its own place for the lengths."""
    errors = []

    def work(i):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                idx = torch.full((100 + i, 2), i, device="cuda")
                for _ in range(50):
                    lengths = moe.get_fused_mapping(idx, NUM_EXPERTS, 0, 1)[7]
                    assert lengths == [2 * (100 + i) if e == i else 0 for e in range(NUM_EXPERTS)]
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


def test_warmup():
    """Of a whole block: nothing compiles afterwards, for any number of tokens; and the workspace that was
    made meanwhile is zeroed."""
    def block(num_tokens):
        logits, x = torch.randn(num_tokens, 48, device="cuda"), torch.randn(num_tokens, 256, device="cuda")
        idx, weights = moe.top2_sum_gate(logits, None, **PLAIN | {"num_topk": 6})
        mapping = moe.get_fused_mapping(idx, 48, 0, 32)
        expanded = moe.expand_to_fused(x, mapping[3], mapping[0])
        return idx, moe.group_count(idx, 48), moe.reduce_fused(expanded, weights, mapping[3]), x

    with torch.cuda.stream(torch.cuda.Stream()):
        with tegula.warmup():
            block(64)
        count = tegula.compile_count()
        for num_tokens in (64, 1, 300, 20000):
            idx, counted, reduced, x = block(num_tokens)
            assert_equal(counted, reference.group_count(idx, 48))
            assert torch.allclose(reduced, x, rtol=1e-5, atol=1e-6)
        assert tegula.compile_count() == count


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_other_than_the_current_device():
    idx = random_indices(5000).to("cuda:1")
    same(counts_and_mapping(idx), expected(idx))
    same(moe.get_fused_mapping(idx, NUM_EXPERTS, 0, 16), reference.get_fused_mapping(idx, NUM_EXPERTS, 0, 16))
