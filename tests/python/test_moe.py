# SPDX-License-Identifier: MIT
"""The routing ops from Python: results against plain torch, recorded data, out=, errors, torch operators."""
import inspect

import numpy
import pytest
import torch

import golden
from tegula import moe
from tegula.testing import assert_equal

OPS = torch.ops.tegula
INF, NAN = float("inf"), float("nan")
# num_tokens, num_topk, num_experts over all ranks, num_ep_ranks: as in TileKernels' tests, with fewer tokens
MOE_PARAMS = [(67, k, e, ep) for k in (1, 2, 6, 7, 8, 9) for e, ep in ((72, 8), (256, 8), (256, 64))]
MOE_PARAMS.append((0, 1, 1, 1))


def local_indices(num_tokens, num_topk, num_experts, num_ep_ranks, device):
    """The experts of the first rank that tokens want; -1 for those of other ranks."""
    wanted = torch.rand(num_tokens, num_experts, device=device).topk(num_topk, dim=1, sorted=False).indices
    return wanted.masked_fill(wanted >= num_experts // num_ep_ranks, -1)


def scores_of(kind, *shape, device):
    """Random scores, of many values or of few."""
    if kind == "normal":
        return torch.randn(shape, device=device)
    values = {"ties": [-1, -0.0, 0.0, 0.5], "minus_inf": [-INF, -INF, -INF, 1, 2]}[kind]
    return torch.tensor(values, device=device)[torch.randint(0, len(values), shape, device=device)]


# ---- the ops in plain torch ----

def topk_gate(scores, num_topk):
    best = scores.sort(dim=1, descending=True, stable=True).indices[:, :num_topk]
    return best.clone(memory_format=torch.contiguous_format)    # of a single row too


def topk_sum_and_topk_group_idx(scores, num_topk_sum, num_topk_groups):
    best = scores.sort(dim=2, descending=True).values[:, :, :num_topk_sum]
    worth = best[:, :, 0]
    for i in range(1, num_topk_sum):
        worth = worth + best[:, :, i]
    return topk_gate(worth, num_topk_groups)


def mask_indices_by_tp(indices, n, num_ep_ranks, tp_rank, num_tp_ranks):
    per_rank = n // num_ep_ranks
    local = torch.full((num_ep_ranks, per_rank), -1, device=indices.device)
    mine = local[tp_rank::num_tp_ranks]
    local[tp_rank::num_tp_ranks] = torch.arange(mine.numel(), device=indices.device).view_as(mine)
    table = torch.cat([local.flatten(), local.new_tensor([-1])])    # an index of -1 takes the last
    return table[indices.long()].to(indices.dtype)


def normalize_weight(topk_weights):
    total = torch.full_like(topk_weights[:, 0], 1e-20)
    for k in range(topk_weights.shape[1]):
        total = total + topk_weights[:, k]
    return total, topk_weights / total[:, None]


def unique_groups(group_indices):
    earlier = (group_indices[:, :, None] == group_indices[:, None, :]).tril(-1).any(dim=2)
    return group_indices.masked_fill(earlier & (group_indices >= 0), -1)


# ---- parity ----

@pytest.mark.parametrize("kind", ["normal", "ties", "minus_inf"])
@pytest.mark.parametrize("num_experts, num_topk", [
    (72, 6), (32, 6), (64, 6), (96, 6), (16, 6), (36, 6), (108, 6), (128, 6), (144, 6), (256, 8), (384, 6),
    (1000, 8), (4096, 8), (33, 33), (1, 1), (7, 0)])
def test_topk_gate(num_experts, num_topk, kind, device):
    for num_tokens in (0, 1, 101):
        scores = scores_of(kind, num_tokens, num_experts, device=device)
        assert_equal(moe.topk_gate(scores, num_topk), topk_gate(scores, num_topk))


@pytest.mark.parametrize("kind", ["normal", "ties", "minus_inf"])
@pytest.mark.parametrize("num_topk_groups", [2, 4])
@pytest.mark.parametrize("num_topk_sum", [1, 2, 3])
@pytest.mark.parametrize("num_experts, num_groups", [
    (72, 4), (72, 8), (72, 12), (256, 4), (256, 8), (256, 16), (256, 64)])
def test_topk_sum_and_topk_group_idx(num_experts, num_groups, num_topk_sum, num_topk_groups, kind, device):
    for num_tokens in (0, 1, 101):
        scores = scores_of(kind, num_tokens, num_groups, num_experts // num_groups, device=device)
        assert_equal(moe.topk_sum_and_topk_group_idx(scores, num_topk_sum, num_topk_groups),
                     topk_sum_and_topk_group_idx(scores, num_topk_sum, num_topk_groups))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=["i64", "i32"])
@pytest.mark.parametrize("num_tp_ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("params", MOE_PARAMS, ids=str)
def test_mask_indices_by_tp(params, num_tp_ranks, dtype, device):
    num_tokens, num_topk, n, num_ep_ranks = params
    everywhere = torch.randint(-1, n, (num_tokens, num_topk), device=device)
    for indices in (local_indices(*params, device=device).to(dtype), everywhere.to(dtype)):
        for tp_rank in {0, num_tp_ranks // 2, num_tp_ranks - 1}:
            args = indices, n, num_ep_ranks, tp_rank, num_tp_ranks
            assert_equal(moe.mask_indices_by_tp(*args), mask_indices_by_tp(*args))


@pytest.mark.parametrize("num_tokens", [0, 1, 67])
@pytest.mark.parametrize("num_topk", [1, 2, 6, 7, 8, 9, 33])
def test_normalize_weight(num_topk, num_tokens, device):
    uniform = torch.rand(num_tokens, num_topk, device=device)
    for weights in (uniform, torch.randn_like(uniform) ** 9, torch.zeros_like(uniform)):
        for seen, want in zip(moe.normalize_weight(weights), normalize_weight(weights), strict=True):
            assert_equal(seen, want)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=["i64", "i32"])
@pytest.mark.parametrize("num_groups", [1, 8, 16, 64, 65, 72, 1000])
@pytest.mark.parametrize("num_topk", [1, 2, 6, 8, 9, 33])
def test_inplace_unique_group_indices(num_topk, num_groups, dtype, device):
    for num_tokens in (0, 1, 67):
        groups = torch.randint(-1, num_groups, (num_tokens, num_topk), dtype=dtype, device=device)
        want = unique_groups(groups)
        assert moe.inplace_unique_group_indices(groups, num_groups) is None
        assert_equal(groups, want)


# ---- recorded data ----

RECORDED = [case for case in golden.cases("moe") if hasattr(moe, case.op)]


@pytest.mark.parametrize("case", RECORDED, ids=str)
def test_recorded(case, device):
    inputs = case.inputs(device)
    seen = getattr(moe, case.op)(**inputs, **case.args)
    outputs = [(name, row) for name, row in case.rows.items() if row["role"] == "out"]
    if case.op == "inplace_unique_group_indices":
        seen = inputs["group_indices"]
    for (name, _), tensor in zip(outputs, seen if isinstance(seen, tuple) else (seen,), strict=True):
        case.check(name, tensor)


def test_recorded_data_is_here():
    assert len(RECORDED) >= 33 and {case.op for case in RECORDED} == set(moe.__all__)


# ---- special values and layouts ----

def test_examples(device):
    """Of docs/moe.md."""
    def t(*values, dtype=None):
        return torch.tensor(values, device=device, dtype=dtype)

    assert moe.topk_gate(t([0.1, 0.9, 0.9, 0.3], [0.5, 0.5, 0.5, 0.5]), 2).tolist() == [[1, 2], [0, 1]]
    assert moe.topk_gate(t([-1, -INF, -2, -INF], [0.0, -0.0, -3, 0.0]), 3).tolist() == [[0, 2, 1], [0, 1, 3]]
    scores = t([[1.0, 2, 3], [5, 0, 0], [4, 4, -9]])
    assert moe.topk_sum_and_topk_group_idx(scores, 2, 2).tolist() == [[2, 0]]
    assert moe.topk_sum_and_topk_group_idx(scores, 1, 2).tolist() == [[1, 2]]
    masked = moe.mask_indices_by_tp(t([-1, 0, 1, 2, 3, 4, 5, 6, 7]), 8, 4, 1, 2)
    assert masked.tolist() == [[-1, -1, -1, 0, 1, -1, -1, 2, 3]]
    denominator, normalized = moe.normalize_weight(t([1.0, 3], [0, 0]))
    assert_equal(denominator, t(4, 1e-20))
    assert normalized.tolist() == [[0.25, 0.75], [0, 0]]
    groups = t([3, 1, 3, 1], [-1, 2, -1, 2], [0, 1, 2, 3])
    moe.inplace_unique_group_indices(groups, 8)
    assert groups.tolist() == [[3, 1, -1, -1], [-1, 2, -1, -1], [0, 1, 2, 3]]


def test_nan_counts_as_minus_infinity(device):
    scores = torch.tensor([[NAN, 1, -INF, 2, NAN]], device=device)
    assert moe.topk_gate(scores, 5).tolist() == [[3, 1, 0, 2, 4]]
    assert moe.topk_sum_and_topk_group_idx(scores[:, :4].view(1, 2, 2), 1, 2).tolist() == [[1, 0]]


def test_strided_rows(device):
    wide = torch.randn(20, 200, device=device)
    assert_equal(moe.topk_gate(wide[:, 3:75], 6), topk_gate(wide[:, 3:75], 6))
    assert_equal(moe.topk_gate(wide[::3, :64], 6), topk_gate(wide[::3, :64], 6))
    groups = wide.view(20, 8, 25)[:, 1:7, 2:11]
    assert_equal(moe.topk_sum_and_topk_group_idx(groups, 2, 3), topk_sum_and_topk_group_idx(groups, 2, 3))
    for seen, want in zip(moe.normalize_weight(wide[:, 1:9]), normalize_weight(wide[:, 1:9]), strict=True):
        assert_equal(seen, want)
    indices = torch.randint(-1, 72, (20, 9), device=device)
    args = indices[:, 1:7], 72, 8, 1, 2
    assert_equal(moe.mask_indices_by_tp(*args), mask_indices_by_tp(*args))
    before, want = indices.clone(), unique_groups(indices[:, 1:7] // 9)
    indices[:, 1:7] //= 9
    moe.inplace_unique_group_indices(indices[:, 1:7], 8)
    assert torch.equal(indices[:, 1:7], want)
    assert torch.equal(indices[:, 0], before[:, 0]) and torch.equal(indices[:, 7:], before[:, 7:])


def test_numpy():
    scores = numpy.array([[0.1, 0.9, 0.9, 0.3]], numpy.float32)
    out = moe.topk_gate(scores, 2)
    assert numpy.asarray(out).tolist() == [[1, 2]]
    groups = numpy.array([[3, 1, 3, 1]], numpy.int32)
    moe.inplace_unique_group_indices(groups, 8)
    assert groups.tolist() == [[3, 1, -1, -1]]


# ---- out= ----

def test_out(device):
    scores, idx = torch.randn(5, 9, device=device), torch.empty(5, 3, dtype=torch.int64, device=device)
    assert moe.topk_gate(scores, 3, out=idx) is idx
    assert_equal(idx, topk_gate(scores, 3))
    narrow = torch.empty(5, 3, dtype=torch.int32, device=device)
    assert_equal(moe.topk_gate(scores, 3, out=narrow), topk_gate(scores, 3).int())
    weights = torch.rand(5, 9, device=device)
    outs = torch.empty(5, device=device), torch.empty(5, 9, device=device)
    want = normalize_weight(weights)
    assert moe.normalize_weight(weights, out=outs)[1] is outs[1]
    assert_equal(outs[0], want[0])
    assert_equal(outs[1], want[1])


def test_out_in_place(device):
    weights, denominator = torch.rand(5, 9, device=device), torch.empty(5, device=device)
    want = normalize_weight(weights)
    moe.normalize_weight(weights, out=(denominator, weights))
    assert_equal(denominator, want[0])
    assert_equal(weights, want[1])
    indices = torch.randint(-1, 72, (5, 9), device=device)
    masked = mask_indices_by_tp(indices, 72, 8, 1, 2)
    moe.mask_indices_by_tp(indices, 72, 8, 1, 2, out=indices)
    assert_equal(indices, masked)


# ---- errors ----

@pytest.mark.parametrize("call, message", [
    (lambda x, i: moe.topk_gate(x, 8), r"topk_idx: shape is \[5, 8\], want \[5, 0\.\.7\]"),
    (lambda x, i: moe.topk_gate(i, 2), "scores: dtype is i64, want f32"),
    (lambda x, i: moe.topk_gate(x.t(), 2), r"scores: strides are \[1, 7\], want 1 in the last dimension"),
    (lambda x, i: moe.topk_gate(x[0], 2), "scores: has 1 dimensions, want 2"),
    (lambda x, i: moe.topk_sum_and_topk_group_idx(x[None], 0, 2), r"num_topk_sum: is 0, want 1\.\.7"),
    (lambda x, i: moe.topk_sum_and_topk_group_idx(x[None], 2, 6),
     r"group_idx: shape is \[1, 6\], want \[1, 0\.\.5\]"),
    (lambda x, i: moe.mask_indices_by_tp(i, 8, 4, 2, 2), r"tp_rank: is 2, want 0\.\.1"),
    (lambda x, i: moe.mask_indices_by_tp(i, 3, 4, 0, 2), r"num_experts: is 3, want >= 4 \(num_ep_ranks\)"),
    (lambda x, i: moe.mask_indices_by_tp(x, 8, 4, 0, 2), "indices: dtype is f32, want i32 or i64"),
    (lambda x, i: moe.normalize_weight(x.half()), "topk_weights: dtype is f16, want f32"),
    (lambda x, i: moe.normalize_weight(x, out=(x[:, 0], x)), "denominator: strides are"),
    (lambda x, i: moe.inplace_unique_group_indices(x, 8), "group_indices: dtype is f32, want i32 or i64"),
    (lambda x, i: moe.inplace_unique_group_indices(i[:1].expand(5, 7), 8),
     r"group_indices: strides are \[0, 1\], want >= 7 between rows"),
], ids=range(13))
def test_errors(call, message, device):
    x, i = torch.randn(5, 7, device=device), torch.randint(0, 8, (5, 7), device=device)
    before = x.clone(), i.clone()
    with pytest.raises(ValueError, match="^" + message):
        call(x, i)
    assert torch.equal(x, before[0]) and torch.equal(i, before[1])


def test_negative_sizes(device):
    with pytest.raises(ValueError, match=r"^topk_gate\(\): output 0 would have an impossible size$"):
        moe.topk_gate(torch.randn(5, 7, device=device), -1)


# ---- as torch operators ----

def cases(device):
    """Every op with arguments for it."""
    scores, indices = torch.randn(6, 8, device=device), torch.randint(-1, 8, (6, 4), device=device)
    return {
        "topk_gate": (scores, 3),
        "topk_sum_and_topk_group_idx": (scores.view(6, 4, 2), 2, 3),
        "mask_indices_by_tp": (indices, 8, 4, 1, 2),
        "normalize_weight": (scores.abs(),),
        "inplace_unique_group_indices": (indices, 8),
    }


def test_signatures():
    assert str(inspect.signature(moe.topk_gate)) == "(scores, num_topk, *, out=None)"
    assert str(inspect.signature(moe.topk_sum_and_topk_group_idx)) == \
        "(scores, num_topk_sum, num_topk_groups, *, out=None)"
    assert str(inspect.signature(moe.mask_indices_by_tp)) == \
        "(indices, n, num_ep_ranks, tp_rank, num_tp_ranks, *, out=None)"
    assert str(inspect.signature(moe.normalize_weight)) == "(topk_weights, *, out=None)"
    assert str(inspect.signature(moe.inplace_unique_group_indices)) == "(group_indices, num_groups)"
    assert moe.topk_gate.__module__ == "tegula.moe"


@pytest.mark.parametrize("name", moe.__all__)
def test_opcheck(name, device):
    args = cases(device)[name]
    torch.library.opcheck(getattr(OPS, name).default, args)
    if name == "inplace_unique_group_indices":
        return
    outs = getattr(moe, name)(*args)
    outs = outs if isinstance(outs, tuple) else (outs,)
    names = ["out"] if len(outs) == 1 else [f"out{i}" for i in range(len(outs))]
    torch.library.opcheck(getattr(OPS, name).out, args, dict(zip(names, outs)))


@pytest.mark.parametrize("name", moe.__all__)
def test_compile(name, device):
    def run(function):
        args = [a.clone() if isinstance(a, torch.Tensor) else a for a in args_of]
        return function(*args), args[0]

    args_of = cases(device)[name]
    compiled = torch.compile(getattr(moe, name), fullgraph=True, backend="aot_eager")
    seen, want = run(compiled), run(getattr(moe, name))
    torch.testing.assert_close(seen, want, rtol=0, atol=0)


def test_compiled_pipeline(device):
    """Group-limited routing as a model writes it, with a token count that changes."""
    def route(scores):
        groups = moe.topk_sum_and_topk_group_idx(scores.view(-1, 8, 8), 2, 4)
        keep = torch.zeros_like(scores[:, :8], dtype=torch.bool).scatter_(1, groups, True)
        masked = scores.masked_fill(~keep.repeat_interleave(8, dim=1), -INF)
        idx = moe.topk_gate(masked, 6)
        _, weights = moe.normalize_weight(scores.gather(1, idx))
        nodes = idx // 8
        moe.inplace_unique_group_indices(nodes, 8)
        return moe.mask_indices_by_tp(idx, 64, 8, 1, 2), weights, nodes

    compiled = torch.compile(route, fullgraph=True, dynamic=True, backend="aot_eager")
    for num_tokens in (3, 17, 64):
        scores = torch.rand(num_tokens, 64, device=device)
        for seen, want in zip(compiled(scores), route(scores), strict=True):
            assert_equal(seen, want)


def test_no_gradient(device):
    """As in TileKernels, results are not connected to the scores: a backward through them fails."""
    weights = torch.rand(3, 4, device=device, requires_grad=True)
    denominator, normalized = moe.normalize_weight(weights)
    assert not denominator.requires_grad and not normalized.requires_grad
    assert_equal(normalized, normalize_weight(weights.detach())[1])
    assert not moe.topk_gate(weights, 2).requires_grad
