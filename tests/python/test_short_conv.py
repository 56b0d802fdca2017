# SPDX-License-Identifier: MIT
"""The short convolution from Python: against plain torch, by a ring, by past states, and its gradients."""
import pytest
import torch

from tegula import engram
from tegula.modeling import engram as layers
from tegula.torch import engram as reference


def normal(*shape, device, dtype=torch.bfloat16):
    return torch.randn(*shape, device=device).to(dtype)


def assert_close(seen, want):
    """bfloat16 within a unit in the last place, or a little of what was summed."""
    torch.testing.assert_close(seen.float(), want.float(), rtol=2**-7, atol=2e-5)


@pytest.mark.parametrize("size", [4, 3])
def test_with_the_gate(size, device):
    """In one pass: the bits of both ops, and of a ring that is fed token by token."""
    torch.manual_seed(0)
    x, kv = normal(23, 2, 40, device=device), normal(23, 3, 40, device=device)
    fused, norm = normal(2, 40, device=device, dtype=torch.float32), normal(2, 40, device=device)
    taps, mask = normal(80, size, device=device), torch.arange(23, device=device) % 6 == 4
    gate = (x, kv[:, :2], kv[:, 2], fused, 1e-20, 1e-6)
    out = engram.engram_gate_conv_fwd(*gate, norm, taps, mask=mask)
    gated = engram.engram_gate_fwd(*gate, False, image_token_mask=mask, add_residual=False)[0]
    assert torch.equal(out, engram.short_conv(gated, norm, taps, add_input=True, residual=x, mask=mask)[0])
    ring = normal(2, 11, 2, 40, device=device)
    for t in range(23):
        one = slice(t, t + 1)
        made = engram.engram_gate_conv_fwd(x[one], kv[one, :2], kv[one, 2], fused, 1e-20, 1e-6, norm, taps[:, None],
                                           mask=mask[one], ring=ring, start_pos=torch.tensor([t], device=device),
                                           slots=torch.tensor([1], device=device))
        assert torch.equal(made, out[one])


@pytest.mark.parametrize("dilation, size", [(3, 4), (1, 2), (2, 3), (5, 1), (1, 8)])
@pytest.mark.parametrize("options", [{}, {"activation": "none"}, {"add_input": True, "zero_centered": True}])
def test_forward(dilation, size, options, device):
    torch.manual_seed(0)
    x, norm = normal(23, 3, 40, device=device), normal(3, 40, device=device, dtype=torch.float32)
    taps, bias = normal(120, size, device=device), normal(120, device=device)
    cu = torch.tensor([0, 9, 9, 20], device=device)
    mask = torch.arange(23, device=device) % 6 == 4
    for more in ({}, {"cu_seqlens": cu, "mask": mask, "residual": normal(23, 3, 40, device=device), "bias": bias}):
        out, rstd = engram.short_conv(x, norm, taps, dilation, **options, **more)
        torch.testing.assert_close(rstd, reference.short_conv_ref(x, norm, taps, dilation, **options, **more)[1])
        assert_close(out, reference.short_conv_ref(x, norm, taps, dilation, **options, **more, rstd=rstd)[0])
    alone, none = engram.short_conv(x, norm, taps[:, None], dilation, **options, save_for_backward=False)
    assert none is None and torch.equal(alone, engram.short_conv(x, norm, taps, dilation, **options)[0])


def test_round_each(device):        # equal to torch but for sigmoid's last bit
    torch.manual_seed(1)
    x, norm, taps = normal(50, 2, 64, device=device), normal(2, 64, device=device), normal(128, 4, device=device)
    residual = normal(50, 2, 64, device=device)
    args = x, norm, taps, 3, 1e-5, "silu", None, True, residual
    out, want = engram.short_conv(*args, round_each=True)[0], reference.short_conv_ref(*args, round_each=True)[0]
    assert (out != want).float().mean() < 1e-3
    assert (out != engram.short_conv(*args)[0]).float().mean() > 0.1


