# SPDX-License-Identifier: MIT
"""TileKernels 2's forms of mHC, whose outputs the caller makes, and the kernel factories of TileKernels 1.0 that other
projects import: each against the public op of tegula.modeling.mhc.ops or tegula.mhc."""
import importlib
from fractions import Fraction

import numpy
import pytest
import torch

import tegula.as_tile_kernels  # noqa: F401
import tegula.torch as reference
import tegula.v2.mhc as v2
import tegula.v2.torch as v2_torch
from conftest import names_and_defaults
from tegula import mhc
from tegula.modeling.mhc import ops

SIGNATURES = """
expand_kernel.expand_to_mhc_fwd(x, o)
expand_kernel.expand_to_mhc_bwd(o_grad, x_grad)
head_compute_mix_kernel.mhc_head_compute_mix_fwd(input_mix, mhc_scale, mhc_base, output_mix, mhc_pre_eps, token_block_size=0)
head_compute_mix_kernel.mhc_head_compute_mix_bwd(output_mix_grad, input_mix, mhc_scale, mhc_base, input_mix_grad, mhc_scale_grad_partial, mhc_base_grad_partial, num_sms, token_block_size=0)
multilayer_recompute_kernel.mhc_multilayer_recompute(initial_residual, pre_mix_list, layer_output_list, post_mix_list, comb_mix_list, layer_input_list, residual_list)
norm_fn_kernel.mhc_fn_normw_merge_fwd(fn, normw, out_fn)
norm_fn_kernel.mhc_fn_normw_merge_bwd(fn, normw, out_fn_grad, fn_grad, normw_grad)
norm_fn_kernel.mhc_reduce_partials_and_rmsnorm_fwd(out_mul_splitted, sqrsum_splitted, out_mul, sqrsum, out, rms_group_size, rms_eps, n_splits)
norm_fn_kernel.mhc_reduce_partials_and_rmsnorm_bwd(out_grad, out_mul, sqrsum, out_mul_grad, sqrsum_grad, rms_group_size, rms_eps)
post_kernel.mhc_post_fwd(x, residual, post_layer_mix, comb_res_mix, out=None)
post_kernel.mhc_post_bwd(x, residual, post_layer_mix, comb_res_mix, d_o)
pre_apply_mix_kernel.mhc_pre_apply_mix_fwd(x, mix, o)
pre_apply_mix_kernel.mhc_pre_apply_mix_bwd(o_grad, x, mix, x_grad)
pre_big_fuse_kernel.mhc_pre_big_fuse_fwd(gemm_out_mul, gemm_out_sqrsum, mhc_scale, mhc_base, residual, post_mix, comb_mix, layer_input, rms_eps, mhc_pre_eps, mhc_sinkhorn_eps, mhc_post_mult_value, sinkhorn_repeat, n_splits=16)
pre_split_mixes_kernel.mhc_pre_split_mixes_fwd(input_mixes, mhc_scale, mhc_base, pre_layer_mix, post_layer_mix, comb_res_mix, mhc_post_mult_value, mhc_pre_eps)
pre_split_mixes_kernel.mhc_pre_split_mixes_bwd(pre_grad, post_grad, comb_grad, input_mixes, post_layer_mix, mhc_scale, mhc_base, input_mixes_grad, mhc_scale_grad, mhc_base_grad, mhc_post_mult_value)
sinkhorn_kernel.mhc_sinkhorn_fwd(comb_res_mix, out, repeat, eps)
sinkhorn_kernel.mhc_sinkhorn_bwd(grad_output, x, grad_input, repeat, eps)
""".split("\n")[1:-1]


@pytest.mark.parametrize("line", SIGNATURES, ids=lambda line: line.split("(")[0])
def test_signatures_of_v2(line):
    module, _, rest = line.partition(".")
    name = rest.partition("(")[0]
    function = getattr(importlib.import_module(f"tegula.v2.mhc.{module}"), name)
    assert names_and_defaults(function) == rest[len(name):] and getattr(v2, name) is function


def test_v2_has_no_other_names():
    assert sorted(line.partition(".")[2].partition("(")[0] for line in SIGNATURES) == sorted(v2.__all__)


def v1(module, name):
    return getattr(importlib.import_module(f"tile_kernels.mhc.{module}_kernel"), name)


def random(device, *shape, dtype=torch.float32):
    return torch.randn(*shape, device=device).to(dtype)


def bf16(device, *shape):
    return random(device, *shape, dtype=torch.bfloat16)


T, N, H = 7, 4, 64
P, K = N * (N + 2), N * H


@pytest.fixture(params=["v2", "v1"])
def form(request):
    return request.param


def same(*pairs):
    for seen, want in pairs:
        assert torch.equal(seen.reshape(want.shape), want)


