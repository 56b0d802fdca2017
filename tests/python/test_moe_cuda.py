# SPDX-License-Identifier: MIT
"""The routing ops on a GPU: workspaces, graphs, streams, threads, waiting for a mapping."""
import ctypes

import pytest
import torch

import tegula
import tegula.torch as reference
from conftest import needs_cuda
from in_threads import in_threads
from tegula import moe
from tegula.testing import assert_equal
from test_moe import same
from test_moe_gate import PLAIN

pytestmark = needs_cuda

NUM_EXPERTS = 64


def random_indices(num_tokens, num_topk=8):
    return torch.randint(-1, NUM_EXPERTS, (num_tokens, num_topk), device="cuda")


def counts_and_mapping(idx, module=moe):
    """Ops that want a workspace, one after the other, for whatever size idx has."""
    num_positions = idx.numel() + 15 * NUM_EXPERTS
    return (module.group_count(idx, NUM_EXPERTS), module.aux_fi(idx, NUM_EXPERTS, 2),
            *module.get_fused_mapping(idx, NUM_EXPERTS, num_positions, 16, with_psum=True))


def expected(idx):
    return counts_and_mapping(idx, reference)


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


def names_of_work(function):
    """Of the kernels, copies and memsets that the GPU runs meanwhile."""
    from torch.profiler import ProfilerActivity, profile
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        function()
        torch.cuda.synchronize()
    return [event.name for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]


def test_one_launch_a_call():
    """Eagerly and in a graph: no memset of the workspace."""
    idx = random_indices(60000)
    graph, _ = captured(lambda: counts_and_mapping(idx))
    for run in (lambda: counts_and_mapping(idx), graph.replay):
        names = names_of_work(run)
        assert len(names) == 3 and sum("mapping" in n for n in names) == 1, names


def test_workspaces_of_graphs_that_come_and_go():
    """A graph's workspace passes on to the next one, or to a stream, when the graph is gone."""
    idx = random_indices(60000)
    want = expected(idx)
    for _ in range(10):
        graph, made = captured(lambda: counts_and_mapping(idx))
        graph.replay()
        eager = counts_and_mapping(idx)
        graph.replay()
        torch.cuda.synchronize()
        same(made, want)
        same(eager, want)
        with torch.cuda.stream(torch.cuda.Stream()):
            same(counts_and_mapping(idx), want)
        del graph, made


def driver():
    """(libcuda, a function that checks what its calls return)"""
    def check(result):
        assert result == 0, f"the driver says {result}"

    return ctypes.CDLL("libcuda.so.1"), check


def test_captured_behind_torchs_back():
    """A stream of somebody else, captured by the driver itself: torch does not know, the driver does."""
    cuda, check = driver()
    indices = [random_indices(60000) for _ in range(2)]
    outs = [[t for t in counts_and_mapping(idx) if not isinstance(t, list)] for idx in indices]

    def fill(idx, outs):
        moe.group_count(idx, NUM_EXPERTS, out=outs[0])
        moe.aux_fi(idx, NUM_EXPERTS, 2, out=outs[1])
        moe.get_fused_mapping(idx, NUM_EXPERTS, len(outs[2]), 16, with_psum=True, out=tuple(outs[2:]))

    handle, graph, run = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuStreamCreate(ctypes.byref(handle), 1))
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):
        fill(indices[1], outs[1])
        check(cuda.cuStreamBeginCapture_v2(handle, 0))
        fill(indices[0], outs[0])
        check(cuda.cuStreamEndCapture(handle, ctypes.byref(graph)))
    check(cuda.cuGraphInstantiateWithFlags(ctypes.byref(run), graph, ctypes.c_uint64(0)))
    side = ctypes.c_void_p()
    check(cuda.cuStreamCreate(ctypes.byref(side), 1))
    torch.cuda.synchronize()
    for out in (*outs[0], *outs[1]):
        out.fill_(-7)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):
        for _ in range(50):                     # the graph on one stream, the calls on the one it is from
            check(cuda.cuGraphLaunch(run, side))
            fill(indices[1], outs[1])
    torch.cuda.synchronize()
    for idx, out in zip(indices, outs):
        want = [t for t in expected(idx) if not isinstance(t, list)]
        same(out, want)
    check(cuda.cuGraphExecDestroy(run))
    check(cuda.cuGraphDestroy(graph))
    check(cuda.cuStreamDestroy_v2(handle))
    check(cuda.cuStreamDestroy_v2(side))


