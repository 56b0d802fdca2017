# SPDX-License-Identifier: MIT
"""The gates from Python: top2_sum_gate and hash_gate against plain torch, special values, errors."""
import itertools

import numpy
import pytest
import torch

import tegula.torch as reference
from tegula import moe
from tegula.moe.scoring import ScoringFunc
from tegula.testing import assert_equal

INF, NAN = float("inf"), float("nan")
# num_groups, num_topk_groups, num_experts, num_shared_experts, num_topk: TileKernels' own
CONFIGS = [(0, 0, 72, 1, 6), *((0, 0, e, 2, 6) for e in (32, 64, 96, 16, 36, 108, 128, 144)),
           (8, 8, 256, 2, 8), (8, 4, 256, 2, 8)]
SCORING = ["sigmoid", "sqrtsoftplus", "softmax"]
NAMES = ["num_topk", "num_topk_groups", "num_groups", "use_shared_as_routed", "num_shared_experts",
         "routed_scaling_factor", "ep_rank", "num_ep_ranks", "tp_rank", "num_tp_ranks", "scoring_func"]
PLAIN = dict(zip(NAMES, (2, 0, 0, False, 0, 1.0, 0, 1, 0, 1, "sigmoid")))


def smallest_gap(values):
    """Between neighbours in the order of a row."""
    if values.shape[1] < 2:
        return torch.full(values.shape[:1], INF, device=values.device)
    return values.sort(dim=1).values.diff(dim=1).min(dim=1).values


def make_inputs(num_tokens, num_experts, scoring_func, num_groups=0, device="cpu"):
    """Logits and bias whose ranked keys, and the sums of groups, lie apart: no last bit of exp decides."""
    bias = torch.randn(num_experts, device=device)
    logits = torch.randn(num_tokens, num_experts, device=device)
    while True:
        keys = (logits if scoring_func == "softmax" else reference.moe._score(logits, scoring_func)) + bias
        close = smallest_gap(keys.double()) < 4e-6
        if num_groups:
            groups = keys.double().unflatten(1, (num_groups, -1))
            close |= smallest_gap(groups.topk(min(2, groups.shape[2]), dim=2).values.sum(dim=2)) < 4e-6
        if not close.any():
            return logits, bias
        logits[close] = torch.randn(int(close.sum()), num_experts, device=device)


def same_gate(seen, want):
    assert_equal(seen[0], want[0])
    assert seen[1].dtype == torch.float32 and seen[1].is_contiguous()
    assert torch.allclose(seen[1], want[1], rtol=1e-5, atol=1e-8), (seen[1] - want[1]).abs().max()


def compare(logits, bias, params, **tensors):
    """The op against the reference, with copies of the tensor that both change."""
    both = []
    for function in (moe.top2_sum_gate, reference.top2_sum_gate):
        mine = {k: v.clone() if k == "unmapped_topk_idx" else v for k, v in tensors.items()}
        both.append((function(logits, bias, **params, **mine), mine.get("unmapped_topk_idx")))
    same_gate(both[0][0], both[1][0])
    if both[0][1] is not None:
        assert_equal(both[0][1], both[1][1])
    return both[0][0]


# ---- top2_sum_gate ----

