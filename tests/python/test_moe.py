# SPDX-License-Identifier: MIT
"""The routing ops from Python: the simple ones against plain torch; for all of them recorded data, torch
operators, signatures. test_moe_gate.py and test_moe_mapping.py have the others' results and errors."""
import inspect
import itertools
import warnings

import numpy
import pytest
import torch

import golden
import tegula.torch as reference
from conftest import check_devices, on_one_device
from tegula import moe
from tegula.testing import assert_equal

OPS = torch.ops.tegula
INF, NAN = float("inf"), float("nan")
# num_tokens, num_topk, num_experts over all ranks, num_ep_ranks: as in TileKernels' tests, with fewer tokens
MOE_PARAMS = [(67, k, e, ep) for k in (1, 2, 6, 7, 8, 9) for e, ep in ((72, 8), (256, 8), (256, 64))]
MOE_PARAMS.append((0, 1, 1, 1))


FUNCTIONS = set(moe.__all__) - {"scoring"}


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


def renumbered(indices, n, num_ep_ranks, tp_rank, num_tp_ranks):
    """mask_indices_by_tp by its purpose: the experts of every num_tp_ranks-th rank, counted on."""
    local = torch.full((num_ep_ranks, n // num_ep_ranks), -1, device=indices.device)
    mine = local[tp_rank::num_tp_ranks]
    local[tp_rank::num_tp_ranks] = torch.arange(mine.numel(), device=indices.device).view_as(mine)
    table = torch.cat([local.flatten(), local.new_tensor([-1])])    # an index of -1 takes the last
    return table[indices.long()].to(indices.dtype)


def unique_groups(group_indices):
    group_indices = group_indices.clone()
    reference.inplace_unique_group_indices(group_indices, 0)
    return group_indices


# ---- parity ----

@pytest.mark.parametrize("kind", ["normal", "ties", "minus_inf"])
@pytest.mark.parametrize("num_experts, num_topk", [
    (72, 6), (32, 6), (64, 6), (96, 6), (16, 6), (36, 6), (108, 6), (128, 6), (144, 6), (256, 8), (384, 6),
    (1000, 8), (4096, 8), (33, 33), (1, 1), (7, 0)])
def test_topk_gate(num_experts, num_topk, kind, device):
    for num_tokens in (0, 1, 101):
        scores = scores_of(kind, num_tokens, num_experts, device=device)
        assert_equal(moe.topk_gate(scores, num_topk), reference.topk_gate(scores, num_topk))


@pytest.mark.parametrize("kind", ["normal", "ties", "minus_inf"])
@pytest.mark.parametrize("num_topk_groups", [2, 4])
@pytest.mark.parametrize("num_topk_sum", [1, 2, 3])
@pytest.mark.parametrize("num_experts, num_groups", [
    (72, 4), (72, 8), (72, 12), (256, 4), (256, 8), (256, 16), (256, 64)])
def test_topk_sum_and_topk_group_idx(num_experts, num_groups, num_topk_sum, num_topk_groups, kind, device):
    for num_tokens in (0, 1, 101):
        scores = scores_of(kind, num_tokens, num_groups, num_experts // num_groups, device=device)
        assert_equal(moe.topk_sum_and_topk_group_idx(scores, num_topk_sum, num_topk_groups),
                     reference.topk_sum_and_topk_group_idx(scores, num_topk_sum, num_topk_groups))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=["i64", "i32"])
@pytest.mark.parametrize("num_tp_ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("params", MOE_PARAMS, ids=str)
def test_mask_indices_by_tp(params, num_tp_ranks, dtype, device):
    num_tokens, num_topk, n, num_ep_ranks = params
    everywhere = torch.randint(-1, n, (num_tokens, num_topk), device=device)
    for indices in (local_indices(*params, device=device).to(dtype), everywhere.to(dtype)):
        for tp_rank in {0, num_tp_ranks // 2, num_tp_ranks - 1}:
            args = indices, n, num_ep_ranks, tp_rank, num_tp_ranks
            assert_equal(moe.mask_indices_by_tp(*args), reference.mask_indices_by_tp(*args))
            assert_equal(moe.mask_indices_by_tp(*args), renumbered(*args))


@pytest.mark.parametrize("num_tokens", [0, 1, 67])
@pytest.mark.parametrize("num_topk", [1, 2, 6, 7, 8, 9, 33])
def test_normalize_weight(num_topk, num_tokens, device):
    uniform = torch.rand(num_tokens, num_topk, device=device)
    for weights in (uniform, torch.randn_like(uniform) ** 9, torch.zeros_like(uniform)):
        both = moe.normalize_weight(weights), reference.normalize_weight(weights)
        for seen, want in zip(*both, strict=True):
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

@pytest.mark.parametrize("module", [moe, reference], ids=["op", "reference"])
@pytest.mark.parametrize("case", golden.cases("moe"), ids=str)
def test_recorded(case, module, device):
    inputs, args = case.inputs(device), dict(case.args)
    lengths = args.pop("num_tokens_per_expert_list", None)
    if "x_sf" in inputs:
        inputs["x"] = inputs["x"], inputs.pop("x_sf")
    if case.op == "reduce_fused":
        inputs.setdefault("topk_weights", None)
    if module is reference and "num_topk_sum" in args:
        args["num_group_sum_topk"] = args.pop("num_topk_sum")       # as TileKernels' reference has it
    seen = getattr(module, case.op)(**inputs, **args)
    made = list(seen) if isinstance(seen, tuple) else [seen] * (seen is not None)
    if lengths is not None:
        assert made.pop() == lengths
    for name, row in case.rows.items():
        if row["role"] == "out":
            case.check(name, inputs[row["updates"]] if "updates" in row else made.pop(0))
    assert not made


def test_recorded_data_is_here():
    assert len(golden.cases("moe")) >= 76
    assert {case.op for case in golden.cases("moe")} == FUNCTIONS - {"hash_gate", "route"}


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
    assert_equal(moe.topk_gate(wide[:, 3:75], 6), reference.topk_gate(wide[:, 3:75], 6))
    assert_equal(moe.topk_gate(wide[::3, :64], 6), reference.topk_gate(wide[::3, :64], 6))
    groups = wide.view(20, 8, 25)[:, 1:7, 2:11]
    assert_equal(moe.topk_sum_and_topk_group_idx(groups, 2, 3),
                 reference.topk_sum_and_topk_group_idx(groups, 2, 3))
    both = moe.normalize_weight(wide[:, 1:9]), reference.normalize_weight(wide[:, 1:9])
    for seen, want in zip(*both, strict=True):
        assert_equal(seen, want)
    indices = torch.randint(-1, 72, (20, 9), device=device)
    args = indices[:, 1:7], 72, 8, 1, 2
    assert_equal(moe.mask_indices_by_tp(*args), reference.mask_indices_by_tp(*args))
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
    assert_equal(idx, reference.topk_gate(scores, 3))
    narrow = torch.empty(5, 3, dtype=torch.int32, device=device)
    assert_equal(moe.topk_gate(scores, 3, out=narrow), reference.topk_gate(scores, 3).int())
    weights = torch.rand(5, 9, device=device)
    outs = torch.empty(5, device=device), torch.empty(5, 9, device=device)
    want = reference.normalize_weight(weights)
    assert moe.normalize_weight(weights, out=outs)[1] is outs[1]
    assert_equal(outs[0], want[0])
    assert_equal(outs[1], want[1])


def test_out_in_place(device):
    weights, denominator = torch.rand(5, 9, device=device), torch.empty(5, device=device)
    want = reference.normalize_weight(weights)
    moe.normalize_weight(weights, out=(denominator, weights))
    assert_equal(denominator, want[0])
    assert_equal(weights, want[1])
    indices = torch.randint(-1, 72, (5, 9), device=device)
    masked = reference.mask_indices_by_tp(indices, 72, 8, 1, 2)
    moe.mask_indices_by_tp(indices, 72, 8, 1, 2, out=indices)
    assert_equal(indices, masked)


# ---- errors ----

@pytest.mark.parametrize("call, message", [
    (lambda x, i: moe.topk_gate(x, 8), r"num_topk: is 8, want 0\.\.7$"),
    (lambda x, i: moe.topk_gate(x, -1), r"num_topk: is -1, want 0\.\.7$"),
    (lambda x, i: moe.topk_gate(i, 2), "scores: dtype is i64, want f32"),
    (lambda x, i: moe.topk_gate(x.t(), 2), r"scores: strides are \[1, 7\], want 1 in the last dimension"),
    (lambda x, i: moe.topk_gate(x[0], 2), "scores: has 1 dimensions, want 2"),
    (lambda x, i: moe.topk_sum_and_topk_group_idx(x[None], 0, 2), r"num_topk_sum: is 0, want 1\.\.7"),
    (lambda x, i: moe.topk_sum_and_topk_group_idx(x[None], 2, 6),
     r"num_topk_groups: is 6, want 0\.\.5$"),
    (lambda x, i: moe.topk_sum_and_topk_group_idx(x[None], 2, -1), r"num_topk_groups: is -1, want 0\.\.5$"),
    (lambda x, i: moe.mask_indices_by_tp(i, 8, 4, 2, 2), r"tp_rank: is 2, want 0\.\.1"),
    (lambda x, i: moe.mask_indices_by_tp(i, 3, 4, 0, 2), "n: is 3, want >= 4$"),
    (lambda x, i: moe.mask_indices_by_tp(i, 8, 0, 0, 2), "num_ep_ranks: is 0, want >= 1$"),
    (lambda x, i: moe.mask_indices_by_tp(i, 8, 2, 0, 0), "num_tp_ranks: is 0, want >= 1$"),
    (lambda x, i: moe.mask_indices_by_tp(x, 8, 4, 0, 2), "indices: dtype is f32, want i32 or i64"),
    (lambda x, i: moe.normalize_weight(x.half()), "topk_weights: dtype is f16, want f32"),
    (lambda x, i: moe.normalize_weight(x, out=(x[:, 0], x)), "denominator: strides are"),
    (lambda x, i: moe.inplace_unique_group_indices(x, 8), "group_indices: dtype is f32, want i32 or i64"),
    (lambda x, i: moe.inplace_unique_group_indices(i[:1].expand(5, 7), 8),
     r"group_indices: strides are \[0, 1\], want >= 7 between rows"),
    (lambda x, i: moe.group_count(i, -2), "num_groups: is -2, want >= 0$"),
    (lambda x, i: moe.aux_fi(i, -4, 1), "num_experts: is -4, want >= 0$"),
    (lambda x, i: moe.topk_gate(x, 3, out=i[:, :1].contiguous()), r"out: shape is \[5, 1\], want \[5, 3\]$"),
    (lambda x, i: moe.topk_sum_and_topk_group_idx(x[None], 2, 2, out=i[:1, :1]),
     r"out: shape is \[1, 1\], want \[1, 2\]$"),
    (lambda x, i: moe.group_count(i, 3, out=i[0, :6].int()), r"out: shape is \[6\], want \[3\]$"),
    (lambda x, i: moe.aux_fi(i, 3, 1, out=x[0, :6]), r"out: shape is \[6\], want \[3\]$"),
    (lambda x, i: moe.normalize_weight(x, out=(x[:4, 0], x)), r"out\[0\]: shape is \[4\], want \[5\]$"),
    (lambda x, i: moe.group_count(i, 2**40), r"num_groups: is 1099511627776, want < 2\^31$"),
    (lambda x, i: moe.aux_fi(i, 2**40, 1), r"num_experts: is 1099511627776, want < 2\^31$"),
], ids=range(26))
def test_errors(call, message, device):
    x, i = torch.randn(5, 7, device=device), torch.randint(0, 8, (5, 7), device=device)
    before = x.clone(), i.clone()
    with pytest.raises(ValueError, match="^" + message):
        call(x, i)
    assert torch.equal(x, before[0]) and torch.equal(i, before[1])


# ---- as torch operators ----

def cases(device):
    """(function, arguments) for every function, and every way of it with another operator or other shapes."""
    scores, indices = torch.randn(6, 8, device=device), torch.randint(-1, 8, (6, 4), device=device)
    mask, pos = torch.arange(6, device=device) < 4, torch.randperm(40, device=device)[:24].int().view(6, 4)
    physical = torch.arange(18, device=device).int().view(9, 2) % 9
    count = torch.ones_like(physical[:, 0])
    owner, x = torch.full((40,), -1, device=device).int(), torch.randn(40, 5, device=device)
    owner[pos.flatten().long()] = 0     # all other positions are padding
    gate = scores, scores[0], 3, 2, 4, False, 0, 1.5, 0, 2, 1, 2, "sigmoid"
    shared = scores, None, 3, 0, 0, True, 1, 1.5, 0, 2, 1, 2, "softmax"
    ids, table = torch.arange(6, device=device), torch.randint(-1, 8, (5, 3), device=device)
    sf = torch.rand(6, 2, device=device)
    yield "topk_gate", (scores, 3)
    yield "topk_sum_and_topk_group_idx", (scores.view(6, 4, 2), 2, 3)
    yield "mask_indices_by_tp", (indices, 8, 4, 1, 2)
    yield "normalize_weight", (scores.abs(),)
    yield "inplace_unique_group_indices", (indices, 8)
    yield "top2_sum_gate", gate
    yield "top2_sum_gate", (*gate, mask, mask, None, None, indices[:, :3].clamp(0))
    yield "top2_sum_gate", (*shared, mask, None, physical, count)
    yield "hash_gate", (scores, ids, table, 1.5)
    yield "hash_gate", (scores, ids, table, 1.5, "identity", False, mask, True, 1, 0, 1, 0, 1, physical,
                        count, indices[:, :3], 0.5)
    yield "group_count", (indices, 8)
    yield "aux_fi", (indices, 8, 2)
    yield "get_fused_mapping", (indices, 8, 40, 3)
    yield "route", (*gate, 8, 50, 4)
    yield "route", (*shared, 9, 50, 4, mask, mask, physical, count, indices[:, :3].clamp(0))
    yield "expand_to_fused", (x[:6], pos, owner)
    for is_col_major in (False, True):
        yield "expand_to_fused_with_sf", ((x[:6], sf), 3, pos, owner, is_col_major)
    yield "reduce_fused", (x, None, pos)
    yield "reduce_fused", ((x.half(), x[:, 0].contiguous()), scores[:, :4], pos)
    yield "reduce_fused", ((x, x[:, 0].contiguous()), scores[:, :4], pos, "e4m3", sf[0, :1])


def flat(args):
    """The operators have no pairs."""
    return [t for a in args for t in (a if isinstance(a, tuple) else (a,))]


def operator_of(name, args):
    """The operator behind a function, and its arguments."""
    if name == "reduce_fused":
        data, x_sf = args[0] if isinstance(args[0], tuple) else (args[0], None)
        op = OPS.reduce_fused_e4m3 if len(args) > 3 else OPS.reduce_fused
        return op, (data, x_sf, *args[1:3], *args[4:])
    return getattr(OPS, name), flat(args)


def copies(args):
    return torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, args)


def tensors_in(*trees):
    return [t for t in torch.utils._pytree.tree_leaves(trees) if isinstance(t, torch.Tensor)]


SIGNATURES = {
    "topk_gate": "scores, num_topk, *, out=None",
    "topk_sum_and_topk_group_idx": "scores, num_topk_sum, num_topk_groups, *, out=None",
    "mask_indices_by_tp": "indices, n, num_ep_ranks, tp_rank, num_tp_ranks, *, out=None",
    "normalize_weight": "topk_weights, *, out=None",
    "inplace_unique_group_indices": "group_indices, num_groups",
    "top2_sum_gate": "logits, bias, num_topk, num_topk_groups, num_groups, use_shared_as_routed, "
                     "num_shared_experts, routed_scaling_factor, ep_rank, num_ep_ranks, tp_rank, "
                     "num_tp_ranks, scoring_func, mask=None, fix_routing_mask=None, to_physical_map=None, "
                     "logical_count=None, unmapped_topk_idx=None, *, out=None",
    "hash_gate": "logits, input_ids, tid2eid, routed_scaling_factor, scoring_func='sqrtsoftplus', "
                 "renormalize=True, mask=None, use_shared_as_routed=False, num_shared_experts=0, ep_rank=0, "
                 "num_ep_ranks=1, tp_rank=0, num_tp_ranks=1, to_physical_map=None, logical_count=None, "
                 "unmapped_topk_idx=None, shared_weight=1.0, *, out=None",
    "group_count": "group_idx, num_groups, *, out=None",
    "aux_fi": "topk_idx, num_experts, num_aux_topk, *, out=None",
    "get_fused_mapping": "topk_idx, num_experts, num_expanded_tokens, alignment, force_no_sync=False, *, "
                         "with_psum=False, out=None",
    "route": "logits, bias, num_topk, num_topk_groups, num_groups, use_shared_as_routed, num_shared_experts, "
             "routed_scaling_factor, ep_rank, num_ep_ranks, tp_rank, num_tp_ranks, scoring_func, "
             "num_experts, num_expanded_tokens, alignment, mask=None, fix_routing_mask=None, "
             "to_physical_map=None, logical_count=None, unmapped_topk_idx=None, *, with_psum=False, out=None",
    "expand_to_fused": "x, token_topk_to_pos, pos_to_expert, *, out=None",
    "expand_to_fused_with_sf": "x, num_per_channels, token_topk_to_pos, pos_to_expert, "
                               "use_tma_aligned_col_major_sf=False, *, out=None",
    "reduce_fused": "x, topk_weights, token_topk_to_pos, fp8_format='', sf=None, out=None",
}


def test_signatures():
    assert set(SIGNATURES) == FUNCTIONS
    for name, signature in SIGNATURES.items():
        function = getattr(moe, name)
        assert str(inspect.signature(function)) == f"({signature})"
        assert function.__module__ == "tegula.moe" and function.__name__ == name and function.__doc__
        ours, theirs = (inspect.signature(getattr(m, name)).parameters for m in (moe, reference))
        theirs = [n.replace("num_group_sum_topk", "num_topk_sum") for n in theirs]      # TileKernels has both names
        assert [n for n in ours if n != "out"] == [n for n in theirs if n != "out"]


def test_every_function_has_cases():
    assert {name for name, _ in cases("cpu")} == FUNCTIONS


CASES = [f"{i}-{name}" for i, (name, _) in enumerate(cases("cpu"))]


def case_of(identity, device):
    return next(itertools.islice(cases(device), int(identity.split("-")[0]), None))


@on_one_device
@pytest.mark.parametrize("case", CASES)
def test_opcheck(case, device):
    op, args = operator_of(*case_of(case, device))
    torch.library.opcheck(op.default, args)
    outs = op.default(*copies(args))
    if outs is None:
        return
    outs = outs if isinstance(outs, tuple) else (outs,)
    names = ["out"] if len(outs) == 1 else [f"out{i}" for i in range(len(outs))]
    tests = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    if outs[0].dtype == torch.float8_e4m3fn:
        tests.remove("test_schema")             # torch cannot compare such tensors
    torch.library.opcheck(op.out, args, dict(zip(names, outs)), test_utils=tests)


@on_one_device
@pytest.mark.parametrize("case", CASES)
def test_one_tensor_on_meta(case, device):
    op, args = operator_of(*case_of(case, device))
    outs = op.default(*copies(args))
    check_devices(op, args, () if outs is None else outs if isinstance(outs, tuple) else (outs,))


@on_one_device
def test_lengths_for_the_host_on_meta(device):
    """They are on the CPU, wherever the indices are."""
    indices, host = torch.randint(-1, 8, (6, 4), device=device), torch.zeros(8, dtype=torch.int32)
    for op in (OPS.get_fused_mapping, OPS.get_fused_mapping_with_psum):
        assert op(indices.to("meta"), 8, 40, 3, host)[0].is_meta
        with pytest.raises(ValueError, match=f"^num_tokens_per_expert_host: is on meta, want {device}"):
            op(indices, 8, 40, 3, host.to("meta"))


def test_a_bias_that_was_not_loaded(device):
    """As in a checkpoint that is half loaded: no result of uninitialised memory, no out= that seems written."""
    scores, gate = torch.randn(6, 8, device=device), (2, 0, 0, False, 0, 1.0, 0, 1, 0, 1, "sigmoid")
    outs = torch.full((6, 2), 7, device=device), torch.full((6, 2), 7.0, device=device)
    for out in (None, outs, (outs[0], None)):
        with pytest.raises(ValueError, match=f"^bias: is on meta, want {device}"):
            moe.top2_sum_gate(scores, scores[0].to("meta"), *gate, out=out)
    assert (outs[0] == 7).all() and (outs[1] == 7).all()


@pytest.mark.parametrize("with_psum", [False, True])
def test_opcheck_of_the_mapping(with_psum, device):
    """Its operator also has a tensor that the function does not take."""
    indices = torch.randint(-1, 8, (6, 4), device=device)
    op = OPS.get_fused_mapping_with_psum if with_psum else OPS.get_fused_mapping
    torch.library.opcheck(op.default, (indices, 8, 40, 3))
    if device == "cpu":
        torch.library.opcheck(op.default, (indices, 8, 40, 3, torch.zeros(8, dtype=torch.int32)))


@pytest.mark.parametrize("with_psum", [False, True])
def test_opcheck_of_route(with_psum, device):
    name, args = next(case for case in cases(device) if case[0] == "route")
    op = OPS.route_with_psum if with_psum else OPS.route
    torch.library.opcheck(op.default, args)
    compiled = torch.compile(moe.route, fullgraph=True, backend="aot_eager")
    seen, want = (f(*args, with_psum=with_psum) for f in (compiled, moe.route))
    assert len(want) == (11 if with_psum else 9)
    for a, b in zip(seen, want, strict=True):
        assert_equal(a, b)


@on_one_device
@pytest.mark.parametrize("case", CASES)
def test_compile(case, device):
    name, args = case_of(case, device)
    mine, theirs = copies(args), copies(args)
    seen = torch.compile(getattr(moe, name), fullgraph=True, backend="aot_eager")(*mine)
    want = getattr(moe, name)(*theirs)
    for a, b in zip(tensors_in(seen, mine), tensors_in(want, theirs), strict=True):
        assert_equal(a, b)


@on_one_device
@pytest.mark.parametrize("case", CASES)
def test_fake_tensors(case, device):
    """Shapes, strides and dtypes of tensors without data, through the public function."""
    name, args = case_of(case, device)

    def described(tree):
        return [(t.dtype, t.shape, t.stride(), t.device.type) for t in tensors_in(tree)]

    want = described(getattr(moe, name)(*copies(args)))
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode() as mode:
        fakes = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, args)
        assert described(getattr(moe, name)(*fakes)) == want


def test_mapping_compiled_with_psum(device):
    indices = torch.randint(-1, 8, (6, 4), device=device)
    compiled = torch.compile(moe.get_fused_mapping, fullgraph=True, backend="aot_eager")
    seen = compiled(indices, 8, 40, 3, with_psum=True)
    want = moe.get_fused_mapping(indices, 8, 40, 3, with_psum=True)
    assert len(seen) == len(want) == 10 and seen[7] == []
    for a, b in zip(tensors_in(seen), tensors_in(want), strict=True):
        assert_equal(a, b)


def test_mapping_that_waits_compiled(device):
    """The graph is interrupted there, without a warning of torch's; where it must not be, the error says why."""
    indices = torch.randint(-1, 8, (6, 4), device=device)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Dynamo")
        seen = torch.compile(lambda x: moe.get_fused_mapping(x + 0, 8, 0, 3), backend="eager")(indices)
    want = moe.get_fused_mapping(indices, 8, 0, 3)
    assert seen[7] == want[7] and sum(want[7]) == len(want[0])
    for a, b in zip(tensors_in(seen), tensors_in(want), strict=True):
        assert_equal(a, b)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="num_expanded_tokens is 0"):
        torch.compile(lambda x: moe.get_fused_mapping(x, 8, 0, 3), fullgraph=True, backend="eager")(indices)


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


def test_compiled_block(device):
    """From logits to the tokens' sums and back, with a token count that changes."""
    def block(logits, x):
        idx, weights, *mapping = moe.route(logits, None, 2, 0, 0, False, 0, 1.0, 0, 1, 0, 1, "softmax", 16,
                                           logits.shape[0] * 2 + 16 * 7, 8)
        expanded = moe.expand_to_fused(x, mapping[3], mapping[0])
        return moe.reduce_fused(expanded * 2, weights, mapping[3]), moe.group_count(idx, 16)

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend="aot_eager")
    for num_tokens in (3, 17, 64):
        args = torch.randn(num_tokens, 16, device=device), torch.randn(num_tokens, 32, device=device)
        for seen, want in zip(compiled(*args), block(*args), strict=True):
            assert_equal(seen, want)
        assert torch.allclose(block(*args)[0], 2 * args[1], rtol=1e-5)