def test_expand(form, device):
    x, o, grad = bf16(device, T, H), bf16(device, T, N, H), bf16(device, T, N, H)
    fwd, bwd = (v2.expand_to_mhc_fwd, v2.expand_to_mhc_bwd) if form == "v2" else (
        v1("expand", "expand_to_mhc_fwd_tl")(H, N), v1("expand", "expand_to_mhc_bwd_tl")(H, N))
    assert fwd(x, o) is None
    x_grad = torch.empty_like(x)
    assert bwd(grad, x_grad) is None
    same((o, ops.expand_to_mhc(x, N)), (x_grad, mhc.mhc_expand_bwd(grad)))


@pytest.mark.parametrize("num_sms", [1, 20])
def test_head_compute_mix(num_sms, form, device):
    """The caller adds partial sums up, whatever was there."""
    mixes, scale, base, grad = random(device, T, N), random(device, 1), random(device, N), random(device, T, N)
    out, mixes_grad = torch.empty_like(mixes), torch.empty_like(mixes)
    partial = torch.full((num_sms, 1), 7.0, device=device), torch.full((num_sms, N), 7.0, device=device)
    if form == "v2":
        v2.mhc_head_compute_mix_fwd(mixes, scale, base, out, 1e-2)
        v2.mhc_head_compute_mix_bwd(grad, mixes, scale, base, mixes_grad, *partial, num_sms)
    else:
        v1("head_compute_mix", "_mhc_head_compute_mix_fwd")(N, 1e-2, 32)(mixes, scale, base, out)
        v1("head_compute_mix", "_mhc_head_compute_mix_bwd")(N, 32, num_sms)(grad, mixes, scale, base, mixes_grad, *partial)
    wanted = mhc.mhc_head_compute_mix_bwd(mixes, scale, base, grad)
    same((out, ops.mhc_head_compute_mix(mixes, scale, base, 1e-2)), (mixes_grad, wanted[0]),
         (partial[0].sum(0), wanted[1]), (partial[1].sum(0), wanted[2]))


def test_pre_split_mixes(form, device):
    mixes, scale, base = random(device, T, P), random(device, 3), random(device, P)
    pre, post, comb = (torch.empty(T, width, device=device) for width in (N, N, N * N))
    grads = random(device, T, N), random(device, T, N), random(device, T, N * N)
    made = torch.empty_like(mixes)
    if form == "v2":
        v2.mhc_pre_split_mixes_fwd(mixes, scale, base, pre, post, comb, 2.0, 1e-2)
        sums = torch.empty(3, device=device), torch.empty(P, device=device)
        v2.mhc_pre_split_mixes_bwd(*grads, mixes, post, scale, base, made, *sums, 2.0)
    else:
        v1("pre_split_mixes", "_mhc_pre_split_mixes_fwd")(N, 2.0, 1e-2, 32)(mixes, scale, base, pre, post, comb)
        sums = torch.ones(148, 3, device=device), torch.ones(148, P, device=device)
        v1("pre_split_mixes", "_mhc_pre_split_mixes_bwd")(N, 2.0, 32)(*grads, mixes, post, scale, base, made, *sums)
        sums = [t.sum(0) for t in sums]
    same(*zip((pre, post, comb), ops.mhc_pre_split_mixes(mixes, scale, base, N, 2.0, 1e-2)))
    wanted = mhc.mhc_pre_split_mixes_bwd(mixes, scale, base, *grads[:2], grads[2].view(T, N, N), 2.0)
    same(*zip((made, *sums), wanted))


def test_sinkhorn(form, device):
    x, grad = random(device, T, N, N), random(device, T, N, N)
    out, made = torch.empty_like(x), torch.empty_like(x)
    if form == "v2":
        v2.mhc_sinkhorn_fwd(x, out, 20, 1e-6), v2.mhc_sinkhorn_bwd(grad, x, made, 20, 1e-6)
    else:
        v1("sinkhorn", "_mhc_sinkhorn_fwd")(N, 32, 20, 1e-6)(x, out)
        v1("sinkhorn", "_mhc_sinkhorn_bwd")(N, 32, 20, 1e-6)(grad, x, made)
    same((out, ops.sinkhorn_normalize(x, 20, 1e-6)), (made, mhc.mhc_sinkhorn_bwd(grad, x, 20, 1e-6)))
    if form == "v2":                        # in place; and shifted logits
        v2.mhc_sinkhorn_fwd(x, x, 20, 1e-6)
        same((x, out))
        for shift in (-100, 100):
            for eps in (1e-6, 1e-2):
                shifted = random(device, T, N, N) + shift
                v2.mhc_sinkhorn_fwd(shifted, out, 10, eps)
                torch.testing.assert_close(out, reference.sinkhorn_normalize_ref(shifted, 10, eps), rtol=1e-5, atol=1e-6)


