# SPDX-License-Identifier: MIT
"""Engram's layers as a training loop uses them: main_grad behind checkpoints and hooks on saved tensors, leading
dimensions, and gradients that nobody wants."""
import ctypes
import pathlib
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tegula import engram
from tegula.modeling import engram as layers

TOKENS, STREAMS, HIDDEN = 6, 2, 16


def normal(*shape, device, dtype=torch.bfloat16):
    return torch.randn(*shape, device=device).to(dtype)


def gate(x, wh, we):
    return layers.engram_gate(x, x.roll(1, 0), x[:, 0], wh, we, 1e-6, 1e-20)


def gate_kv(x, wh, we):
    return layers.engram_gate_kv(x, torch.cat([x.flip(0), x[:, :1]], 1), wh, we, 1e-6, 1e-20)


def conv(x, norm, taps, bias):
    return layers.short_conv(x, norm, taps, bias=bias)


def lookup(x, table):
    rows = torch.arange(TOKENS * STREAMS, device=x.device).view(TOKENS, STREAMS) // 2
    return layers.lookup(table, rows) + x.float()


LAYERS = {"gate": (gate, [(STREAMS, HIDDEN)] * 2), "gate_kv": (gate_kv, [(STREAMS, HIDDEN)] * 2),
          "conv": (conv, [(STREAMS, HIDDEN), (STREAMS * HIDDEN, 4), (STREAMS * HIDDEN,)]),
          "lookup": (lookup, [(9, HIDDEN)])}


def plainly(layer, x, *weights):
    return layer(x, *weights)


def cloned(layer, x, *weights):
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t):
        return layer(x, *weights)


def on_cpu(layer, x, *weights):
    with torch.autograd.graph.save_on_cpu():
        return layer(x, *weights)


def checkpointed(layer, x, *weights):
    return checkpoint(layer, x, *weights, use_reentrant=False)


def checkpointed_again(layer, x, *weights):         # a reentrant one detaches what it is given
    return checkpoint(lambda x: layer(x, *weights), x, use_reentrant=True)


@pytest.mark.parametrize("way", [plainly, cloned, on_cpu, checkpointed, checkpointed_again])
@pytest.mark.parametrize("name", LAYERS)
def test_main_grad(name, way, device):
    """An optimiser that reads main_grad alone must find the gradient there, and nothing in grad."""
    layer, shapes = LAYERS[name]
    torch.manual_seed(0)
    x = normal(TOKENS, STREAMS, HIDDEN, device=device).requires_grad_()
    weights = [torch.nn.Parameter(torch.rand(*shape, device=device)) for shape in shapes]
    want = torch.autograd.grad(layer(x, *weights).float().square().sum(), weights)
    for w in weights:
        w.main_grad = torch.ones_like(w)
    way(layer, x, *weights).float().square().sum().backward()
    for w, grad in zip(weights, want):
        assert w.grad is None
        torch.testing.assert_close(w.main_grad, 1 + grad)


@pytest.mark.parametrize("had_one", [True, False], ids=["another", "the first"])
@pytest.mark.parametrize("way", [plainly, cloned, on_cpu, checkpointed, checkpointed_again])
@pytest.mark.parametrize("name", LAYERS)
def test_main_grad_given_before_the_backward(name, way, had_one, device):
    """As trainers do that give out buffers for each backward: the one of the forward is no longer the parameter's."""
    layer, shapes = LAYERS[name]
    torch.manual_seed(0)
    x = normal(TOKENS, STREAMS, HIDDEN, device=device).requires_grad_()
    weights = [torch.nn.Parameter(torch.rand(*shape, device=device)) for shape in shapes]
    want = torch.autograd.grad(layer(x, *weights).float().square().sum(), weights)
    before = [torch.ones_like(w) for w in weights]
    if had_one:
        for w, buffer in zip(weights, before):
            w.main_grad = buffer
    loss = way(layer, x, *weights).float().square().sum()
    for w in weights:
        w.main_grad = torch.ones_like(w)
    loss.backward()
    for w, buffer, grad in zip(weights, before, want):
        assert w.grad is None and buffer.eq(1).all()
        torch.testing.assert_close(w.main_grad, 1 + grad)


@pytest.mark.parametrize("name", ["gate", "gate_kv", "conv"])
def test_weights_that_hooks_move_are_not_kept(name, device):
    """A weight computed from a parameter lives as long as the hooks on saved tensors let it."""
    layer, shapes = LAYERS[name]
    x = normal(TOKENS, STREAMS, HIDDEN, device=device)
    weights = [2 * torch.ones(*shape, device=device, requires_grad=True) for shape in shapes]
    kept = [weakref.ref(w) for w in weights]
    made = cloned(layer, x, *weights)
    del weights
    assert made.requires_grad and not any(w() is not None for w in kept)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", LAYERS)
