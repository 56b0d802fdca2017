# SPDX-License-Identifier: MIT
"""The code blocks of docs/python.md: each is cut from here, between `# doc: name` and `# end`, and runs
here."""

import inspect
import subprocess
import sys

import pytest
import torch

from conftest import needs_cuda


def test_first_call():
    # doc: first
    import torch
    import tegula

    x = torch.arange(6.0).view(2, 3)
    y = tegula.transpose.transpose(x)           # a new tensor, packed, on x's device
    tegula.transpose.transpose(x, out=y)        # into a tensor of yours
    # end
    assert torch.equal(y, x.t())


def test_numpy():
    pytest.importorskip("numpy")
    # doc: numpy
    import numpy
    import tegula

    a = numpy.arange(24).reshape(2, 3, 4)
    b = tegula.transpose.batched_transpose(a)   # a numpy.ndarray of shape (2, 4, 3)
    # end
    assert (b == a.transpose(0, 2, 1)).all()


def test_jax():
    numpy = pytest.importorskip("numpy")
    pytest.importorskip("jax")
    # doc: jax
    import jax
    import tegula.jax

    @jax.jit
    def route(scores, x):
        data, sf = tegula.jax.per_token_cast(x * 2, "e4m3", 128)
        return tegula.jax.topk_gate(scores, 8), data, sf
    # end
    scores = numpy.random.default_rng(0).random((4, 64), dtype=numpy.float32)
    best, data, sf = route(scores, numpy.ones((4, 256), numpy.float32))
    assert (best == numpy.argsort(-scores)[:, :8]).all() and data.shape == (4, 256) and (sf == numpy.float32(2 / 448)).all()


def test_errors():
    x, tegula = torch.randn(2, 3), pytest.importorskip("tegula")
    # doc: errors
    try:
        tegula.transpose.transpose(x, out=torch.empty(2, 3))
    except ValueError as e:
        message = str(e)                        # out: shape is [2, 3], want [3, 2]

    try:
        with tegula.warmup():
            tegula.transpose.transpose(x)
    except tegula.Error as e:
        status = e.status                       # TGL_ERR_DEVICE: there is no driver here
    # end
    assert message == "out: shape is [2, 3], want [3, 2]"
    assert torch.cuda.is_available() or status == "TGL_ERR_DEVICE"


def test_compile():
    # doc: compile
    import torch
    from tegula.transpose import transpose

    @torch.compile(fullgraph=True, dynamic=True)
    def f(x):
        return transpose(x * 2) + 1
    # end
    if torch.cuda.is_available():
        assert torch.equal(f(torch.ones(3, 5, device="cuda")), torch.full((5, 3), 3.0, device="cuda"))
    f = torch.compile(
        f._torchdynamo_orig_callable, fullgraph=True, dynamic=True, backend="aot_eager"
    )  # no C++ compiler needed
    assert torch.equal(f(torch.ones(3, 5)), torch.full((5, 3), 3.0))


def test_gradient():
    from tegula.transpose import transpose
    # doc: gradient
    x = torch.randn(2, 3, requires_grad=True)
    transpose(x).pow(2).sum().backward()        # x.grad is 2 * x
    # end
    assert torch.allclose(x.grad, 2 * x.detach())


def test_mhc():
    from types import SimpleNamespace

    def parameters(rows, scales):
        return SimpleNamespace(fn=torch.randn(rows, 256) / 16, scale=torch.ones(scales), base=torch.zeros(rows))

    embedding = torch.randn(5, 64).bfloat16()
    layers, head = [(parameters(24, 3), torch.nn.functional.silu) for _ in range(2)], parameters(4, 1)
    # doc: mhc
    from tegula.modeling.mhc import expand_from_embedding, mhc_head, mhc_pre
    from tegula.modeling.mhc.ops import mhc_post

    streams = expand_from_embedding(embedding, mhc_mult=4)              # [tokens, 4, hidden]
    for site, sublayer in layers:                                       # attention, FFN, attention, ...
        layer_input, (post_mix, comb_mix) = mhc_pre(streams, site.fn, site.scale, site.base,
                                                    post_mult_value=2.0, sinkhorn_repeat=20)
        streams = mhc_post(sublayer(layer_input), streams, post_mix, comb_mix)
    out = mhc_head(streams, head.fn, head.scale, head.base)             # [tokens, hidden]
    # end
    assert out.shape == embedding.shape and out.isfinite().all()

    import tegula

    residual, fn, scale, base = streams, site.fn, site.scale, site.base
    # doc: mhc_parts
    from tegula.mhc import deep_gemm

    a, b = residual.flatten(1), fn                          # [T, n * hidden], [n * (n + 2), n * hidden]
    d, sqr_sum = torch.empty(16, len(a), len(b)), torch.empty(16, len(a))
    deep_gemm.hc_prenorm_gemm(a, b, d, sqr_sum, num_splits=16)
    out, pre_mix, post_mix, comb_mix = tegula.mhc.mhc_pre_finish_fwd(residual, d, sqr_sum, scale, base)
    # end
    assert all(map(torch.equal, (out, pre_mix, post_mix, comb_mix), tegula.mhc.mhc_pre_fwd(residual, fn, scale, base)))