def test_pre_apply_mix(form, device):
    x, mix, grad, start = bf16(device, T, N, H), random(device, T, N), bf16(device, T, H), bf16(device, T, N, H)
    out, x_grad = bf16(device, T, H), start.clone()
    fwd, bwd = (v2.mhc_pre_apply_mix_fwd, v2.mhc_pre_apply_mix_bwd) if form == "v2" else (
        v1("pre_apply_mix", "_mhc_pre_apply_mix_fwd")(N, H), v1("pre_apply_mix", "_mhc_pre_apply_mix_bwd")(N, H))
    assert fwd(x, mix, out) is None
    mix_grad = bwd(grad, x, mix, x_grad)
    same((out, ops.mhc_pre_apply_mix(x, mix)), (mix_grad, mhc.mhc_pre_apply_mix_bwd(grad, x, mix)[1]),
         (x_grad, (mix.double().unsqueeze(-1) * grad.double().unsqueeze(1) + start.double()).bfloat16()))


def test_post(form, device):
    x, residual, mix, comb = bf16(device, 1, T, H), bf16(device, 1, T, N, H), random(device, 1, T, N, 1), random(
        device, 1, T, N, N)
    grad = bf16(device, 1, T, N, H)
    wanted = ops.mhc_post_bwd(x, residual, mix, comb, grad, fuse_grad_acc=False)
    if form == "v2":
        made, grads = v2.mhc_post_fwd(x, residual, mix, comb), v2.mhc_post_bwd(x, residual, mix, comb, grad)
        assert not hasattr(residual.untyped_storage(), "grad_from_mhc_post")
    else:
        made = torch.empty_like(residual[0])
        v1("post", "_mhc_post_fwd")(mhc=N, hidden=H, n_thr=128, h_blk=512)(comb[0], residual[0], mix[0, :, :, 0], x[0], made)
        grads = v1("post", "_mhc_post_bwd")(N, H, 128, 1024)(grad[0], comb[0], residual[0], mix[0, :, :, 0], x[0])
        grads = grads[3], grads[1], grads[2], grads[0]
        assert v1("post", "mhc_post_fwd") is ops.mhc_post_fwd and v1("post", "mhc_post_bwd") is ops.mhc_post_bwd
    same((made, ops.mhc_post_fwd(x, residual, mix, comb)), *zip(grads, wanted))


def partials(device, splits):
    """As a GEMM with `splits` ranges of columns makes them."""
    residual, fn = bf16(device, T, N, H), random(device, P, K) / 16
    x, rows = residual.view(T, K).float().tensor_split(splits, 1), fn.tensor_split(splits, 1)
    return residual, fn, torch.stack([a @ b.T for a, b in zip(x, rows)]), torch.stack([a.square().sum(1) for a in x])


@pytest.mark.parametrize("splits", [1, 2, 3, 16])
def test_partials(splits, form, device):
    """big_fuse equals reduce, split, Sinkhorn and apply to the bit; mixes are those of the whole."""
    residual, fn, mul, squares = partials(device, splits)
    out_mul, sqrsum, out = (torch.empty(*shape, device=device) for shape in ((T, 1, P), (T, 1), (T, P)))
    args = mul.unsqueeze(2), squares.unsqueeze(2), out_mul, sqrsum, out
    if form == "v2":
        v2.mhc_reduce_partials_and_rmsnorm_fwd(*args, K, 1e-6, splits)
    else:
        v1("norm_fn", "_mhc_pre_norm_fn_fwd_norm")(P, 1, K, 1e-6, splits)(*args)
    torch.testing.assert_close(out_mul[:, 0], mul.double().sum(0).float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sqrsum[:, 0], squares.double().sum(0).float(), rtol=1e-6, atol=0)
    torch.testing.assert_close(out, ops.mhc_pre_norm_fn(residual, fn, None, 1e-6), rtol=1e-3, atol=1e-3)
    r = 1 / (sqrsum.double() / K + 1e-6).sqrt()
    torch.testing.assert_close(out, (out_mul[:, 0] * r).float(), rtol=2e-7, atol=0)
    scale, base = random(device, 3), random(device, P)
    post, comb, layer_input = (torch.empty(T, width, device=device) for width in (N, N * N, H))
    made = post, comb, layer_input.bfloat16()
    if form == "v2":
        v2.mhc_pre_big_fuse_fwd(mul, squares, scale, base, residual, *made, 1e-6, 1e-6, 1e-6, 2.0, 20, splits)
    else:
        v1("pre_big_fuse", "_mhc_pre_big_fuse")(H, 1e-6, 1e-6, 1e-6, 2.0, 20, splits, mhc_mult=N)(
            mul, squares, scale, base, residual, *made)
    pre, gate, logits = ops.mhc_pre_split_mixes(out, scale, base, N, 2.0, 1e-6)
    same((made[0], gate), (made[1], ops.sinkhorn_normalize(logits, 20, 1e-6)), (made[2], ops.mhc_pre_apply_mix(residual, pre)))


