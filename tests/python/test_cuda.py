# SPDX-License-Identifier: MIT
"""What only a GPU has: streams, graphs, several devices, compiling."""
import os
import subprocess
import sys

import pytest
import torch

import tegula
from conftest import needs_cuda
from in_threads import in_threads
from tegula.transpose import batched_transpose, transpose

pytestmark = needs_cuda


def test_runs_on_the_current_stream():
    x = torch.zeros(1024, 1024, device="cuda")
    transpose(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(50_000_000)
        x.fill_(3)                      # ready only after the sleep, on this stream
        y = transpose(x)
    torch.cuda.synchronize()
    assert (y == 3).all()


def test_graph_capture():
    x = torch.randn(33, 65, device="cuda")
    out = torch.empty(65, 33, device="cuda")
    transpose(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = transpose(x)
        transpose(x, out=out)
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, x.t()) and torch.equal(out, x.t())


def test_compiling_inside_a_capture_is_an_error(tmp_path):
    """In a fresh process with an empty cache: a call that has to compile says so; after a warm-up it is
    captured."""
    code = """if True:
        import torch, tegula
        x = torch.randn(33, 65, device="cuda")
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                tegula.transpose.transpose(x)
        except tegula.Error as e:
            assert e.status == "TGL_ERR_CAPTURE", e.status
        else:
            raise AssertionError("captured")
        with tegula.warmup():
            tegula.transpose.transpose(x)
        assert tegula.compile_count() > 0
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = tegula.transpose.transpose(x)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, x.t())"""
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "TEGULA_CACHE_DIR": str(tmp_path)})


def test_cuda_graph_trees():
    compiled = torch.compile(lambda x: transpose(x * 2) + 1, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        x = torch.randn(64, 96, device="cuda")
        assert torch.equal(compiled(x), (2 * x).t() + 1)


def test_record_stream():
    """The memory of an output that another stream still uses must not be handed out again."""
    x = torch.randn(512, 512, device="cuda")
    side = torch.cuda.Stream()
    y = transpose(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
    before = torch.cuda.memory_stats()["active.all.current"]
    y.record_stream(side)
    del y
    assert torch.cuda.memory_stats()["active.all.current"] == before
    torch.cuda.synchronize()


def test_threads_without_a_context():
    x = torch.randn(33, 65, device="cuda")

    def work(_):
        for _ in range(200):
            assert torch.equal(transpose(x), x.t())

    in_threads(work, range(4))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_other_than_the_current_device():
    x = torch.randn(33, 65, device="cuda:1")
    y = transpose(x)
    assert y.device == x.device and torch.equal(y, x.t())


def test_mixed_devices():
    with pytest.raises(ValueError, match="out: "):
        transpose(torch.randn(3, 5, device="cuda"), out=torch.empty(5, 3))


def test_warm_calls_do_not_compile():
    x = torch.randn(3, 33, 65, device="cuda").bfloat16()
    batched_transpose(x)
    count = tegula.compile_count()
    for n in (1, 2, 70, 4001):
        batched_transpose(torch.randn(2, n, 65, device="cuda").bfloat16())
    assert tegula.compile_count() == count


def test_num_sms_does_not_change_results():
    x = torch.randn(1000, 1001, device="cuda")
    before = tegula.config.get_num_sms()
    try:
        for n in tegula.testing.generator.generate_num_sms() + [1]:
            tegula.config.set_num_sms(n)
            assert tegula.config.get_num_sms() == n
            assert torch.equal(transpose(x), x.t())
    finally:
        tegula.config.set_num_sms(before)