def test_without_gradients(name, mode, monkeypatch, device):
    """The same bits, with nothing saved for a backward, though parameters require one."""
    layer, shapes = LAYERS[name]
    torch.manual_seed(0)
    x = normal(TOKENS, STREAMS, HIDDEN, device=device)
    weights = [torch.nn.Parameter(torch.rand(*shape, device=device)) for shape in shapes]
    want = layer(x, *weights)
    for function in (layers.EngramGateFn, layers.EngramGateKvFn, layers.EngramLookupFn, layers.ShortConvFn):
        monkeypatch.setattr(function, "apply", None)
    with mode():
        made = layer(x, *weights)
    assert torch.equal(made, want) and not made.requires_grad


@pytest.mark.parametrize("name", LAYERS)
def test_compiled(name, device):
    """Which does not see main_grad: autograd gets the gradient, and the buffer is left alone."""
    layer, shapes = LAYERS[name]
    torch.manual_seed(0)
    torch._dynamo.reset()
    x = normal(TOKENS, STREAMS, HIDDEN, device=device).requires_grad_()
    weights = [torch.nn.Parameter(torch.rand(*shape, device=device)) for shape in shapes]
    want = torch.autograd.grad(layer(x, *weights).float().square().sum(), weights)
    for w in weights:
        w.main_grad = torch.ones_like(w)
    torch.compile(layer, backend="aot_eager")(x, *weights).float().square().sum().backward()
    for w, grad in zip(weights, want):
        torch.testing.assert_close(w.grad, grad)
        assert w.main_grad.eq(1).all()


@pytest.mark.parametrize("layer", [gate, gate_kv])
def test_tied_weights(layer, device):
    """The sum of both gradients, in main_grad as in grad."""
    torch.manual_seed(0)
    x = normal(TOKENS, STREAMS, HIDDEN, device=device)
    first, second = (torch.nn.Parameter(torch.ones(STREAMS, HIDDEN, device=device)) for _ in range(2))
    want = sum(torch.autograd.grad(layer(x, first, second).float().square().sum(), (first, second)))
    first.main_grad = torch.ones_like(first)
    layer(x, first, first).float().square().sum().backward()
    assert first.grad is None
    torch.testing.assert_close(first.main_grad, 1 + want)


def test_the_table_may_change_before_its_backward(device):
    """The gradient needs no value of it: as torch.nn.functional.embedding."""
    table, rows = torch.randn(10, 4, device=device, requires_grad=True), torch.tensor([[1, 1, 5]], device=device)
    made = layers.lookup(table, rows)
    with torch.no_grad():
        table.add_(1)
    made.sum().backward()
    assert table.grad.sum(1).tolist() == [0, 8, 0, 0, 0, 4, 0, 0, 0, 0]


def test_table_on_another_device():
    """A gradient would be made on that of indices: refused in the forward, unless main_grad is there."""
    table, rows = torch.randn(10, 4, requires_grad=True), torch.zeros(1, 1, dtype=torch.int64, device="meta")
    with pytest.raises(ValueError, match="^table: is on cpu and requires a gradient, want a main_grad on meta"):
        layers.lookup(table, rows)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert layers.lookup(torch.nn.Parameter(table), rows).shape == (1, 1, 4)


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (2, 0, 3), (2, 3, 0)], ids=str)
def test_lookup_of_nothing(shape, device):
    table = torch.randn(10, 4, device=device, requires_grad=True)
    made = layers.lookup(table, torch.zeros(shape, dtype=torch.int64, device=device))
    made.sum().backward()
    assert made.shape == (*shape, 4) and not table.grad.any()