def correctly_rounded(sqrsum, size, eps):
    """1 / sqrt(sqrsum / size + eps), whose quotient and sum are rounded to float32."""
    mean = sqrsum.cpu().numpy() / numpy.float32(size) + numpy.float32(eps)
    return torch.from_numpy((1 / numpy.sqrt(mean.astype(numpy.float64))).astype(numpy.float32)).to(sqrsum.device)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("splits", [1, 11])
def test_the_bits_of_partials(splits, groups, device):
    """Any number of splits is added as a tree, then normed, and groups are added in order. 96 is no power of two: a
    product with its reciprocal is not the quotient."""
    parts, squares = random(device, splits, T, groups, P), random(device, splits, T, groups).square() * 96
    out_mul, sqrsum, out = (torch.empty(*shape, device=device) for shape in ((T, groups, P), (T, groups), (T, P)))
    v2.mhc_reduce_partials_and_rmsnorm_fwd(parts, squares, out_mul, sqrsum, out, 96, 1e-5, splits)

    def tree(t):
        if splits == 1:
            return t[0]
        return (((t[0] + t[1]) + (t[2] + t[3])) + ((t[4] + t[5]) + (t[6] + t[7]))) + ((t[8] + t[9]) + t[10])

    r = correctly_rounded(sqrsum, 96, 1e-5)
    normed = (out_mul * r.unsqueeze(-1)).unbind(1)
    same((out_mul, tree(parts)), (sqrsum, tree(squares)), (out, normed[0] if groups == 1 else normed[0] + normed[1] + normed[2]))
    grad, mul_grad, sqr_grad = random(device, T, P), torch.empty_like(out_mul), torch.empty_like(sqrsum)
    v2.mhc_reduce_partials_and_rmsnorm_bwd(grad, out_mul, sqrsum, mul_grad, sqr_grad, 96, 1e-5)
    same((mul_grad, grad.unsqueeze(1) * r.unsqueeze(-1)))
    with pytest.raises(ValueError, match="out_mul_splitted: shape is"):
        v2.mhc_reduce_partials_and_rmsnorm_fwd(parts, squares, out_mul, sqrsum, out, 96, 1e-5, splits + 1)


def test_norm_backward(form, device):
    out_mul, sqrsum, grad = random(device, T, 1, P), random(device, T, 1).square() + K, random(device, T, P)
    mul_grad, sqr_grad = torch.empty_like(out_mul), torch.empty_like(sqrsum)
    args = grad, out_mul, sqrsum, mul_grad, sqr_grad
    if form == "v2":
        v2.mhc_reduce_partials_and_rmsnorm_bwd(*args, K, 1e-2)
    else:
        v1("norm_fn", "_mhc_pre_norm_fn_bwd_norm")(P, 1, K, 1e-2)(*args)
    mul, squares = (t.double().requires_grad_() for t in (out_mul, sqrsum))
    out = (mul * (squares / K + 1e-2).rsqrt().unsqueeze(-1)).sum(1)
    for seen, want in zip((mul_grad, sqr_grad), torch.autograd.grad(out, (mul, squares), grad.double())):
        torch.testing.assert_close(seen, want.float(), rtol=1e-5, atol=1e-6 * float(want.abs().max()))


def test_merge(form, device):
    fn, weight, grad = random(device, P, K), random(device, K), random(device, P, K)
    out, fn_grad, weight_grad = torch.empty_like(fn), torch.ones_like(fn), torch.ones_like(weight)
    fwd, bwd = (v2.mhc_fn_normw_merge_fwd, v2.mhc_fn_normw_merge_bwd) if form == "v2" else (
        v1("norm_fn", "_mhc_fn_normw_merge_fwd")(P, K), v1("norm_fn", "_mhc_fn_normw_merge_bwd")(P, K))
    fwd(fn, weight, out), bwd(fn, weight, grad, fn_grad, weight_grad)
    same((out, fn * weight), (fn_grad, 1 + grad * weight))
    torch.testing.assert_close(weight_grad, 1 + (grad.double() * fn.double()).sum(0).float(), rtol=1e-5, atol=1e-5)


def test_the_bits_of_merge(form, device):
    """Are those of the whole op, with a gain, from its product's gradient, which is that of an fn without a gain."""
    bwd = v2.mhc_fn_normw_merge_bwd if form == "v2" else v1("norm_fn", "_mhc_fn_normw_merge_bwd")(P, K)
    residual, fn, weight, grad = bf16(device, 64, N, H), random(device, P, K), random(device, K), random(device, 64, P)
    _, out_mul, sqrsum = mhc.mhc_norm_fn_fwd(residual, fn, weight)
    _, of_product = mhc.mhc_norm_fn_bwd(grad, residual, fn * weight, out_mul, sqrsum)
    _, *wanted = mhc.mhc_norm_fn_bwd(grad, residual, fn, out_mul, sqrsum, weight)
    made = torch.zeros_like(fn), torch.zeros_like(weight)
    bwd(fn, weight, of_product, *made)
    same(*zip(made, wanted))


