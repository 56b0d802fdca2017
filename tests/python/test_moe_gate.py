# SPDX-License-Identifier: MIT
"""The gates from Python: top2_sum_gate and hash_gate against plain torch, and what they refuse."""
import itertools

import numpy
import pytest
import torch

import tegula.torch as reference
from tegula import moe
from tegula.moe.scoring import ScoringFunc
from tegula.testing import assert_equal

INF = float("inf")
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


@pytest.mark.parametrize("num_groups, size", [(40, 3), (3, 40), (64, 8), (5, 1), (2, 2)])
def test_any_groups(num_groups, size, device):
    for scoring_func in SCORING:
        logits, bias = make_inputs(40, num_groups * size, scoring_func, num_groups, device)
        for num_topk_groups in {1, num_groups // 2, num_groups}:
            num_topk = min(num_topk_groups * size, 5)
            params = num_topk, num_topk_groups, num_groups, False, 0, 1.0, 0, 1, 0, 1, scoring_func
            compare(logits, bias, dict(zip(NAMES, params)))


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


# ---- hash_gate ----

@pytest.mark.parametrize("dtypes", list(itertools.product((torch.int64, torch.int32), repeat=2)), ids=str)
@pytest.mark.parametrize("num_topk", [1, 6, 8, 31])
@pytest.mark.parametrize("num_experts", [256, 384])
def test_hash_gate(num_experts, num_topk, dtypes, device):
    """Also with ids that are not in the table and entries that are no experts."""
    table = torch.randint(-1, num_experts + 1, (300, num_topk), device=device).to(dtypes[1])
    for num_tokens, num_shared, scoring_func in itertools.product((0, 1, 7, 64), (0, 1), map(str, ScoringFunc)):
        logits = torch.rand(num_tokens, num_experts, device=device)
        ids = torch.randint(-2, 302, (num_tokens,), device=device).to(dtypes[0])
        given = {"use_shared_as_routed": True, "num_shared_experts": num_shared, "ep_rank": 3, "num_ep_ranks": 4,
                 "tp_rank": 1, "num_tp_ranks": 2, "mask": torch.rand(num_tokens, device=device) < 0.8}
        if num_shared:
            rows = torch.arange(num_experts + 1, device=device).int()
            given["to_physical_map"] = torch.stack([rows, rows.flip(0)], dim=1)
            given["logical_count"], given["shared_weight"] = torch.full_like(rows, 2), 0.25
        unmapped = [torch.empty(num_tokens, num_topk, dtype=torch.int64, device=device) for _ in range(2)]
        for renormalize in (False, True):
            seen, want = (module.hash_gate(logits, ids, table, 1.5, scoring_func, renormalize, unmapped_topk_idx=choice,
                                           **given) for module, choice in zip((moe, reference), unmapped))
            same_gate(seen, want)
            assert_equal(*unmapped)


# ---- errors: of numbers, words and flags; those of tensors are C's ----

def hash_gate(**changes):
    ids, table = torch.zeros(2, dtype=torch.int64), torch.zeros(3, 2, dtype=torch.int64)
    return moe.hash_gate(torch.zeros(2, 4), ids, table, 1.0, **changes)


def top2_sum_gate(**changes):
    return moe.top2_sum_gate(torch.zeros(1, 4), torch.zeros(4), **PLAIN | changes)


RANKS = [({"num_ep_ranks": 0}, "num_ep_ranks: is 0, want >= 1$"), ({"num_tp_ranks": 0}, "num_tp_ranks: is 0, want >= 1$"),
         ({"tp_rank": -1, "num_tp_ranks": 2}, r"tp_rank: is -1, want 0\.\.1"),
         ({"use_shared_as_routed": True, "num_shared_experts": 2**62},
          r"num_shared_experts: is 4611686018427387904, want < 2\^31$"),
         ({"use_shared_as_routed": True, "num_shared_experts": -1}, "num_shared_experts: is -1, want >= 0$"),
         ({"use_shared_as_routed": "no"}, "use_shared_as_routed: is 'no', want True or False$"),
         ({"scoring_func": "sigmoids"}, "scoring_func: is 'sigmoids', want one of")]


@pytest.mark.parametrize("call, changes, message", [(call, *row) for call in (top2_sum_gate, hash_gate) for row in RANKS] + [
    (top2_sum_gate, {"num_topk": 5}, r"num_topk: is 5, want 0\.\.4$"),
    (top2_sum_gate, {"num_topk": -1}, r"num_topk: is -1, want 0\.\.4$"),
    (top2_sum_gate, {"num_topk": 3, "num_groups": 2, "num_topk_groups": 1}, r"num_topk: is 3, want 0\.\.2$"),
    (top2_sum_gate, {"num_groups": 3, "num_topk_groups": 1}, "num_groups: is 3, want a divisor of 4"),
    (top2_sum_gate, {"num_groups": 2, "num_topk_groups": 3}, r"num_topk_groups: is 3, want 1\.\.2"),
    (top2_sum_gate, {"num_groups": 2, "num_topk_groups": 0}, r"num_topk_groups: is 0, want 1\.\.2"),
    (top2_sum_gate, {"scoring_func": "identity"},
     "scoring_func: is 'identity', want one of 'sigmoid', 'sqrtsoftplus', 'softmax'$"),
    (top2_sum_gate, {"fix_routing_mask": torch.ones(1, dtype=torch.bool)}, "unmapped_topk_idx: is None, want"),
    (top2_sum_gate, {"use_shared_as_routed": True, "num_shared_experts": 1}, "to_physical_map: is None, want"),
], ids=range(23))
def test_errors(call, changes, message):
    with pytest.raises((TypeError, ValueError), match="^" + message):
        call(**changes)


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
