# SPDX-License-Identifier: MIT
"""Gradients: against autograd of plain float64 code, by finite differences, in compiled code and torch.func; and
an op without one says so instead of losing it."""
import pytest
import torch

from cases import Call, tensors_in
from conftest import on_one_device
from tegula import _tegula, moe, quant
from tegula._gradients import GRADIENTS
from tegula.testing import assert_equal
from test_ops import OPERATORS, operator_of

OPS = torch.ops.tegula
GATE = 4, 2, 4, False, 0, 2.5, 0, 1, 0, 1     # num_topk 4, the best 2 of 4 groups, no shared experts, one rank


def close(seen, want, rtol=1e-5, atol=1e-6):
    torch.testing.assert_close(seen.double(), want.double(), rtol=rtol, atol=atol)


def leaf(*shape, device="cpu", dtype=torch.float32):
    return torch.randn(shape, device=device).to(dtype).requires_grad_()


# ---- plain float64 code that autograd differentiates ----

def plain_reduce(x, x_sf, weights, pos):
    rows = []
    for slots, token in zip(pos.tolist(), range(len(pos))):
        row = x.new_zeros(x.shape[1])
        for k, p in enumerate(slots):
            if 0 <= p < len(x):
                row = row + x[p] * (1 if weights is None else weights[token, k]) * (1 if x_sf is None else x_sf[p])
        rows.append(row)
    return torch.stack(rows)


def plain_expand(x, pos, num_positions):
    rows = [x.new_zeros(x.shape[1])] * num_positions
    for token, slots in enumerate(pos.tolist()):
        for p in slots:
            if 0 <= p < num_positions:
                rows[p] = x[token]
    return torch.stack(rows)


def plain_weights(logits, chosen, mask, scoring_func, scale, renormalize=True):
    """Weights of the experts in chosen, a list of rows."""
    rows = []
    for token, experts in enumerate(chosen):
        x = logits[token]
        x = torch.where(x.isnan(), float("-inf"), x)
        score = {"sigmoid": lambda: 1 / (1 + torch.exp(-x)), "identity": lambda: x,
                 "sqrtsoftplus": lambda: torch.log1p(torch.exp(x)).sqrt(),
                 "softmax": lambda: torch.exp(x - x.max()) / torch.exp(x - x.max()).sum()}[scoring_func]()
        is_held = [0 <= e < len(x) and not logits[token, e].isnan() for e in experts]
        if mask is not None and not mask[token]:
            is_held = [False] * len(experts)
        chosen_scores = [score[e] if held else x.new_zeros(()) for e, held in zip(experts, is_held)]
        total = sum(chosen_scores) + 1e-20 if renormalize else 1
        rows.append(torch.stack([s / total * scale for s in chosen_scores]))
    return torch.stack(rows)


# ---- expand_to_fused, reduce_fused ----

def mapping(device, num_tokens=7, num_topk=3, num_experts=5):
    idx = torch.randint(-1, num_experts + 1, (num_tokens, num_topk), device=device)
    made = moe.get_fused_mapping(idx, num_experts, 0, 4)
    return made[0], made[3]


@pytest.mark.parametrize("dtype, rtol", [(torch.float32, 1e-5), (torch.bfloat16, 2**-7), (torch.float16, 2**-10),
                                         (torch.float64, 1e-12)], ids=str)