def fused(a, b, c):
    """a * b + c, rounded once."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    near = numpy.float32(float(exact))
    around = [numpy.nextafter(near, numpy.float32(side)) for side in (-numpy.inf, numpy.inf)] + [near]
    return min(around, key=lambda f: (abs(Fraction(float(f)) - exact), int(f.view(numpy.uint32)) & 1))


def test_merge_rounds_once(device):
    """Where a float64's rounding hits the middle of two float32, and where terms cancel."""
    numbers = [(1 + 2**-23, 1 + 2**-23, 2**-60), (1 + 2**-12, 1 + 2**-12, 2**-70), (1 + 2**-12, 1 + 2**-12, -2**-70),
               (2**-12 + 2**-24, 2**-12 * (1 + 2**-12), 1.0), (3.0, 1 / 3, -1.0), (2**-75, 2**-75, 0.0), (2**-75, 2**-74, 2**-149),
               (-1 - 2**-12, 1 + 2**-12, 2**-70), (1.5, 2**-24, 1.0), (1.5, 2**-24, 1 + 2**-23), (1 + 2**-23, 2**-24, 1.0)]
    numbers += random("cpu", 500, 3).tolist()
    a, b, c = torch.tensor(numbers, device=device).T.contiguous()
    ones = torch.ones_like(c)
    made = torch.zeros(2, len(numbers), device=device), torch.zeros(len(numbers), device=device)
    v2.mhc_fn_normw_merge_bwd(torch.stack([c, a]), ones, torch.stack([ones, b]), *made)
    want = [fused(*(t[i].item() for t in (a, b, c))) for i in range(len(numbers))]
    same((made[1], torch.tensor(numpy.array(want), device=device)))


def test_merge_of_infinities(device):
    fn, grad = torch.tensor([[float("inf"), 1.0], [1.0, -float("inf")]], device=device), torch.ones(2, 2, device=device)
    made = torch.zeros_like(fn), torch.zeros(2, device=device)
    v2.mhc_fn_normw_merge_bwd(fn, torch.ones(2, device=device), grad, *made)
    assert made[1].tolist() == [float("inf"), -float("inf")]


@pytest.mark.parametrize("lead", [(), (2, 3), (5,), (0,)])
@pytest.mark.parametrize("splits", [1, 3, 16])
def test_references_of_v2(splits, lead, device):
    """Of partial sums, as TileKernels 2's tests use them; the others are those of tegula.torch."""
    names = ("expand_to_mhc_ref mhc_head_compute_mix_ref mhc_post_ref mhc_pre_apply_mix_ref mhc_pre_norm_fn_ref "
             "mhc_pre_split_mixes_ref sinkhorn_normalize_ref").split()
    for name in names:
        assert getattr(v2_torch, name) is getattr(v2_torch.mhc, name) is getattr(reference, name)
    assert names_and_defaults(v2_torch.mhc_pre_norm_fn_partials_ref) == "(residual, mhc_fn, n_splits)"
    residual, fn = bf16(device, *lead, N, H), random(device, P, K) / 16
    out_mul, sqrsum = v2_torch.mhc_pre_norm_fn_partials_ref(residual, fn, splits)
    x, tokens = residual.reshape(-1, K).double(), residual.numel() // K
    assert out_mul.shape == (splits, tokens, 1, P) and sqrsum.shape == (splits, tokens, 1)
    torch.testing.assert_close(out_mul.double().sum(0)[:, 0], x @ fn.double().T, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sqrsum.double().sum(0)[:, 0], x.square().sum(1), rtol=1e-6, atol=0)
    first = K // splits + (K % splits > 0)
    torch.testing.assert_close(sqrsum[0, :, 0].double(), x[:, :first].square().sum(1), rtol=1e-6, atol=0)
    made = torch.empty(tokens, 1, P, device=device), torch.empty(tokens, 1, device=device), torch.empty(tokens, P, device=device)
    v2.mhc_reduce_partials_and_rmsnorm_fwd(out_mul, sqrsum, *made, K, 1e-6, splits)
    want = v2_torch.mhc_pre_norm_fn_ref(residual, fn, None, 1e-6)
    torch.testing.assert_close(made[2].view(want.shape), want, rtol=1e-3, atol=1e-3)