@pytest.mark.parametrize("scoring_func", SCORING)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_top2_sum_gate(config, scoring_func, device):
    """TileKernels' test, with fewer tokens and in the order of the slots."""
    num_groups, num_topk_groups, num_experts, num_shared, num_topk = config
    may_share = num_topk % num_shared == 0 and num_experts % (num_topk // num_shared) == 0
    sharing = (False, True)[:1 + may_share]
    for num_padded, use_shared, fix_routing in itertools.product((0, 10), sharing, (0, 1, 2)):
        num_tokens = 57 + num_padded
        logits, bias = make_inputs(num_tokens, num_experts, scoring_func, num_groups, device)
        tensors = {"unmapped_topk_idx": torch.randint(0, num_experts, (num_tokens, num_topk), device=device)}
        if num_padded:
            tensors["mask"] = torch.arange(num_tokens, device=device) < 57
        if fix_routing:         # all tokens, or some
            tensors["fix_routing_mask"] = torch.rand(num_tokens, device=device) < fix_routing / 2
        if use_shared:
            rows = torch.arange(num_experts + num_shared, dtype=torch.int32, device=device)
            tensors["to_physical_map"] = rows[:, None].repeat(1, 33)
            tensors["logical_count"] = torch.ones_like(rows)
        for tp_rank in (0, 1):
            params = (num_topk, num_topk_groups, num_groups, use_shared, num_shared, 1.5, 0, 4, tp_rank, 2)
            compare(logits, bias, dict(zip(NAMES, (*params, scoring_func))), **tensors)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_order_of_equal_scores(config, device):
    num_groups, num_topk_groups, num_experts, num_shared, num_topk = config
    params = (num_topk, num_topk_groups, num_groups, False, num_shared, 1.5, 0, 4, 0, 2, "sigmoid")
    zeros = torch.zeros(9, num_experts, device=device)
    idx, _ = moe.top2_sum_gate(zeros, zeros[0], *params)
    count = min(num_experts // 4, num_topk)
    assert (idx[:, :count] == torch.arange(count, device=device)).all()


@pytest.mark.parametrize("num_ep_ranks, num_tp_ranks", [(1, 1), (2, 1), (2, 2), (6, 3), (5, 2), (22, 4)])
@pytest.mark.parametrize("num_shared", [0, 1, 3])
def test_physical_map(num_shared, num_ep_ranks, num_tp_ranks, device):
    """Experts with one to five replicas; shared ones have some too."""
    num_experts, replicas = 18, 5
    logits, bias = make_inputs(64, num_experts, "sigmoid", device=device)
    num_logical, num_physical = num_experts + num_shared, num_experts + replicas - 1
    physical = torch.randint(0, num_physical, (num_logical, replicas), device=device).int()
    count = torch.randint(1, replicas + 1, (num_logical,), device=device).int()
    for ep_rank, tp_rank in itertools.product((0, 1, 7), range(num_tp_ranks)):
        params = 4, 0, 0, True, num_shared, 1.0, ep_rank, num_ep_ranks, tp_rank, num_tp_ranks, "sigmoid"
        compare(logits, bias, dict(zip(NAMES, params)), to_physical_map=physical, logical_count=count)


def test_replicas_of_late_tokens(device):
    """23333 * 92037 is past 2^31."""
    logits = torch.zeros(92040, 4, device=device)
    physical = torch.arange(12, device=device).int().view(4, 3) // 2
    idx, _ = moe.top2_sum_gate(logits, None, **PLAIN | {"num_topk": 1}, to_physical_map=physical,
                               logical_count=torch.full((4,), 3, device=device, dtype=torch.int32))
    tokens = torch.arange(92040, device=device)
    assert torch.equal(idx[:, 0], physical[0].long()[tokens * 23333 % 3])


@pytest.mark.parametrize("num_topk", [0, 1, 5, 33])
@pytest.mark.parametrize("num_tokens", [0, 1, 40])
def test_sizes(num_tokens, num_topk, device):
    logits, bias = make_inputs(num_tokens, 33, "sqrtsoftplus", device=device)
    idx, weights = compare(logits, bias, PLAIN | {"num_topk": num_topk, "scoring_func": "sqrtsoftplus"})
    assert idx.shape == weights.shape == (num_tokens, num_topk) and idx.is_contiguous()


@pytest.mark.parametrize("num_groups, size", [(40, 3), (3, 40), (64, 8), (5, 1), (2, 2)])
def test_any_groups(num_groups, size, device):
    for scoring_func in SCORING:
        logits, bias = make_inputs(40, num_groups * size, scoring_func, num_groups, device)
        for num_topk_groups in {1, num_groups // 2, num_groups}:
            num_topk = min(num_topk_groups * size, 5)
            params = num_topk, num_topk_groups, num_groups, False, 0, 1.0, 0, 1, 0, 1, scoring_func
            compare(logits, bias, dict(zip(NAMES, params)))


def test_strided_tensors_and_i32(device):
    logits, bias = make_inputs(40, 36, "sigmoid", device=device)
    wide = torch.randn(40, 50, device=device)
    wide[:, 7:43] = logits
    unmapped = torch.full((40, 9), 77, device=device)
    seen = moe.top2_sum_gate(wide[:, 7:43], bias, **PLAIN, unmapped_topk_idx=unmapped[:, 2:4])
    same_gate(seen, reference.top2_sum_gate(logits, bias, **PLAIN))
    assert torch.equal(unmapped[:, 2:4], seen[0])
    assert (unmapped[:, :2] == 77).all() and (unmapped[:, 4:] == 77).all()
    outs = torch.empty(40, 2, dtype=torch.int32, device=device), torch.empty(40, 2, device=device)
    narrow = torch.empty(40, 2, dtype=torch.int32, device=device)
    got = moe.top2_sum_gate(logits, bias, **PLAIN, unmapped_topk_idx=narrow, out=outs)
    assert got[0] is outs[0] and torch.equal(outs[0], seen[0].int()) and torch.equal(narrow, outs[0])
    assert torch.equal(outs[1], seen[1])


def test_as_tile_kernels_takes_them(device):
    """Its scoring functions are read in either case, its flags are whatever is true."""
    logits, bias = make_inputs(20, 36, "sigmoid", device=device)
    want = moe.top2_sum_gate(logits, bias, **PLAIN)
    for name, flag in (("SIGMOID", 0), ("Sigmoid", numpy.bool_(False))):
        changes = {"scoring_func": name, "use_shared_as_routed": flag, "num_shared_experts": 2}
        for seen, same in zip(moe.top2_sum_gate(logits, bias, **PLAIN | changes), want, strict=True):
            assert_equal(seen, same)
    rows = torch.arange(37, device=device).int()
    shared = {"num_shared_experts": 1, "to_physical_map": rows[:, None].repeat(1, 2),
              "logical_count": torch.ones_like(rows)}
    for flag in (1, numpy.bool_(True)):
        seen = moe.top2_sum_gate(logits, bias, **PLAIN | shared | {"use_shared_as_routed": flag})
        assert (seen[0][:, 2] == 36).all()


def test_no_bias(device):
    logits, bias = make_inputs(20, 36, "softmax", device=device)
    params = PLAIN | {"scoring_func": "softmax"}
    same_gate(moe.top2_sum_gate(logits + bias, None, **params),
              moe.top2_sum_gate(logits + bias, torch.zeros_like(bias), **params))


LOGITS = [0.0, 2, -1, 1]


def gate_of(rows, bias=(0, 0, 0, 0), device="cpu", **changes):
    tensors = {k: torch.tensor(v, device=device) if isinstance(v, list) else v for k, v in changes.items()}
    bias = torch.tensor(bias, device=device, dtype=torch.float32)
    logits = torch.tensor(rows, device=device, dtype=torch.float32)
    return moe.top2_sum_gate(logits, bias, **PLAIN | tensors), tensors


def test_examples(device):
    """Of docs/moe.md."""
    def weights(seen):
        return [[round(w, 6) for w in row] for row in seen.tolist()]

    ranks = {"routed_scaling_factor": 1.5, "num_ep_ranks": 4, "num_tp_ranks": 2}
    for tp_rank, want in ((1, [[-1, 0], [-1, -1], [1, 1]]), (0, [[1, -1], [-1, -1], [-1, -1]])):
        (idx, w), tensors = gate_of([LOGITS] * 3, (0, 0, 1, 0), device, **ranks, tp_rank=tp_rank,
                                    mask=[True, False, True], fix_routing_mask=[False, True, True],
                                    unmapped_topk_idx=[[0, 0], [1, 1], [3, 3]])
        assert idx.tolist() == want and tensors["unmapped_topk_idx"].tolist() == [[2, 1], [-1, -1], [3, 3]]
        assert weights(w) == [[0.350873, 1.149127], [0, 0], [0.75, 0.75]]
    for scoring_func, want, idx_want in (("sqrtsoftplus", [[0.416009, 1.083991]], [[2, 1]]),
                                         ("softmax", [[1.096588, 0.403412]], [[1, 3]])):
        (idx, w), _ = gate_of([LOGITS], (0, 0, 1, 0), device, routed_scaling_factor=1.5,
                              scoring_func=scoring_func)
        assert weights(w) == want and idx.tolist() == idx_want
    physical = torch.tensor([[0, 0, 0], [1, 4, 4], [2, 2, 2], [3, 3, 3], [5, 5, 5]], device=device).int()
    count = torch.tensor([1, 2, 1, 1, 1], device=device).int()
    shared = {"use_shared_as_routed": True, "num_shared_experts": 1, "num_ep_ranks": 2,
              "to_physical_map": physical, "logical_count": count}
    (idx, w), _ = gate_of([LOGITS] * 2, device=device, **shared)
    assert idx.tolist() == [[1, 3, 5], [4, 3, 5]] and weights(w) == [[0.546449, 0.453551, 1]] * 2
    (idx, _), _ = gate_of([LOGITS] * 2, device=device, **shared, num_tp_ranks=2, tp_rank=1)
    assert idx.tolist() == [[-1, 0, 2], [1, 0, 2]]
    (idx, _), _ = gate_of([[.9, .1, .8, .7, .85, 0, .2, .3]], [0] * 8, device, num_groups=4,
                          num_topk_groups=2, num_topk=3)
    assert idx.tolist() == [[0, 2, 3]]


def test_special_logits(device):
    for scoring_func in SCORING:
        (idx, w), _ = gate_of([[NAN, 1, NAN, 2], [NAN] * 4], device=device, num_topk=3,
                              scoring_func=scoring_func)
        assert idx.tolist() == [[3, 1, 0], [0, 1, 2]] and w[0, 2] == 0 and (w[1] == 0).all()
        assert abs(float(w[0].sum()) - 1) < 1e-6
    (idx, w), _ = gate_of([[1, INF, -INF, 0]], device=device, num_topk=4)
    assert idx.tolist() == [[1, 0, 3, 2]] and w[0, 3] == 0
    (idx, w), _ = gate_of([[-100] * 4], device=device, num_topk=2)
    assert idx.tolist() == [[0, 1]] and w.tolist() == [[0, 0]]
    (idx, w), _ = gate_of([[25.0, 20, 0, 0]], device=device, scoring_func="sqrtsoftplus", num_topk=1)
    assert idx.tolist() == [[0]] and w.tolist() == [[1]]
    (idx, _), _ = gate_of([LOGITS], (0, -INF, -INF, -INF), device, num_topk=4)  # three are switched off
    assert idx.tolist() == [[0, 1, 2, 3]]


def test_groups_of_minus_infinity(device):
    """No expert of a group that is left out, whatever the others are worth."""
    (idx, _), _ = gate_of([[-INF] * 4], device=device, num_groups=2, num_topk_groups=1,
                          scoring_func="softmax")
    assert idx.tolist() == [[0, 1]]
    (idx, _), _ = gate_of([[0.0, 0, 1, 1]], (-INF, -INF, -INF, 0), device, num_groups=2, num_topk_groups=1)
    assert idx.tolist() == [[0, 1]]                                    # both are worth -inf


def test_empty_slots_of_fixed_routing(device):
    """One that is no expert has index -1, weight 0, and does not count."""
    (idx, w), tensors = gate_of([LOGITS] * 3, device=device, fix_routing_mask=[True] * 3,
                                unmapped_topk_idx=[[-1, 1], [4, 3], [-7, 1 << 40]])
    assert idx.tolist() == [[-1, 1], [-1, 3], [-1, -1]] and w.tolist() == [[0, 1], [0, 1], [0, 0]]
    assert tensors["unmapped_topk_idx"].tolist() == [[-1, 1], [4, 3], [-7, 1 << 40]]


def test_replica_counts_below_one(device):
    physical = torch.arange(8, device=device).int().view(4, 2) % 5
    count = torch.tensor([0, -3, 1, 0], device=device)
    (idx, _), _ = gate_of([LOGITS] * 2, device=device, to_physical_map=physical, logical_count=count.int())
    assert idx.tolist() == [[2, 1]] * 2


@pytest.mark.parametrize("changes, message", [
    ({"num_topk": 5}, r"num_topk: is 5, want 0\.\.4$"),
    ({"num_topk": 3, "num_groups": 2, "num_topk_groups": 1}, r"num_topk: is 3, want 0\.\.2$"),
    ({"num_groups": 3, "num_topk_groups": 1}, "num_groups: is 3, want a divisor of 4"),
    ({"num_groups": 2, "num_topk_groups": 3}, r"num_topk_groups: is 3, want 1\.\.2"),
    ({"num_groups": 2, "num_topk_groups": 0}, r"num_topk_groups: is 0, want 1\.\.2"),
    ({"tp_rank": 2, "num_tp_ranks": 2}, r"tp_rank: is 2, want 0\.\.1"),
    ({"scoring_func": "identity"},
     "scoring_func: is 'identity', want one of 'sigmoid', 'sqrtsoftplus', 'softmax'$"),
    ({"scoring_func": "sigmoids"}, "scoring_func: is 'sigmoids', want one of"),
    ({"num_ep_ranks": 0}, "num_ep_ranks: is 0, want >= 1$"),
    ({"num_tp_ranks": 0}, "num_tp_ranks: is 0, want >= 1$"),
    ({"use_shared_as_routed": "no"}, "use_shared_as_routed: is 'no', want True or False$"),
    ({"mask": [1]}, "mask: dtype is i64, want bool"),
    ({"mask": [True, True]}, r"mask: shape is \[2\], want \[1\]"),
    ({"fix_routing_mask": [True]}, "unmapped_topk_idx: is None, want"),
    ({"unmapped_topk_idx": [[1]]}, r"unmapped_topk_idx: shape is \[1, 1\], want \[1, 2\]"),
    ({"unmapped_topk_idx": [[1.0, 2.0]]}, "unmapped_topk_idx: dtype is f32, want"),
    ({"use_shared_as_routed": True, "num_shared_experts": 1}, "to_physical_map: is None, want"),
    ({"num_topk": -1}, r"num_topk: is -1, want 0\.\.4$"),
    ({"use_shared_as_routed": True, "num_shared_experts": 2**62},
     r"num_shared_experts: is 4611686018427387904, want < 2\^31$"),
    ({"use_shared_as_routed": True, "num_shared_experts": -1}, "num_shared_experts: is -1, want >= 0$"),
    ({"out": (torch.empty(1, 1, dtype=torch.int64), torch.empty(1, 2))},
     r"out\[0\]: shape is \[1, 1\], want \[1, 2\]$"),
    ({"out": (torch.empty(1, 2, dtype=torch.int64), torch.empty(1, 3))},
     r"out\[1\]: shape is \[1, 3\], want \[1, 2\]$"),
], ids=range(22))
def test_errors(changes, message, device):
    with pytest.raises((TypeError, ValueError), match="^" + message):
        gate_of([LOGITS], device=device, **changes)


def test_map_and_count_belong_together(device):
    ones = torch.ones(4, device=device, dtype=torch.int32)
    with pytest.raises(ValueError, match="^logical_count: is None, want"):
        gate_of([LOGITS], device=device, to_physical_map=ones[:, None])
    with pytest.raises(ValueError, match="^(to_physical_map: is None|logical_count: is given)"):
        gate_of([LOGITS], device=device, logical_count=ones)


def test_numpy():
    logits, bias = numpy.array([LOGITS], numpy.float32), numpy.zeros(4, numpy.float32)
    idx, weights = moe.top2_sum_gate(logits, bias, **PLAIN)
    assert isinstance(idx, numpy.ndarray) and idx.tolist() == [[1, 3]] and weights.dtype == numpy.float32


# ---- hash_gate ----

@pytest.mark.parametrize("dtypes", list(itertools.product((torch.int64, torch.int32), repeat=2)), ids=str)
@pytest.mark.parametrize("num_topk", [1, 6, 8, 31])
@pytest.mark.parametrize("num_experts", [256, 384])
def test_hash_gate(num_experts, num_topk, dtypes, device):
    """As top2_sum_gate where the table fixes every token; and as the reference."""
    table = torch.randint(0, num_experts, (300, num_topk), device=device).to(dtypes[1])
    for num_tokens, num_shared, scoring_func in itertools.product((0, 1, 7, 64), (0, 1), SCORING):
        logits = torch.randn(num_tokens, num_experts, device=device)
        ids = torch.randint(0, 300, (num_tokens,), device=device).to(dtypes[0])
        mask = torch.rand(num_tokens, device=device) < 0.8
        tensors = {"mask": mask}
        if num_shared:
            rows = torch.arange(num_experts + 1, device=device).int()
            tensors["to_physical_map"] = torch.stack([rows, rows.flip(0)], dim=1)
            tensors["logical_count"] = torch.full_like(rows, 2)
        tail = {"use_shared_as_routed": True, "num_shared_experts": num_shared, "ep_rank": 3,
                "num_ep_ranks": 4, "tp_rank": 1, "num_tp_ranks": 2}
        unmapped = torch.empty(num_tokens, num_topk, dtype=torch.int64, device=device)
        args = logits, ids, table, 1.5, scoring_func
        seen = moe.hash_gate(*args, unmapped_topk_idx=unmapped, **tail, **tensors)
        fixed = table.long()[ids.long()]
        want = moe.top2_sum_gate(logits, None, num_topk, 0, 0, routed_scaling_factor=1.5,
                                 scoring_func=scoring_func, fix_routing_mask=torch.ones_like(mask),
                                 unmapped_topk_idx=fixed, **tail, **tensors)
        assert_equal(seen[0], want[0])
        assert_equal(seen[1], want[1])
        assert_equal(unmapped, fixed)
        same_gate(seen, reference.hash_gate(*args, **tail, **tensors))


def test_hash_gate_example(device):
    table = torch.tensor([[0, 1], [3, 2], [1, 3]], device=device)
    logits = torch.tensor([LOGITS] * 4, device=device)
    mask = torch.tensor([True, True, False, True], device=device)
    idx, weights = moe.hash_gate(logits, torch.tensor([2, 0, 2, 1], device=device), table, 1.5, mask=mask)
    assert idx.tolist() == [[1, 3], [0, 1], [-1, -1], [3, 2]]
    assert [[round(w, 6) for w in row] for row in weights.tolist()] == \
        [[0.839971, 0.660029], [0.545114, 0.954886], [0, 0], [1.007792, 0.492208]]


def test_hash_gate_bad_data(device):
    table = torch.tensor([[0, 1], [3, -1], [4, 1 << 40], [2, 2]], device=device)
    ids = torch.tensor([-1, 4, 1, 2, 3, 1 << 40], device=device)
    unmapped = torch.zeros(6, 2, device=device, dtype=torch.int64)
    logits = torch.tensor([LOGITS] * 6, device=device)
    idx, weights = moe.hash_gate(logits, ids, table, 1.0, unmapped_topk_idx=unmapped)
    assert idx.tolist() == [[-1, -1], [-1, -1], [3, -1], [-1, -1], [2, 2], [-1, -1]]
    assert weights.tolist() == [[0, 0], [0, 0], [1, 0], [0, 0], [0.5, 0.5], [0, 0]]
    assert unmapped.tolist() == [[-1, -1], [-1, -1], [3, -1], [4, 1 << 40], [2, 2], [-1, -1]]
    nan = torch.tensor([[NAN, 1, 2, NAN]], device=device)
    assert moe.hash_gate(nan, ids[4:5] * 0, table, 1.0)[1].tolist() == [[0, 1]]


def test_hash_gate_options(device):
    table, ids = torch.tensor([[1, 3]], device=device), torch.zeros(1, dtype=torch.int64, device=device)
    logits = torch.tensor([LOGITS], device=device)
    for scoring_func in ScoringFunc:
        _, weights = moe.hash_gate(logits, ids, table, 1.5, str(scoring_func), False)
        want = reference.moe._score(logits, str(scoring_func))[:, [1, 3]] * 1.5
        assert torch.allclose(weights, want, rtol=1e-6, atol=0)
    physical = torch.arange(5, device=device).int()[:, None].repeat(1, 2)
    idx, weights = moe.hash_gate(logits, ids, table, 1.0, use_shared_as_routed=True, num_shared_experts=1,
                                 to_physical_map=physical, logical_count=torch.ones_like(physical[:, 0]),
                                 shared_weight=0.25)
    assert idx.tolist() == [[1, 3, 4]] and weights[0, 2] == 0.25


@pytest.mark.parametrize("call, message", [
    (lambda x, i, t: moe.hash_gate(x, i[:1], t, 1.0), r"input_ids: shape is \[1\], want \[2\]"),
    (lambda x, i, t: moe.hash_gate(x, i.float(), t, 1.0), "input_ids: dtype is f32, want i32 or i64"),
    (lambda x, i, t: moe.hash_gate(x, i, t.float(), 1.0), "tid2eid: dtype is f32, want i32 or i64"),
    (lambda x, i, t: moe.hash_gate(x, i, t, 1.0, "relu"), "scoring_func: is 'relu', want one of"),
    (lambda x, i, t: moe.hash_gate(x, i, t, 1.0, num_tp_ranks=2, tp_rank=-1), r"tp_rank: is -1, want 0\.\.1"),
    (lambda x, i, t: moe.hash_gate(x, i, t, 1.0, num_ep_ranks=0), "num_ep_ranks: is 0, want >= 1$"),
    (lambda x, i, t: moe.hash_gate(x, i, t, 1.0, num_tp_ranks=0), "num_tp_ranks: is 0, want >= 1$"),
    (lambda x, i, t: moe.hash_gate(x, i, t, 1.0, use_shared_as_routed=True, num_shared_experts=2**62),
     r"num_shared_experts: is 4611686018427387904, want < 2\^31$"),
], ids=range(8))
def test_hash_gate_errors(call, message, device):
    x, i = torch.randn(2, 4, device=device), torch.zeros(2, dtype=torch.int64, device=device)
    with pytest.raises(ValueError, match="^" + message):
        call(x, i, torch.zeros(3, 2, dtype=torch.int64, device=device))


# ---- ScoringFunc ----

def test_scoring_func():
    assert [(f.name, int(f), str(f)) for f in ScoringFunc] == [
        ("SIGMOID", 0, "sigmoid"), ("SQRTSOFTPLUS", 1, "sqrtsoftplus"), ("SOFTMAX", 2, "softmax"),
        ("IDENTITY", 3, "identity")]
    assert all(ScoringFunc.from_str(s) is f for f in ScoringFunc for s in (str(f), f.name, str(f).title()))
    assert f"{ScoringFunc.SOFTMAX}" == "softmax" and ScoringFunc.SOFTMAX == 2
    for bad in ("", "relu", None, 0):
        with pytest.raises(ValueError, match=f"^label: is {bad!r}, want one of 'sigmoid', 'sqrtsoftplus'"):
            ScoringFunc.from_str(bad)