def test_expand(dtype, rtol, device):
    owner, pos = mapping(device)
    x = leaf(7, 6, device=device, dtype=dtype)
    wide = x.detach().double().requires_grad_()
    y, want = moe.expand_to_fused(x, pos, owner), plain_expand(wide, pos, len(owner))
    assert y.requires_grad and torch.equal(y.double(), want)
    grad = torch.randn_like(y)
    y.backward(grad)
    want.backward(grad.double())
    close(x.grad, wide.grad, rtol, rtol)
    assert x.grad.dtype == dtype
    y = moe.expand_to_fused(x, pos, owner)
    seen, = torch.autograd.grad(y.sum(), x)         # the gradient of a sum has strides of 0
    close(seen, ((pos >= 0).sum(1, keepdim=True)).expand(7, 6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_expand_to_padding(dtype, device):
    """A row of padding is 0, even where a pair points to it: nothing comes back from it."""
    pos = torch.tensor([[0, 2], [1, 9]], dtype=torch.int32, device=device)
    owner = torch.tensor([0, -1, 0], dtype=torch.int32, device=device)
    x = leaf(2, 3, device=device, dtype=dtype)
    moe.expand_to_fused(x, pos, owner).sum().backward()
    assert x.grad.tolist() == [[2.0] * 3, [0.0] * 3]


@pytest.mark.parametrize("has_weights", [False, True])
@pytest.mark.parametrize("dtype, rtol", [(torch.float32, 1e-5), (torch.bfloat16, 2**-7)], ids=str)
def test_reduce(dtype, rtol, has_weights, device):
    """Also where a position is read twice, or is none."""
    x, w = leaf(20, 6, device=device, dtype=dtype), leaf(7, 3, device=device) if has_weights else None
    pos = torch.randint(-2, 22, (7, 3), device=device, dtype=torch.int32)
    pos[0], pos[1] = pos[1].clone(), torch.tensor([4, 4, 9], device=device)
    wide = [None if t is None else t.detach().double().requires_grad_() for t in (x, w)]
    y = moe.reduce_fused(x, w, pos)
    want = plain_reduce(wide[0], None, wide[1], pos)
    close(y.detach(), want.detach(), rtol, rtol)
    grad = torch.randn_like(y)
    y.backward(grad)
    want.backward(grad.double())
    for seen, plain in zip((x, w), wide):
        if seen is not None:
            close(seen.grad, plain.grad, rtol, rtol * 4)
            assert seen.grad.dtype == seen.dtype


def test_reduce_of_codes(device):
    """Weights have a gradient where x is quantised; codes and factors have none."""
    x, sf = torch.randn(20, 6, device=device).to(torch.float8_e4m3fn), torch.rand(20, device=device)
    w, pos = leaf(7, 3, device=device), torch.randint(-1, 20, (7, 3), device=device, dtype=torch.int32)
    wide = w.detach().double().requires_grad_()
    OPS.reduce_fused(x.float(), sf, w, pos).sum().backward()
    plain_reduce(x.double(), sf.double(), wide, pos).sum().backward()
    close(w.grad, wide.grad)
    rows, wide_rows = x.float().requires_grad_(), x.double().requires_grad_()
    OPS.reduce_fused(rows, sf, w, pos).sum().backward()
    plain_reduce(wide_rows, sf.double(), wide, pos).sum().backward()
    close(rows.grad, wide_rows.grad)
    y = OPS.reduce_fused(rows, sf.requires_grad_(), w, pos)
    with pytest.raises(NotImplementedError, match=r"^reduce_fused\(\): the scale factors of x have no gradient"):
        y.sum().backward()
    y = moe.reduce_fused(x.clone().requires_grad_(), w, pos)
    assert y.requires_grad and y.dtype == torch.float8_e4m3fn
    with pytest.raises(NotImplementedError, match=r"^reduce_fused\(\): x in torch.float8_e4m3fn has no gradient"):
        y.float().sum().backward()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_expand_of_codes(dtype, device):
    owner, pos = mapping(device)
    y = moe.expand_to_fused(leaf(7, 6, device=device, dtype=dtype), pos, owner)
    with pytest.raises(NotImplementedError, match=rf"^expand_to_fused\(\): x in {dtype} has no gradient: detach\(\) it"):
        y.float().sum().backward()


def test_arrays_of_another_library():
    """What backward needs of them is kept, whatever is written to them later."""
    numpy = pytest.importorskip("numpy")
    owner, pos = mapping("cpu")
    x, w = leaf(len(owner), 6), torch.rand(7, 3)
    want, = torch.autograd.grad(moe.reduce_fused(x, w, pos).sum(), x)
    arrays = w.numpy(), pos.numpy().copy()
    arrays[0].flags.writeable = False
    y = moe.reduce_fused(x, *arrays)
    arrays[1][:] = 0
    close(torch.autograd.grad(y.sum(), x)[0], want)
    logits, mask = leaf(7, 16), numpy.arange(7) % 2 > 0
    want, = torch.autograd.grad(moe.top2_sum_gate(logits, None, *GATE, "sigmoid", torch.tensor(mask))[1][:, 0].sum(), logits)
    seen, = torch.autograd.grad(moe.top2_sum_gate(logits, None, *GATE, "sigmoid", mask)[1][:, 0].sum(), logits)
    assert want.any()
    close(seen, want)


@pytest.mark.filterwarnings("ignore:.*double precision")
def test_finite_differences(device):
    """Both are linear in x and in the weights, so that a difference over 1/4 is exact but for float32's rounding:
    1e-5 for numbers of this size."""
    owner, pos = mapping(device)
    x, w = leaf(7, 2, device=device), leaf(7, 3, device=device)
    rows = leaf(len(owner), 2, device=device)
    settings = {"eps": 0.125, "atol": 1e-4, "rtol": 1e-4}
    assert torch.autograd.gradcheck(lambda x: moe.expand_to_fused(x, pos, owner), (x,), **settings)
    assert torch.autograd.gradcheck(lambda x, w: moe.reduce_fused(x, w, pos), (rows, w), **settings)
    assert torch.autograd.gradcheck(lambda x, w: OPS.reduce_fused(x, None, w, pos), (rows, w), **settings)
    assert torch.autograd.gradgradcheck(lambda x, w: moe.reduce_fused(x, w, pos), (rows, w), **settings)
    double = leaf(7, 2, device=device, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: moe.expand_to_fused(x, pos, owner), (double,))
    assert torch.autograd.gradgradcheck(lambda x: moe.expand_to_fused(x, pos, owner), (double,))


def test_nothing_to_add(device):
    for num_tokens, num_positions, num_topk in ((0, 8, 2), (3, 0, 2), (3, 8, 0)):
        pos = torch.full((num_tokens, num_topk), 9, dtype=torch.int32, device=device)
        x, w = leaf(num_positions, 4, device=device), leaf(num_tokens, num_topk, device=device)
        moe.reduce_fused(x, w, pos).sum().backward()
        assert not x.grad.any() and x.grad.shape == x.shape and not w.grad.any() and w.grad.shape == w.shape
        x = leaf(num_tokens, 4, device=device)
        owner = torch.zeros(num_positions, dtype=torch.int32, device=device) - 1
        moe.expand_to_fused(x, pos, owner).sum().backward()
        assert not x.grad.any() and x.grad.shape == x.shape


# ---- weights ----

def test_normalize_weight(device):
    w = torch.rand(9, 5, device=device).requires_grad_()
    wide = w.detach().double().requires_grad_()
    total = 1e-20 + wide.sum(1)
    want = total, wide / total[:, None]
    seen = moe.normalize_weight(w)
    grads = torch.randn(9, device=device), torch.randn(9, 5, device=device)
    first, = torch.autograd.grad(seen, w, grads, create_graph=True)
    plain, = torch.autograd.grad(want, wide, [g.double() for g in grads], create_graph=True)
    close(first.detach(), plain.detach())
    close(torch.autograd.grad(first.square().sum(), w)[0], torch.autograd.grad(plain.square().sum(), wide)[0], 1e-4, 1e-4)
    w.grad = None
    moe.normalize_weight(w)[1].square().sum().backward()        # one of two outputs
    wide.grad = None
    (wide / (1e-20 + wide.sum(1, keepdim=True))).square().sum().backward()
    close(w.grad, wide.grad)


def gate_case(case, device):
    """(bias, keywords of the gate)"""
    bias = 0.01 * torch.randn(16, device=device)
    more = {}
    if case in ("mask", "all"):
        more["mask"] = torch.arange(12, device=device) % 3 > 0
    if case in ("map", "all"):
        more["to_physical_map"] = torch.randint(0, 18, (16, 3), device=device, dtype=torch.int32)
        more["logical_count"] = torch.randint(1, 4, (16,), device=device, dtype=torch.int32)
    if case in ("fixed", "all"):
        more["fix_routing_mask"] = torch.arange(12, device=device) % 2 > 0
    if case in ("fixed", "unmapped", "all"):
        more["unmapped_topk_idx"] = torch.randint(-2, 18, (12, 4), device=device)
    return (None if case == "map" else bias), more


@pytest.mark.parametrize("scoring_func", ["sigmoid", "SqrtSoftplus", "softmax"])
@pytest.mark.parametrize("case", ["plain", "mask", "map", "ranks", "fixed", "unmapped", "all"])
def test_top2_sum_gate(case, scoring_func, device):
    logits = 3 * torch.randn(12, 16, device=device)
    logits[2, 5], logits[3] = float("nan"), torch.full((16,), -200.0)      # scores of 0, of a whole row
    bias, more = gate_case(case, device)
    ranks = (0, 2, 1, 2) if case in ("ranks", "all") else (0, 1, 0, 1)
    args = bias, 4, 2, 4, False, 0, 2.5, *ranks, scoring_func
    chosen = torch.empty(12, 4, dtype=torch.int64, device=device)
    if "unmapped_topk_idx" in more:
        chosen.copy_(more["unmapped_topk_idx"])
    moe.top2_sum_gate(logits, bias, *args[1:7], 0, 1, 0, 1, scoring_func, mask=more.get("mask"),
                      fix_routing_mask=more.get("fix_routing_mask"), unmapped_topk_idx=chosen)
    x, wide = logits.clone().requires_grad_(), logits.double().requires_grad_()
    want = plain_weights(wide, chosen.tolist(), more.get("mask"), scoring_func.lower(), 2.5)
    grad = torch.randn(12, 4, device=device)
    expected, = torch.autograd.grad(want, wide, grad.double())
    expected = expected.nan_to_num(0)           # of a NaN logit; and of scores of 0, which float64 has not
    if scoring_func != "softmax":
        expected[3] = 0
    for call in (moe.top2_sum_gate, OPS.top2_sum_gate):
        given = {k: v.clone() for k, v in more.items()}
        idx, weights = call(x, *args, **given)
        assert weights.requires_grad and not idx.requires_grad
        close(weights[:3].detach(), want[:3].detach(), 1e-5, 1e-6)
        idx.fill_(-1)                           # the user's: what the gradient needs was kept
        for t in given.values():
            if t is given.get("unmapped_topk_idx"):
                t.fill_(3)
        seen, = torch.autograd.grad(weights, x, grad)
        close(seen, expected, 1e-4, 1e-5)
    made = moe.route(x, *args, 18, 64, 4, **{k: v.clone() for k, v in more.items()})
    close(torch.autograd.grad(made[1], x, grad)[0], expected, 1e-4, 1e-5)
    made = moe.route(x, *args, 18, 64, 4, with_psum=True, **{k: v.clone() for k, v in more.items()})
    assert [t.requires_grad for t in made] == [False, True] + [False] * 9
    close(torch.autograd.grad(made[1], x, grad)[0], expected, 1e-4, 1e-5)


def test_bias_and_shared_experts(device):
    """A bias takes part in the choice only, and shared experts have a weight of their own."""
    logits, bias = leaf(6, 16, device=device), leaf(16, device=device)
    table = torch.arange(18 * 3, device=device, dtype=torch.int32).view(18, 3)
    count = torch.ones(18, device=device, dtype=torch.int32)
    args = 4, 2, 4, True, 2, 2.5, 0, 1, 0, 1, "sigmoid"
    idx, weights = moe.top2_sum_gate(logits, bias, *args, to_physical_map=table, logical_count=count)
    assert weights.shape == (6, 6)
    weights[:, 4:].sum().backward(retain_graph=True)
    assert not logits.grad.any() and not bias.grad.any()
    weights[:, 0].sum().backward()
    assert logits.grad.any() and not bias.grad.any()


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("scoring_func", ["sigmoid", "sqrtsoftplus", "softmax", "identity"])
def test_hash_gate(scoring_func, renormalize, device):
    logits = torch.randn(12, 16, device=device)
    if scoring_func == "identity":
        logits = logits.abs() + 1
    ids, table = torch.randint(-1, 22, (12,), device=device), torch.randint(-1, 17, (20, 4), device=device)
    ids[:2], table[3] = 3, torch.tensor([5, 5, -1, 7], device=device)      # an expert twice
    logits[1, 5] = float("nan")                                            # and in the next row a NaN
    mask = torch.arange(12, device=device) % 4 != 2
    x, wide = logits.clone().requires_grad_(), logits.double().requires_grad_()
    chosen = [table[i].tolist() if 0 <= i < 20 else [-1] * 4 for i in ids.tolist()]
    want = plain_weights(wide, chosen, mask, scoring_func, 1.5, renormalize)
    grad = torch.randn(12, 4, device=device)
    _, weights = moe.hash_gate(x, ids, table, 1.5, scoring_func, renormalize, mask)
    close(weights.detach(), want.detach())
    expected, = torch.autograd.grad(want, wide, grad.double())
    assert not expected[1, 5].nan_to_num(0)
    close(torch.autograd.grad(weights, x, grad)[0], expected.nan_to_num(0), 1e-4, 1e-5)


@pytest.mark.parametrize("num_experts", [16, 0])
def test_hash_gate_with_shared_experts(num_experts, device):
    logits = leaf(6, num_experts, device=device)
    ids, table = torch.arange(6, device=device), torch.randint(-1, 17, (6, 4), device=device)
    more = {"use_shared_as_routed": True, "num_shared_experts": 2,
            "to_physical_map": torch.zeros(num_experts + 2, 3, dtype=torch.int32, device=device),
            "logical_count": torch.ones(num_experts + 2, dtype=torch.int32, device=device)}
    _, weights = moe.hash_gate(logits, ids, table, 1.5, "sigmoid", **more)
    assert weights.shape == (6, 6)
    grad, wide = torch.randn(6, 6, device=device), logits.detach().double().requires_grad_()
    want = plain_weights(wide, table.tolist(), None, "sigmoid", 1.5)
    expected = torch.autograd.grad(want, wide, grad[:, :4].double())[0] if num_experts else wide
    close(torch.autograd.grad(weights, logits, grad)[0], expected.detach())


def test_softmax_of_no_numbers(device):
    """A row without a finite sum has weights of 0, and its gradient is 0. What a slot without an expert is given does not
    matter."""
    logits, table = torch.randn(5, 16, device=device), torch.tensor([[1, 2, 3, -1]], device=device)
    logits[0], logits[1], logits[2, 3] = float("nan"), float("-inf"), float("inf")
    x, grad = logits.requires_grad_(), torch.randn(5, 4, device=device)
    grad[3, 3] = float("nan")
    _, weights = moe.hash_gate(x, torch.zeros(5, dtype=torch.int64, device=device), table, 1.5, "softmax")
    seen, = torch.autograd.grad(weights, x, grad)
    assert not weights[:3].any() and not seen[:3].any()
    assert seen[3:].isfinite().all() and seen[3:].any(1).all()


# ---- SwiGLU: the op that computes its gradients ----

@pytest.mark.parametrize("clamp", [None, 0.75])
def test_swiglu_backward(clamp, device):
    owner, pos = mapping(device)
    num_rows, hidden = len(owner), 64
    codes, sf = quant.per_token_cast(torch.randn(num_rows, 2 * hidden, device=device), "e4m3", 32)
    weight, grad = torch.rand(pos.shape, device=device), torch.randn(num_rows, hidden, device=device).bfloat16()
    pairs = torch.full((num_rows,), -1, dtype=torch.int32, device=device)
    held = pos.flatten() >= 0
    pairs[pos.flatten()[held].long()] = torch.arange(pos.numel(), device=device, dtype=torch.int32)[held]
    made = quant.swiglu_backward_and_per_token_cast((codes, sf), grad, weight, pairs, pos, 32, False, clamp)
    x = (codes.double() * sf.double().repeat_interleave(32, 1)).requires_grad_()
    w = weight.double().requires_grad_()
    gate, up = x.chunk(2, 1)
    if clamp is not None:
        gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
    each = torch.stack([w.flatten()[p] if p >= 0 else w.new_zeros(()) for p in pairs.tolist()])
    out = gate * torch.sigmoid(gate) * up * each[:, None]
    out.backward(grad.double())
    close(made[0], out.detach(), 2**-8, 1e-6)                   # bfloat16's rounding
    close(made[2], x.grad, 2**-8, 1e-6)
    close(made[3], w.grad, 1e-4, 1e-5)
    assert made[0].requires_grad is False


# ---- ops without a gradient ----

NAMES = {row["name"] for row in _tegula.table() if row["has_float_output"]} - set(GRADIENTS)
NAMES -= {"aux_fi", "engram_hash", "mask_indices_by_tp", "unpack_from_e2m1fn_x2"}      # of integers
WRITERS = {"engram_sinkhorn_momentum_update", "engram_sinkhorn_step", "mhc_pre_apply_mix_bwd_into",
           "mhc_norm_fn_bwd_into", "mhc_norm_fn_bwd_weighted_into"}     # in place
NAMES -= WRITERS


@pytest.mark.parametrize("name", sorted(NAMES))
def test_no_gradient_is_said(name, device):
    call = Call(OPERATORS[name], device)
    leaves = [t.requires_grad_() for t in tensors_in(call.args) if t.is_floating_point() and t.element_size() > 1]
    outputs = tensors_in(call())
    assert [t.requires_grad for t in outputs] == [t.is_floating_point() for t in outputs]
    for t in outputs:
        if t.requires_grad:
            with pytest.raises(NotImplementedError, match=rf"^{name}\(\) has no gradient: .*detach\(\) its argu"):
                torch.autograd.grad(t, leaves, torch.ones_like(t), retain_graph=True)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert not any(t.requires_grad for t in tensors_in(call()))
    for seen, want in zip(tensors_in(Call(OPERATORS[name], device)()), outputs, strict=True):
        assert not seen.requires_grad
        assert_equal(seen, want.detach())


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_no_gradient_of_a_write_in_place(name, device):
    call = Call(OPERATORS[name], device)
    for t in tensors_in(call.args):
        t.requires_grad_()
    with pytest.raises(RuntimeError, match=rf"^{name}\(\): a write in place has no gradient"):
        call()
    with torch.no_grad():
        assert not any(t.requires_grad for t in tensors_in(call()))


@pytest.mark.parametrize("name", sorted(row["name"] for row in _tegula.table() if not row["results"]))
def test_no_gradient_of_what_is_only_read(name, device):
    """An op that returns nothing cannot say later that a gradient is missing."""
    def floats(args):
        return [t for t in tensors_in(args) if t.is_floating_point() and t.element_size() > 1]

    refused = pytest.raises(RuntimeError, match=rf"^{name}\(\): a write in place has no gradient, but an argument")
    for i in range(len(floats(Call(OPERATORS[name], device).args))):
        call, (op, args, _) = Call(OPERATORS[name], device), operator_of(OPERATORS[name], device)
        for given in (call.args, args):
            floats(given)[i].requires_grad_()
        with refused:
            call()
        with refused:
            op(*args)
        with torch.no_grad():
            call()
            op(*args)


def test_detached_in_half_the_graph(device):
    """What is detached needs no gradient, before the op or after."""
    x = leaf(4, 32, device=device)
    codes, sf = quant.per_token_cast(x, "e4m3", 32)
    rounded = quant.per_token_cast_back((codes, sf), "fp32", 32)
    (x + (rounded - x).detach()).sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))