def test_leading_dimensions(device):
    """The same for all, or one of all tokens; tokens of other shapes are not paired by their order."""
    torch.manual_seed(0)
    x, kv = normal(2, 3, STREAMS, HIDDEN, device=device), normal(2, 3, STREAMS + 1, HIDDEN, device=device)
    w, taps = torch.rand(STREAMS, HIDDEN, device=device), torch.rand(STREAMS * HIDDEN, 4, device=device)
    mask = torch.tensor([[True, False, False], [False, True, False]], device=device)
    k, v = kv[..., :STREAMS, :], kv[..., STREAMS, :]
    numbers = 1e-6, 1e-20
    want = layers.engram_gate_kv(x, kv, w, w, *numbers, mask)
    assert want.shape == x.shape
    for other in (kv.flatten(-2), kv.flatten(0, 1), kv.flatten(0, 1).flatten(-2)):
        assert torch.equal(layers.engram_gate_kv(x, other, w, w, *numbers, mask.flatten()), want)
    assert torch.equal(layers.engram_gate_kv(x.flatten(0, 1), kv, w, w, *numbers, mask), want.flatten(0, 1))
    assert torch.equal(layers.engram_gate(x, k.flatten(0, 1), v, w, w, *numbers), layers.engram_gate(x, k, v, w, w, *numbers))
    for call, message in (
            (lambda: layers.engram_gate_kv(x, kv.view(3, 2, STREAMS + 1, HIDDEN), w, w, *numbers),
             r"kv: shape is \[3, 2, 3, 16\], want \[2, 3, 3, 16\], as hidden_states has it"),
            (lambda: layers.engram_gate_kv(x, kv.view(2, 3, STREAMS + 1, HIDDEN)[:, :, 1:], w, w, *numbers),
             r"kv: shape is \[2, 3, 2, 16\], want \[..., 48\] or \[..., 3, 16\]"),
            (lambda: layers.engram_gate_kv(x, kv.view(3, 2, -1), w, w, *numbers), r"kv: shape is \[3, 2, 48\]"),
            (lambda: layers.engram_gate_kv(x, kv, w, w, *numbers, mask.t()), r"image_token_mask: shape is \[3, 2\]"),
            (lambda: layers.engram_gate(x, x.view(3, 2, STREAMS, HIDDEN), v, w, w, *numbers), r"k: shape is \[3, 2, 2"),
            (lambda: layers.engram_gate(x, k, v.reshape(3, 2, HIDDEN), w, w, *numbers), r"v: shape is \[3, 2, 16\]"),
            (lambda: layers.short_conv(x, w, taps, residual=x.view(3, 2, STREAMS, HIDDEN)), r"residual: shape is \[3, 2"),
            (lambda: layers.short_conv(x, w, taps, mask=mask.t()), r"mask: shape is \[3, 2\], want \[2, 3\], as x has it")):
        with pytest.raises(ValueError, match="^" + message):
            call()


def demo_conv(x, norm, taps, dilation):
    """The published demo's, on [B, S, H, D]: a convolution over the tokens of each sequence of the batch."""
    batch, length, streams, hidden = x.shape
    a = x.float() * (x.float().square().mean(-1, keepdim=True) + 1e-5).rsqrt() * norm
    a = a.bfloat16().float().reshape(batch, length, -1).transpose(1, 2)
    lag = (taps.shape[1] - 1) * dilation
    z = torch.nn.functional.conv1d(a, taps[:, None], padding=lag, dilation=dilation, groups=streams * hidden)
    return torch.nn.functional.silu(z[..., :length]).transpose(1, 2).reshape(x.shape)


@pytest.mark.parametrize("shape", [(2, 12), (3, 1), (1, 12), (2, 3, 5)], ids=str)
def test_sequences_of_a_batch(shape, device):
    """[B, S, H, D] is B sequences; one does not see the end of the one before it, nor does its gradient."""
    torch.manual_seed(0)
    x = normal(*shape, STREAMS, HIDDEN, device=device)
    norm, taps = torch.rand(STREAMS, HIDDEN, device=device), torch.randn(STREAMS * HIDDEN, 4, device=device)
    grad, leaves = torch.randn_like(x), [t.clone().requires_grad_() for t in (x, norm, taps)]
    made = layers.short_conv(*leaves)
    made.backward(grad)
    theirs = [t.clone().requires_grad_() for t in (x.float(), norm, taps)]
    want = demo_conv(theirs[0].view(-1, *shape[-1:], STREAMS, HIDDEN), *theirs[1:], 3).view(x.shape)
    want.backward(grad.float())
    torch.testing.assert_close(made.float(), want, rtol=2**-7, atol=2e-3)
    for leaf, their in zip(leaves, theirs):
        assert (leaf.grad.float() - their.grad).norm() < 1e-2 * their.grad.norm()


def test_residual_and_mask_of_other_shapes(device):
    torch.manual_seed(0)
    x, residual = normal(2, 3, STREAMS, HIDDEN, device=device), normal(6, STREAMS, HIDDEN, device=device)
    norm, taps = torch.rand(STREAMS, HIDDEN, device=device), torch.randn(STREAMS * HIDDEN, 4, device=device)
    mask = torch.tensor([[True, False, False], [False, True, False]], device=device)
    leaves = [t.clone().requires_grad_() for t in (residual, residual.view(x.shape))]
    made = [layers.short_conv(x, norm, taps, residual=r, mask=m) for r, m in zip(leaves, (mask, mask.flatten()))]
    assert torch.equal(*made)
    grad = torch.randn_like(x)
    made[0].backward(grad)
    assert torch.equal(leaves[0].grad, grad.view(residual.shape))


# ---- gradients that nobody wants ----

