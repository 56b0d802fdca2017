# SPDX-License-Identifier: MIT
"""tegula.modeling.mhc under TileKernels' names: its tests' matrices, with fewer tokens on the CPU, against references
that share no code with it; the buffer that three backwards share; what surrounds a training step."""
import importlib
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import tegula.as_tile_kernels  # noqa: F401
import tegula.torch as reference
from conftest import IS_FULL, names_and_defaults, on_one_device
from tile_kernels.modeling.mhc import expand_from_embedding, mhc_head, mhc_pre
from tile_kernels.modeling.mhc.ops import (
    expand_to_mhc, mhc_head_compute_mix, mhc_multilayer_recompute, mhc_post, mhc_post_bwd, mhc_post_fwd,
    mhc_pre_apply_mix, mhc_pre_big_fuse, mhc_pre_norm_fn, mhc_pre_split_mixes, sinkhorn_normalize)

SIGNATURES = """
ops.expand.expand_to_mhc(hidden, mhc_mult, out=None)
ops.norm_fn.mhc_pre_norm_fn(residual, mhc_fn, mhc_norm_weight, mhc_norm_eps, fuse_grad_acc=True, n_splits=16)
ops.pre_split_mixes.mhc_pre_split_mixes(input_mixes, mhc_scale, mhc_base, mhc_mult, mhc_post_mult_value, mhc_pre_eps)
ops.sinkhorn.sinkhorn_normalize(x, repeat=10, eps=1e-06)
ops.pre_apply_mix.mhc_pre_apply_mix(x, mix, out=None)
ops.post.mhc_post(x, residual, post_layer_mix, comb_res_mix, out=None)
ops.post.mhc_post_fwd(x, residual, post_layer_mix, comb_res_mix, out=None)
ops.post.mhc_post_bwd(x, residual, post_layer_mix, comb_res_mix, d_o, fuse_grad_acc=True)
ops.head_compute_mix.mhc_head_compute_mix(input_mix, mhc_scale, mhc_base, mhc_pre_eps)
ops.pre_big_fuse.mhc_pre_big_fuse(residual, fn, mhc_scale, mhc_base, rms_eps, mhc_pre_eps, mhc_sinkhorn_eps, mhc_post_mult_value, sinkhorn_repeat, n_splits=16)
ops.multilayer_recompute.mhc_multilayer_recompute(initial_residual, pre_mix_list, layer_output_list, post_mix_list, comb_mix_list, layer_input_list, residual_list)
functional.expand_from_embedding(x, mhc_mult=4)
functional.mhc_pre(residual, fn, scale, base, *, norm_weight=None, norm_eps=1e-06, mhc_mult=4, post_mult_value=1.0, pre_eps=1e-06, sinkhorn_eps=1e-06, sinkhorn_repeat=10, n_splits=16)
functional.mhc_head(residual, fn, scale, base, *, norm_weight=None, norm_eps=1e-06, mhc_mult=4, pre_eps=1e-06, n_splits=16)
""".split("\n")[1:-1]


@pytest.mark.parametrize("line", SIGNATURES, ids=lambda line: line.split("(")[0])
def test_signatures(line):
    path, _, _ = line.partition("(")
    module, _, name = path.rpartition(".")
    function = getattr(importlib.import_module(f"tile_kernels.modeling.mhc.{module}"), name)
    assert names_and_defaults(function) == line[len(path):]


def tokens(device, *few):
    """Leading dimensions (n0, n1) of TileKernels' tests; on the CPU its second is one of few."""
    return [(n0, n1) for n0 in (1, 2) for n1 in ((1024, 4096) if device == "cuda" and IS_FULL else few)]


def leaves(*tensors):
    return [None if t is None else t.detach().clone().requires_grad_() for t in tensors]


def compare(ours, theirs, inputs, call, want, grads=None, **tolerance):
    """Outputs and gradients of two functions of equal leaves."""
    made, wanted = call(*ours), want(*theirs)
    made, wanted = (t if isinstance(t, tuple) else (t,) for t in (made, wanted))
    for a, b in zip(made, wanted, strict=True):
        torch.testing.assert_close(a, b, **tolerance)
    up = [torch.randn_like(t) for t in wanted]
    seen = torch.autograd.grad(made, [t for t in ours if t is not None], up)
    for a, b in zip(seen, torch.autograd.grad(wanted, [t for t in theirs if t is not None], up)):
        torch.testing.assert_close(a, b, **(grads or tolerance))


# ---- TileKernels' matrices ----

