# SPDX-License-Identifier: MIT
"""Engram's gate from Python: against the reference and its gradients, and the layers of tegula.modeling."""
import ctypes
import pathlib

import pytest
import torch

import golden
import tegula.torch as reference
from tegula import engram
from tegula.modeling import engram as modeling
from tegula.modeling.engram import EngramGateFn, engram_gate, engram_gate_kv
from tegula.testing import calc_diff
from tegula.testing.generator import generate_hidden_sizes
from conftest import IS_FULL

SIZES = generate_hidden_sizes(128) if IS_FULL else [2560]


def gate_data(tokens, streams, hidden, device):
    """(hidden_states, k, v, weight_hidden, weight_embed), as in TileKernels' tests."""
    def randn(*shape):
        return torch.randn(*shape, device=device).bfloat16()

    return (randn(tokens, streams, hidden), randn(tokens, streams, hidden), randn(tokens, hidden),
            randn(streams, hidden), randn(streams, hidden))


def away_from_zero(data):
    """The same with scores away from 0, where gradients change fast: keys like hidden states, weights of one sign."""
    x, k, v, wh, we = data
    return x, (x.float() + 0.5 * k.float()).bfloat16(), v, wh.abs(), we.abs()


@pytest.mark.parametrize("hidden", [*SIZES, 100, 257])
@pytest.mark.parametrize("tokens, streams", [(0, 4), (40, 4), (7, 3)])
def test_forward(tokens, streams, hidden, device):
    x, k, v, wh, we = gate_data(tokens, streams, hidden, device)
    fused = engram.fused_weight(wh, we)
    made = engram.engram_gate_fwd(x, k, v, fused, 1e-20, 1e-6)
    want = reference.engram_gate_ref(x, k, v, wh, we, 1e-6, 1e-20, True)
    for a, b in zip(made, want):
        assert calc_diff(a, b) < 2e-10 + 2.4e-5 * 3 / max(1, a.numel())      # three elements of bf16 the other way
    alone, *none = engram.engram_gate_fwd(x, k, v, fused, 1e-20, 1e-6, False)
    assert none == [None] * 4 and torch.equal(alone, made[0])
    both = engram.engram_gate_fwd(x, k, v, None, 1e-20, 1e-6, weights=(wh, we))
    assert all(torch.equal(a, b) for a, b in zip(both, made))
    for scores in (engram.engram_gate_scores(x, k, fused, 1e-20, 1e-6),
                   engram.engram_gate_scores(x, k, None, 1e-20, 1e-6, weights=(wh, we))):
        assert all(torch.equal(a, b) for a, b in zip(scores, made[1:]))
    kv = torch.cat([k, v[:, None]], 1)
    for a, b in zip(engram.engram_gate_kv_fwd(x, kv, fused, 1e-20, 1e-6, sign="zero"), made):
        assert torch.equal(a, b)
    for a, b in zip(engram.engram_gate_fwd(x, kv[:, :streams], kv[:, streams], fused, 1e-20, 1e-6), made):
        assert torch.equal(a, b)


@pytest.mark.parametrize("hidden", SIZES)
def test_backward(hidden, device):
    """With what the reference saved, as in TileKernels' tests."""
    x, k, v, wh, we = gate_data(60, 4, hidden, device)
    leaves = [t.clone().requires_grad_() for t in (x, k, v)] + [t.float().requires_grad_() for t in (wh, we)]
    output, *saved = reference.engram_gate_ref(*leaves, 1e-6, 1e-20, True)
    go = torch.randn_like(output)
    output.backward(go)
    saved = [t.detach() for t in saved]
    fused = engram.fused_weight(wh, we)
    made = engram.engram_gate_bwd(go, x, k, v, fused, *saved, 1e-6)
    grads = [torch.zeros(4, hidden, device=device) for _ in range(2)]
    engram.grad_w_reduce(made[3], wh, we, *grads)
    for a, leaf in zip((*made[:3], *grads), leaves):
        assert calc_diff(a, leaf.grad) < 1e-8
    kv = torch.cat([k, v[:, None]], 1)
    grad_x, grad_kv, partial = engram.engram_gate_kv_bwd(go, x, kv, fused, *saved, 1e-6)
    assert torch.equal(grad_x, made[0]) and torch.equal(partial, made[3])
    assert torch.equal(grad_kv, torch.cat([made[1], made[2][:, None]], 1))