GRADIENTS = {"engram_gate_bwd": ("hidden_states", "k", "v", "w"), "engram_gate_kv_bwd": ("hidden_states", "kv", "w"),
             "short_conv_bwd": ("x", "norm_weight", "conv_weight", "bias")}


def backward_of(name, device):
    """A function of wanted."""
    torch.manual_seed(0)
    x, kv = normal(TOKENS, STREAMS, HIDDEN, device=device), normal(TOKENS, STREAMS + 1, HIDDEN, device=device)
    w, bias = torch.rand(STREAMS, HIDDEN, device=device), torch.rand(STREAMS * HIDDEN, device=device)
    if name == "short_conv_bwd":
        taps = torch.rand(STREAMS * HIDDEN, 4, device=device)
        out, rstd = engram.short_conv(x, w, taps, bias=bias)
        return lambda **more: engram.short_conv_bwd(out, x, w, taps, rstd, bias=bias, **more)
    out, *saved = engram.engram_gate_kv_fwd(x, kv, w, 1e-20, 1e-6)
    if name == "engram_gate_kv_bwd":
        return lambda **more: engram.engram_gate_kv_bwd(out, x, kv, w, *saved, 1e-6, **more)
    return lambda **more: engram.engram_gate_bwd(out, x, kv[:, :-1], kv[:, -1], w, *saved, 1e-6, **more)


@pytest.mark.parametrize("name", GRADIENTS)
def test_wanted(name, device):
    """Bits of a gradient do not depend on which others are wanted."""
    call, count = backward_of(name, device), len(GRADIENTS[name])
    every = call()
    for bits in range(2**count):
        wanted = [bool(bits >> i & 1) for i in range(count)]
        for made, want, is_wanted in zip(call(wanted=wanted), every, wanted):
            assert torch.equal(made, want) if is_wanted else made is None
    with pytest.raises(ValueError, match=f"^wanted: has 1 items, want {count}"):
        call(wanted=[True])


def test_num_conv_partials():
    """As many as C finds fast."""
    library, = pathlib.Path(engram.__file__).parents[1].glob("libtegula.*")
    num_partials = ctypes.CDLL(str(library)).tgl_engram_short_conv_num_partials
    num_partials.restype, num_partials.argtypes = ctypes.c_int64, [ctypes.c_int64] * 2
    for streams, hidden in ((1, 1), (1, 512), (1, 513), (2, 2560), (4, 2560), (4, 7168), (600, 8)):
        x, one = torch.zeros(1, streams, hidden).bfloat16(), torch.ones(1, streams)
        made = engram.short_conv_bwd(x, x, x[0], torch.zeros(streams * hidden, 2), one)
        assert made[1].shape == (num_partials(streams, hidden), streams, hidden)


@pytest.mark.parametrize("form, index", [(f, i) for f, n in (("gate", 5), ("gate_kv", 4), ("conv", 5)) for i in range(n)])
def test_layers_make_what_is_wanted(form, index, monkeypatch, device):
    """The gradient of one argument alone, and none of another; the same as among all."""
    torch.manual_seed(0)
    x, kv = normal(TOKENS, STREAMS, HIDDEN, device=device), normal(TOKENS, STREAMS + 1, HIDDEN, device=device)
    w, taps = torch.rand(2, STREAMS, HIDDEN, device=device), torch.rand(STREAMS * HIDDEN, 4, device=device)
    name, layer, args, outputs = {
        "gate": ("engram_gate_bwd", lambda *t: layers.engram_gate(*t, 1e-6, 1e-20), (x, kv[:, :-1], kv[:, -1], *w),
                 (0, 1, 2, 3, 3)),
        "gate_kv": ("engram_gate_kv_bwd", lambda *t: layers.engram_gate_kv(*t, 1e-6, 1e-20), (x, kv, *w), (0, 1, 2, 2)),
        "conv": ("short_conv_bwd", lambda x, n, c, b, r: layers.short_conv(x, n, c, bias=b, residual=r),
                 (x, w[0], taps, taps[:, 0].clone(), x.flip(0)), (0, 1, 2, 3, None))}[form]
    leaves = [t.clone().requires_grad_() for t in args]
    layer(*leaves).float().square().sum().backward()
    backward, made = getattr(layers, name), []

    def spy(*given, **more):
        made.extend(backward(*given, **more))
        return made

    monkeypatch.setattr(layers, name, spy)
    one = [t.clone().requires_grad_(i == index) for i, t in enumerate(args)]
    layer(*one).float().square().sum().backward()
    assert torch.equal(one[index].grad, leaves[index].grad)
    assert [i for i, t in enumerate(made) if t is not None] == ([] if outputs[index] is None else [outputs[index]])