def call_of(name, device):
    """A form that torch computes: the call, and its tensors by their names."""
    def new(*shape):
        return random(device, *shape)

    if name == "merge_fwd":
        return v2.mhc_fn_normw_merge_fwd, dict(fn=new(P, K), normw=new(K), out_fn=new(P, K)), {}
    if name == "merge_bwd":
        return v2.mhc_fn_normw_merge_bwd, dict(fn=new(P, K), normw=new(K), out_fn_grad=new(P, K), fn_grad=new(P, K),
                                               normw_grad=new(K)), {}
    if name == "reduce_fwd":
        tensors = dict(out_mul_splitted=new(2, T, 3, P), sqrsum_splitted=new(2, T, 3).square(), out_mul=new(T, 3, P),
                       sqrsum=new(T, 3), out=new(T, P))
        return v2.mhc_reduce_partials_and_rmsnorm_fwd, tensors, dict(rms_group_size=64, rms_eps=1e-6, n_splits=2)
    if name == "reduce_bwd":
        tensors = dict(out_grad=new(T, P), out_mul=new(T, 3, P), sqrsum=new(T, 3).square(), out_mul_grad=new(T, 3, P),
                       sqrsum_grad=new(T, 3))
        return v2.mhc_reduce_partials_and_rmsnorm_bwd, tensors, dict(rms_group_size=64, rms_eps=1e-6)
    tensors = dict(output_mix_grad=new(T, N), input_mix=new(T, N), mhc_scale=new(1), mhc_base=new(N), input_mix_grad=new(T, N),
                   mhc_scale_grad_partial=new(5, 1), mhc_base_grad_partial=new(5, N))
    return v2.mhc_head_compute_mix_bwd, tensors, dict(num_sms=5)


@pytest.mark.parametrize("name, output", [
    ("merge_fwd", "out_fn"), ("merge_bwd", "fn_grad"), ("merge_bwd", "normw_grad"), ("reduce_fwd", "out"),
    ("reduce_fwd", "out_mul"), ("reduce_fwd", "sqrsum"), ("reduce_bwd", "out_mul_grad"), ("reduce_bwd", "sqrsum_grad"),
    ("head_bwd", "mhc_scale_grad_partial"), ("head_bwd", "mhc_base_grad_partial")])
def test_outputs_are_checked(name, output, device):
    """What torch computes, too: it would change a wrong shape, round to any dtype and write over an input. Nothing is
    written before."""
    call, tensors, rest = call_of(name, device)
    call(**tensors, **rest)
    right = tensors[output]
    shape = list(right.shape)
    wrong = [right.double(), right.bfloat16(), torch.cat([right, right], -1), right[:-1], right.unsqueeze(0),
             torch.stack([right, right], -1)[..., 0], right.new_empty(1).expand(shape)]
    before = {key: t.clone() for key, t in tensors.items()}
    for t in wrong:
        with pytest.raises(ValueError, match=rf"{output}: "):
            call(**{**tensors, output: t}, **rest)
        for key in tensors.keys() - {output}:
            assert torch.equal(tensors[key], before[key]), key
    other = next(t for key, t in tensors.items() if key != output and t.numel() >= right.numel())
    with pytest.raises(ValueError, match=rf"{output}: (shares memory|overlaps)|overlap"):
        call(**{**tensors, output: other.flatten()[:right.numel()].view(shape)}, **rest)


# ---- the projection in parts, of v1 ----

def upstream_round(t):
    """TileKernels' round_to_tf32: incremented, not cut."""
    return (t.view(torch.int32) + 0x1000).view(torch.float32)


def test_round_to_tf32(device):
    from tile_kernels.mhc.norm_fn_kernel import round_to_tf32
    numbers = torch.tensor([0.1, 1 / 3, 0.7, -0.7, 0.0, -0.0, float("inf"), float("-inf")], device=device)
    want = torch.tensor([0x3dccc000, 0x3eaaa000, 0x3f334000, 0x3f334000 - 2**31, 0, -2**31, 0x7f800000, 0x7f800000 - 2**31],
                        dtype=torch.int64).int().to(device)
    assert torch.equal(round_to_tf32(numbers).view(torch.int32), want)
    nan = torch.tensor([0x7fffffff, 0x7fc00000], dtype=torch.int32, device=device).view(torch.float32)
    assert round_to_tf32(nan).isnan().all()
    assert not round_to_tf32(numbers.requires_grad_()).requires_grad


@pytest.mark.parametrize("rounding", ["theirs", "ours"])
def test_forward_mul(rounding, device):
    """The whole op's products to the bit, from an fn that was rounded once: a second rounding would show."""
    residual, fn = bf16(device, T, N, H), random(device, P, K)
    once = upstream_round(fn) if rounding == "theirs" else v1("norm_fn", "round_to_tf32")(fn)
    out, sqrsum = torch.empty(T, 1, P, device=device), torch.empty(T, 1, device=device)
    v1("norm_fn", "_mhc_pre_norm_fn_fwd_mul")(P, 1, K)(residual.view(T, K), once, out, sqrsum)
    _, want, squares = mhc.mhc_norm_fn_fwd(residual, fn)
    same((out[:, 0], want), (sqrsum[:, 0], squares))
    assert not torch.equal(mhc.mhc_norm_fn_fwd(residual, upstream_round(fn))[1], want)      # rounded twice