def test_num_partials():
    """As many as C finds fast."""
    library, = pathlib.Path(engram.__file__).parents[1].glob("libtegula.*")
    num_partials = ctypes.CDLL(str(library)).tgl_engram_gate_num_partials
    num_partials.restype, num_partials.argtypes = ctypes.c_int64, [ctypes.c_int64]
    for hidden in (1, 100, 1792, 1793, 2560, 3584, 3585, 5120, 7168):
        x = torch.zeros(1, 1, hidden).bfloat16()
        fused, one = torch.zeros(1, hidden), torch.zeros(1, 1)
        made = engram.engram_gate_bwd(x, x, x, x[0], fused, one, one, one, one, 1e-6)
        assert made[3].shape == (num_partials(hidden), 1, hidden)


def test_masked_tokens(device):
    x, k, v, wh, we = gate_data(9, 3, 72, device)
    mask = torch.arange(9, device=device) % 3 == 0
    kv = torch.cat([k, v[:, None]], 1)
    want = engram.engram_gate_kv_fwd(x, kv, None, 1e-20, 1e-6, weights=(wh, we))[0]
    kv[mask] = float("nan")
    made = engram.engram_gate_kv_fwd(x, kv, None, 1e-20, 1e-6, True, mask, weights=(wh, we))
    assert torch.equal(made[0], torch.where(mask[:, None, None], x, want)) and not any(t[mask].any() for t in made[1:])
    in_place = x.clone()
    same, *none = engram.engram_gate_kv_fwd(in_place, kv, None, 1e-20, 1e-6, False, mask, True, weights=(wh, we))
    assert same is in_place and none == [None] * 4 and torch.equal(same, made[0])
    grads = engram.engram_gate_kv_bwd(x, x, kv, None, *made[1:], 1e-6, mask, weights=(wh, we))
    assert torch.equal(grads[0][mask], x[mask]) and not grads[1][mask].any() and not grads[2].isnan().any()


def test_signs_of_zero(device):
    """The v1 names follow the reference, those with kv the model's code."""
    x, k, v, wh, we = gate_data(1, 1, 8, device)
    k = torch.zeros_like(k)
    kv, fused = torch.cat([k, v[:, None]], 1), engram.fused_weight(wh, we)
    assert engram.engram_gate_fwd(x, k, v, fused, 1e-20, 1e-6)[2].item() == 0.5
    assert engram.engram_gate_kv_fwd(x, kv, fused, 1e-20, 1e-6)[2].item() == pytest.approx(0.50025, abs=1e-7)
    assert engram.engram_gate_kv_fwd(x, kv, fused, 1e-20, 1e-6, sign="zero")[2].item() == 0.5


# ---- layers ----