def test_example_without_rounding(device):      # by hand; the op rounds what it convolves, and its result
    x = torch.tensor([[[3., 4.]], [[1, -1]], [[0, 2]], [[-2, 2]]], device=device)
    norm, taps = torch.tensor([[1., 2.]], device=device), torch.tensor([[0.5, 1], [-1, 0.25]], device=device)
    want = torch.tensor([[[0.594189, 0.360775]], [[0.731054, -0.188770]], [[0, 0.473591]], [[-0.207215, -0.258149]]],
                        device=device)
    rstd = torch.tensor([[0.2828426], [0.9999950], [0.7071050], [0.4999994]], device=device)
    seen = reference.short_conv_ref(x.double(), norm, taps)
    torch.testing.assert_close(seen, (want.double(), rstd), rtol=0, atol=6e-7)
    seen = engram.short_conv(x.bfloat16(), norm, taps)
    torch.testing.assert_close(seen[0].float(), want, rtol=2**-8, atol=2**-9)
    torch.testing.assert_close(seen[1], rstd, rtol=0, atol=6e-8)


@pytest.mark.parametrize("cuts", [(0, 7, 30), (0, 1, 2, 3, 4, 30), (0, 15, 16, 30)])
def test_chunks(cuts, device):      # by past states and by a ring: the bits of the uncut call
    torch.manual_seed(2)
    x, norm, taps = normal(30, 2, 40, device=device), normal(2, 40, device=device), normal(80, 4, device=device)
    want = engram.short_conv(x, norm, taps, add_input=True)[0]
    state, ring = torch.zeros(1, 9, 2, 40, device=device).bfloat16(), normal(2, 9, 2, 40, device=device)
    slots = torch.tensor([1], device=device)
    for begin, end in zip(cuts, cuts[1:]):
        out, _, state = engram.short_conv(x[begin:end], norm, taps, add_input=True, past_state=state)
        assert torch.equal(out, want[begin:end])
        start = torch.tensor([begin], device=device)
        out, _ = engram.short_conv(x[begin:end], norm, taps, add_input=True, ring=ring, start_pos=start, slots=slots)
        assert torch.equal(out, want[begin:end])
    a = reference.short_conv_ref(x, norm, taps, past_state=torch.zeros_like(state))[2]
    assert_close(state, a)
    assert torch.equal(ring[1].roll(-(30 % 9), 0), state[0])


def test_past_states_of_requests(device):
    torch.manual_seed(3)
    x, norm, taps = normal(12, 2, 16, device=device), normal(2, 16, device=device), normal(32, 3, device=device)
    cu, past = torch.tensor([0, 1, 1, 12], device=device), normal(3, 6, 2, 16, device=device)
    out, rstd, present = engram.short_conv(x, norm, taps, cu_seqlens=cu, past_state=past)
    want, _, want_present = reference.short_conv_ref(x, norm, taps, cu_seqlens=cu, past_state=past, rstd=rstd)
    assert_close(out, want)
    assert_close(present, want_present)
    assert torch.equal(present[1], past[1])         # an empty request keeps its state


@pytest.mark.parametrize("has_main", [False, True])
def test_layer(has_main, device):
    torch.manual_seed(4)
    tensors = [normal(2, 10, 2, 24, device=device), normal(2, 24, device=device, dtype=torch.float32),
               normal(48, 4, device=device, dtype=torch.float32), normal(48, device=device, dtype=torch.float32),
               normal(2, 10, 2, 24, device=device)]
    x, norm, taps, bias, residual = (t.requires_grad_() for t in tensors)
    cu = torch.tensor([0, 10, 20], device=device)
    mask = torch.arange(20, device=device) == 13
    grad = normal(2, 10, 2, 24, device=device)
    if has_main:
        for w in (norm, taps, bias):
            w.main_grad = torch.ones_like(w)
    layers.short_conv(x, norm, taps, 3, 1e-5, "silu", bias, True, residual, cu, mask).backward(grad)
    wide = [t.detach().double().requires_grad_() for t in tensors]
    out = reference.short_conv_ref(wide[0].view(20, 2, 24), wide[1], wide[2], 3, 1e-5, "silu", wide[3], True,
                                   wide[4].view(20, 2, 24), cu, mask=mask)[0]
    out.backward(grad.double().view(20, 2, 24))
    for t, w in zip(tensors, wide):
        seen = t.main_grad - 1 if has_main and hasattr(t, "main_grad") else t.grad
        difference = (seen.double() - w.grad.view(seen.shape)).norm() / w.grad.norm()
        assert difference < 5e-3, difference
        assert not (has_main and hasattr(t, "main_grad")) or t.grad is None