def test_a_choice_has_no_gradient(device):
    assert not moe.topk_gate(torch.rand(3, 4, device=device, requires_grad=True), 2).requires_grad


def test_torch_func(device):
    """Forward mode says that it is not there, lest it be taken for zero. What does not ask for a gradient works, and
    so does vmap."""
    func = torch.func
    x = torch.rand(6, 8, device=device)
    pos = torch.randperm(40, device=device)[:24].int().view(6, 4)
    owner = torch.zeros(40, dtype=torch.int32, device=device)
    gate = None, 2, 0, 0, False, 0, 1.0, 0, 1, 0, 1, "sigmoid"
    for name, number in (("normalize_weight", lambda x: moe.normalize_weight(x)[1].sum()),
                         ("expand_to_fused", lambda x: moe.expand_to_fused(x, pos, owner).sum()),
                         ("reduce_fused", lambda x: moe.reduce_fused(x, None, pos[:, :1] % 6).sum()),
                         ("top2_sum_gate", lambda x: moe.top2_sum_gate(x, *gate)[1].sum()),
                         ("route", lambda x: moe.route(x, *gate, 8, 40, 2)[1].sum())):
        leaf = x.clone().requires_grad_()
        number(leaf).backward()
        for transform in (func.grad(number), func.jacrev(number)):
            assert torch.allclose(transform(x), leaf.grad, rtol=1e-5, atol=1e-6), name
        for transform in (func.jacfwd(number), lambda x: func.jvp(number, (x,), (x,))):
            with pytest.raises(NotImplementedError, match=rf"^{name}\(\) has no gradient in forward mode: "):
                transform(x)
        assert torch.equal(func.grad(lambda x: number(x.detach()) + x.sum())(x), torch.ones_like(x))
        assert torch.equal(func.grad(lambda x: number(x).detach() + x.sum())(x), torch.ones_like(x))
        assert torch.equal(func.jvp(lambda x: number(x.detach()) + x.sum(), (x,), (x,))[1], x.sum())
    batch = torch.rand(3, 6, 8, device=device)
    for seen, x in zip(func.vmap(lambda x: moe.normalize_weight(x)[1])(batch), batch, strict=True):
        assert_equal(seen, moe.normalize_weight(x)[1])
    chosen = func.grad(lambda x: x.gather(1, moe.topk_gate(x, 2)).sum())(batch[0])   # a choice needs none
    assert torch.equal(chosen.sum(1), torch.full_like(chosen[:, 0], 2))