def test_out_is_refused(device):
    x, outs = leaf(4, 32, device=device), (torch.empty(4, 32, device=device).to(torch.float8_e4m3fn),
                                           torch.empty(4, 1, device=device))
    pos = torch.zeros(4, 1, dtype=torch.int32, device=device)
    for call in (lambda: quant.per_token_cast(x, "e4m3", 32, out=outs),
                 lambda: moe.reduce_fused(x, None, pos, out=torch.empty(4, 32, device=device)),
                 lambda: moe.reduce_fused(x.detach(), None, pos, out=leaf(4, 32, device=device)),
                 lambda: OPS.reduce_fused.out(x, None, None, pos, out=torch.empty(4, 32, device=device)),
                 lambda: torch.func.grad(lambda x: moe.reduce_fused(
                     x, None, pos, out=torch.empty(4, 32, device=device)).sum())(x.detach())):
        with pytest.raises(RuntimeError, match=r"^\w+\(\): out= has no gradient, but an argument requires one"):
            call()
    with torch.no_grad():
        quant.per_token_cast(x, "e4m3", 32, out=outs)
        OPS.reduce_fused.out(x, None, None, pos, out=torch.empty(4, 32, device=device))
    choice = torch.empty(4, 2, dtype=torch.int64, device=device)
    assert moe.topk_gate(x, 2, out=choice) is choice            # integers: nothing is lost


