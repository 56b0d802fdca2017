# SPDX-License-Identifier: MIT
"""From token-major to expert-major order and back: counts, the mapping, expand, reduce, route."""
import fractions
import types

import numpy
import pytest
import torch

import tegula
import tegula.torch as reference
from tegula import moe
from tegula.testing.generator import generate_moe_params, generate_topk_idx
from test_moe import check, each_index, same
from test_moe_gate import PLAIN, make_inputs

INF, NAN = float("inf"), float("nan")
PARAMS = list(generate_moe_params())
EXAMPLE = [[0, 2], [2, 0], [0, -1], [-1, -1]]       # of docs/moe.md
each_hidden = pytest.mark.parametrize("hidden", [1, 7, 576, 2048])


def some(params):
    return pytest.mark.parametrize("params", params, ids=lambda p: "-".join(map(str, p.values())))


def indices_of(params, num_tokens, device):
    """TileKernels' setting with fewer tokens."""
    return generate_topk_idx(params | {"num_send_tokens": num_tokens}, device)


# ---- parity ----

@each_index
@some(PARAMS)
def test_counts(params, dtype, device):
    idx, num_experts = indices_of(params, 23, device).to(dtype), params["num_experts"]
    check("group_count", idx, num_experts)
    for num_aux_topk in {1, params["num_topk"]}:
        check("aux_fi", idx, num_experts, num_aux_topk)