def test_gradients_of_the_reference(device):        # which the layer is compared with
    torch.manual_seed(5)
    x, norm, taps = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((5, 2, 3), (2, 3), (6, 2)))
    assert torch.autograd.gradcheck(lambda *t: engram_out(*t), (x, norm, taps))


def engram_out(x, norm, taps):
    return reference.short_conv_ref(x, norm, taps, 2, add_input=True, zero_centered=True)[0]


def test_past_state_of_any_strides(device):
    torch.manual_seed(6)
    x, norm, taps = normal(5, 2, 16, device=device), normal(2, 16, device=device), normal(32, 4, device=device)
    past = normal(1, 9, 16, 2, device=device).transpose(2, 3)
    made = engram.short_conv(x, norm, taps, past_state=past)
    for a, b in zip(made, engram.short_conv(x, norm, taps, past_state=past.contiguous())):
        assert torch.equal(a, b)


def test_errors(device):
    x, norm, taps = normal(5, 2, 8, device=device), normal(2, 8, device=device), normal(16, 4, device=device)
    with pytest.raises(ValueError, match="activation: is 'relu', want 'silu' or 'none'"):
        engram.short_conv(x, norm, taps, activation="relu")
    with pytest.raises(ValueError, match="past_state: is given, want None with ring, start_pos or slots"):
        engram.short_conv(x, norm, taps, past_state=x[None], ring=x[None])
    past = torch.zeros(1, 9, 2, 8, device=device).bfloat16()
    for more in ({"keep_ring": True}, {"null_slot": 0}):        # of a ring: the present state would not be one
        with pytest.raises(ValueError, match="past_state: is given, want None with keep_ring or null_slot"):
            engram.short_conv(x, norm, taps, past_state=past, **more)
    for wrong in (torch.zeros(1, 12, 2, 8, device=device).bfloat16(), past[0]):
        with pytest.raises(ValueError, match=r"past_state: shape is \[.*\], want \[B, 9, H, D\]"):
            engram.short_conv(x, norm, taps, past_state=wrong)
    with pytest.raises(TypeError, match="past_state: is a list, want a torch.Tensor"):
        engram.short_conv(x, norm, taps, past_state=[1])
    with pytest.raises(ValueError, match="^past_state: dtype is f32, want bf16"):
        engram.short_conv(x, norm, taps, past_state=past.float())
    for wrong in (taps[0], taps[0, 0], taps[None, None], None):
        with pytest.raises((TypeError, ValueError), match="^conv_weight: (has|is a)"):
            engram.short_conv(x, norm, wrong, past_state=past)
    gate, gates = (x, x, x[:, 0], torch.ones(2, 8, device=device), 1e-20, 1e-6, norm), engram.engram_gate_conv_fwd
    for wrong in (taps[:, :, None], taps.view(16, 2, 2)):       # taps are in the last dimension
        for call in (lambda: engram.short_conv(x, norm, wrong), lambda: gates(*gate, wrong),
                     lambda: engram.short_conv_bwd(x, x, norm, wrong, torch.ones(5, 2, device=device))):
            with pytest.raises(ValueError, match=r"^conv_weight: shape is \[16, .*\], want \[C, K\] or \[C, 1, K\]"):
                call()
    with pytest.raises(ValueError, match="^start_pos: is None, want a tensor with ring"):
        engram.short_conv(x, norm, taps, ring=torch.zeros(1, 9, 2, 8, device=device).bfloat16())
    with pytest.raises(ValueError, match="dilation"):
        engram.short_conv(x, norm, taps, 0)
