# SPDX-License-Identifier: MIT
"""Engram's optimiser from Python against plain torch; test_ops.py has what holds for all functions."""
import pytest
import torch

import tegula.torch as reference
from tegula import engram
from tegula.testing import assert_equal


@pytest.mark.parametrize("nesterov", [True, False], ids=["nesterov", "plain"])
@pytest.mark.parametrize("grad_dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_sinkhorn_momentum_update(dtype, grad_dtype, nesterov, device):
    grad, momentum = (torch.randn(33, 257, device=device).to(d) for d in (grad_dtype, dtype))
    copy = momentum.clone()
    out = engram.engram_sinkhorn_momentum_update(grad, momentum, 0.95, nesterov)
    assert_equal(out, reference.engram_sinkhorn_momentum_update_ref(grad, copy, 0.95, nesterov))
    assert_equal(momentum, copy)


@pytest.mark.parametrize("shape", [(), (1,), (300,), (0,), (2, 3, 4)], ids=str)
def test_sinkhorn_momentum_update_of_any_rank(shape, device):
    grad, momentum = torch.randn(shape, device=device), torch.randn(shape, device=device).bfloat16()
    copies, out = [momentum.clone() for _ in range(2)], torch.empty(shape, device=device)
    made = engram.engram_sinkhorn_momentum_update(grad, momentum, 0.95)
    assert_equal(made, reference.engram_sinkhorn_momentum_update_ref(grad, copies[0], 0.95))
    assert_equal(momentum, copies[0])
    assert engram.engram_sinkhorn_momentum_update(grad, copies[1], 0.95, out=out) is out
    assert_equal(out, made)


def test_sinkhorn_momentum_update_refuses(device):
    """A copy would leave the momentum as it was."""
    grad, momentum = torch.zeros(6, device=device), torch.zeros(12, device=device)
    for buffer, message in ((momentum[::2], "momentum_buffer: has gaps, want packed memory"),
                            (momentum[:6].view(2, 3), r"momentum_buffer: shape is \[2, 3\], want \[6\]")):
        with pytest.raises(ValueError, match=f"^{message}$"):
            engram.engram_sinkhorn_momentum_update(grad, buffer, 0.95)


@pytest.mark.parametrize("num_rows, dim", [(0, 5), (1, 1), (33, 256), (1001, 100), (50, 1500), (9, 9000)])
def test_sinkhorn(num_rows, dim, device):
    matrix = torch.randn(num_rows, dim, device=device)
    row_scale, col_scale = torch.rand(num_rows, device=device) + 0.5, torch.rand(dim, device=device) + 0.5
    rows, sums, col_sumsq = row_scale.clone(), torch.empty(dim, device=device), torch.empty(dim, device=device)
    norm, partial = engram.engram_sinkhorn_step(matrix, rows, col_scale, 1e-20, col_sumsq=col_sumsq)
    engram.engram_sinkhorn_step_reduce(partial, sums)
    assert_equal(sums, col_sumsq)
    want_rows = row_scale.clone()
    want_norm, want_sums = reference.engram_sinkhorn_step_ref(matrix, want_rows, col_scale, 1e-20)
    for seen, want in ((norm, want_norm), (rows, want_rows), (sums, want_sums[0])):
        torch.testing.assert_close(seen, want, rtol=1e-5, atol=1e-6)
    out = engram.engram_sinkhorn_finalize(matrix, rows, col_scale, 1e-20, dim**0.5)
    want = reference.engram_sinkhorn_finalize_ref(matrix, want_rows, col_scale, 1e-20, dim**0.5)
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-6)
    assert engram.engram_sinkhorn_finalize(matrix, rows, col_scale, 1e-20, dim**0.5, out=matrix) is matrix
    assert_equal(matrix, out)


