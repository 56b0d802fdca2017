# SPDX-License-Identifier: MIT
"""The routing ops from Python: the simple ones against plain torch, what they refuse, torch's transforms. Gates and
mappings have files of their own; test_ops.py has what holds for all functions."""
import warnings

import pytest
import torch
from torch.utils._pytree import tree_leaves

import tegula.torch as reference
from conftest import on_one_device
from tegula import moe
from tegula.testing import assert_equal

OPS = torch.ops.tegula
INF = float("inf")
# num_topk, num_experts over all ranks, num_ep_ranks: as in TileKernels' tests
MOE_PARAMS = [(1, 1, 1), *((k, e, ep) for k in (1, 2, 6, 7, 8, 9) for e, ep in ((72, 8), (256, 8), (256, 64)))]
each_count = pytest.mark.parametrize("num_tokens", [0, 1, 101])
each_kind = pytest.mark.parametrize("kind", ["normal", "ties", "minus_inf"])
each_index = pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=["i64", "i32"])


def scores_of(kind, *shape, device):
    """Random scores, of many values or of few."""
    if kind == "normal":
        return torch.randn(shape, device=device)
    values = {"ties": [-1, -0.0, 0.0, 0.5], "minus_inf": [-INF, -INF, -INF, 1, 2]}[kind]
    return torch.tensor(values, device=device)[torch.randint(0, len(values), shape, device=device)]


def same(seen, want):
    """Of tensors the bits; the lengths of a mapping are also a list."""
    for a, b in zip(tree_leaves(seen), tree_leaves(want), strict=True):
        if isinstance(b, torch.Tensor):
            assert_equal(a, b)
        else:
            assert a == b


def check(name, *args, **kwargs):
    """An op against its reference."""
    same(*(getattr(module, name)(*args, **kwargs) for module in (moe, reference)))


# ---- parity ----

@each_kind
@each_count
@pytest.mark.parametrize("num_experts, num_topk", [
    (72, 6), (32, 6), (64, 6), (96, 6), (16, 6), (36, 6), (108, 6), (128, 6), (144, 6), (256, 8), (384, 6),
    (1000, 8), (4096, 8), (33, 33), (1, 1), (7, 0)])
def test_topk_gate(num_experts, num_topk, num_tokens, kind, device):
    check("topk_gate", scores_of(kind, num_tokens, num_experts, device=device), num_topk)


@each_kind
@each_count
@pytest.mark.parametrize("num_experts, num_groups", [
    (72, 4), (72, 8), (72, 12), (256, 4), (256, 8), (256, 16), (256, 64)])