@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("h", [1280, 2560, 7168])
def test_expand(n, h, device):
    for lead in tokens(device, 5, 16):
        x = torch.randn(*lead, h, device=device).bfloat16()
        assert torch.equal(expand_to_mhc(x, n), reference.expand_to_mhc_ref(x, n))
        out = x.new_empty(*lead, n, h)
        made = expand_to_mhc(x, n, out=out)
        assert made.data_ptr() == out.data_ptr() and torch.equal(out, reference.expand_to_mhc_ref(x, n))
        for arguments in ({}, {"out": out}):
            compare(leaves(x), leaves(x), (x,), lambda x: expand_to_mhc(x, n, **arguments),
                    lambda x: reference.expand_to_mhc_ref(x.float(), n).bfloat16())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_expand_of_other_dtypes(dtype, device):
    """Equal streams; the gradient is their sum in float32, in order, rounded once."""
    x = torch.randn(2, 3, 65, device=device).to(dtype)
    want, up = x.unsqueeze(-2).repeat(1, 1, 4, 1), torch.randn(2, 3, 4, 65, device=device).to(dtype)
    for out in (None, torch.empty_like(want)):
        leaf, = leaves(x)
        made = expand_to_mhc(leaf, 4, out=out)
        assert torch.equal(made, want) and made.is_contiguous() and (out is None or made.data_ptr() == out.data_ptr())
        grad, = torch.autograd.grad(made, leaf, up)
        total = up[..., 0, :].float()
        for i in range(1, 4):
            total = total + up[..., i, :].float()
        assert grad.dtype == dtype and torch.equal(grad, total.to(dtype))
    with pytest.raises(ValueError, match="out: shape is"):
        expand_to_mhc(x, 4, out=want[:1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_expand_into_the_same_buffer(dtype, device):
    """In every step, as CUDA graphs want it: a step's graph does not have those before it."""
    w, out = torch.randn(2, 64, device=device).to(dtype).requires_grad_(), torch.zeros(2, 4, 64, device=device, dtype=dtype)
    for step in range(3):
        w.grad = None
        expand_to_mhc(w * w, 4, out=out).sum().backward()
        torch.testing.assert_close(w.grad, 8 * w.detach())
        assert not out.requires_grad and torch.equal(out[:, 3], (w * w).detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_expand_of_all_dtypes_is_the_same_op(dtype, device):
    x = torch.randn(2, 64, device=device).to(dtype)
    one = expand_to_mhc(x, 1)
    assert torch.equal(one[:, 0], x) and one.data_ptr() != x.data_ptr()
    assert expand_to_mhc(x, 8).shape == (2, 8, 64)
    for count in (0, -1, 9):
        with pytest.raises(ValueError, match=f"^num_streams: is {count}, want 1..8"):
            expand_to_mhc(x, count)
    out = torch.zeros(2, 4, 128, device=device, dtype=dtype)
    with pytest.raises(ValueError, match="^out: dtype is"):
        expand_to_mhc(x, 4, out=out[..., :64].double())
    with pytest.raises(ValueError, match=r"^out: strides are \[512, 128, 2\], want 1 in the last dimension"):
        expand_to_mhc(x, 4, out=out[..., ::2])
    made = expand_to_mhc(x, 4, out=out[..., :64])
    assert torch.equal(made[:, 2], x) and not out[..., 64:].any()


def projection(device, lead, h, n=4, has_weight=True):
    """As TileKernels' tests make them."""
    x = torch.randn(*lead, n, h, device=device) * (1 + 0.01 * torch.arange(n, device=device)[:, None])
    fn = 1e-4 * torch.randn(n * (n + 2), n, h, device=device) * (1 + 0.01 * torch.arange(n, device=device)[:, None])
    weight = 1 + 0.1 * torch.randn(n * h, device=device) if has_weight else None
    return x.bfloat16(), fn.flatten(1), weight


def tf32(t):
    """Rounded to nearest, ties away from zero."""
    return ((t.detach().view(torch.int32) + 0x1000) & ~0x1fff).view(torch.float32)


@pytest.mark.parametrize("has_weight", [False, True])
@pytest.mark.parametrize("h", [1280, 2560, 7168])
@pytest.mark.parametrize("n1", [13, 48])
def test_norm_fn(n1, h, has_weight, device):
    """With the buffer set to zeros by the caller, as TileKernels' test has it; and that of the gain, which it leaves
    out."""
    x, fn, weight = projection(device, (1, n1), h, has_weight=has_weight)
    ours, theirs = leaves(x, fn, weight), leaves(x, fn, weight)
    out = mhc_pre_norm_fn(*ours, 1e-6, n_splits=16)
    want = reference.mhc_pre_norm_fn_ref(*theirs, 1e-6)
    torch.testing.assert_close(out, want, rtol=1e-3, atol=1e-3)
    merged = fn if weight is None else fn * weight
    torch.testing.assert_close(out, reference.mhc_pre_norm_fn_ref(x, tf32(merged), None, 1e-6), rtol=1e-5, atol=1e-6)
    up = torch.randn_like(out)
    ours[0].untyped_storage().grad_from_mhc_post = buffer = torch.zeros_like(x)
    grads = torch.autograd.grad(out, [t for t in ours if t is not None], up, allow_unused=True)
    wanted = torch.autograd.grad(want, [t for t in theirs if t is not None], up)
    assert grads[0] is None and not hasattr(ours[0].untyped_storage(), "grad_from_mhc_post")
    torch.testing.assert_close(buffer, wanted[0])
    # d is rounded to TF32, which a reference on the CPU does not do
    r = (x.flatten(-2).double().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    terms = torch.einsum("btj,btk->jk", (up * r).square(), x.flatten(-2).double().square()).sqrt() * 6 * 2**-12
    bound = terms if weight is None else terms * weight.abs()
    assert ((grads[1] - wanted[1]).abs() <= bound + 1e-5).all()
    if has_weight:
        of_gain = (terms * fn.abs()).sum(0)
        assert ((grads[2] - wanted[2]).abs() <= of_gain + 1e-5 * wanted[2].abs().max()).all()


@pytest.mark.parametrize("h", [1280, 2560, 4096, 7168])
def test_norm_fn_does_not_depend_on_splits(h, device):
    x, fn, _ = projection(device, (1, 48), h)
    with torch.no_grad():
        want = mhc_pre_norm_fn(x, fn, None, 1e-6)
        torch.testing.assert_close(want, reference.mhc_pre_norm_fn_ref(x, fn, None, 1e-6), rtol=1e-3, atol=1e-3)
        for splits in (1, 2, 7, 16):
            assert torch.equal(mhc_pre_norm_fn(x, fn, None, 1e-6, n_splits=splits), want)
        for i in range(0, 48, 7):
            assert torch.equal(mhc_pre_norm_fn(x[:, i], fn, None, 1e-6), want[:, i])
        assert torch.equal(mhc_pre_norm_fn(x, fn, torch.ones_like(fn[0]), 1e-6), want)


def test_pre_split_mixes(device):
    n = 4
    for lead in tokens(device, 1024):
        inputs = torch.randn(*lead, n * (n + 2)), torch.randn(3), torch.randn(n * (n + 2))
        inputs = [t.to(device) for t in inputs]
        def split(f): return lambda mixes, scale, base: f(mixes, scale, base, n, 2.0, 1e-2)
        compare(leaves(*inputs), leaves(*inputs), inputs, split(mhc_pre_split_mixes),
                split(reference.mhc_pre_split_mixes_ref), rtol=1e-5, atol=2e-5)


def test_sinkhorn(device):
    for lead in [(1, 1), (2, 1), *tokens(device, 1024)]:
        x = torch.randn(*lead, 4, 4, device=device)
        for repeat, eps in ((10, 1e-6), (1, 1e-2), (20, 1e-6)):
            compare(leaves(x), leaves(x), (x,), lambda x: sinkhorn_normalize(x, repeat, eps),
                    lambda x: reference.sinkhorn_normalize_ref(x, repeat, eps))
        assert torch.equal(sinkhorn_normalize(x), sinkhorn_normalize(x, 10, 1e-6))
        assert torch.equal(sinkhorn_normalize(x.transpose(-1, -2)), sinkhorn_normalize(x.transpose(-1, -2).contiguous()))


@pytest.mark.parametrize("h", [1280, 2560, 7680])
def test_pre_apply_mix(h, device):
    for lead in tokens(device, 33):
        x = torch.sigmoid(torch.randn(*lead, 4, h, device=device)).bfloat16()
        mix = torch.randn(*lead, 4, 1, device=device).softmax(-2)
        ours, theirs = leaves(x, mix), leaves(x, mix)
        out, want = mhc_pre_apply_mix(*ours), reference.mhc_pre_apply_mix_ref(*theirs)
        torch.testing.assert_close(out, want, atol=1e-2, rtol=1e-3)
        up = torch.randn_like(want)
        ours[0].untyped_storage().grad_from_mhc_post = buffer = torch.zeros_like(x)
        torch.autograd.backward(out, up)
        torch.autograd.backward(want, up)
        assert ours[0].grad is None
        torch.testing.assert_close(buffer, theirs[0].grad, atol=1e-2, rtol=1e-3)
        torch.testing.assert_close(ours[1].grad, theirs[1].grad, atol=1e-2, rtol=1e-3)


@pytest.mark.parametrize("h", [1280, 2560, 7168])
@pytest.mark.parametrize("n0", [1, 2])
def test_post(n0, h, device):
    lead = n0, 4096 if device == "cuda" and IS_FULL else 33
    inputs = (torch.randn(*lead, h).bfloat16(), torch.randn(*lead, 4, h).bfloat16(), torch.randn(*lead, 4, 1),
              torch.randn(*lead, 4, 4))
    inputs = [t.to(device) for t in inputs]
    ours, theirs = leaves(*inputs), leaves(*inputs)
    out, want = mhc_post(*ours), reference.mhc_post_ref(*theirs)
    torch.testing.assert_close(out, want)
    assert torch.equal(mhc_post_fwd(*inputs), out)
    up = torch.randn_like(out)
    grads, wanted = torch.autograd.grad(out, ours, up), torch.autograd.grad(want, theirs, up)
    for i, (a, b) in enumerate(zip(grads, wanted)):
        torch.testing.assert_close(a, b, **({"atol": 1e-4, "rtol": 1e-4} if i > 1 else {}))
    for fuse in (False, True):
        for a, b in zip(mhc_post_bwd(*inputs, up, fuse_grad_acc=fuse), grads, strict=True):
            assert torch.equal(a, b) and a.shape == b.shape
        assert hasattr(inputs[1].untyped_storage(), "grad_from_mhc_post") == fuse
    left = inputs[1].untyped_storage().grad_from_mhc_post
    assert left.shape == (lead[0] * lead[1], 4, h) and torch.equal(left.view(inputs[1].shape), grads[1])


def test_post_without_comb(device):
    """Streams as they are: the identity's bits, and its gradients; that of the residual is shared with pre's two ops."""
    lead, n, h = (2, 3), 4, 72
    inputs = [t.to(device) for t in (torch.randn(*lead, h).bfloat16(), torch.randn(*lead, n, h).bfloat16(),
                                     torch.rand(*lead, n, 1))]
    identity = torch.eye(n, device=device).expand(*lead, n, n).contiguous()
    want = mhc_post_fwd(*inputs, identity)
    assert torch.equal(mhc_post_fwd(*inputs, None), want)
    into = inputs[1].clone()
    assert mhc_post_fwd(inputs[0], into, inputs[2], None, out=into) is into and torch.equal(into, want)
    up, mix = torch.randn_like(want), torch.rand(*lead, n, 1, device=device)
    grads = []
    for comb in (identity, None):
        ours = leaves(*inputs)
        streams = mhc_post(*ours, comb)
        assert torch.equal(streams, want)
        sent = up.clone()
        (streams * sent).sum().backward()
        grads.append([t.grad for t in ours])
        ours = leaves(*inputs)
        x = mhc_pre_apply_mix(ours[1], mix)                 # reads the residual, too
        mhc_post(x, ours[1], ours[2], comb).backward(sent)
        assert torch.equal(sent, up)                        # is the caller's
        grads[-1] += [ours[1].grad, ours[2].grad]
    for a, b in zip(*grads, strict=True):
        assert torch.equal(a, b)
    d_x, d_residual, d_post, d_comb = mhc_post_bwd(*inputs, None, up, fuse_grad_acc=False)
    assert d_comb is None and torch.equal(d_residual, up) and torch.equal(d_post, mhc_post_bwd(*inputs, identity, up)[2])


def test_post_without_comb_reads_no_residual(device):
    """Its backward does not: the residual may be overwritten, and is freed, if no gradient of its own is wanted."""
    x, residual = torch.randn(3, 72, device=device).bfloat16(), torch.randn(3, 4, 72, device=device).bfloat16()
    mix, up = torch.rand(3, 4, device=device), torch.randn_like(residual)
    ours, into = leaves(x, mix), residual.clone()
    want = mhc_post(ours[0], residual, ours[1], None)
    wanted = torch.autograd.grad(want, ours, up)
    made = mhc_post(ours[0], into, ours[1], None, out=into)
    assert torch.equal(made, want) and torch.equal(into, want)
    for a, b in zip(torch.autograd.grad(made, ours, up), wanted):
        assert torch.equal(a, b)
    given = residual.clone()
    kept = weakref.ref(given)
    made = mhc_post(ours[0], given, ours[1], None)
    del given
    assert kept() is None and made.requires_grad
    streams, = leaves(residual)
    with pytest.raises(ValueError, match="out: shares memory with an argument that the gradients need"):
        mhc_post(x, streams, mix, None, out=streams)


def test_head_compute_mix(device):
    for lead in tokens(device, 1024):
        inputs = [t.to(device) for t in (torch.randn(*lead, 4), torch.randn(1), torch.randn(4))]
        compare(leaves(*inputs), leaves(*inputs), inputs, lambda *a: mhc_head_compute_mix(*a, 1e-2),
                lambda *a: reference.mhc_head_compute_mix_ref(*a, 1e-2), rtol=1e-4, atol=1e-5)
        mixes = torch.randn(*lead, 24, device=device)
        assert torch.equal(mhc_head_compute_mix(mixes[..., :4], inputs[1][0], inputs[2], 1e-2),
                           mhc_head_compute_mix(mixes[..., :4].contiguous(), inputs[1], inputs[2], 1e-2))


@pytest.mark.parametrize("h", [1280, 2560, 4096])
@pytest.mark.parametrize("n1", [17, 64])
def test_pre_big_fuse(n1, h, device):
    """Bit for bit the chain of separate ops, with gradients on."""
    x, fn, _ = projection(device, (1, n1), h)
    scale, base = 0.1 * torch.randn(3, device=device), 0.1 * torch.randn(24, device=device)
    for lead in ((1, n1), (n1,), (1, 1, n1)):
        made = mhc_pre_big_fuse(x.view(*lead, 4, h), fn, scale, base, 1e-6, 1e-6, 1e-6, 1.0, 10)
        params = leaves(fn, scale, base)
        mixes = mhc_pre_norm_fn(x.view(*lead, 4, h), params[0], None, 1e-6, fuse_grad_acc=False)
        pre, post, comb = mhc_pre_split_mixes(mixes, *params[1:], 4, 1.0, 1e-6)
        chain = post, sinkhorn_normalize(comb, 10, 1e-6), mhc_pre_apply_mix(x.view(*lead, 4, h), pre)
        for a, b in zip(made, chain, strict=True):
            assert a.shape == b.shape and torch.equal(a, b) and not a.requires_grad and b.requires_grad


@pytest.mark.parametrize("n, h", [(4, 2560), (4, 100), (1, 8), (2, 1030), (8, 64)])
@pytest.mark.parametrize("count, posts", [(1, 0), (1, 1), (3, 2), (3, 3), (10, 9), (10, 10), (61, 61)])
def test_multilayer_recompute(count, posts, n, h, device):
    """Bit for bit the loop of separate ops."""
    lead = (1, 5) if h < 2000 or count < 60 else (1, 1)
    x = torch.randn(*lead, n, h, device=device).bfloat16()
    pre = [torch.randn(*lead, n, 1, device=device) for _ in range(count)]
    y = [torch.randn(*lead, h, device=device).bfloat16() for _ in range(posts)]
    post = [torch.randn(*lead, n, 1, device=device) for _ in range(posts)]
    comb = [torch.randn(*lead, n, n, device=device) / 2 for _ in range(posts)]
    inputs, residuals = [torch.empty(*lead, h, dtype=torch.bfloat16, device=device) for _ in pre], [x + 1 for _ in y]
    assert mhc_multilayer_recompute(x, pre, y, post, comb, inputs, residuals) is None
    residual = x
    for i in range(count):
        assert torch.equal(inputs[i], mhc_pre_apply_mix(residual, pre[i])), i
        if i < posts:
            residual = mhc_post_fwd(y[i], residual, post[i], comb[i])
            assert torch.equal(residuals[i], residual), i
    if posts:                               # over the residual that it begins with
        again = [x, *(torch.empty_like(x) for _ in residuals[1:])]
        mhc_multilayer_recompute(x, pre, y, post, comb, inputs, again)
        assert torch.equal(again[0], residuals[0]) and torch.equal(again[-1], residuals[-1])
    with pytest.raises(ValueError, match="lists: "):
        mhc_multilayer_recompute(x, pre, y, post, comb, inputs[1:], residuals)


@on_one_device
def test_multilayer_recompute_as_an_operator(device):
    x, mix, comb = torch.randn(3, 2, 8).bfloat16(), torch.rand(3, 2), torch.rand(3, 2, 2)
    x, mix, comb = (t.to(device) for t in (x, mix, comb))
    args = x, [mix, mix], [x[:, 0].contiguous()], [mix], [comb], [x[:, 0].contiguous(), x[:, 1].contiguous()], [x + 1]
    torch.library.opcheck(torch.ops.tegula.mhc_multilayer_recompute, args)

    def run(x):
        inputs, residuals = [torch.empty_like(x[:, 0]) for _ in range(2)], [torch.empty_like(x)]
        mhc_multilayer_recompute(x, *args[1:5], inputs, residuals)
        return inputs[1] + residuals[0][:, 0]

    assert torch.equal(torch.compile(run, fullgraph=True, backend="aot_eager")(x), run(x))
    version = args[5][0]._version
    mhc_multilayer_recompute(*args)
    assert args[5][0]._version > version
    with pytest.raises(ValueError, match=r"layer_input: dtype is f32, want bf16"):
        mhc_multilayer_recompute(*args[:5], [t.float() for t in args[5]], args[6])
    with pytest.raises(ValueError, match=r"comb_mix_list: shape is \[3, 4\], want \[3, 2, 2\], as residual"):
        mhc_multilayer_recompute(*args[:4], [comb.flatten(1)], *args[5:])
    operator = torch.ops.tegula.mhc_multilayer_recompute        # which takes no leading dimensions
    for ndim in (1, 4, 6, 7, 64):
        with pytest.raises(ValueError, match=f"^residual: has {ndim} dimensions, want 3$"):
            operator(x.new_empty((0,) * ndim), *args[1:])
        for i, (name, want) in enumerate(zip(("pre_mix", "x", "post_mix", "comb_mix", "layer_input", "new_residual"),
                                             (2, 2, 2, 3, 2, 3)), 1):
            wrong = args[i][0].new_empty((0,) * ndim)
            with pytest.raises(ValueError, match=f"^{name}: has {ndim} dimensions, want {want}$"):
                operator(*args[:i], [wrong, *args[i][1:]], *args[i + 1:])


# ---- a block: mhc_pre, a sublayer, mhc_post ----

def block_parts(device, n=4, h=64, lead=(2, 9), has_weight=True):
    x = torch.randn(*lead, n, h, device=device).bfloat16()
    fn = torch.randn(n * (n + 2), n * h, device=device) / h
    parts = [fn, torch.randn(3, device=device), torch.randn(n * (n + 2), device=device)]
    weight = 1 + 0.1 * torch.randn(n * h, device=device) if has_weight else None
    return x, parts, weight, (torch.randn(h, h, device=device) / h**0.5).bfloat16()


def block(x, fn, scale, base, weight, matrix, n=4):
    layer_input, (post, comb) = mhc_pre(x, fn, scale, base, norm_weight=weight, mhc_mult=n, post_mult_value=2.0,
                                        sinkhorn_repeat=20)
    return mhc_post(layer_input @ matrix, x, post, comb)


def reference_block(x, fn, scale, base, weight, matrix, n=4):
    """In float64; nothing is rounded but fn, to TF32, and what a block rounds to bfloat16."""
    def rounded(t):                                     # forward only: its gradient is one
        return t + (t.detach().bfloat16().double() - t.detach())

    merged = fn if weight is None else fn * weight
    merged = merged + (tf32(merged.detach().float()).double() - merged.detach())
    mixes = x.flatten(-2) @ merged.T * (x.flatten(-2).square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    pre, post, comb = reference.mhc_pre_split_mixes_ref(mixes, scale, base, n, 2.0, 1e-6)
    comb = reference.sinkhorn_normalize_ref(comb, 20, 1e-6)
    y = rounded(rounded((x * pre).sum(-2)) @ matrix)
    return torch.einsum("...io,...ih->...oh", comb, x) + y.unsqueeze(-2) * post


def reference_gradients(x, params, up, n):
    """Those of reference_block of x [T, N, H] and params, each with the sum of the magnitudes that were added to it: of a
    parameter one per token, which may nearly cancel."""
    of_x, sums, magnitudes = [], [0.0] * len(params), [0.0] * len(params)
    for t in range(len(x)):
        leaves_of_t = [None if p is None else p.detach().double().requires_grad_() for p in (x[t:t + 1], *params)]
        grads = torch.autograd.grad(reference_block(*leaves_of_t, n=n), [p for p in leaves_of_t if p is not None],
                                    up[t:t + 1].double())
        of_x.append(grads[0])
        sums = [a + g for a, g in zip(sums, grads[1:])]
        magnitudes = [a + g.abs() for a, g in zip(magnitudes, grads[1:])]
    of_x = torch.cat(of_x)
    return [of_x, *sums], [of_x.abs(), *magnitudes]


@pytest.mark.parametrize("has_weight", [False, True])
@pytest.mark.parametrize("n", [1, 4])
def test_gradients_of_a_block(n, has_weight, device):
    """Against float64, within half a percent of what was added: bfloat16 between the ops gives 0.1 to 0.3. Of a gradient
    that is wrong by one percent the comparison must say so."""
    x, parts, weight, matrix = block_parts(device, n, has_weight=has_weight)
    ours = leaves(x, *parts, weight, matrix)
    params = [p for p in ours[1:] if p is not None]
    out, want = block(*ours, n=n), reference_block(*(None if t is None else t.detach().double() for t in ours), n=n)
    assert ((out - want).abs() <= 2**-7 * want.abs() + 2e-2).all()
    up = torch.randn_like(out)
    grads = torch.autograd.grad(out, [ours[0], *params], up)
    wanted, magnitudes = reference_gradients(x.flatten(0, -3), ours[1:], up.flatten(0, -3), n)

    def error(grad, want, magnitude):
        return ((grad.double() - want).norm() / magnitude.norm()).item()

    for a, b, magnitude in zip(grads, wanted, magnitudes):
        assert a.dtype in (torch.bfloat16, torch.float32)
        a = a.view(b.shape)
        assert error(a, b, magnitude) <= 5e-3, (a.shape, error(a, b, magnitude))
        assert error(a + 1e-2 * magnitude, b, magnitude) > 5e-3, a.shape


@pytest.mark.parametrize("has_weight", [False, True])
def test_same_bits_with_and_without_gradients(has_weight, device):
    for lead in ((), (3,), (2, 3), (2, 1, 3), (0, 2)):
        x, parts, weight, _ = block_parts(device, lead=lead, has_weight=has_weight)
        made, (post, comb) = mhc_pre(*leaves(x, *parts), norm_weight=weight)
        assert made.requires_grad and post.shape == (*lead, 4, 1) and comb.shape == (*lead, 4, 4)
        with torch.no_grad():
            served, mixes = mhc_pre(x, *parts, norm_weight=weight)
        for a, b in zip((made, post, comb), (served, *mixes), strict=True):
            assert torch.equal(a, b) and a.shape == b.shape


def test_norm_weight_changes_results_without_gradients(device):
    x, parts, weight, _ = block_parts(device)
    with torch.no_grad():
        assert not torch.equal(mhc_pre(x, *parts, norm_weight=weight)[0], mhc_pre(x, *parts)[0])


def test_prepared_fn_gives_the_same_bits(device):
    """Ties, NaN and what rounds to infinity among its numbers; bfloat16 is widened."""
    from tegula.modeling.mhc import mhc_prepare_fn
    x, (fn, *parts), weight, _ = block_parts(device)
    fn.view(torch.int32)[0, :4] = torch.tensor([0x3f801000, 0x3f803000, 0x7f7fffff, 0x7fc00000], device=device)
    for gain in weight, None:
        ready = mhc_prepare_fn(fn.requires_grad_(), gain)
        assert not ready.requires_grad and not (ready.view(torch.int32)[1:] & 0x1fff).any()
        for a, b in zip(mhc_pre(x, ready, *parts)[1], mhc_pre(x, fn.detach(), *parts, norm_weight=gain)[1], strict=True):
            assert torch.equal(a.view(torch.int32), b.view(torch.int32))
        fn = fn.detach()
    assert torch.equal(mhc_prepare_fn(fn[1:].bfloat16()), fn[1:].bfloat16().float())


def test_head_of_any_tokens_is_one_op(device, monkeypatch):
    """Without gradients, to the bits of the chain with them."""
    from tegula.modeling.mhc import functional
    for lead in ((), (3,), (2, 3), (0, 2)):
        x, parts, weight, _ = block_parts(device, lead=lead)
        args = parts[0][:4], parts[1][:1], parts[2][:4]
        want = mhc_head(*leaves(x, *args), norm_weight=weight, pre_eps=1e-2, norm_eps=1e-3)
        assert want.requires_grad and want.shape == (*lead, x.shape[-1])
        with monkeypatch.context() as patch:
            patch.delattr(functional, "mhc_pre_norm_fn")
            made = mhc_head(x, *args, norm_weight=weight, pre_eps=1e-2, norm_eps=1e-3)
        assert torch.equal(made, want) and made.shape == want.shape


def test_no_tokens(device):
    x, parts, weight, matrix = block_parts(device, lead=(0, 3))
    ours = leaves(x, *parts, weight, matrix)
    out = block(*ours)
    assert out.shape == x.shape
    for grad, t in zip(torch.autograd.grad(out.sum(), ours), ours):
        assert grad.shape == t.shape and (grad == 0).all()


@pytest.mark.parametrize("has_weight", [False, True])
def test_head(has_weight, device):
    x, parts, weight, _ = block_parts(device, has_weight=has_weight)
    fn, scale, base = parts[0][:4].clone(), parts[1][:1], parts[2][:4].clone()
    ours = leaves(x, fn, scale, base, weight)
    out = mhc_head(*ours[:4], norm_weight=ours[4])
    assert torch.equal(out, mhc_head(x, parts[0], scale.view(()), base, norm_weight=weight))
    with torch.no_grad():
        assert torch.equal(out, mhc_head(*ours[:4], norm_weight=ours[4]))
    doubles = [t if t is None else t.double().detach().requires_grad_() for t in ours]
    dx, dfn, dscale, dbase, dweight = doubles
    merged = dfn if dweight is None else dfn * dweight
    mixes = dx.flatten(-2) @ merged.T * (dx.flatten(-2).square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    want = (dx * (torch.sigmoid(mixes * dscale + dbase) + 1e-6).unsqueeze(-1)).sum(-2)
    assert ((out - want).abs() <= 2**-8 * want.abs() + 1e-2).all()
    up = torch.randn_like(out)
    grads = torch.autograd.grad(out, [t for t in ours if t is not None], up)
    wanted = torch.autograd.grad(want, [t for t in doubles if t is not None], up.double())
    for a, b in zip(grads, wanted, strict=True):
        assert (a.double() - b).norm() <= 1e-2 * b.norm()


# ---- the gradients' formulas, in float64 ----

class LineByLine(torch.autograd.Function):
    """The ops' backwards as docs/mhc.md has them, without rounding: one node for pre, and post."""

    @staticmethod
    def forward(ctx, x, fn, scale, base, y, repeat, eps):
        n, columns = x.shape[1], x.shape[1] * x.shape[2]
        v = x.flatten(1)
        s = v.square().sum(1)
        r = (s / columns + 1e-6).rsqrt()
        out_mul = v @ fn.T
        mixes = out_mul * r[:, None]
        of = torch.tensor([0] * n + [1] * n + [2] * n * n)
        z = mixes * scale[of] + base
        sigma = torch.sigmoid(z[:, :2 * n])
        pre, post = sigma[:, :n] + 1e-2, sigma[:, n:] * 1.5
        p = z[:, 2 * n:].view(-1, n, n).softmax(-1)
        steps, a = [], p + eps
        for k in range(2 * repeat - 1):
            axis = 1 if k % 2 == 0 else 2
            total = a.sum(axis, keepdim=True) + eps
            steps.append((a, total, axis))
            a = a / total
        inner = torch.einsum("ti,tih->th", pre, x)
        out = torch.einsum("tio,tih->toh", a, x) + post[:, :, None] * y[:, None]
        ctx.values = x, fn, scale, y, s, r, out_mul, mixes, of, sigma, pre, post, p, steps, a
        return inner, out

    @staticmethod
    def backward(ctx, d_inner, d_out):
        x, fn, scale, y, s, r, out_mul, mixes, of, sigma, pre, post, p, steps, comb = ctx.values
        n, columns = x.shape[1], x.shape[1] * x.shape[2]
        # post
        grad_x = torch.einsum("tio,toh->tih", comb, d_out)
        grad_y = torch.einsum("to,toh->th", post, d_out)
        d = torch.einsum("tih,toh->tio", x, d_out)
        d_post = torch.einsum("th,toh->to", y, d_out)
        # pre_apply_mix
        d_pre = torch.einsum("th,tih->ti", d_inner, x)
        grad_x = grad_x + pre[:, :, None] * d_inner[:, None]
        # sinkhorn
        for a, total, axis in reversed(steps):
            d = (d - (d * a).sum(axis, keepdim=True) / total) / total
        d = (d - (d * p).sum(2, keepdim=True)) * p
        # pre_split_mixes
        slope = sigma * (1 - sigma)
        g = torch.cat([d_pre * slope[:, :n], d_post * 1.5 * slope[:, n:], d.flatten(1)], 1)
        d_mixes = g * scale[of]
        grad_scale = torch.stack([(g * mixes)[:, of == k].sum() for k in range(3)])
        # norm_fn
        LineByLine.d_mul = d_mul = d_mixes * r[:, None]
        d_s = -0.5 * (d_mixes * out_mul).sum(1) * r / (s + 1e-6 * columns)
        grad_x = grad_x + (d_mul @ fn).view(x.shape) + 2 * x * d_s[:, None, None]
        return grad_x, d_mul.T @ x.flatten(1), grad_scale, g.sum(0), grad_y, None, None


def double_inputs(n, h, count):
    shapes = (count, n, h), (n * (n + 2), n * h), (3,), (n * (n + 2),), (count, h)
    return [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("repeat, eps", [(1, 1e-2), (3, 1e-6), (20, 1e-6)])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_formulas_of_gradients(n, repeat, eps):
    assert torch.autograd.gradcheck(lambda *t: LineByLine.apply(*t, repeat, eps), double_inputs(n, 3, 2))


@pytest.mark.parametrize("repeat", [1, 3, 20])
@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_gradients_follow_the_formulas(n, repeat, device):
    """Every gradient of the ops, through the shared buffer, against the formulas on the same numbers."""
    x, fn, scale, base, y = (t.detach().to(device) for t in double_inputs(n, 40, 7))
    x, y, fn = x.bfloat16(), y.bfloat16(), tf32((fn / 8).float())
    ours = leaves(x, fn, scale.float(), base.float(), y)
    mixes = mhc_pre_norm_fn(ours[0], ours[1], None, 1e-6)
    pre, post, comb = mhc_pre_split_mixes(mixes, ours[2], ours[3], n, 1.5, 1e-2)
    inner = mhc_pre_apply_mix(ours[0], pre)
    out = mhc_post(ours[4], ours[0], post, sinkhorn_normalize(comb, repeat, 1e-3))
    up = torch.randn_like(inner), torch.randn_like(out)
    grads = torch.autograd.grad((inner, out), ours, up)
    doubles = [t.detach().double().cpu().requires_grad_() for t in ours]
    wanted = torch.autograd.grad(LineByLine.apply(*doubles, repeat, 1e-3), doubles, [t.double().cpu() for t in up])
    d_mul = LineByLine.d_mul.abs() * 2**-11                             # which the ops round to TF32
    of_tf32 = {"fn": d_mul.T @ x.flatten(1).double().cpu().abs(),
               "x": (d_mul @ fn.double().cpu().abs()).view(x.shape)}
    for name, a, b in zip(("x", "fn", "scale", "base", "y"), grads, wanted, strict=True):
        rounding = {"x": 3 * 2**-8, "y": 2**-8}.get(name, 1e-5)         # that of x is rounded three times
        bound = rounding * b.abs() + (rounding / 4 if name == "x" else 1e-5) * b.abs().max() + of_tf32.get(name, 0)
        assert ((a.cpu().double() - b).abs() <= bound).all(), name


# ---- the buffer ----

def attribute(t):
    return getattr(t.untyped_storage(), "grad_from_mhc_post", None)


def same_as_unfused(run, *tensors):
    """Gradients of run(*leaves), with the buffer and without, are close; returns those with it. run's second call has
    ops that return every gradient to autograd: those that torch.compile sees."""
    from tegula.modeling.mhc.ops import norm_fn, post, pre_apply_mix
    ours = leaves(*tensors)
    grads = torch.autograd.grad(run(*ours), ours)
    with pytest.MonkeyPatch.context() as patch:
        for module in (norm_fn, post, pre_apply_mix):
            patch.setattr(module, "is_traced", lambda: True)
        plain = leaves(*tensors)
        wanted = torch.autograd.grad(run(*plain), plain)
    for a, b in zip(grads, wanted, strict=True):
        assert (a.float() - b.float()).norm() <= 2e-2 * b.float().norm()
    return ours, grads


def buffers_found(monkeypatch):
    """A list that gets the address, or None, of what each backward finds: a buffer that is kept is not used."""
    from tegula.modeling.mhc.ops import norm_fn, pre_apply_mix
    found = []
    for module in (norm_fn, pre_apply_mix):
        def spy(x, edge, find=module.find):
            buffer = find(x, edge)
            found.append(None if buffer is None else buffer.data_ptr())
            return buffer

        monkeypatch.setattr(module, "find", spy)
    return found


def test_the_buffer_is_used_and_removed(device, monkeypatch):
    """One mhc_post, and every backward adds to what it left."""
    found = buffers_found(monkeypatch)
    x, parts, weight, matrix = block_parts(device)
    ours, _ = same_as_unfused(lambda *t: block(*t).float().square().sum(), x, *parts, weight, matrix)
    assert len(found) == 2 and found[0] is not None and found[0] == found[1]
    assert attribute(ours[0]) is None


def test_stacked_blocks(device):
    """Also of a residual that is no leaf, with the entry and the head."""
    x, parts, weight, matrix = block_parts(device)

    def run(e, fn, scale, base, weight, matrix):
        streams = expand_from_embedding(e, 4)
        for _ in range(3):
            streams = block(streams, fn, scale, base, weight, matrix)
        return mhc_head(streams, fn[:4], scale[0], base[:4]).float().square().sum()

    same_as_unfused(run, x[..., 0, :].contiguous(), *parts, weight, matrix)


@pytest.mark.parametrize("first", [False, True])
def test_another_reader_of_the_residual(first, device):
    """Its gradient makes autograd drop the tensor that mhc_post has returned: nothing may be added to that."""
    x, parts, weight, matrix = block_parts(device)

    def run(x, *rest):
        other = (x.float() * 3).square().sum() if first else None
        out = block(x, *rest).float().square().sum()
        return out + (other if first else (x.float() * 3).square().sum())

    same_as_unfused(run, x, *parts, weight, matrix)


@pytest.fixture(params=["counts", "no_counts"])
def counts(request, monkeypatch):
    """With and without knowing whether autograd still has a tensor: it may, for a hook, or torch may not say."""
    if request.param == "no_counts":
        monkeypatch.setattr("tegula.modeling.mhc.ops._residual_grad._USES_OF_TWO", 0)


def recorded(grad):
    """A function of grad, whose graph holds it."""
    with torch.enable_grad():
        return grad * torch.ones((), dtype=grad.dtype, device=grad.device, requires_grad=True)


@pytest.mark.parametrize("keeps", [lambda g: g, lambda g: g[0], lambda g: g.detach(), recorded],
                         ids=["itself", "view", "detached", "recorded"])
@pytest.mark.parametrize("has_reader", [False, True])
def test_a_hook_that_keeps_gradients(has_reader, keeps, counts, device):
    """It holds what mhc_post returned, though autograd may no longer have it."""
    x, parts, weight, matrix = block_parts(device)
    kept = []

    def run(x, *rest):
        out = block(x, *rest)
        hooked = out.grad_fn.register_hook(
            lambda grads, _: kept.extend(keeps(g) for g in grads if g is not None and g.shape == x.shape))
        assert hooked is not None
        loss = out.float().square().sum()
        return loss + (x.float() * 3).square().sum() if has_reader else loss

    same_as_unfused(run, x, *parts, weight, matrix)
    assert kept


class PostOfTheCaller(torch.autograd.Function):
    """mhc_post as others write it, from its two halves."""
    changes = staticmethod(lambda grad: grad)

    @staticmethod
    def forward(ctx, *inputs):
        ctx.save_for_backward(*inputs)
        return mhc_post_fwd(*inputs)

    @staticmethod
    def backward(ctx, grad):
        d_x, d_residual, *others = mhc_post_bwd(*ctx.saved_tensors, grad)
        return d_x, PostOfTheCaller.changes(d_residual), *others


@pytest.mark.parametrize("of_residual", [lambda x: x, lambda x: x.view(x.shape)], ids=["itself", "view"])
@pytest.mark.parametrize("changes", [lambda grad: grad, lambda grad: grad * 2], ids=["returned", "changed"])
@pytest.mark.parametrize("has_reader", [False, True])
def test_mhc_post_bwd_in_a_function_of_the_caller(has_reader, changes, of_residual, counts, device, monkeypatch):
    """What it leaves is used only if autograd has it, and is gone after the backward."""
    monkeypatch.setattr(PostOfTheCaller, "changes", staticmethod(changes))
    x, parts, weight, matrix = block_parts(device)

    def run(x, fn, scale, base, weight, matrix):
        layer_input, (post, comb) = mhc_pre(x, fn, scale, base, norm_weight=weight)
        loss = PostOfTheCaller.apply(layer_input @ matrix, of_residual(x), post, comb).float().square().sum()
        return loss + (x.float() * 3).square().sum() if has_reader else loss

    ours, _ = same_as_unfused(run, x, *parts, weight, matrix)
    assert attribute(ours[0]) is None


def test_mhc_post_bwd_in_a_function_of_the_caller_leaves_a_buffer_that_is_used(device, monkeypatch):
    found = buffers_found(monkeypatch)
    x, parts, weight, _ = block_parts(device)
    ours, = leaves(x)
    layer_input, mixes = mhc_pre(ours, *parts, norm_weight=weight)
    PostOfTheCaller.apply(layer_input, ours, *mixes).float().square().sum().backward()
    assert len(found) == 2 and found[0] is not None and found[0] == found[1]


def test_mhc_post_bwd_leaves_nothing_to_a_later_backward(device):
    x, parts, _, _ = block_parts(device)
    ours, = leaves(x)
    ones, comb = torch.ones(*x.shape[:-2], 4, 1, device=device), torch.ones(*x.shape[:-2], 4, 4, device=device)
    PostOfTheCaller.apply(x[..., 0, :], ours, ones, comb).sum().backward()
    assert attribute(ours) is None
    grad, = torch.autograd.grad(mhc_pre_norm_fn(ours, parts[0], None, 1e-6).sum(), ours)
    want, = torch.autograd.grad(mhc_pre_norm_fn(ours, parts[0], None, 1e-6, fuse_grad_acc=False).sum(), ours)
    assert torch.equal(grad, want)


@pytest.mark.parametrize("count", [2, 3])
def test_several_posts_of_one_residual(count, counts, device):
    x, parts, weight, matrix = block_parts(device)

    def run(x, fn, scale, base, weight, matrix):
        layer_input, (post, comb) = mhc_pre(x, fn, scale, base, norm_weight=weight)
        made = layer_input @ matrix
        return sum(((k + 1) * mhc_post(made, x, post, comb).float()).square().sum() for k in range(count))

    same_as_unfused(run, x, *parts, weight, matrix)


def test_halves_of_one_storage(counts, device):
    """What mhc_post leaves for one half is not for the other."""
    x, parts, _, _ = block_parts(device, lead=(2, 8))
    mix, comb = torch.rand(8, 4, device=device), torch.rand(8, 4, 4, device=device)

    def run(x, fn, scale, base):
        posted, other = x[0], x[1]
        head = mhc_head(other, fn[:4], scale[:1], base[:4]).float().square().sum()
        return head + mhc_post(posted[:, 0], posted, mix, comb).float().square().sum()      # its backward is first

    same_as_unfused(run, x, *parts)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ArithmeticError("planted")


def test_a_buffer_that_nobody_takes(counts, device):
    """Is gone when the backward ends; one of a backward that failed stays, and is not used."""
    x, parts, _, _ = block_parts(device)
    ours, = leaves(x)
    ones = torch.ones(*x.shape[:-2], 4, 1, device=device)
    y, comb = x[..., 0, :].clone().requires_grad_(), torch.ones(*x.shape[:-2], 4, 4, device=device)
    seen = []
    y.register_hook(lambda grad: seen.append(attribute(ours)))
    want = mhc_post_bwd(y, ours, ones, comb, torch.ones_like(x), fuse_grad_acc=False)[1]
    for _ in range(2):
        grad, _ = torch.autograd.grad(mhc_post(y, ours, ones, comb).sum(), (ours, y))
        assert torch.equal(grad, want) and seen.pop() is not None and attribute(ours) is None
    mhc_post(ours[..., 0, :], ours.view(ours.shape), ones, comb).sum().backward()      # of a view: the same storage
    assert attribute(ours) is None
    with pytest.raises(ArithmeticError):
        mhc_post(Fails.apply(y), ours, ones, comb).sum().backward()
    assert attribute(ours) is not None
    grad, = torch.autograd.grad(mhc_pre_norm_fn(ours, parts[0], None, 1e-6).sum(), ours)
    want, = torch.autograd.grad(mhc_pre_norm_fn(ours, parts[0], None, 1e-6, fuse_grad_acc=False).sum(), ours)
    assert torch.equal(grad, want) and attribute(ours) is None


def test_a_buffer_of_the_caller(device):
    """Is added to, whatever its shape; a wrong one is refused."""
    x, parts, _, _ = block_parts(device)
    ours, = leaves(x)
    mix = torch.rand(*x.shape[:-1], 1, device=device)
    up = torch.randn_like(x[..., 0, :])
    start = torch.randn_like(x)
    ours.untyped_storage().grad_from_mhc_post = buffer = start.clone().view(-1, x.shape[-1])
    assert torch.autograd.grad(mhc_pre_apply_mix(ours, mix), ours, up, allow_unused=True) == (None,)
    want = (mix.double() * up.double().unsqueeze(-2) + start.double()).bfloat16()
    assert torch.equal(buffer.view(x.shape), want)
    assert attribute(ours) is buffer                # norm_fn's backward removes it
    mixes = mhc_pre_norm_fn(ours, parts[0], None, 1e-6)
    for wrong in (buffer.float(), buffer[1:]):
        ours.untyped_storage().grad_from_mhc_post = wrong
        for out in (mixes, mhc_pre_apply_mix(ours, mix)):
            with pytest.raises(ValueError, match="grad_from_mhc_post: is torch"):
                torch.autograd.grad(out.sum(), ours, retain_graph=True, allow_unused=True)


def test_fuse_grad_acc_false(device):
    """Returns the gradient and leaves the attribute alone; close to what is added to zeros."""
    x, parts, weight, _ = block_parts(device)
    ours, = leaves(x)
    ours.untyped_storage().grad_from_mhc_post = buffer = torch.zeros_like(x)
    up = torch.randn(*x.shape[:-2], 24, device=device)
    grad, = torch.autograd.grad(mhc_pre_norm_fn(ours, parts[0], weight, 1e-6, False), ours, up)
    assert attribute(ours) is buffer and (buffer == 0).all()
    torch.autograd.grad(mhc_pre_norm_fn(ours, parts[0], weight, 1e-6), ours, up, allow_unused=True)
    assert torch.equal(grad, buffer) and attribute(ours) is None


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("which", ["fn", "weight", "both"])
def test_main_grad(which, is_packed, device):
    """Gets the gradient added to it, and autograd none; without a gain it is not looked at, as in TileKernels."""
    x, parts, weight, _ = block_parts(device)
    up = torch.randn(*x.shape[:-2], 24, device=device)
    fn, gain = leaves(parts[0], weight) if is_packed else (
        strided(parts[0]).requires_grad_(), strided(weight).requires_grad_())
    wanted = torch.autograd.grad(mhc_pre_norm_fn(x, fn, gain, 1e-6), (fn, gain), up)
    has = which in ("fn", "both"), which in ("weight", "both")
    for t, is_there in zip((fn, gain), has):
        if is_there:
            t.main_grad = torch.ones_like(t)
    made = torch.autograd.grad(mhc_pre_norm_fn(x, fn, gain, 1e-6), (fn, gain), up, allow_unused=True)
    for t, grad, want, is_there in zip((fn, gain), made, wanted, has):
        if is_there:
            assert grad is None and torch.equal(t.main_grad, want + 1)
        else:
            assert torch.equal(grad, want)
    grad, = torch.autograd.grad(mhc_pre_norm_fn(x, fn, None, 1e-6), fn, up)
    assert grad is not None


@pytest.mark.parametrize("rows", [4, 24])
def test_main_grad_of_the_head(rows, device):
    """Its rows, if fn has more than the head uses."""
    x, parts, weight, _ = block_parts(device)
    fn, gain = leaves(parts[0][:rows], weight)
    args = parts[1][:1], parts[2][:4]
    up = torch.randn_like(x[..., 0, :])
    wanted = torch.autograd.grad(mhc_head(x, fn, *args, norm_weight=gain), (fn, gain), up)
    fn.main_grad, gain.main_grad = torch.ones_like(fn), torch.ones_like(gain)
    made = torch.autograd.grad(mhc_head(x, fn, *args, norm_weight=gain), (fn, gain), up, allow_unused=True)
    assert made[1] is None and torch.equal(gain.main_grad, wanted[1] + 1) and torch.equal(fn.main_grad, wanted[0] + 1)
    assert made[0] is None or not made[0].any()


@on_one_device
@pytest.mark.parametrize("rows", [4, 24])
def test_main_grad_given_before_the_backward(rows, device):
    """The buffer of the forward is no longer the parameter's."""
    residual, fn, gain = projection(device, (3,), 64)
    fn, gain = (torch.nn.Parameter(t) for t in (fn[:rows].clone(), gain))
    numbers = torch.ones(1, device=device), torch.zeros(4, device=device)
    want = torch.autograd.grad(mhc_head(residual, fn, *numbers, norm_weight=gain).float().square().sum(), (fn, gain))
    for before in (None, [torch.ones_like(fn), torch.ones_like(gain)]):
        if before is not None:
            fn.main_grad, gain.main_grad = before
        loss = mhc_head(residual, fn, *numbers, norm_weight=gain).float().square().sum()
        fn.main_grad, gain.main_grad = torch.ones_like(fn), torch.ones_like(gain)
        loss.backward()
        for t, grad in zip((fn, gain), want):
            assert torch.equal(t.main_grad, grad + 1) and (t.grad is None or not t.grad.any())
        assert before is None or all(t.eq(1).all() for t in before)
        del fn.main_grad, gain.main_grad


@on_one_device
def test_main_grad_is_not_seen_by_a_compiler(device):
    """Autograd gets the gradients there."""
    x, parts, weight, _ = block_parts(device)
    fn, gain = leaves(parts[0], weight)
    fn.main_grad, gain.main_grad = torch.zeros_like(fn), torch.zeros_like(gain)
    call = torch.compile(lambda x, fn, gain: mhc_pre_norm_fn(x, fn, gain, 1e-6), fullgraph=True, backend="aot_eager")
    made = torch.autograd.grad(call(x, fn, gain).sum(), (fn, gain))
    assert all(grad.any() for grad in made) and not fn.main_grad.any() and not gain.main_grad.any()


@pytest.mark.parametrize("is_grad_enabled", [True, False])
def test_parameters_in_bfloat16(is_grad_enabled, device):
    """As if they were widened before, with gradients in their dtype, or in main_grad."""
    x, parts, weight, _ = block_parts(device)
    narrow = [t.bfloat16() for t in (*parts, weight)]
    with torch.set_grad_enabled(is_grad_enabled):
        given, wide = leaves(*narrow), leaves(*(t.float() for t in narrow))
        made, want = ([out, *mixes, mhc_head(x, fn[:4], scale[:1], base[:4], norm_weight=gain)]
                      for fn, scale, base, gain in (given, wide)
                      for out, mixes in [mhc_pre(x, fn, scale, base, norm_weight=gain)])
        for a, b in zip(made, want, strict=True):
            assert torch.equal(a, b)
    if not is_grad_enabled:
        return
    up = [torch.randn_like(t) for t in want]
    wanted = torch.autograd.grad(want, wide, up, retain_graph=True)
    for a, b in zip(torch.autograd.grad(made, given, up), wanted, strict=True):
        assert a.dtype == torch.bfloat16 and (a.float() - b).norm() <= 2**-7 * b.norm()
    given[0].main_grad = torch.zeros_like(parts[0])
    mhc_pre_norm_fn(x, given[0], given[3], 1e-6).sum().backward()
    mhc_pre_norm_fn(x, wide[0], wide[3], 1e-6).sum().backward()
    assert given[0].grad is None and torch.equal(given[0].main_grad, wide[0].grad)


def strided(t):
    """Equal, with gaps between elements."""
    wide = torch.stack([t, t - 1], -1)[..., 0]
    assert not wide.is_contiguous() or t.numel() == 1
    return wide


@pytest.mark.parametrize("is_grad_enabled", [True, False])
def test_strided_parameters(is_grad_enabled, device):
    """A transposed fn, as of a Linear layer that is stored the other way round, and every second element."""
    x, (fn, scale, base), weight, _ = block_parts(device)
    head = fn[:4].contiguous(), scale[:1].contiguous(), base[:4].contiguous()
    with torch.set_grad_enabled(is_grad_enabled):
        want, (post, comb) = mhc_pre(x, fn, scale, base, norm_weight=weight)
        for of in (strided, lambda t: t.t().contiguous().t() if t.ndim == 2 else t):
            seen, mixes = mhc_pre(x, of(fn), of(scale), of(base), norm_weight=of(weight))
            for a, b in zip((seen, *mixes), (want, post, comb), strict=True):
                assert torch.equal(a, b)
            assert torch.equal(mhc_head(x, *map(of, head), norm_weight=of(weight)), mhc_head(x, *head, norm_weight=weight))
        fused = mhc_pre_big_fuse(x, strided(fn), strided(scale), strided(base), 1e-6, 1e-6, 1e-6, 1.0, 10)
        for a, b in zip(fused, mhc_pre_big_fuse(x, fn, scale, base, 1e-6, 1e-6, 1e-6, 1.0, 10), strict=True):
            assert torch.equal(a, b)


def test_strided_gradients_and_residuals(device):
    x, parts, weight, matrix = block_parts(device)
    wide = torch.cat([x, x], -1)[..., :x.shape[-1]]                     # rows apart
    out, want = (block(t, *parts, weight, matrix) for t in (wide, x))
    assert torch.equal(out, want)
    ours, theirs = leaves(x, *parts, weight, matrix), leaves(x, *parts, weight, matrix)
    up = torch.randn(x.shape[-1], *x.shape[:-1], device=device).bfloat16().movedim(0, -1)
    grads = torch.autograd.grad(block(*ours), ours, up)
    for a, b in zip(grads, torch.autograd.grad(block(*theirs), theirs, up.contiguous()), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(use_reentrant, device):
    """What is recomputed shares its buffers like the first, to the bit."""
    x, parts, weight, matrix = block_parts(device)
    grads = []
    for wrap in (lambda f, *a: f(*a), lambda f, *a: checkpoint(f, *a, use_reentrant=use_reentrant)):
        ours = leaves(x, *parts, weight, matrix)
        streams = ours[0]
        for _ in range(2):
            streams = wrap(block, streams, *ours[1:])
        streams.float().square().sum().backward()
        grads.append([t.grad for t in ours])
    for a, b in zip(*grads, strict=True):
        assert torch.equal(a, b)


def test_out(device):
    x, parts, weight, matrix = block_parts(device)
    mix = torch.rand(*x.shape[:-1], 1, device=device)
    comb = torch.rand(*x.shape[:-1], 4, device=device)
    y = x[..., 0, :].contiguous()
    ours, gate = leaves(x, mix)
    for make, shape in ((lambda out: mhc_pre_apply_mix(ours, gate, out=out), y.shape),
                        (lambda out: mhc_post(y, ours, gate, comb, out=out), x.shape)):
        out = x.new_empty(shape)
        made, want = make(out), make(None)
        assert made.data_ptr() == out.data_ptr() and torch.equal(out, want) and made.requires_grad
        up = torch.randn_like(want)
        for a, b in zip(torch.autograd.grad(made, (ours, gate), up), torch.autograd.grad(want, (ours, gate), up)):
            assert torch.equal(a, b)
        with pytest.raises(ValueError, match="out: shape is"):
            make(out[:1])
    inplace = x.clone()
    with torch.no_grad():
        want = mhc_post(y, x, mix, comb)
        assert mhc_post(y, inplace, mix, comb, out=inplace) is inplace and torch.equal(inplace, want)
        assert torch.equal(mhc_post(y, x, mix.squeeze(-1), comb), want)


@on_one_device
def test_compiled(device):
    """One graph, forward and backward; autograd adds the gradients."""
    x, parts, weight, matrix = block_parts(device)

    def step(*t):
        return mhc_head(block(*t), t[1][:4], t[2][:1], t[3][:4])

    eager, compiled = leaves(x, *parts, weight, matrix), leaves(x, *parts, weight, matrix)
    want, made = step(*eager), torch.compile(step, fullgraph=True, backend="aot_eager")(*compiled)
    assert torch.equal(want, made)
    up = torch.randn_like(want)
    for a, b in zip(torch.autograd.grad(made, compiled, up), torch.autograd.grad(want, eager, up), strict=True):
        assert (a.float() - b.float()).norm() <= 1e-2 * b.float().norm()
    with torch.no_grad():
        assert torch.equal(torch.compile(step, fullgraph=True, backend="aot_eager")(x, *parts, weight, matrix), want)


def _block_grads(reader, of_view):
    """Gradients of a residual that mhc_post reads itself and a reader through of_view(), fused and without the fused buffer
    in sight."""
    made = []
    for is_fused in True, False:
        torch.manual_seed(3)
        leaf = torch.randn(4, 4, 4, 64).bfloat16().requires_grad_()
        residual = leaf * 1
        mix, comb = torch.randn(4, 4, 4), torch.randn(4, 4, 4, 4)
        x = reader(of_view(residual if is_fused else leaf * 1))
        mhc_post(x, residual, mix, comb).float().square().sum().backward()
        made.append(leaf.grad.float())
    return made


class Twice(torch.autograd.Function):
    """The very same elements, in the same storage, whose gradient counts twice."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


@pytest.mark.parametrize("of_view", [lambda x: x.transpose(0, 1), Twice.apply, lambda x: x.view(x.shape)],
                         ids=["transposed", "twice", "view"])
@pytest.mark.parametrize("reader", [
    lambda x: mhc_pre_apply_mix(x, torch.ones(4, 4, 4) / 4),
    lambda x: mhc_pre_norm_fn(x, torch.linspace(-1, 1, 64 * 256).view(64, 256), None, 1e-6).bfloat16(),
], ids=["pre_apply_mix", "norm_fn"])
def test_readers_of_views(reader, of_view):
    """The buffer is of the very tensor that mhc_post read: a view at the same address has another gradient."""
    fused, apart = _block_grads(reader, of_view)
    assert (fused - apart).abs().max() <= 0.02 * apart.abs().max()


def test_out_over_an_argument_with_gradients():
    residual, x = torch.randn(2, 4, 8).bfloat16(), torch.randn(2, 8).bfloat16()
    mix, comb = torch.randn(2, 4), torch.randn(2, 4, 4, requires_grad=True)
    with pytest.raises(ValueError, match="out: shares memory with an argument that the gradients need"):
        mhc_post(x, residual, mix, comb, out=residual)
    with torch.no_grad():
        assert mhc_post(x, residual, mix, comb, out=residual) is residual
    mix.requires_grad_()
    with pytest.raises(ValueError, match="out: shares memory with an argument that the gradients need"):
        mhc_pre_apply_mix(residual, mix, out=residual[:, 0])


def test_out_beside_an_argument_with_gradients():
    """In one allocation; and of no tokens, where there is nothing to share."""
    buffer, x = torch.randn(2, 3, 4, 8).bfloat16(), torch.randn(3, 8).bfloat16()
    mix, comb = torch.rand(3, 4, requires_grad=True), torch.rand(3, 4, 4)
    want = mhc_post(x, buffer[0].clone(), mix, comb)
    assert torch.equal(mhc_post(x, buffer[0], mix, comb, out=buffer[1]), want)
    want = mhc_pre_apply_mix(buffer[0].clone(), mix)
    assert torch.equal(mhc_pre_apply_mix(buffer[0], mix, out=buffer[1, :, 0]), want)
    for part in (buffer[0], buffer.flatten()[40:40 + 96].view(3, 4, 8)):       # the second: half of it
        with pytest.raises(ValueError, match="out: shares memory with an argument that the gradients need"):
            mhc_post(x, buffer[0], mix, comb, out=part)
    none = buffer[:, :0]
    made = mhc_post(x[:0], none[0], mix[:0], comb[:0], out=none[0])
    assert made.shape == (0, 4, 8) and made.requires_grad
    assert mhc_pre_apply_mix(none[0], mix[:0], out=none[0, :, 0]).shape == (0, 8)


@pytest.mark.parametrize("is_grad_enabled", [True, False])
def test_streams_and_mhc_mult(is_grad_enabled):
    x, fn, scale, base = torch.randn(3, 2, 8).bfloat16(), torch.randn(8, 16), torch.ones(3), torch.zeros(8)
    args = leaves(x, fn, scale, base)
    with torch.set_grad_enabled(is_grad_enabled):
        assert mhc_pre(*args, mhc_mult=2)[0].shape == mhc_head(x, fn, scale[:1], base[:2], mhc_mult=2).shape == (3, 8)
        for call in (lambda: mhc_pre(*args), lambda: mhc_pre(*args, mhc_mult=1),
                     lambda: mhc_head(x, args[1], scale[:1], base[:4]),
                     lambda: mhc_head(x, args[1][:1], scale[:1], base[:1], mhc_mult=1)):
            with pytest.raises(ValueError, match=r"mhc_mult: is [14], want 2, the streams of residual \[3, 2, 8\]"):
                call()


def test_leading_dimensions_differ():
    residual = torch.randn(2, 6, 4, 8).bfloat16()
    with pytest.raises(ValueError, match=r"mix: shape is \[6, 2, 4, 1\], want \[2, 6, 4, 1\], as residual \[2, 6, 4, 8\]"):
        mhc_pre_apply_mix(residual, torch.randn(6, 2, 4, 1))
    with pytest.raises(ValueError, match=r"x: shape is \[12, 8\], want \[2, 6, 8\], as residual \[2, 6, 4, 8\]"):
        mhc_post(torch.randn(12, 8).bfloat16(), residual, torch.randn(2, 6, 4), torch.randn(2, 6, 4, 4))


@pytest.mark.parametrize("which, name", list(enumerate([
    "pre_mix", "layer_output", "post_mix", "comb_mix", "layer_input", "residual"])))
def test_leading_dimensions_of_multilayer_recompute(which, name):
    """[6, 2] has as many tokens as [2, 6], in another order."""
    lead = 2, 6
    args = [[torch.rand(*lead, 4, 1)], [torch.randn(*lead, 8).bfloat16()], [torch.rand(*lead, 4)], [torch.rand(*lead, 4, 4)],
            [torch.empty(*lead, 8).bfloat16()], [torch.empty(*lead, 4, 8).bfloat16()]]
    residual = torch.randn(*lead, 4, 8).bfloat16()
    mhc_multilayer_recompute(residual, *args)
    args[which] = [args[which][0].view(6, 2, *args[which][0].shape[2:])]
    with pytest.raises(ValueError, match=rf"{name}_list: shape is \[6, 2, .*\], want \[2, 6, .*\], as residual"):
        mhc_multilayer_recompute(residual, *args)
