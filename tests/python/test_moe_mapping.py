# SPDX-License-Identifier: MIT
"""From token-major to expert-major order and back: counts, the mapping, expand, reduce, route."""
import fractions
import itertools
import types

import numpy
import pytest
import torch

import tegula
import tegula.torch as reference
from tegula import moe
from tegula.testing import assert_equal, calc_diff
from tegula.testing.generator import generate_moe_params, generate_topk_idx
from test_moe_gate import NAMES, PLAIN, make_inputs

INF, NAN = float("inf"), float("nan")
PARAMS = list(generate_moe_params())
HIDDEN_SIZES = [1, 7, 576, 2048]
EXAMPLE = [[0, 2], [2, 0], [0, -1], [-1, -1]]       # of docs/moe.md
DTYPES = {"i64": torch.int64, "i32": torch.int32}


def few(params, num_tokens=23):
    """TileKernels' setting with fewer tokens; `id` of a test."""
    return params | {"num_send_tokens": num_tokens}


def name(params):
    return "-".join(str(v) for v in params.values())


def same_mapping(seen, want):
    assert len(seen) == len(want)
    for a, b in zip(seen, want):
        if isinstance(b, list):
            assert a == b
        else:
            assert_equal(a, b)


# ---- group_count, aux_fi ----

@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("params", PARAMS, ids=name)
def test_counts(params, dtype, device):
    idx = generate_topk_idx(few(params), device).to(DTYPES[dtype])
    num_experts = params["num_experts"]
    assert_equal(moe.group_count(idx, num_experts), reference.group_count(idx, num_experts))
    for num_aux_topk in {1, params["num_topk"]}:
        seen, want = (f(idx, num_experts, num_aux_topk) for f in (moe.aux_fi, reference.aux_fi))
        assert_equal(seen, want)
        assert calc_diff(seen, want) < 2e-7


def test_counts_of_special_indices(device):
    idx = torch.tensor([[0, -1, 3], [-5, 4, 1 << 40], [2, 2, 2]], device=device)
    assert moe.group_count(idx, 4).tolist() == [1, 0, 3, 1]
    assert moe.group_count(idx[:, 1:], 4).tolist() == [0, 0, 2, 1]
    assert moe.group_count(idx[:0], 4).tolist() == [0] * 4
    assert moe.group_count(idx[:, :0], 2).tolist() == [0, 0]
    assert moe.aux_fi(idx[:0], 4, 2).tolist() == [0.0] * 4
    assert moe.group_count(idx, 0).shape == (0,)
    assert moe.group_count(torch.zeros(4000, 8, dtype=torch.int64, device=device), 4096)[0] == 32000
    example = torch.tensor(EXAMPLE, device=device)
    assert moe.aux_fi(example, 3, 2).tolist() == [1.125, 0, 0.75]
    assert moe.aux_fi(example, 3, 1).tolist() == [2.25, 0, 1.5]
    assert moe.group_count(example, 3).tolist() == [3, 0, 2]


def test_large_products(device):
    """count * num_experts is past 2^31."""
    idx = torch.zeros(1 << 20, 8, dtype=torch.int32, device=device)
    assert moe.aux_fi(idx, 512, 4)[0] == 1024


# ---- get_fused_mapping ----