def test_topk_sum_and_topk_group_idx(num_experts, num_groups, num_tokens, kind, device):
    scores = scores_of(kind, num_tokens, num_groups, num_experts // num_groups, device=device)
    for num_topk_sum in (1, 2, 3):
        for num_topk_groups in (2, 4):
            check("topk_sum_and_topk_group_idx", scores, num_topk_sum, num_topk_groups)


@each_index
@each_count
@pytest.mark.parametrize("params", MOE_PARAMS, ids=str)
def test_mask_indices_by_tp(params, num_tokens, dtype, device):
    num_topk, n, num_ep_ranks = params
    indices = torch.randint(-1, n, (num_tokens, num_topk), device=device).to(dtype)
    for num_tp_ranks in (1, 2, 4, 8):
        for tp_rank in {0, num_tp_ranks // 2, num_tp_ranks - 1}:
            check("mask_indices_by_tp", indices, n, num_ep_ranks, tp_rank, num_tp_ranks)


@each_count
@pytest.mark.parametrize("num_topk", [1, 2, 6, 7, 8, 9, 33])
def test_normalize_weight(num_topk, num_tokens, device):
    uniform = torch.rand(num_tokens, num_topk, device=device)
    for weights in (uniform, torch.randn_like(uniform) ** 9, torch.zeros_like(uniform)):
        check("normalize_weight", weights)


@each_index
@each_count
@pytest.mark.parametrize("num_topk", [1, 2, 6, 8, 9, 33])
def test_inplace_unique_group_indices(num_topk, num_tokens, dtype, device):
    for num_groups in (1, 8, 16, 64, 65, 72, 1000):
        groups = torch.randint(-1, num_groups, (num_tokens, num_topk), dtype=dtype, device=device)
        want = groups.clone()
        reference.inplace_unique_group_indices(want, num_groups)
        assert moe.inplace_unique_group_indices(groups, num_groups) is None
        assert_equal(groups, want)


# ---- errors: of sizes that in C are those of the outputs ----

@pytest.mark.parametrize("call, message", [
    (lambda x, i: moe.topk_gate(x, 8), r"num_topk: is 8, want 0\.\.7$"),
    (lambda x, i: moe.topk_gate(x, -1), r"num_topk: is -1, want 0\.\.7$"),
    (lambda x, i: moe.topk_sum_and_topk_group_idx(x[None], 0, 2), r"num_topk_sum: is 0, want 1\.\.7"),
    (lambda x, i: moe.topk_sum_and_topk_group_idx(x[None], 2, 6), r"num_topk_groups: is 6, want 0\.\.5$"),
    (lambda x, i: moe.topk_sum_and_topk_group_idx(x[None], 2, -1), r"num_topk_groups: is -1, want 0\.\.5$"),
    (lambda x, i: moe.mask_indices_by_tp(i, 8, 4, 2, 2), r"tp_rank: is 2, want 0\.\.1"),
    (lambda x, i: moe.mask_indices_by_tp(i, 3, 4, 0, 2), "n: is 3, want >= 4$"),
    (lambda x, i: moe.mask_indices_by_tp(i, 8, 0, 0, 2), "num_ep_ranks: is 0, want >= 1$"),
    (lambda x, i: moe.mask_indices_by_tp(i, 8, 2, 0, 0), "num_tp_ranks: is 0, want >= 1$"),
    (lambda x, i: moe.normalize_weight(x, out=(x[:, 0], x)), "denominator: strides are"),
    (lambda x, i: moe.inplace_unique_group_indices(x, 8), "group_indices: dtype is f32, want i32 or i64"),
    (lambda x, i: moe.group_count(i, -2), "num_groups: is -2, want >= 0$"),
    (lambda x, i: moe.aux_fi(i, -4, 1), "num_experts: is -4, want >= 0$"),
    (lambda x, i: moe.group_count(i, 2**40), r"num_groups: is 1099511627776, want < 2\^31$"),
    (lambda x, i: moe.aux_fi(i, 2**40, 1), r"num_experts: is 1099511627776, want < 2\^31$"),
], ids=range(15))
def test_errors(call, message, device):
    x, i = torch.randn(5, 7, device=device), torch.randint(0, 8, (5, 7), device=device)
    before = x.clone(), i.clone()
    with pytest.raises(ValueError, match="^" + message):
        call(x, i)
    assert torch.equal(x, before[0]) and torch.equal(i, before[1])


# ---- as torch operators ----

@pytest.mark.parametrize("op", [OPS.get_fused_mapping, OPS.get_fused_mapping_with_psum], ids=str)
def test_opcheck_with_lengths_for_the_host(op):
    """The operator of the mapping takes a tensor that the function does not."""
    torch.library.opcheck(op.default, (torch.randint(-1, 8, (6, 4)), 8, 40, 3, torch.zeros(8, dtype=torch.int32)))


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


def test_mapping_that_waits_compiled(device):
    """The graph is interrupted there, without a warning of torch's; where it must not be, the error says why."""
    indices = torch.randint(-1, 8, (6, 4), device=device)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Dynamo")
        seen = torch.compile(lambda x: moe.get_fused_mapping(x + 0, 8, 0, 3), backend="eager")(indices)
    same(seen, moe.get_fused_mapping(indices, 8, 0, 3))
    with pytest.raises(torch._dynamo.exc.Unsupported, match="num_expanded_tokens is 0"):
        torch.compile(lambda x: moe.get_fused_mapping(x, 8, 0, 3), fullgraph=True, backend="eager")(indices)


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