def test_default_streams_of_threads():
    """CU_STREAM_PER_THREAD is one handle, 2, and a stream for every thread; NULL is one for all."""
    idx = random_indices(60000)
    want = expected(idx)
    torch.cuda.synchronize()

    def work(stream):
        with torch.cuda.stream(stream):
            made = [counts_and_mapping(idx) for _ in range(20)]
            torch.cuda.current_stream().synchronize()
        for seen in made:
            same(seen, want)

    in_threads(work, [torch.cuda.ExternalStream(2)] * 2 + [torch.cuda.default_stream()] * 2)


def test_streams_that_come_and_go():
    """A driver gives the handle of a destroyed stream out again."""
    cuda, check = driver()
    idx = random_indices(60000)
    want = expected(idx)
    torch.cuda.synchronize()
    for _ in range(20):
        handle = ctypes.c_void_p()
        check(cuda.cuStreamCreate(ctypes.byref(handle), 1))
        with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):
            made = counts_and_mapping(idx)
        check(cuda.cuStreamDestroy_v2(handle))  # its work goes on
        torch.cuda.synchronize()
        same(made, want)


def test_eager_beside_a_capture():
    """A thread captures while another one calls, on streams that are new to the library."""
    idx = random_indices(60000)
    want = expected(idx)
    counts_and_mapping(idx)
    stream, outs = torch.cuda.Stream(), counts_and_mapping(idx)
    outs = [t for t in outs if not isinstance(t, list)]

    def work(_):
        with torch.cuda.stream(stream):
            moe.group_count(idx, NUM_EXPERTS, out=outs[0])
            moe.aux_fi(idx, NUM_EXPERTS, 2, out=outs[1])

    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = counts_and_mapping(idx)
        in_threads(work, [0])
    graph.replay()
    torch.cuda.synchronize()
    same(made, want)
    same(outs[:2], want[:2])


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
    idx = random_indices(60000)
    wants = expected(idx)
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


def test_threads():
    """A stream each, with sizes that make the workspaces grow."""
    def work(seed):
        generator = torch.Generator(device="cuda").manual_seed(seed)
        with torch.cuda.stream(torch.cuda.Stream()):
            for num_tokens in (1, 10, 300, 5000, 60000, 20):
                idx = torch.randint(-1, NUM_EXPERTS, (num_tokens, 8), device="cuda", generator=generator)
                for _ in range(10):
                    seen = counts_and_mapping(idx)
                same(seen, expected(idx))

    in_threads(work, range(4))


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
    names = names_of_work(lambda: moe.get_fused_mapping(idx, NUM_EXPERTS, 0, 128))
    assert len(names) == 1 and "mapping" in names[0], names


def test_waiting_in_a_capture():
    """Says so before anything is enqueued: the capture goes on, and the graph has what was captured beside."""
    idx = random_indices(5000)
    moe.get_fused_mapping(idx, NUM_EXPERTS, 0, 128)
    moe.group_count(idx, NUM_EXPERTS)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(ValueError, match="^num_expanded_tokens: is 0, want .* while a graph is captured"):
            moe.get_fused_mapping(idx, NUM_EXPERTS, 0, 128)
        counts = moe.group_count(idx, NUM_EXPERTS)
    names = names_of_work(graph.replay)
    assert len(names) == 1, names
    assert_equal(counts, reference.group_count(idx, NUM_EXPERTS))


def test_waiting_in_threads():
    """Several at once, with as many experts: each has its own place for the lengths."""
    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            idx = torch.full((100 + i, 2), i, device="cuda")
            for _ in range(50):
                lengths = moe.get_fused_mapping(idx, NUM_EXPERTS, 0, 1)[7]
                assert lengths == [2 * (100 + i) if e == i else 0 for e in range(NUM_EXPERTS)]

    in_threads(work, range(4))


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