# ---- torch.func, torch.compile, opcheck ----

def layer(logits, x, scale):
    """Experts differ, else a token's weights, which add up to 1, would not matter and their gradient be rounding errors."""
    idx, weights = moe.top2_sum_gate(logits, None, *GATE, "sqrtsoftplus")
    made = moe.get_fused_mapping(idx, 16, 80, 4)
    expanded = moe.expand_to_fused(x, made[3], made[0]) * scale[made[0].clamp(min=0)]
    weights = moe.normalize_weight(weights)[1]
    return moe.reduce_fused(expanded, weights, made[3])


@on_one_device
def test_layer_compiled(device):
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for num_tokens in (12, 7):
        given = [leaf(num_tokens, 16, device=device), leaf(num_tokens, 6, device=device), leaf(16, 6, device=device)]
        grad = torch.randn(num_tokens, 6, device=device)
        want = torch.autograd.grad(layer(*given), given, grad)
        assert all(w.abs().max() > 1e-3 for w in want)
        for seen, w in zip(torch.autograd.grad(compiled(*given), given, grad), want, strict=True):
            close(seen, w)


@on_one_device
@pytest.mark.filterwarnings("ignore:There is a performance drop")       # of vmap without a rule
def test_torch_func_of_a_layer(device):
    given = [torch.randn(n, device=device) for n in ((7, 16), (7, 6), (16, 6))]
    leaves = [t.clone().requires_grad_() for t in given]
    want = torch.autograd.grad(layer(*leaves).square().sum(), leaves)
    seen = torch.func.grad(lambda *args: layer(*args).square().sum(), argnums=(0, 1, 2))(*given)
    for s, w in zip(seen, want, strict=True):
        close(s, w)
    rows = torch.rand(3, 6, 8, device=device)
    seen = torch.func.vmap(torch.func.grad(lambda x: moe.normalize_weight(x)[1].square().sum()))(rows)
    for s, row in zip(seen, rows, strict=True):
        close(s, torch.func.grad(lambda x: moe.normalize_weight(x)[1].square().sum())(row))