def test_moe():
    # doc: moe
    from tegula import moe

    logits, x = torch.randn(64, 16), torch.randn(64, 256)
    idx, weights = moe.top2_sum_gate(
        logits, bias=None, num_topk=2, num_topk_groups=2, num_groups=4, use_shared_as_routed=False,
        num_shared_experts=0, routed_scaling_factor=1.0, ep_rank=0, num_ep_ranks=1, tp_rank=0, num_tp_ranks=1,
        scoring_func="sigmoid")
    pos_to_expert, _, _, token_topk_to_pos, start, end, *_, lengths = moe.get_fused_mapping(idx, 16, 0, 8)
    expanded = moe.expand_to_fused(x, token_topk_to_pos, pos_to_expert)     # expert e: rows start[e] to end[e]
    out = moe.reduce_fused(expanded, weights, token_topk_to_pos)            # experts that change nothing
    # end
    assert torch.allclose(out, x, rtol=1e-5) and (end - start).tolist() == lengths


def test_quant():
    # doc: quant
    from tegula import quant

    x = torch.randn(64, 512, dtype=torch.bfloat16)
    data, sf = quant.per_token_cast(x, "e4m3", 128)                 # float8_e4m3fn (64, 512), float32 (64, 4)
    packed = quant.per_token_cast(x, "e2m1", 32, use_tma_aligned_col_major_sf=True, round_sf=True,
                                  use_packed_ue8m0=True)            # int8 (64, 256), int32 (64, 4)
    again = quant.per_token_cast(packed, "e4m3", 128, x_block_size=(1, 32))
    back = quant.cast_back((data, sf), "bf16", (1, 128))
    # end
    # doc: quant_given
    factors = quant.per_token_cast_with_sf_only(x, "e4m3", 128)     # float32 (64, 4)
    codes = quant.per_token_cast_with_precomputed_sf(x, "e4m3", 128, factors)
    numbers = quant.per_token_cast_back((codes, factors), "bf16", 128)      # cast_back with (1, 128)
    weight = quant.per_block_cast(x, "e4m3", (32, 128))             # a factor for every 32 rows
    # end
    assert torch.equal(factors, sf) and weight[1].shape == (2, 4)
    assert torch.allclose(numbers.float(), x.float(), rtol=0.07, atol=0.01)
    # doc: quant_swiglu
    gates_and_ups, clamped = torch.randn(64, 2 * 256), torch.zeros(3, dtype=torch.int64)
    activation = quant.swiglu_forward_and_per_token_cast(           # float8_e4m3fn (64, 256), float32 (64, 2)
        gates_and_ups, "e4m3", 128, swiglu_clamp_value=2.0, clamped_count=clamped)
    quant.per_token_cast(x, "e4m3", 128, out=(data, sf))            # into tensors of yours
    # end
    assert activation[0].shape == (64, 256) and activation[1].shape == (64, 2) and (clamped > 0).all()
    assert [(t.dtype, t.shape, t.stride()) for t in (data, sf, *packed)] == [
        (torch.float8_e4m3fn, (64, 512), (512, 1)), (torch.float32, (64, 4), (4, 1)),
        (torch.int8, (64, 256), (256, 1)), (torch.int32, (64, 4), (1, 64))]
    assert torch.allclose(back.float(), x.float(), rtol=0.07, atol=0.01)
    values = (quant.cast_back(again, "fp32", (1, 128)), quant.cast_back(packed, "fp32", (1, 32)))
    assert torch.allclose(*values, rtol=0.07)


@needs_cuda
def test_graph():
    import tegula
    # doc: graph
    x = torch.randn(4096, 7168, device="cuda", dtype=torch.bfloat16)
    with tegula.warmup():                       # compiles or loads, launches nothing
        tegula.transpose.transpose(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = tegula.transpose.transpose(x)
    graph.replay()
    # end
    torch.cuda.synchronize()
    assert torch.equal(y, x.t())


def drop_in():
    # doc: drop_in
    import tegula.as_tile_kernels
    from tile_kernels.transpose import transpose
    # end
    return tegula.as_tile_kernels, transpose


def test_drop_in():
    code = inspect.getsource(drop_in) + "assert drop_in()[1].__name__ == 'transpose'"
    subprocess.run([sys.executable, "-c", code], check=True)


def fall_back():
    # doc: fall_back
    import tegula.as_tile_kernels

    tegula.as_tile_kernels.fall_back()          # ImportError if no tile_kernels is installed
    # end


def test_fall_back(tmp_path):
    (tmp_path / "tile_kernels.py").write_text("theirs = 5")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + inspect.getsource(fall_back)
    subprocess.run([sys.executable, "-c", code + "fall_back(); import tile_kernels; assert tile_kernels.theirs == 5"], check=True)


def use_v2():
    # doc: use_v2
    import tegula.as_tile_kernels

    tegula.as_tile_kernels.use_v2()             # before fall_back()
    from tile_kernels.torch.engram import engram_sinkhorn_step_ref
    # end
    return tegula.v2.torch.engram_sinkhorn_step_ref is engram_sinkhorn_step_ref


def test_use_v2():
    subprocess.run([sys.executable, "-c", inspect.getsource(use_v2) + "assert use_v2()"], check=True)


def test_settings():
    import tegula
    before = tegula.config.get_num_threads(), tegula.config.get_jit_mode()
    # doc: settings
    tegula.config.set_num_threads(2)            # CPU threads of an op
    tegula.config.set_jit_mode("never")         # a kernel that is in no cache is an error, not a pause
    tegula.config.set_num_sms(100)              # leave some multiprocessors to others
    # end
    assert tegula.config.get_num_sms() == 100 or torch.cuda.is_available()
    tegula.config.set_num_threads(before[0])
    tegula.config.set_jit_mode(before[1])
    tegula.config.set_num_sms(tegula.config.get_device_num_sms())