@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("params", PARAMS, ids=name)
def test_mapping(params, dtype, device):
    idx = generate_topk_idx(few(params), device).to(DTYPES[dtype])
    num_experts = params["num_experts"]
    for alignment in (1, 3, 16, 64, 128, 256):
        synced = moe.get_fused_mapping(idx, num_experts, 0, alignment)
        same_mapping(synced, reference.get_fused_mapping(idx, num_experts, 0, alignment))
        total = sum(synced[7])
        for n in {total, total + 1, total + 100, max(total - 1, 1), total // 2 + 1, 1}:
            args = idx, num_experts, n, alignment
            same_mapping(moe.get_fused_mapping(*args), reference.get_fused_mapping(*args))
            same_mapping(moe.get_fused_mapping(*args, with_psum=True),
                         reference.get_fused_mapping(*args, with_psum=True))


@pytest.mark.parametrize("alignment", [64, 128])
@pytest.mark.parametrize("params", PARAMS, ids=name)
def test_mapping_invariants(params, alignment, device):
    """What TileKernels' own test looks at; the order inside of an expert is free there."""
    idx = generate_topk_idx(few(params), device)
    num_topk, num_experts = params["num_topk"], params["num_experts"]
    pos_to_expert, pos_to_token, pos_to_pair, pair_to_pos, start, end, lengths, listed = \
        moe.get_fused_mapping(idx, num_experts, 0, alignment)
    assert lengths.tolist() == listed
    begin = 0
    for expert, length in enumerate(listed):
        assert start[expert] == begin and end[expert] == begin + length and length % alignment == 0
        segment = pos_to_expert[begin:begin + length]
        assert int((segment == expert).sum()) == int((idx == expert).sum())
        assert ((segment == expert) | (segment == -1)).all()
        begin += length
    held = pos_to_expert >= 0
    pairs = pos_to_pair[held].long()
    tokens, slots = pairs // num_topk, pairs % num_topk
    positions = torch.arange(len(pos_to_expert), device=device)[held]
    assert torch.equal(pair_to_pos[tokens, slots].long(), positions)
    assert torch.equal(idx[tokens, slots], pos_to_expert[held].long())
    assert torch.equal(tokens, pos_to_token[held].long())
    assert torch.equal(held, pos_to_token >= 0) and torch.equal(held, pos_to_pair >= 0)


@pytest.mark.parametrize("num_experts", [1, 2, 385, 1024, 2048])
@pytest.mark.parametrize("num_tokens, num_topk", [(0, 3), (1, 1), (7, 1), (33, 32), (100, 5)])
def test_mapping_sizes(num_tokens, num_topk, num_experts, device):
    idx = torch.randint(-1, num_experts, (num_tokens, num_topk), device=device)
    for some in (idx, idx.clamp(max=num_experts // 2), torch.full_like(idx, -1)):
        args = some, num_experts, 0, 8
        same_mapping(moe.get_fused_mapping(*args), reference.get_fused_mapping(*args))


def test_mapping_without_positions(device):
    idx = torch.tensor(EXAMPLE, device=device)
    seen = moe.get_fused_mapping(idx, 3, 0, 2, True)
    same_mapping(seen, reference.get_fused_mapping(idx, 3, 0, 2, True))
    assert seen[0].shape == (0,) and (seen[3] == -1).all() and seen[5].tolist() == [4, 4, 6] and seen[7] == []


def test_mapping_strided(device):
    wide = torch.randint(-1, 9, (40, 10), device=device)
    same_mapping(moe.get_fused_mapping(wide[::2, 3:8], 9, 0, 4),
                 reference.get_fused_mapping(wide[::2, 3:8].contiguous(), 9, 0, 4))


def test_mapping_examples(device):
    seen = moe.get_fused_mapping(torch.tensor(EXAMPLE, device=device), 3, 10, 2, with_psum=True)
    assert [t if isinstance(t, list) else t.tolist() for t in seen] == [
        [0, 0, 0, -1, 2, 2, -1, -1, -1, -1], [0, 1, 2, -1, 0, 1, -1, -1, -1, -1],
        [0, 3, 4, -1, 1, 2, -1, -1, -1, -1],
        [[0, 4], [5, 1], [2, -1], [-1, -1]], [0, 4, 4], [4, 4, 6], [4, 0, 2], [], [3, 0, 2], [3, 4, 6]]
    experts = torch.tensor([0] * 3 + [2] * 130 + [3] * 5, device=device)[:, None]
    seen = moe.get_fused_mapping(experts[torch.randperm(138)], 4, 0, 128, with_psum=True)
    assert seen[4].tolist() == [0, 128, 128, 384] and seen[7] == [128, 0, 256, 128]
    assert seen[8].tolist() == [3, 0, 130, 5] and seen[9].tolist() == [3, 128, 258, 389]
    assert seen[0].tolist() == [0] * 3 + [-1] * 125 + [2] * 130 + [-1] * 126 + [3] * 5 + [-1] * 123


def test_mapping_out(device):
    idx = torch.tensor(EXAMPLE, device=device)
    want = moe.get_fused_mapping(idx, 3, 10, 2, with_psum=True)
    outs = tuple(torch.empty_like(t) for t in want if not isinstance(t, list))
    seen = moe.get_fused_mapping(idx, 3, 10, 2, with_psum=True, out=outs)
    assert seen[0] is outs[0] and seen[8] is outs[7]
    same_mapping(seen, want)
    seen = moe.get_fused_mapping(idx, 3, 10, 2, out=outs[:7])
    assert len(seen) == 8 and seen[6] is outs[6]
    with pytest.raises(ValueError, match="^out: is given, want None where num_expanded_tokens is 0"):
        moe.get_fused_mapping(idx, 3, 0, 2, out=outs)


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


def test_mapping_out_of_another_shape(device):
    idx = torch.tensor(EXAMPLE, device=device)
    outs = tuple(t for t in moe.get_fused_mapping(idx, 3, 10, 2) if not isinstance(t, list))
    for num_experts, num_positions, message in ((4, 10, r"out\[4\]: shape is \[3\], want \[4\]$"),
                                                (3, 9, r"out\[0\]: shape is \[10\], want \[9\]$")):
        with pytest.raises(ValueError, match="^" + message):
            moe.get_fused_mapping(idx, num_experts, num_positions, 2, out=outs)


def test_mapping_bad_tensors(device):
    idx = torch.tensor(EXAMPLE, device=device)
    for bad, message in ((idx.float(), "topk_idx: dtype is f32, want i32 or i64"),
                         (idx[0], "topk_idx: has 1 dimensions, want 2"),
                         (idx.t(), "topk_idx: strides are")):
        for n in (0, 10):
            with pytest.raises(ValueError, match="^" + message):
                moe.get_fused_mapping(bad, 3, n, 2)


def test_mapping_numpy():
    seen = moe.get_fused_mapping(numpy.array(EXAMPLE), 3, 0, 2)
    assert all(isinstance(t, numpy.ndarray) for t in seen[:7]) and seen[7] == [4, 0, 2]
    assert seen[0].tolist() == [0, 0, 0, -1, 2, 2] and seen[0].dtype == numpy.int32


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


# ---- expand ----

def bits(shape, dtype, device):
    """Random bits; torch's random functions know few dtypes."""
    size = torch.empty(0, dtype=dtype).element_size()
    values = torch.randint(0, 256, (*shape[:-1], shape[-1] * size), dtype=torch.uint8, device=device)
    return values.view(dtype)


COPIED = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "f32": torch.float32, "i64": torch.int64,
          "c128": torch.complex128}


@pytest.mark.parametrize("dtype", COPIED.values(), ids=COPIED)
@pytest.mark.parametrize("hidden", HIDDEN_SIZES)
@pytest.mark.parametrize("params", PARAMS[::3], ids=name)
def test_expand(params, hidden, dtype, device):
    idx = generate_topk_idx(few(params, 7), device)
    x = bits((idx.shape[0], hidden), dtype, device)
    mapping = moe.get_fused_mapping(idx, params["num_experts"], 0, 16)
    args = x, mapping[3], mapping[0]
    assert_equal(moe.expand_to_fused(*args), reference.expand_to_fused(*args))


SF_CASES = [(False, torch.float32), (True, torch.int32), (True, torch.float32), (False, torch.int32)]


@pytest.mark.parametrize("is_col_major, sf_dtype", SF_CASES, ids=["row-f32", "col-i32", "col-f32", "row-i32"])
@pytest.mark.parametrize("num_per_channels", [32, 128, 100])
@pytest.mark.parametrize("hidden", HIDDEN_SIZES)
@pytest.mark.parametrize("params", PARAMS[::3], ids=name)
def test_expand_with_sf(params, hidden, num_per_channels, is_col_major, sf_dtype, device):
    idx = generate_topk_idx(few(params, 7), device)
    num_sf = -(-hidden // num_per_channels)
    num_sf = -(-num_sf // 4) if sf_dtype == torch.int32 else num_sf
    data = bits((idx.shape[0], hidden), torch.float8_e4m3fn, device)
    sf = bits((idx.shape[0], num_sf), sf_dtype, device)
    for alignment in (1, 16):       # positions that are no multiple of 4, and one that is
        mapping = moe.get_fused_mapping(idx, params["num_experts"], 0, alignment)
        args = (data, sf), num_per_channels, mapping[3], mapping[0], is_col_major
        seen, want = moe.expand_to_fused_with_sf(*args), reference.expand_to_fused_with_sf(*args)
        assert_equal(seen[0], want[0])
        assert_equal(seen[1], want[1])
        num_positions = len(mapping[0])
        assert seen[1].stride() == ((1, -(-num_positions // 4) * 4) if is_col_major else (num_sf, 1))


def test_expand_example(device):
    mapping = moe.get_fused_mapping(torch.tensor(EXAMPLE, device=device), 3, 0, 2)
    x = torch.tensor([[10, 11], [20, 21], [30, 31], [40, 41]], device=device)
    want = [[10, 11], [20, 21], [30, 31], [0, 0], [10, 11], [20, 21]]
    assert moe.expand_to_fused(x, mapping[3], mapping[0]).tolist() == want
    out, out_sf = moe.expand_to_fused_with_sf((x.to(torch.int8), x.float()), 2, mapping[3], mapping[0], True)
    assert out.tolist() == out_sf.tolist() == want and out_sf.stride() == (1, 8)


def test_expand_of_nothing(device):
    """No tokens, but positions: all of them are padding."""
    x, pos = torch.empty(0, 5, device=device), torch.empty(0, 2, dtype=torch.int32, device=device)
    nobody = torch.full((9,), -1, dtype=torch.int32, device=device)
    out = torch.full((9, 5), NAN, device=device)
    assert moe.expand_to_fused(x, pos, nobody, out=out) is out and (out == 0).all()
    out, out_sf = moe.expand_to_fused_with_sf((x, x[:, :1]), 8, pos, nobody, True)
    assert (out == 0).all() and (out_sf == 0).all() and out_sf.stride() == (1, 12)
    assert moe.expand_to_fused(x, pos, nobody[:0]).shape == (0, 5)


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


def test_columns_as_tma_wants_them(device):
    """Given by out=, they are what the flag promises."""
    x, sf = torch.randn(2, 4, device=device), torch.rand(2, 2, device=device)
    pos = torch.tensor([[0, 3], [5, 1]], dtype=torch.int32, device=device)
    owner = torch.zeros(6, dtype=torch.int32, device=device)
    want = moe.expand_to_fused_with_sf((x, sf), 2, pos, owner, True)[1]
    memory = torch.zeros(32, device=device)
    for distance, offset, message in (
            (9, 0, r"strides are \[1, 9\], want \[1, 8\], or columns a larger multiple of 16 bytes apart"),
            (8, 3, r"address is 12 bytes past a multiple of 16, must be a multiple of 16 \(for TMA\)")):
        out = memory.as_strided((6, 2), (1, distance), offset)
        with pytest.raises(ValueError, match=rf"^out\[1\]: {message}$"):
            moe.expand_to_fused_with_sf((x, sf), 2, pos, owner, True, out=(None, out))
        assert not memory.any()
    for distance, offset in ((8, 0), (12, 4)):
        out = memory.as_strided((6, 2), (1, distance), offset)
        moe.expand_to_fused_with_sf((x, sf), 2, pos, owner, True, out=(None, out))
        assert torch.equal(out[pos.flatten().long()], want[pos.flatten().long()])


def test_expand_passes_over_positions_past_the_end(device):
    x = torch.tensor([[1.0], [2]], device=device)
    pos = torch.tensor([[0, 7], [-3, 1]], dtype=torch.int32, device=device)
    pos_to_expert = torch.zeros(2, dtype=torch.int32, device=device)
    assert moe.expand_to_fused(x, pos, pos_to_expert).tolist() == [[1], [2]]


def test_expand_strided(device):
    mapping = moe.get_fused_mapping(torch.tensor(EXAMPLE, device=device), 3, 0, 2)
    wide, sf = torch.randn(4, 20, device=device)[:, 3:10], torch.randn(2, 4, device=device).t()
    seen = moe.expand_to_fused_with_sf((wide, sf), 4, mapping[3], mapping[0])
    assert_equal(seen[0], reference.expand_to_fused(wide, mapping[3], mapping[0]))
    assert_equal(seen[1], reference.expand_to_fused(sf.contiguous(), mapping[3], mapping[0]))


@pytest.mark.parametrize("call, message", [
    (lambda x, sf, p, e: moe.expand_to_fused(x, p.long(), e), "token_topk_to_pos: dtype is i64, want i32"),
    (lambda x, sf, p, e: moe.expand_to_fused(x, p[:3], e),
     r"token_topk_to_pos: shape is \[3, 2\], want \[4, 2\]"),
    (lambda x, sf, p, e: moe.expand_to_fused(x, p, e.long()), "pos_to_expert: dtype is i64, want i32"),
    (lambda x, sf, p, e: moe.expand_to_fused_with_sf((x, sf), 4, p, e),
     r"x_sf: shape is \[4, 2\], want \[4, 1\]"),
    (lambda x, sf, p, e: moe.expand_to_fused_with_sf((x, sf), 0, p, e), "num_per_channels: is 0, want >= 1"),
    (lambda x, sf, p, e: moe.expand_to_fused_with_sf((x, sf.half()), 2, p, e), "x_sf: dtype is f16, want"),
    (lambda x, sf, p, e: moe.expand_to_fused_with_sf((x, sf), 2, p, e, True, out=(x[[0] * 6], sf[[0] * 6])),
     r"out\[1\]: strides are \[2, 1\], want \[1, 8\], or columns"),
    (lambda x, sf, p, e: moe.expand_to_fused(x, p, e, out=x), r"out: shape is \[4, 4\], want \[6, 4\]$"),
], ids=range(8))
def test_expand_errors(call, message, device):
    mapping = moe.get_fused_mapping(torch.tensor(EXAMPLE, device=device), 3, 0, 2)
    x = torch.randn(4, 4, device=device)
    with pytest.raises(ValueError, match="^" + message):
        call(x, x[:, :2].contiguous(), mapping[3], mapping[0])


# ---- reduce ----

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


REDUCE_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@pytest.mark.parametrize("has_x_sf", [False, True], ids=["", "x_sf"])
@pytest.mark.parametrize("has_weights", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("fp8_format", ["", "e4m3"])
@pytest.mark.parametrize("dtype", REDUCE_DTYPES)
@pytest.mark.parametrize("params", PARAMS[::3], ids=name)
def test_reduce(params, dtype, fp8_format, has_weights, has_x_sf, device):
    idx = generate_topk_idx(few(params, 7), device)
    pos = moe.get_fused_mapping(idx, params["num_experts"], 0, 1)[3]
    weights = torch.rand(idx.shape, device=device) if has_weights else None
    sf = torch.rand(1, device=device) if fp8_format else None
    for hidden in HIDDEN_SIZES:
        x = torch.randn(idx.numel(), hidden, device=device).to(REDUCE_DTYPES[dtype])
        pair = (x, torch.rand(idx.numel(), device=device)) if has_x_sf else x
        args = pair, weights, pos, fp8_format, sf
        assert_equal(moe.reduce_fused(*args), reference.reduce_fused(*args))


@pytest.mark.parametrize("num_topk", [1, 2, 32, 33])
def test_reduce_order(num_topk, device):
    """Sums of terms of many sizes: another order or another rounding shows."""
    x = torch.randn(50, 100, device=device) * 10.0 ** torch.randint(-6, 7, (50, 1), device=device)
    pos = torch.randint(-1, 55, (40, num_topk), dtype=torch.int32, device=device)   # some are past the end
    weights, x_sf = torch.randn(40, num_topk, device=device), torch.randn(50, device=device)
    assert_equal(moe.reduce_fused((x, x_sf), weights, pos), reference.reduce_fused((x, x_sf), weights, pos))


def test_reduce_example(device):
    pos = torch.tensor([[0, 4], [5, 1], [2, -1], [-1, -1]], dtype=torch.int32, device=device)
    x = torch.tensor([[1.0, 2], [3, 4], [5, 6], [0, 0], [7, 8], [9, 10]], device=device)
    weights = torch.tensor([[.5, .25], [1, 2], [.5, 9], [1, 1]], device=device)
    assert moe.reduce_fused(x, weights, pos).tolist() == [[2.25, 3], [15, 18], [2.5, 3], [0, 0]]
    x_sf = torch.tensor([1, 2, 1, 5, 1, .5], device=device)
    assert moe.reduce_fused((x, x_sf), weights, pos).tolist() == [[2.25, 3], [16.5, 21], [2.5, 3], [0, 0]]
    assert moe.reduce_fused([x, x_sf], None, pos).tolist()[2] == [5, 6]


def test_reduce_special_values(device):
    pos = torch.tensor([[0, -1]], dtype=torch.int32, device=device)
    weights = torch.tensor([[1.0, NAN]], device=device)                 # of an empty slot: not used
    x = torch.tensor([[449, 464, 465, 1e6, INF, -449, -INF, NAN, -0.0, 2.0**-10, 3 * 2.0**-10, 17.0, 19.0]])
    x = x.to(device)
    seen = moe.reduce_fused(x, weights, pos, "e4m3")
    assert_equal(seen, reference.reduce_fused(x, weights, pos, "e4m3"))
    assert seen.float()[0, :7].tolist() == [448] * 5 + [-448] * 2 and seen.view(torch.uint8)[0, 7] == 0x7F
    for sf in (0.0, -2.0):
        args = x[:, :4], weights, pos, "e4m3", torch.tensor([sf], device=device)
        assert_equal(moe.reduce_fused(*args), reference.reduce_fused(*args))
    e4m3 = torch.arange(256, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)[None]
    seen = moe.reduce_fused(e4m3, None, pos[:, :1])
    assert seen.dtype == torch.float8_e4m3fn
    want = e4m3.view(torch.uint8).clone()
    want[0, 0x80], want[0, 0xFF] = 0, 0x7F                              # 0 + -0, and NaN has one code
    assert torch.equal(seen.view(torch.uint8), want)


def test_reduce_out(device):
    pos = torch.tensor([[0, 1], [1, -1]], dtype=torch.int32, device=device)
    x, wide = torch.randn(2, 6, device=device), torch.full((2, 9), 7.0, device=device)
    want = moe.reduce_fused(x, None, pos)
    out = torch.empty_like(want)
    assert moe.reduce_fused(x, None, pos, "", None, out) is out
    assert_equal(out, want)
    assert moe.reduce_fused(x, None, pos, out=wide[:, 2:8]).data_ptr() == wide[:, 2:].data_ptr()
    assert torch.equal(wide[:, 2:8], want) and (wide[:, :2] == 7).all() and (wide[:, 8:] == 7).all()
    half = torch.empty_like(want, dtype=torch.bfloat16)
    assert_equal(moe.reduce_fused(x, None, pos, out=half), want.bfloat16())
    strided = x.repeat(1, 2)[:, 3:9]
    assert_equal(moe.reduce_fused(strided, None, pos), moe.reduce_fused(strided.contiguous(), None, pos))


def test_reduce_of_nothing(device):
    x, pos = torch.randn(3, 6, device=device), torch.empty(0, 2, dtype=torch.int32, device=device)
    assert moe.reduce_fused(x, None, pos).shape == (0, 6)
    empty = torch.full((2, 4), -1, dtype=torch.int32, device=device)
    assert (moe.reduce_fused(x[:0], torch.ones(2, 4, device=device), empty) == 0).all()
    assert (moe.reduce_fused(x, None, empty[:, :0]) == 0).all()


@pytest.mark.parametrize("call, message", [
    (lambda x, w, p, s: moe.reduce_fused(x, w, p, "e5m2"), "fp8_format: is 'e5m2', want '' or 'e4m3'"),
    (lambda x, w, p, s: moe.reduce_fused(x, w, p, "", s), "sf: is given, want None where fp8_format is ''"),
    (lambda x, w, p, s: moe.reduce_fused(x, w.half(), p), "topk_weights: dtype is f16, want f32"),
    (lambda x, w, p, s: moe.reduce_fused(x, w[:1], p), r"topk_weights: shape is \[1, 2\], want \[2, 2\]"),
    (lambda x, w, p, s: moe.reduce_fused((x, s), w, p), r"x_sf: shape is \[1\], want \[3\]"),
    (lambda x, w, p, s: moe.reduce_fused(x.int(), w, p), "x: dtype is i32, want"),
    (lambda x, w, p, s: moe.reduce_fused(x, w, p.long()), "token_topk_to_pos: dtype is i64, want i32"),
    (lambda x, w, p, s: moe.reduce_fused(x, w, p, out=x), r"out: shape is \[3, 6\], want \[2, 6\]"),
    (lambda x, w, p, s: moe.reduce_fused(x, w, p, "e4m3", x[0]), r"sf: shape is \[6\], want \[1\]"),
    (lambda x, w, p, s: moe.reduce_fused((x, s, s), w, p), "x: has 3 items, want 2$"),
], ids=range(10))
def test_reduce_errors(call, message, device):
    x, w = torch.randn(3, 6, device=device), torch.rand(2, 2, device=device)
    with pytest.raises(ValueError, match="^" + message):
        call(x, w, torch.zeros(2, 2, dtype=torch.int32, device=device), torch.ones(1, device=device))


def test_round_trip(device):
    """Expanded, then reduced with weights that are one in sum: the tokens again."""
    idx = torch.randint(-1, 9, (40, 4), device=device)
    mapping = moe.get_fused_mapping(idx, 9, 0, 16)
    x = torch.randint(-99, 99, (40, 64), device=device).float()
    weights = torch.full((40, 4), 0.25, device=device)
    seen = moe.reduce_fused(moe.expand_to_fused(x, mapping[3], mapping[0]), weights, mapping[3])
    assert torch.equal(seen, x * (idx >= 0).sum(dim=1, keepdim=True) / 4)


# ---- route ----

ROUTES = [(0, 0, 72, 6), (8, 4, 256, 8), (0, 0, 384, 6), (4, 2, 1200, 33), (0, 0, 5, 1)]


@pytest.mark.parametrize("num_tokens", [0, 1, 8, 128, 256, 257, 600])
@pytest.mark.parametrize("config", ROUTES, ids=str)
def test_route(config, num_tokens, device):
    """The bits of the two ops that it stands for; those are compared with the references elsewhere."""
    num_groups, num_topk_groups, num_routed, num_topk = config
    for scoring_func, num_shared, options in itertools.product(("sigmoid", "softmax"), (0, 2), (False, True)):
        logits = torch.randn(num_tokens, num_routed, device=device)
        bias = torch.randn(num_routed, device=device)
        gate = PLAIN | dict(zip(NAMES, (num_topk, num_topk_groups, num_groups, True, num_shared, 1.5)))
        gate |= {"num_ep_ranks": 2, "num_tp_ranks": 2, "tp_rank": 1, "ep_rank": 1,
                 "scoring_func": scoring_func}
        tensors, num_experts = {}, num_routed
        if num_shared:
            rows = torch.arange(num_routed + num_shared, device=device).int()
            replicas = rows[:, None] + torch.arange(4, device=device).int()
            tensors["to_physical_map"] = replicas % (num_routed + 3)
            tensors["logical_count"] = rows % 4 + 1
            num_experts += 3
        if options:
            tensors["mask"] = torch.rand(num_tokens, device=device) < 0.9
            tensors["fix_routing_mask"] = torch.rand(num_tokens, device=device) < 0.5
            fixed = torch.randint(-1, num_routed, (num_tokens, num_topk), device=device)
            tensors["unmapped_topk_idx"] = fixed
        for alignment, spare in ((1, 0), (128, 5), (16, -3)):
            again = {k: v.clone() for k, v in tensors.items()}
            num_pairs = num_tokens * (num_topk + num_shared)
            num_positions = max(num_pairs + (alignment - 1) * num_experts + spare, 0)
            seen = moe.route(logits, bias, **gate, num_experts=num_experts, num_expanded_tokens=num_positions,
                             alignment=alignment, with_psum=True, **again)
            other = {k: v.clone() for k, v in tensors.items()}
            topk = moe.top2_sum_gate(logits, bias, **gate, **other)
            mapping = moe.get_fused_mapping(topk[0], num_experts, num_positions, alignment, True, with_psum=True)
            same_mapping(seen, (*topk, *mapping[:7], *mapping[8:]))
            if options:
                assert_equal(again["unmapped_topk_idx"], other["unmapped_topk_idx"])


def test_route_reference(device):
    logits, bias = make_inputs(50, 72, "sqrtsoftplus", device=device)
    args = PLAIN | {"scoring_func": "sqrtsoftplus", "num_topk": 6}
    args |= {"num_experts": 72, "num_expanded_tokens": 5000, "alignment": 64}
    for with_psum in (False, True):
        seen, want = (m.route(logits, bias, **args, with_psum=with_psum) for m in (moe, reference))
        assert torch.allclose(seen[1], want[1])
        same_mapping(seen[:1] + seen[2:], want[:1] + want[2:])
    outs = tuple(torch.empty_like(t) for t in seen)
    assert moe.route(logits, bias, **args, with_psum=True, out=outs)[10] is outs[10]
    same_mapping(outs, seen)


def test_route_errors(device):
    logits = torch.randn(3, 8, device=device)
    args = PLAIN | {"num_experts": 8, "num_expanded_tokens": 10, "alignment": 1}
    for changes, message in (({"alignment": 0}, "alignment: is 0, want >= 1"),
                             ({"num_topk": 9}, r"num_topk: is 9, want 0\.\.8$"),
                             ({"num_ep_ranks": 0}, "num_ep_ranks: is 0, want >= 1$"),
                             ({"scoring_func": "identity"}, "scoring_func: is 'identity', want one of")):
        with pytest.raises(ValueError, match="^" + message):
            moe.route(logits, None, **args | changes)