@on_one_device
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_batch_of_weights(device):
    """The gradient, which is no batch, adds up to one."""
    owner, pos = mapping(device)
    x, weights = torch.randn(len(owner), 6, device=device), torch.rand(4, 7, 3, device=device)
    grad = torch.randn(7, 6, device=device)

    def pull(w):
        return torch.func.vjp(lambda x: moe.reduce_fused(x, w, pos), x)[1](grad)[0]

    for seen, w in zip(torch.func.vmap(pull)(weights), weights, strict=True):
        close(seen, pull(w))


@on_one_device
@pytest.mark.parametrize("name", ["expand_to_fused", "reduce_fused", "normalize_weight", "top2_sum_gate", "mapped",
                                  "hash_gate", "route"])
def test_opcheck(name, device):
    owner, pos = mapping(device)
    logits, x, w = leaf(7, 16, device=device), leaf(7, 6, device=device), torch.rand(7, 3, device=device)
    _, more = gate_case("map", device)
    gate = None, *GATE, "sigmoid"
    op, args, kwargs = {
        "expand_to_fused": (OPS.expand_to_fused, (x, pos, owner), {}),
        "reduce_fused": (OPS.reduce_fused, (leaf(len(owner), 6, device=device), None, w.requires_grad_(), pos), {}),
        "normalize_weight": (OPS.normalize_weight, (w,), {}),
        "top2_sum_gate": (OPS.top2_sum_gate, (logits, *gate), {
            "unmapped_topk_idx": torch.zeros(7, 4, dtype=torch.int64, device=device)}),
        "mapped": (OPS.top2_sum_gate, (logits, *gate), more),
        "hash_gate": (OPS.hash_gate, (logits, torch.arange(7, device=device), torch.arange(
            20, device=device).view(5, 4), 1.0), {}),
        "route": (OPS.route, (logits, *gate, 16, 80, 4), {}),
    }[name]
    if name in ("expand_to_fused", "reduce_fused", "normalize_weight"):
        torch.library.opcheck(op.default, args, kwargs)
        return
    # its check of compiled code adds up outputs and wants the first to be of floating point
    torch.library.opcheck(op.default, args, kwargs, test_utils=[
        "test_schema", "test_autograd_registration", "test_faketensor"])
    compiled = torch.compile(lambda: op(*args, **kwargs), fullgraph=True, backend="aot_eager")
    grad = torch.randn_like(compiled()[1])
    seen, want = (torch.autograd.grad(f()[1], logits, grad)[0] for f in (compiled, lambda: op(*args, **kwargs)))
    assert want.any()
    close(seen, want)


# ---- forward mode ----

def test_forward_mode_is_refused(device):
    w = torch.rand(6, 4, device=device)
    with pytest.raises(NotImplementedError, match=r"^normalize_weight\(\) has no gradient in forward mode"):
        torch.func.jvp(lambda w: moe.normalize_weight(w)[1], (w,), (w,))
    with torch.autograd.forward_ad.dual_level():
        assert not moe.normalize_weight(w)[1].requires_grad         # nothing is dual
        dual = torch.autograd.forward_ad.make_dual(w, w)
        with pytest.raises(NotImplementedError, match=r"^normalize_weight\(\) has no gradient in forward mode"):
            moe.normalize_weight(dual)