@each_index
@some(PARAMS)
def test_mapping(params, dtype, device):
    idx, num_experts = indices_of(params, 23, device).to(dtype), params["num_experts"]
    for alignment in (1, 3, 16, 64, 128, 256):
        check("get_fused_mapping", idx, num_experts, 0, alignment)
        total = sum(moe.get_fused_mapping(idx, num_experts, 0, alignment)[7])
        for n in {total, total + 1, total + 100, max(total - 1, 1), total // 2 + 1, 1}:
            check("get_fused_mapping", idx, num_experts, n, alignment)
            check("get_fused_mapping", idx, num_experts, n, alignment, with_psum=True)


@pytest.mark.parametrize("num_experts", [1, 2, 385, 1024, 2048])
@pytest.mark.parametrize("num_tokens, num_topk", [(0, 3), (1, 1), (7, 1), (33, 32), (100, 5)])
def test_mapping_sizes(num_tokens, num_topk, num_experts, device):
    idx = torch.randint(-1, num_experts, (num_tokens, num_topk), device=device)
    for indices in (idx, idx.clamp(max=num_experts // 2), torch.full_like(idx, -1)):
        check("get_fused_mapping", indices, num_experts, 0, 8)


def bits(shape, dtype, device):
    """Random bits; torch's random functions know few dtypes."""
    values = torch.randint(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), dtype=torch.uint8, device=device)
    return values.view(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float32, torch.int64, torch.complex128],
                         ids=str)
@each_hidden
@some(PARAMS[::3])
def test_expand(params, hidden, dtype, device):
    idx = indices_of(params, 7, device)
    mapping = moe.get_fused_mapping(idx, params["num_experts"], 0, 16)
    check("expand_to_fused", bits((idx.shape[0], hidden), dtype, device), mapping[3], mapping[0])


@pytest.mark.parametrize("sf_dtype", [torch.float32, torch.int32], ids=["f32", "i32"])
@pytest.mark.parametrize("num_per_channels", [32, 128, 100])
@each_hidden
@some(PARAMS[::3])
def test_expand_with_sf(params, hidden, num_per_channels, sf_dtype, device):
    idx = indices_of(params, 7, device)
    num_sf = -(-hidden // (num_per_channels * (4 if sf_dtype == torch.int32 else 1)))
    data = bits((idx.shape[0], hidden), torch.float8_e4m3fn, device)
    sf = bits((idx.shape[0], num_sf), sf_dtype, device)
    for alignment in (1, 16):       # positions that are no multiple of 4, and one that is
        mapping = moe.get_fused_mapping(idx, params["num_experts"], 0, alignment)
        for is_col_major in (False, True):
            check("expand_to_fused_with_sf", (data, sf), num_per_channels, mapping[3], mapping[0], is_col_major)


@pytest.mark.parametrize("fp8_format", ["", "e4m3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@each_hidden
@some(PARAMS[::3])
def test_reduce(params, hidden, dtype, fp8_format, device):
    """Terms of many sizes: another order or another rounding of a sum shows. Some positions are past the end."""
    num_rows, num_topk = 50, params["num_topk"]
    pos = torch.randint(-1, num_rows + 5, (23, num_topk), dtype=torch.int32, device=device)
    x = torch.randn(num_rows, hidden, device=device) * 10.0 ** torch.randint(-3, 4, (num_rows, 1), device=device)
    x, x_sf, sf = x.to(dtype), torch.rand(num_rows, device=device), torch.rand(1, device=device) if fp8_format else None
    for weights in (None, torch.randn(23, num_topk, device=device)):
        for pair in (x, (x, x_sf)):
            check("reduce_fused", pair, weights, pos, fp8_format, sf)


def test_route(device):
    """C compares it with the two ops that it stands for."""
    logits, bias = make_inputs(50, 72, "sqrtsoftplus", device=device)
    args = PLAIN | {"scoring_func": "sqrtsoftplus", "num_topk": 6}
    args |= {"num_experts": 72, "num_expanded_tokens": 5000, "alignment": 64}
    for with_psum in (False, True):
        seen, want = (m.route(logits, bias, **args, with_psum=with_psum) for m in (moe, reference))
        assert torch.allclose(seen[1], want[1])
        same(seen[:1] + seen[2:], want[:1] + want[2:])


# ---- what only Python has ----

def test_mapping_without_positions(device):
    idx = torch.tensor(EXAMPLE, device=device)
    check("get_fused_mapping", idx, 3, 0, 2, True)
    seen = moe.get_fused_mapping(idx, 3, 0, 2, True)
    assert seen[0].shape == (0,) and (seen[3] == -1).all() and seen[5].tolist() == [4, 4, 6] and seen[7] == []


@pytest.mark.parametrize("args, message", [
    ((3, 10, 0), "alignment: is 0, want >= 1"), ((3, 0, 0), "alignment: is 0, want >= 1"),
    ((3, 0, -2), "alignment: is -2, want >= 1"),
    ((-1, 10, 2), "num_experts: is -1, want >= 0$"), ((3, -5, 2), "num_expanded_tokens: is -5, want >= 0$"),
    ((3, 10, 2.0), "alignment: is 2.0, want an integer$"), ((3, 0, 2.0), "alignment: is 2.0, want an integer$"),
    ((3, 0, None), "alignment: is None, want an integer$"), ((3, 0, "2"), "alignment: is '2', want an integer$"),
    (("3", 0, 2), "num_experts: is '3', want an integer$"), ((3, None, 2), "num_expanded_tokens: is None"),
    ((3, 0.0, 2), "num_expanded_tokens: is 0.0, want an integer$"),
    ((3, 10.0, 2), "num_expanded_tokens: is 10.0, want an integer$"),
    ((-1, 0, 2), "num_experts: is -1, want >= 0$"),
    ((2**40, 0, 2), "num_experts: is 1099511627776, want < 2\\^31$"),
    ((2**40, 10, 2), "num_experts: is 1099511627776, want < 2\\^31$"),
    ((256, 0, 2**62), "alignment: num_tokens .* is >= 9223372036854775807, want < 2\\^31$"),
    ((256, 10, 2**62), "alignment: num_tokens .* is >= 9223372036854775807, want < 2\\^31$"),
    ((256, 0, 2**30), "alignment: num_tokens .* is 274877906696, want < 2\\^31$"),
    ((256, 10, 2**30), "alignment: num_tokens .* is 274877906696, want < 2\\^31$"),
], ids=range(20))
def test_mapping_errors(args, message, device):
    with pytest.raises((TypeError, ValueError), match="^" + message):
        moe.get_fused_mapping(torch.tensor(EXAMPLE, device=device), *args)


def test_flags(device):
    """Those of functions that are no builtins, too: True, False, 0, 1 or NumPy's bools."""
    idx, logits = torch.tensor(EXAMPLE, device=device), torch.randn(4, 3, device=device)
    gate = None, 2, 0, 0, False, 0, 1.0, 0, 1, 0, 1, "sigmoid", 3, 10, 2
    for bad in ("no", "", 2, 1.0, 0.0, None, [], torch.tensor(False), numpy.float32(0)):
        for name in ("force_no_sync", "with_psum"):
            for num_positions in (0, 10):
                with pytest.raises(TypeError, match=f"^{name}: is .*, want True or False$"):
                    moe.get_fused_mapping(idx, 3, num_positions, 2, **{name: bad})
        with pytest.raises(TypeError, match="^with_psum: is .*, want True or False$"):
            moe.route(logits, *gate, with_psum=bad)
    for true, false in ((True, False), (1, 0), (numpy.True_, numpy.False_)):
        assert len(moe.route(logits, *gate, with_psum=true)) == 11
        assert len(moe.route(logits, *gate, with_psum=false)) == 9
        assert moe.get_fused_mapping(idx, 3, 0, 2, true)[0].shape == (0,)
        assert moe.get_fused_mapping(idx, 3, 0, 2, false, with_psum=true)[7] == [4, 0, 2]
        assert len(moe.get_fused_mapping(idx, 3, 0, 2, with_psum=false)) == 8
    for zero in (0, numpy.int64(0), False):
        assert moe.get_fused_mapping(idx, 3, zero, 2)[7] == [4, 0, 2]


def test_sizes_of_a_mapping_before_its_outputs(device):
    """They are refused before memory is asked for, and while tracing."""
    idx = torch.tensor(EXAMPLE, device=device).to("meta")
    logits, gate = torch.randn(3, 8, device="meta"), PLAIN | {"num_experts": 8, "num_expanded_tokens": 2**40}
    for call, message in (
            (lambda: moe.get_fused_mapping(idx, 256, 2**40, 2**30), "alignment: num_tokens .* is 274877906696, want"),
            (lambda: moe.get_fused_mapping(idx, 256, 2**40, 0), "alignment: is 0, want >= 1$"),
            (lambda: moe.route(logits, None, **gate, alignment=2**30), "alignment: num_tokens .*, want < 2\\^31$"),
            (lambda: moe.route(logits, None, **gate, alignment=2**30, with_psum=True), "alignment: num_tokens .*"),
            (lambda: moe.route(logits, None, **gate | {"num_experts": 2**31}, alignment=1),
             "num_experts: is 2147483648, want < 2\\^31$"),
            (lambda: moe.get_fused_mapping(idx, 3, 2**31, 1), "num_expanded_tokens: is 2147483648, want < 2\\^31$"),
            (lambda: moe.route(logits, None, **gate, alignment=1), "num_expanded_tokens: is 1099511627776, want < 2"),
            (lambda: moe.get_fused_mapping(idx, 3, 0, 1), "num_expanded_tokens: is 0, want .* for a meta tensor")):
        with pytest.raises(ValueError, match="^" + message):
            call()


def test_mapping_of_a_list():
    for num_positions in (0, 10):
        with pytest.raises(TypeError, match="^topk_idx: is a <class 'list'>, want a tensor$"):
            moe.get_fused_mapping(EXAMPLE, 3, num_positions, 2)


def test_mapping_does_not_wait_in_a_capture(monkeypatch):
    """It says so before anything is enqueued. test_moe_cuda.py has it with a graph; here nothing could be."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    idx = types.SimpleNamespace(is_cuda=True, shape=(4, 2))
    with pytest.raises(ValueError, match="^num_expanded_tokens: is 0, want a number .* while a graph is captured"):
        moe.get_fused_mapping(idx, 3, 0, 2)


def test_lengths_for_the_host():
    """The operator writes them a second time, where the host can read them."""
    host = torch.full((3,), -1, dtype=torch.int32)
    torch.ops.tegula.get_fused_mapping(torch.tensor(EXAMPLE), 3, 10, 2, host)
    assert host.tolist() == [4, 0, 2]


def test_mapping_while_preparing():
    """A warm-up runs nothing: positions are as many as there can be, and what follows can be prepared too."""
    with tegula.warmup(architecture="sm_90a"):
        seen = moe.get_fused_mapping(numpy.array(EXAMPLE), 3, 0, 2)
    assert seen[0].shape == (10,) and len(seen[7]) == 3


@pytest.mark.parametrize("num_sf", [1, 2])
@pytest.mark.parametrize("num_positions", [1, 4, 6, 7, 8])
def test_memory_of_column_major_factors(num_positions, num_sf, device):
    """Whole columns of a multiple of four, whose ends are zero."""
    x, length = torch.ones(1, 4 * num_sf, device=device), -(-num_positions // 4) * 4
    pos = torch.arange(num_positions, device=device, dtype=torch.int32)[None]
    for _ in range(3):                          # memory that was used before
        torch.full((num_sf * length,), NAN, device=device)
        _, sf = moe.expand_to_fused_with_sf((x, x[:, :num_sf]), 4, pos, torch.zeros_like(pos[0]), True)
        assert sf.stride() == (1, length) and sf.untyped_storage().nbytes() == 4 * num_sf * length
        whole = torch.as_strided(sf, (num_sf, length), (length, 1))
        assert (whole[:, :num_positions] == 1).all() and (whole[:, num_positions:] == 0).all()


def test_reference_fma():
    """The references' fma against exact arithmetic."""
    def rounded(exact, guess):
        """The float32 nearest to a fraction, ties to even."""
        near = [numpy.nextafter(guess, numpy.float32(d * INF)) for d in (-1, 1)] + [guess]
        def key(f):
            return abs(fractions.Fraction(float(f)) - exact), int(f.view(numpy.int32)) & 1
        return min(near, key=key)

    generator = numpy.random.default_rng(0)
    x, y = (generator.standard_normal(3000).astype(numpy.float32) for _ in range(2))
    exponents = generator.integers(-30, 31, 3000)
    z = (-x.astype(numpy.float64) * y * (1 + 2.0 ** exponents)).astype(numpy.float32)
    z[::3] = generator.standard_normal(1000).astype(numpy.float32)
    x[1::6], y[1::6], z[1::6] = 1 + 2.0 ** -12, 1 + 2.0 ** -12, 2.0 ** 24      # just beside a tie
    seen = reference.moe._fma(*(torch.from_numpy(t) for t in (x, y, z))).numpy()
    for a, b, c, got in zip(x, y, z, seen):
        exact = fractions.Fraction(float(a)) * fractions.Fraction(float(b)) + fractions.Fraction(float(c))
        assert got == rounded(exact, got), (a, b, c)
    special = torch.tensor([INF, NAN, 0.0, -0.0, 3e38])
    assert reference.moe._fma(special, torch.ones(5), torch.zeros(5)).tolist()[2:] == [0, 0, special[4].item()]
    assert reference.moe._fma(special[:1], torch.ones(1), torch.ones(1)).item() == INF


@pytest.mark.parametrize("call, message", [
    (lambda x, p, s: moe.reduce_fused(x, None, p, "e5m2"), "fp8_format: is 'e5m2', want '' or 'e4m3'"),
    (lambda x, p, s: moe.reduce_fused(x, None, p, "", s), "sf: is given, want None where fp8_format is ''"),
    (lambda x, p, s: moe.reduce_fused((x, s, s), None, p), "x: has 3 items, want 2$"),
    (lambda x, p, s: moe.expand_to_fused_with_sf((x, s), 0, p, p[:, 0]), "num_per_channels: is 0, want >= 1"),
    (lambda x, p, s: moe.get_fused_mapping(p, 3, 0, 2, out=(p,) * 7), "out: is given, want None where num_expanded_tok"),
    (lambda x, p, s: moe.get_fused_mapping(p[0], 3, 0, 2), "topk_idx: has 1 dimensions, want 2$"),
    (lambda x, p, s: moe.route(x, None, **PLAIN, num_experts=6, num_expanded_tokens=9, alignment=0), "alignment: is 0, want"),
    (lambda x, p, s: moe.route(x, None, **PLAIN | {"num_topk": 7}, num_experts=6, num_expanded_tokens=9, alignment=1),
     r"num_topk: is 7, want 0\.\.6$"),
], ids=range(8))
def test_errors(call, message, device):
    pos = torch.zeros(2, 2, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="^" + message):
        call(torch.randn(2, 6, device=device), pos, torch.ones(2, 3, device=device))