def by_autograd(data, go, clamp_value, eps, add_residual=True):
    leaves = [t.detach().clone().float().requires_grad_() for t in data]
    x, k, v, wh, we = leaves
    output = reference.engram_gate_ref(x, k, v, wh, we, clamp_value, eps)
    (output if add_residual else output - x).backward(go.float())
    return output, [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("shape", [(5,), (2, 3), (1, 2, 2)], ids=str)
@pytest.mark.parametrize("is_strided", [False, True])
def test_layer(shape, is_strided, device):
    data = away_from_zero(gate_data(12, 4, 72, device))
    flat = [t[:torch.Size(shape).numel()] for t in data[:3]] + list(data[3:])
    x, k, v = (t.clone().view(*shape, *t.shape[1:]) for t in flat[:3])
    go = torch.randn_like(x)
    if is_strided:
        k, v, go = (t.transpose(0, -1).contiguous().transpose(0, -1) for t in (k, v, go))
    leaves = [t.detach().requires_grad_() for t in (x, k, v, *flat[3:])]
    output = engram_gate(*leaves, 1e-6, 1e-20)
    output.backward(go)
    want, grads = by_autograd(flat, go.reshape(flat[0].shape), 1e-6, 1e-20)
    assert output.shape == x.shape and calc_diff(output.detach().reshape(want.shape), want.detach()) < 1e-5
    for leaf, grad in zip(leaves, grads):
        assert leaf.grad.dtype == leaf.dtype and calc_diff(leaf.grad.reshape(grad.shape), grad) < 1e-5


@pytest.mark.parametrize("has_main", [(True, True), (True, False), (False, True)])
def test_main_grad(has_main, device):
    """Added to in float32, over two micro-batches; the other weight has its gradient from autograd."""
    x, k, v, *weights = away_from_zero(gate_data(6, 2, 40, device))
    weights = [torch.nn.Parameter(w) for w in weights]
    for w, has in zip(weights, has_main):
        if has:
            w.main_grad = torch.zeros(w.shape, device=device)
    go = torch.randn_like(x)
    for part in (slice(0, 2), slice(2, 6)):
        engram_gate(x[part], k[part], v[part], *weights, 1e-6, 1e-20).backward(go[part])
    grads = by_autograd((x, k, v, *weights), go, 1e-6, 1e-20)[1][3:]
    for w, has, grad in zip(weights, has_main, grads):
        assert (w.grad is None) == has
        assert calc_diff(w.main_grad if has else w.grad, grad) < (1e-9 if has else 1e-5)


def test_layer_without_residual_and_without_gradients(device):
    data = away_from_zero(gate_data(6, 2, 40, device))
    leaves = [t.clone().requires_grad_() for t in data]
    go = torch.randn_like(data[0])
    engram_gate(*leaves, 1e-6, 1e-20, False).backward(go)
    for leaf, grad in zip(leaves, by_autograd(data, go, 1e-6, 1e-20, False)[1]):
        assert calc_diff(leaf.grad, grad) < 1e-5
    assert not EngramGateFn.apply(*data, 1e-6, 1e-20).requires_grad
    x = data[0].clone().requires_grad_()                # only this one
    engram_gate(x, *data[1:], 1e-6, 1e-20).backward(go)
    assert calc_diff(x.grad, by_autograd(data, go, 1e-6, 1e-20)[1][0]) < 1e-5


@pytest.mark.parametrize("form", ["k_and_v", "kv"])
def test_nothing_is_saved_without_gradients(form, monkeypatch, device):
    """Parameters require a gradient even where none is recorded."""
    x, k, v, *weights = gate_data(3, 2, 8, device)
    weights = [torch.nn.Parameter(w) for w in weights]
    name, gate, args = {
        "k_and_v": ("engram_gate_fwd", modeling.engram_gate, (x, k, v, *weights)),
        "kv": ("engram_gate_kv_fwd", modeling.engram_gate_kv, (x, torch.cat([k, v[:, None]], 1), *weights))}[form]
    forward, saves = getattr(modeling, name), []

    def spy(*args, **kwargs):
        made = forward(*args, **kwargs)
        saves.append(made[1] is not None)
        return made

    monkeypatch.setattr(modeling, name, spy)
    want = gate(*args, clamp_value=1e-6, eps=1e-20)
    with torch.no_grad():
        seen = gate(*args, 1e-6, 1e-20)
    with torch.inference_mode():
        gate(*args, 1e-6, 1e-20)
    assert saves == [True, False, False] and want.requires_grad and not seen.requires_grad
    assert torch.equal(seen, want)


@pytest.mark.parametrize("zero_centered", [False, True])
@pytest.mark.parametrize("form", ["k_and_v", "kv"])
def test_layer_with_mask(form, zero_centered, device):
    x, k, v, wh, we = away_from_zero(gate_data(6, 2, 40, device))
    mask, go = torch.arange(6, device=device) == 2, torch.randn_like(x)
    given = [k.view(2, 3, 2, 40), v.view(2, 3, 40)]
    if form == "kv":
        given = [torch.cat([k.flatten(1), v], 1).view(2, 3, 120)]       # [..., (H + 1) * D]
    leaves = [t.clone().requires_grad_() for t in (x.view(2, 3, 2, 40), *given, wh, we)]
    strided = torch.stack([mask, ~mask], 1)[:, 0].view(2, 3)
    layer = engram_gate_kv if form == "kv" else engram_gate
    output = layer(*leaves, 1e-6, 1e-20, image_token_mask=strided, zero_centered=zero_centered)
    output.backward(go.view(2, 3, 2, 40))
    one = 1 if zero_centered else 0
    kept = ~mask
    want, grads = by_autograd((x[kept], k[kept], v[kept], wh.float() + one, we.float() + one), go[kept], 1e-6, 1e-20)
    assert torch.equal(output.detach().view(6, 2, 40)[mask], x[mask])
    assert calc_diff(output.detach().view(6, 2, 40)[kept], want.detach()) < 1e-5
    grad_x, *grads_of_keys_and_values = [leaf.grad for leaf in leaves[:-2]]
    assert torch.equal(grad_x.view(6, 2, 40)[mask], go[mask])
    assert calc_diff(grad_x.view(6, 2, 40)[kept], grads[0]) < 1e-5
    grad_kv = torch.cat([grad.view(6, -1) for grad in grads_of_keys_and_values], 1)
    assert not grad_kv[mask].any()
    assert calc_diff(grad_kv[kept], torch.cat([grads[1].flatten(1), grads[2]], 1)) < 1e-5
    for leaf, grad in zip(leaves[-2:], grads[3:]):
        assert calc_diff(leaf.grad, grad) < 1e-5


@pytest.mark.parametrize("has_gradients", [False, True])
def test_layers_have_both_signs_of_zero(has_gradients, device):
    """1 + gate * 2^-7 with a score of 0: with a gate of 0.5 a tie, which is rounded to 1, with 0.50025 a bit more."""
    *_, wh, we = gate_data(1, 1, 8, device)
    x, k = torch.ones(1, 1, 8, device=device).bfloat16(), torch.zeros(1, 1, 8, device=device).bfloat16()
    v = torch.full((1, 8), 2.0**-7, device=device).bfloat16()
    kv = torch.cat([k, v[:, None]], 1)
    x.requires_grad_(has_gradients)
    gates = {"k_and_v": (lambda **sign: engram_gate(x, k, v, wh, we, 1e-6, 1e-20, **sign), "zero"),
             "kv": (lambda **sign: engram_gate_kv(x, kv, wh, we, 1e-6, 1e-20, **sign), "bit")}
    want = {"zero": torch.ones_like(x), "bit": torch.full_like(x, 1 + 2.0**-7)}
    for gate, default in gates.values():
        for sign, made in (("zero", gate(sign="zero")), ("bit", gate(sign="bit")), (default, gate())):
            assert made.requires_grad == has_gradients and torch.equal(made, want[sign])


# ---- recorded data, errors, names ----

@pytest.mark.parametrize("case", [c for c in golden.cases("engram") if c.op == "engram_gate_bwd"], ids=str)
def test_recorded_backward(case, device):
    given = case.inputs(device)
    wh, we = given.pop("weight_hidden"), given.pop("weight_embed")
    made = engram.engram_gate_bwd(**given, **case.args)
    grads = [torch.zeros(wh.shape, device=device) for _ in range(2)]
    engram.grad_w_reduce(made[3], wh, we, *grads)
    for name, t in zip(("grad_hidden_states", "grad_k", "grad_v", "grad_weight_hidden", "grad_weight_embed"),
                       (*made[:3], *grads)):
        case.check(name, t)


@pytest.mark.parametrize("case", [c for c in golden.cases("engram") if c.op == "grad_w_reduce"], ids=str)
def test_recorded_reduce(case, device):
    for function in (engram.grad_w_reduce, reference.grad_w_reduce_ref):
        given = case.inputs(device)
        function(*given.values())
        for name in ("grad_weight_hidden", "grad_weight_embed"):
            case.check(name, given[name + "_in"])


@pytest.mark.parametrize("case", [c for c in golden.cases("engram") if c.op == "engram_gate"], ids=str)
def test_recorded_layer(case, device):
    given = case.inputs(device)
    go = given.pop("grad_out")
    leaves = [given[n].requires_grad_() for n in ("hidden_states", "k", "v", "weight_hidden", "weight_embed")]
    for name in ("weight_hidden", "weight_embed"):
        given[name].main_grad = torch.zeros(given[name].shape, device=device)
    output = engram_gate(*leaves, case.args["clamp_value"], case.args["eps"])
    output.backward(go)
    case.check("output", output.detach())
    for name in ("hidden_states", "k", "v"):
        case.check("grad_" + name, given[name].grad)
    for name in ("weight_hidden", "weight_embed"):
        case.check(f"grad_{name}_f32", given[name].main_grad)


def test_errors(device):
    x, k, v, wh, we = gate_data(3, 2, 8, device)
    kv, fused = torch.cat([k, v[:, None]], 1), engram.fused_weight(wh, we)
    for call, message in (
            (lambda: engram.engram_gate_fwd(x, k, v, fused, 1e-20, 1e-6, weights=(wh, we)),
             "weight_fused: is given, want None"),
            (lambda: engram.engram_gate_fwd(x, k, v, None, 1e-20, 1e-6, weights=(wh,)), "weights: has 1 items, want 2"),
            (lambda: engram.engram_gate_fwd(x, k, v, fused, -1.0, 1e-6), "eps: is -1, want >= 0"),
            (lambda: engram.engram_gate_fwd(x, k, v, fused, 0.0, 1e-6, sign="one"), "sign: "),
            (lambda: engram.engram_gate_kv_fwd(x, kv[:, 1:], fused, 1e-20, 1e-6),
             r"kv: shape is \[3, 2, 8\], want \[3, 3, 8\]"),
            (lambda: engram.engram_gate_kv_fwd(x, torch.cat([kv, kv]), fused, 1e-20, 1e-6),
             r"kv: shape is \[6, 3, 8\], want \[3, 3, 8\]"),
            (lambda: engram.engram_gate_kv_fwd(x, kv, fused, 1e-20, 1e-6, True, None, True),
             "inplace: is True, want False with save_for_backward"),
            (lambda: engram.engram_gate_fwd(x, k, v, fused, 1e-20, 1e-6, zero_centered=True),
             "weights: is None, want a tensor with zero_centered"),
            (lambda: engram.engram_gate_kv_fwd(kv[:, :2], kv, fused, 1e-20, 1e-6, False, None, True),
             "hidden_states: memory is shared with kv, want no overlap"),
            (lambda: engram.engram_gate_scores(x, k[:, :, :4], fused, 1e-20, 1e-6), r"k: shape is \[3, 2, 4\]"),
            (lambda: engram.engram_gate_scores(x, k, fused.bfloat16(), 1e-20, 1e-6), "weight_fused: dtype is bf16")):
        with pytest.raises(ValueError, match="^" + message):
            call()


def test_errors_name_the_arguments_of_the_call(device):
    """The C function has k and v for kv, and weight_hidden for the fused weight."""
    x, k, v, wh, we = gate_data(3, 2, 8, device)
    kv, fused, norm, taps = torch.cat([k, v[:, None]], 1), engram.fused_weight(wh, we), wh, wh.reshape(16, 1)
    out, *saved = engram.engram_gate_fwd(x, k, v, fused, 1e-20, 1e-6)
    for wrong, message in ((fused.bfloat16(), "dtype is bf16, want f32"), (fused[0], "has 1 dimensions, want 2")):
        for call in (lambda: engram.engram_gate_fwd(x, k, v, wrong, 1e-20, 1e-6),
                     lambda: engram.engram_gate_fwd(x, k, v, wrong, 1e-20, 1e-6, False),
                     lambda: engram.engram_gate_kv_fwd(x, kv, wrong, 1e-20, 1e-6),
                     lambda: engram.engram_gate_bwd(out, x, k, v, wrong, *saved, 1e-6),
                     lambda: engram.engram_gate_kv_bwd(out, x, kv, wrong, *saved, 1e-6),
                     lambda: engram.engram_gate_conv_fwd(x, k, v, wrong, 1e-20, 1e-6, norm, taps)):
            with pytest.raises(ValueError, match=f"^weight_fused: {message}$"):
                call()
    with pytest.raises(TypeError, match="^weight_fused: is a .*NoneType.*, want a tensor$"):
        engram.engram_gate_fwd(x, k, v, None, 1e-20, 1e-6)
    for call in (lambda kv: engram.engram_gate_kv_fwd(x, kv, fused, 1e-20, 1e-6),
                 lambda kv: engram.engram_gate_kv_fwd(x, kv, fused, 1e-20, 1e-6, False),
                 lambda kv: engram.engram_gate_kv_fwd(x, kv, fused, 1e-20, 1e-6, False, None, True),
                 lambda kv: engram.engram_gate_kv_bwd(out, x, kv, fused, *saved, 1e-6)):
        with pytest.raises(ValueError, match="^kv: dtype is f32, want bf16$"):
            call(kv.float())
    with pytest.raises(ValueError, match="^hidden_states: strides are .*, want 1 in the last dimension, and rows"):
        engram.engram_gate_kv_fwd(x[:1].expand(3, 2, 8), kv, fused, 1e-20, 1e-6, False, None, True)
    with pytest.raises(ValueError, match="^grad_kv: dtype is f32, want bf16$"):
        engram.engram_gate_kv_bwd(out, x, kv, fused, *saved, 1e-6, out=(None, kv.float(), None))
    with pytest.raises(ValueError, match="^weight_hidden: dtype is f16, want "):
        engram.engram_gate_fwd(x, k, v, None, 1e-20, 1e-6, weights=(wh.half(), we))


def test_v2(device):
    """With its names, its argument orders and its tests' tolerances; masked rows to the bit."""
    import tegula.v2 as tile_kernels
    from tegula.v2.modeling.engram import EngramGateFn as theirs
    from tegula.v2.torch.engram import engram_gate_ref
    assert tile_kernels.engram.engram_gate_fwd is engram.engram_gate_kv_fwd
    assert tile_kernels.engram.engram_gate_bwd is engram.engram_gate_kv_bwd
    assert tile_kernels.modeling.engram.engram_gate is engram_gate_kv and theirs is not EngramGateFn
    assert tile_kernels.torch.engram_gate_ref is engram_gate_ref
    x, k, v, wh, we = gate_data(60, 4, 512, device)
    kv, mask, go = torch.cat([k, v[:, None]], 1), torch.rand(60, device=device) < 0.2, torch.randn_like(x)
    fused = tile_kernels.engram.fused_weight(wh, we)
    for given in (None, mask):
        leaves = [t.clone().requires_grad_() for t in (x, kv)] + [t.float().requires_grad_() for t in (wh, we)]
        output, *saved = engram_gate_ref(*leaves, 1e-6, 1e-20, save_for_backward=True, image_token_mask=given)
        output.backward(go)
        saved = [t.detach() for t in saved]
        made = tile_kernels.engram.engram_gate_fwd(x, kv, fused, 1e-20, 1e-6, True, given)
        kept = slice(None) if given is None else ~mask
        torch.testing.assert_close(made[0], output.detach(), rtol=8e-3, atol=8e-3)
        for a, b in zip(made[1:], saved):
            torch.testing.assert_close(a[kept], b[kept], rtol=1e-4, atol=2e-4)
        if given is not None:
            assert torch.equal(made[0][mask], x[mask])
        for in_place in (False, True):
            target = x.clone()
            same, *none = tile_kernels.engram.engram_gate_fwd(target, kv, fused, 1e-20, 1e-6, False, given, in_place)
            assert torch.equal(same, made[0]) and (same is target) == in_place and none == [None] * 4
        grad_x, grad_kv, partial = tile_kernels.engram.engram_gate_bwd(go, x, kv, fused, *saved, 1e-6, given)
        grads = [torch.zeros(4, 512, device=device) for _ in range(2)]
        tile_kernels.engram.grad_w_reduce(partial, wh, we, *grads)
        for a, leaf in zip((grad_x, grad_kv, *grads), leaves):
            assert calc_diff(a, leaf.grad) < 1e-8
        if given is not None:
            assert torch.equal(grad_x[mask], go[mask]) and not grad_kv[mask].any()