@pytest.mark.parametrize("P", [1, 24, 80])
@pytest.mark.parametrize("groups", [1, 2])
def test_backward_mul(groups, P, device):
    """x_grad is added to, fn_grad written; out_mul_grad and fn are rounded once."""
    size = K // groups
    x, fn, start = bf16(device, T, K), random(device, P, K) / 16, bf16(device, T, K)
    mul_grad, sqr_grad = random(device, T, groups, P), random(device, T, groups) / 16
    x_grad, fn_grad = start.clone(), torch.empty_like(fn)
    v1("norm_fn", "_mhc_pre_norm_fn_bwd_mul")(P, groups, size)(
        upstream_round(mul_grad), sqr_grad, x, upstream_round(fn), x_grad, fn_grad)
    rounded = v1("norm_fn", "round_to_tf32")
    dx, d, rows = x.double().view(T, groups, size), rounded(mul_grad).double(), rounded(fn).double().view(P, groups, size)
    want = start.double().view(T, groups, size) + torch.einsum("tgp,pgk->tgk", d, rows) + 2 * dx * sqr_grad.double().unsqueeze(-1)
    assert ((x_grad.double() - want.view(T, K)).abs() <= 2**-8 * want.view(T, K).abs() + 1e-5).all()
    torch.testing.assert_close(fn_grad, torch.einsum("tgp,tgk->pgk", d, dx).reshape(P, K).float(), rtol=1e-5, atol=1e-5)
    out, sqrsum = torch.empty(T, groups, P, device=device), torch.empty(T, groups, device=device)
    v1("norm_fn", "_mhc_pre_norm_fn_fwd_mul")(P, groups, size)(x, upstream_round(fn), out, sqrsum)
    torch.testing.assert_close(out, torch.einsum("tgk,pgk->tgp", dx, rows).float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sqrsum, dx.square().sum(-1).float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan"), 3.401e38])     # the last is finite as TF32
@pytest.mark.parametrize("P", [1, 24, 79, 80])
def test_backward_mul_of_what_is_not_finite(P, value, device):
    """As the sums give it: infinite where fn is not 0, in that token and in that row of fn_grad alone."""
    x, fn, x_grad = bf16(device, T, K) / 64, random(device, P, K) / 64, bf16(device, T, K)
    x[1, 2] = fn[:, 3] = 0
    mul_grad, sqr_grad, fn_grad = random(device, T, 1, P), random(device, T, 1), torch.empty_like(fn)
    mul_grad[1, 0, P - 1] = value
    rounded = v1("norm_fn", "round_to_tf32")
    mul_grad, fn = rounded(mul_grad), rounded(fn)
    d = mul_grad[:, 0].double()
    want = x_grad.double() + d @ fn.double() + 2 * x.double() * sqr_grad.double()
    of_fn = d.T @ x.double()
    v1("norm_fn", "_mhc_pre_norm_fn_bwd_mul")(P, 1, K)(mul_grad, sqr_grad, x, fn, x_grad, fn_grad)
    torch.testing.assert_close(x_grad.float(), want.float(), rtol=2**-7, atol=0.05, equal_nan=True)
    torch.testing.assert_close(fn_grad, of_fn.float(), rtol=1e-4, atol=1e-4, equal_nan=True)
    others = [t for t in range(T) if t != 1]
    assert x_grad[others].isfinite().all() and fn_grad[:P - 1].isfinite().all()


@pytest.mark.parametrize("module, name", [("ops", "MHCGemmWithSqrsum"), ("ops.norm_fn", "MHCReducePartialsAndRmsnorm")])
def test_what_must_not_be_there(module, name):
    """DeepGEMM takes the factories of partial sums only if these imports fail."""
    assert not hasattr(importlib.import_module(f"tile_kernels.modeling.mhc.{module}"), name)


def test_dtypes_of_factories():
    v1("post", "_mhc_post_fwd")(N, H, accum_dtype="float32")
    with pytest.raises(ValueError, match="accum_dtype: is bfloat16, want float32"):
        v1("post", "_mhc_post_fwd")(N, H, accum_dtype="bfloat16")
    assert v1("multilayer_recompute", "mhc_multilayer_recompute") is ops.mhc_multilayer_recompute


# ---- no graph ----

def test_nothing_is_recorded(device):
    """Outputs that the caller made have no gradient, whatever asks for one, and may be views of a leaf."""
    def leaf(*shape, dtype=torch.float32):
        return random(device, *shape, dtype=dtype).requires_grad_()

    x, residual, mix, comb = leaf(T, H, dtype=torch.bfloat16), leaf(T, N, H, dtype=torch.bfloat16), leaf(T, N), leaf(T, N, N)
    mixes, scale, base, fn, weight = leaf(T, P), leaf(3), leaf(P), leaf(P, K), leaf(K)
    parts, squares = leaf(2, T, P), random(device, 2, T).square().requires_grad_()

    def empty(*shape, dtype=torch.float32):
        return torch.empty(*shape, dtype=dtype, device=device)

    made = [empty(T, N, H, dtype=torch.bfloat16), empty(T, N), empty(T, N), empty(T, N * N), empty(T, N, N),
            empty(T, H, dtype=torch.bfloat16), empty(P, K), empty(T, 1, P), empty(T, 1), empty(T, P), empty(T, P), empty(3),
            empty(P), empty(T, N, H, dtype=torch.bfloat16)]
    streams, a, c, wide, square, layer_input, merged, out_mul, sqrsum, out, d_mixes, d_scale, d_base, again = made
    returned = [v2.mhc_post_fwd(x, residual, mix, comb), *v2.mhc_post_bwd(x, residual, mix, comb, residual),
                ops.mhc_post_fwd(x, residual, mix, comb, out=again), *ops.mhc_post_bwd(x, residual, mix, comb, residual, False)]
    v2.expand_to_mhc_fwd(x, streams), v2.expand_to_mhc_bwd(residual, layer_input)
    v2.mhc_head_compute_mix_fwd(mix, scale[:1], base[:N], a, 1e-6)
    v2.mhc_pre_split_mixes_fwd(mixes, scale, base, a, c, wide, 2.0, 1e-6)
    v2.mhc_pre_split_mixes_bwd(mix, mix, wide, mixes, mix, scale, base, d_mixes, d_scale, d_base, 2.0)
    v2.mhc_sinkhorn_fwd(comb, square, 3, 1e-6), v2.mhc_sinkhorn_bwd(comb, comb, square, 3, 1e-6)
    v2.mhc_pre_apply_mix_fwd(residual, mix, layer_input)
    returned.append(v2.mhc_pre_apply_mix_bwd(x, residual, mix, streams))
    v2.mhc_fn_normw_merge_fwd(fn, weight, merged), v2.mhc_fn_normw_merge_bwd(fn, weight, fn, merged, merged[0].clone())
    v2.mhc_reduce_partials_and_rmsnorm_fwd(parts.unsqueeze(2), squares.unsqueeze(2), out_mul, sqrsum, out, K, 1e-6, 2)
    v2.mhc_reduce_partials_and_rmsnorm_bwd(mixes, out_mul, sqrsum, out_mul.clone(), sqrsum.clone(), K, 1e-6)
    v2.mhc_pre_big_fuse_fwd(parts, squares, scale, base, residual, a, wide, layer_input, 1e-6, 1e-6, 1e-6, 2.0, 3, 2)
    v1("post", "_mhc_post_fwd")(N, H)(comb, residual, mix, x, again)
    returned += v1("post", "_mhc_post_bwd")(N, H)(residual, comb, residual, mix, x)
    v1("norm_fn", "_mhc_pre_norm_fn_fwd_mul")(P, 1, K)(residual.view(T, K), fn, out_mul, sqrsum)
    v1("norm_fn", "_mhc_pre_norm_fn_bwd_mul")(P, 1, K)(mixes.view(T, 1, P), sqrsum, residual.view(T, K), fn, again.view(T, K),
                                                       merged)
    v1("pre_split_mixes", "_mhc_pre_split_mixes_bwd")(N, 2.0)(mix, mix, wide, mixes, mix, scale, base, d_mixes,
                                                              empty(148, 3), empty(148, P))
    for t in [*made, *returned]:
        assert not t.requires_grad and t.grad_fn is None


# ---- TileKernels' own tests (tests/tile_kernels runs them where there is a checkout) ----

IMPORTED = """
modeling.mhc.functional: mhc_pre
modeling.mhc.ops: expand_to_mhc mhc_head_compute_mix mhc_post mhc_pre_apply_mix mhc_pre_big_fuse mhc_pre_norm_fn mhc_pre_split_mixes sinkhorn_normalize
modeling.mhc.ops.multilayer_recompute: mhc_multilayer_recompute
modeling.mhc.ops.post: mhc_post
modeling.mhc.ops.pre_apply_mix: mhc_pre_apply_mix
torch.mhc: expand_to_mhc_ref mhc_head_compute_mix_ref mhc_post_ref mhc_pre_apply_mix_ref mhc_pre_norm_fn_ref mhc_pre_split_mixes_ref sinkhorn_normalize_ref
engram: engram_gate_bwd engram_gate_fwd engram_hash fused_weight grad_w_reduce
torch.engram: engram_gate_ref engram_hash_ref make_offsets
config: get_num_sms
testing.numeric: assert_equal calc_diff count_bytes
testing.generator: generate_hidden_sizes generate_num_tokens
testing.bench: make_param_id
""".split("\n")[1:-1]


@pytest.mark.parametrize("line", IMPORTED, ids=lambda line: line.partition(":")[0])
def test_what_their_tests_import(line):
    module, _, names = line.partition(":")
    for name in names.split():
        assert callable(getattr(importlib.import_module(f"tile_kernels.{module}"), name))