# doc: sinkhorn
def direction_of(grad, momentum_buffer, beta1=0.95, eps=1e-20):
    """Of an optimiser's step: weight -= learning_rate * direction."""
    n = engram.engram_sinkhorn_momentum_update(grad, momentum_buffer, beta1)
    row_scale, col_scale = torch.ones_like(n[:, 0]), torch.ones_like(n[0])
    row_norm, _ = engram.engram_sinkhorn_step(n, row_scale, col_scale, eps)
    row_scale = (row_norm > 1e-3 * row_norm.mean()).float()     # rows that are next to nothing become 0
    col_sumsq = torch.empty_like(col_scale)
    for _ in range(5):
        engram.engram_sinkhorn_step(n, row_scale, col_scale, eps, col_sumsq)
        col_scale = torch.where(col_sumsq > 0, col_scale / (col_sumsq.sqrt() + eps), 0)
    return engram.engram_sinkhorn_finalize(n, row_scale, col_scale, eps, n.shape[1]**0.5, out=n)
# end


def test_sinkhorn_direction(device):
    # doc: direction
    grad = torch.tensor([[1., 2.], [3., 4.], [0., 0.]], device=device)
    direction = direction_of(grad, torch.zeros_like(grad))
    want = torch.tensor([[0.894427, 1.095445], [1.095445, 0.894427], [0, 0]], device=device)
    # end
    torch.testing.assert_close(direction, want, rtol=1e-6, atol=0)


def test_sinkhorn_direction_in_double(device):
    """11 divisions by norms, of rows and of columns in turn."""
    grad, momentum = torch.randn(101, 256, device=device).bfloat16(), torch.randn(101, 256, device=device)
    grad[::7] *= 1e-6
    momentum[::7] *= 1e-6
    n = 0.95 * (0.95 * momentum.double() + 0.05 * grad.double()) + 0.05 * grad.double()
    norm = n.norm(dim=1, keepdim=True)
    n = n.where(norm > 1e-3 * norm.mean(), 0)
    for k in range(11):
        n = n / (n.norm(dim=1 - k % 2, keepdim=True) + 1e-20)
    seen = direction_of(grad, momentum).double()
    assert (seen[::7] == 0).all()
    torch.testing.assert_close(seen, 16 * n, rtol=2e-6, atol=2e-6)


def test_sinkhorn_num_partials():
    """As in C; the sums depend on it."""
    for num_rows, want in {0: 1, 1: 1, 8: 1, 9: 2, 1001: 126, 4224: 528, 4225: 470, 10001: 527}.items():
        matrix = torch.zeros(num_rows, 1)
        assert engram.engram_sinkhorn_step(matrix, matrix[:, 0].clone(), torch.zeros(1), 1.0)[1].shape == (want, 1)


def test_v2(device):
    """With its names, its argument orders and its tests' tolerances."""
    import tegula.v2 as tile_kernels
    from tegula.v2.torch.engram import (
        engram_sinkhorn_finalize_ref, engram_sinkhorn_momentum_update_ref, engram_sinkhorn_step_ref)
    assert tile_kernels.torch.engram_sinkhorn_step_ref is engram_sinkhorn_step_ref
    theirs = tile_kernels.engram
    grad, momentum = torch.randn(4 * 256, device=device).bfloat16(), torch.randn(4 * 256, device=device)
    copy = momentum.clone()
    assert_equal(theirs.engram_sinkhorn_momentum_update(grad, momentum, 0.95, False),
                 engram_sinkhorn_momentum_update_ref(grad, copy, 0.95, False))
    assert_equal(momentum, copy)
    matrix = torch.randn(1001, 256, device=device)
    rows, cols = torch.rand(1001, device=device), torch.rand(256, device=device)
    want_rows, want_sums = rows.clone(), torch.zeros_like(cols)
    want_norm = engram_sinkhorn_step_ref(matrix, want_rows, cols, want_sums, 1e-20)
    norm, partial = theirs.engram_sinkhorn_step(matrix, rows, cols, 1e-20)
    sums = torch.empty_like(cols)
    assert theirs.engram_sinkhorn_step_reduce(partial, sums) is None
    torch.testing.assert_close((norm, rows, partial.sum(0)), (want_norm, want_rows, want_sums))
    torch.testing.assert_close(sums, want_sums, rtol=3e-6, atol=1e-5)
    args, out = (matrix, rows, cols, 1e-20, 16.0), torch.empty_like(matrix)
    assert theirs.engram_sinkhorn_finalize(*args, out) is out
    assert_equal(out, theirs.engram_sinkhorn_finalize(*args))
    torch.testing.assert_close(out, engram_sinkhorn_finalize_ref(*args))
