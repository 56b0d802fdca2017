# SPDX-License-Identifier: MIT
"""tegula.mhc: recorded data, plain torch, gradients."""
import pytest
import torch

import golden
import tegula.torch as reference
from tegula import mhc
from tegula.mhc import deep_gemm

NAMES = ("sinkhorn_normalize", "mhc_pre_split_mixes", "expand_to_mhc", "mhc_head_compute_mix", "mhc_pre_apply_mix",
         "mhc_post")
RECORDED = [case for case in golden.cases("mhc") if case.op in NAMES]


def flat(t, last):
    return t.reshape(-1, *t.shape[t.ndim - last:])


def call(case, given):
    """The op's forward as the recorded function has it, with any leading dimensions."""
    args = case.args
    if case.op == "sinkhorn_normalize":
        return mhc.mhc_sinkhorn_fwd(flat(given["x"], 2), args["repeat"], args["eps"]).view(given["x"].shape)
    if case.op == "expand_to_mhc":
        x, n = given["hidden"], args["mhc_mult"]
        return mhc.mhc_expand_fwd(flat(x, 1), n).view(*x.shape[:-1], n, x.shape[-1])
    if case.op == "mhc_pre_apply_mix":
        x, mix = given["x"], given["mix"]
        return mhc.mhc_pre_apply_mix_fwd(flat(x, 2), flat(mix[..., 0], 1)).view(*x.shape[:-2], x.shape[-1])
    if case.op == "mhc_post":
        x, residual, gate, comb = (given[name] for name in ("x", "residual", "post_layer_mix", "comb_res_mix"))
        made = mhc.mhc_post_fwd(flat(x, 1), flat(residual, 2), flat(gate[..., 0], 1), flat(comb, 2))
        return made.view(residual.shape)
    if case.op == "mhc_head_compute_mix":
        mixes = given["input_mix"]
        made = mhc.mhc_head_compute_mix_fwd(flat(mixes, 1), given["mhc_scale"], given["mhc_base"], args["mhc_pre_eps"])
        return made.view(mixes.shape)
    mixes, n = given["input_mixes"], args["mhc_mult"]
    pre, post, comb = mhc.mhc_pre_split_mixes_fwd(flat(mixes, 1), given["mhc_scale"], given["mhc_base"], n,
                                                  args["mhc_post_mult_value"], args["mhc_pre_eps"])
    lead = mixes.shape[:-1]
    return pre.view(*lead, n, 1), post.view(*lead, n, 1), comb.view(*lead, n, n)


GRADIENTS = {"hidden": "hidden_grad", "x": "x_grad", "mix": "mix_grad", "residual": "residual_grad",
             "post_layer_mix": "post_layer_mix_grad", "comb_res_mix": "comb_res_mix_grad",
             "input_mix": "input_mix_grad", "input_mixes": "input_mixes_grad", "mhc_scale": "scale_grad",
             "mhc_base": "base_grad"}


def outputs_of(case):
    return [name for name, row in case.rows.items() if row["role"] == "out" and name not in GRADIENTS.values()]


@pytest.mark.parametrize("case", RECORDED, ids=str)
def test_recorded(case, device):
    """Forward, and gradients by autograd."""
    given = case.inputs(device)
    names = outputs_of(case)
    incoming = [given.pop(name) for name in [f"{n}_grad" for n in names] if name in given]
    old = given.pop("x_grad_in", None)
    leaves = {name: t.requires_grad_() for name, t in given.items()}
    made = call(case, leaves)
    made = made if isinstance(made, tuple) else (made,)
    for name, t in zip(names, made, strict=True):
        case.check(name, t.detach())
    if not incoming or old is not None:
        return
    grads = torch.autograd.grad(made, list(leaves.values()), incoming)
    for name, t in zip(leaves, grads):
        case.check(GRADIENTS[name], t.contiguous())


def test_accumulates(device):
    case = next(c for c in RECORDED if "x_grad_in" in c.rows)
    given = case.inputs(device)
    grad = flat(given["x_grad_in"], 2)
    mix = flat(given["mix"][..., 0], 1)
    made = mhc.mhc_pre_apply_mix_bwd(flat(given["out_grad"], 1), flat(given["x"], 2), mix, grad)
    case.check("x_grad", grad.view(given["x"].shape))
    case.check("mix_grad", made.view(given["mix"].shape))


def test_recorded_by_reference(device):
    """The references themselves."""
    functions = {"expand_to_mhc": reference.expand_to_mhc_ref, "sinkhorn_normalize": reference.sinkhorn_normalize_ref}
    for case in RECORDED:
        f = functions.get(case.op) or getattr(reference, case.op + "_ref")
        names = outputs_of(case)
        given = {name: t for name, t in case.inputs(device).items() if name.removesuffix("_grad") not in names
                 and name != "x_grad_in"}
        made = f(**given, **case.args)
        for name, t in zip(names, made if isinstance(made, tuple) else (made,), strict=True):
            case.check(name, t.contiguous())


@pytest.mark.parametrize("case", [c for c in golden.cases("mhc") if c.op == "mhc_pre_norm_fn"], ids=str)
def test_norm_fn(case, device):
    given, eps = case.inputs(device), case.args["mhc_norm_eps"]
    x, fn, weight = given["residual"], given["mhc_fn"], given.get("mhc_norm_weight")
    leaves = [t.requires_grad_() for t in (x, fn, weight) if t is not None]
    mixes, out_mul, sqrsum = mhc.mhc_norm_fn_fwd(flat(x, 2), fn, weight, eps)
    case.check("out", mixes.detach().view(*x.shape[:-2], -1))
    if "fn_grad" in case.rows and "residual_grad_in" not in case.rows:
        grads = torch.autograd.grad(mixes, leaves, flat(given["out_grad"], 1))
        for name, grad in zip(("residual_grad", "fn_grad", "norm_weight_grad"), grads):
            case.check(name, grad)
    x, fn, sqrsum = x.detach(), fn.detach(), sqrsum.detach()
    if x.isfinite().all():
        torch.testing.assert_close(sqrsum, flat(x, 2).flatten(1).float().square().sum(1), rtol=2e-6, atol=0)
    if case.name.startswith("dyadic"):
        case.check("out", reference.mhc_pre_norm_fn_ref(x, fn, weight, eps))


@pytest.mark.parametrize("n", [1, 3, 4, 8])
def test_pre_is_its_parts(n, device):
    """To the bit; the norm against torch."""
    torch.manual_seed(n)
    x = torch.randn(37, n, 136, device=device).bfloat16()
    fn, scale, base = (torch.randn(*shape, device=device) for shape in ((n * (n + 2), n * 136), (3,), (n * (n + 2),)))
    weight, gain = torch.rand(n * 136, device=device), torch.randn(136, device=device).bfloat16()
    made = mhc.mhc_pre_fwd(x, fn, scale, base, weight, None, False, 1e-5, 1e-2, 1e-3, post_mult=1.5, repeat=7)
    pre, post, logits = mhc.mhc_pre_split_mixes_fwd(mhc.mhc_norm_fn_fwd(x, fn, weight, 1e-5)[0], scale, base, n, 1.5, 1e-2)
    out = mhc.mhc_pre_apply_mix_fwd(x, pre)
    for seen, want in zip(made, (out, pre, post, mhc.mhc_sinkhorn_fwd(logits, 7, 1e-3)), strict=True):
        assert torch.equal(seen, want)
    normed = mhc.mhc_pre_fwd(x, fn, scale, base, weight, gain, True, 1e-5, 1e-2, 1e-3, norm_eps=1e-3, post_mult=1.5,
                             norm_scale=0.5, repeat=7)
    want = torch.nn.functional.rms_norm(out.double(), (136,), gain.double() * 0.5, 1e-3)
    torch.testing.assert_close(normed[0].double(), want, rtol=2 ** -8, atol=1e-6)


@pytest.mark.parametrize("n", [1, 3, 4, 8])
@pytest.mark.parametrize("scales", [1, 2])
def test_pre_without_comb(n, scales, device):
    """Two scales, and one, are the first groups of three, to the bit, as ops, as one op and from parts; so are gradients."""
    torch.manual_seed(n)
    x, rows = torch.randn(37, n, 136, device=device).bfloat16(), scales * n
    fn, scale, base = (torch.randn(*shape, device=device) for shape in ((n * (n + 2), n * 136), (3,), (n * (n + 2),)))
    few = fn[:rows].contiguous(), scale[:scales], base[:rows]
    want = mhc.mhc_pre_fwd(x, fn, scale, base, post_mult=1.5, post_eps=1e-3, repeat=1)[:1 + scales]
    mixes, out_mul, sqrsum = mhc.mhc_norm_fn_fwd(x, few[0])
    made = mhc.mhc_pre_fwd(x, *few, post_mult=1.5, post_eps=1e-3)
    finished = mhc.mhc_pre_finish_fwd(x, out_mul[None], sqrsum[None], *few[1:], post_mult=1.5, post_eps=1e-3)
    for seen in (made, finished):
        assert len(seen) == len(want) and all(map(torch.equal, seen, want))
    if scales == 1:
        assert torch.equal(mhc.mhc_head_compute_mix_fwd(mixes, *few[1:]), want[1])
        return
    grads = []
    for all_of in (mhc.mhc_norm_fn_fwd(x, fn)[0], scale, base), (mixes, *few[1:]):
        leaves = [t.clone().requires_grad_() for t in all_of]
        pre, post, *_ = mhc.mhc_pre_split_mixes_fwd(*leaves, n, 1.5, post_eps=1e-3)
        assert torch.equal(pre, want[1]) and torch.equal(post, want[2])
        grads.append(torch.autograd.grad((pre.square() + post.square()).sum(), leaves))
    for few_of, all_of in zip(*reversed(grads), strict=True):
        assert torch.equal(few_of, all_of[..., :few_of.shape[-1]])


@pytest.mark.parametrize("splits", [1, 3, 16, 40])
def test_parts_of_a_projection(splits, device):
    """Parts of a plain matmul, finished, are close to norm_fn; pre_finish is its parts, to the bit."""
    torch.manual_seed(splits)
    x = torch.randn(9, 4, 240, device=device).bfloat16()
    fn, scale, base = (torch.randn(*shape, device=device) for shape in ((24, 960), (3,), (24,)))
    columns = torch.arange(960, device=device) * splits // 960
    parts = torch.stack([x.view(9, 960).float() * (columns == s) @ fn.T for s in range(splits)])
    squares = torch.stack([(x.view(9, 960).float() * (columns == s)).square().sum(1) for s in range(splits)])
    made = mhc.mhc_norm_fn_finish_fwd(parts, squares, 960, 1e-5)
    for seen, want in zip(made, mhc.mhc_norm_fn_fwd(x, fn, None, 1e-5), strict=True):
        torch.testing.assert_close(seen, want, rtol=1e-3, atol=0.1)         # fn is not rounded to TF32
    pre, post, logits = mhc.mhc_pre_split_mixes_fwd(made[0], scale, base, 4, 1.5, 1e-2)
    parts_of = mhc.mhc_pre_apply_mix_fwd(x, pre), pre, post, mhc.mhc_sinkhorn_fwd(logits, 7, 1e-3)
    fused = mhc.mhc_pre_finish_fwd(x, parts, squares, scale, base, 1e-5, 1e-2, 1e-3, 1.5, repeat=7)
    for seen, want in zip(fused, parts_of, strict=True):
        assert torch.equal(seen, want)


@pytest.mark.parametrize("n, hidden", [(1, 64), (3, 136), (4, 240), (4, 1280), (8, 128)])
@pytest.mark.parametrize("splits", [None, 1, 2, 3, 16, 40])
def test_hc_prenorm_gemm(splits, n, hidden, device):
    """Parts, finished, are norm_fn and pre, to the bit; those that are not used are zeros."""
    torch.manual_seed(n)
    x = torch.randn(9, n, hidden, device=device).bfloat16()
    fn, scale, base = (torch.randn(*s, device=device) for s in ((n * (n + 2), n * hidden), (3,), (n * (n + 2),)))
    shape = () if splits is None else (splits,)
    d = torch.full((*shape, 9, len(fn)), torch.nan, device=device)
    sqr_sum = torch.full((*shape, 9), torch.nan, device=device)
    assert deep_gemm.hc_prenorm_gemm(x.view(9, -1), fn, d, sqr_sum, splits, num_streams=n) is None
    want = mhc.mhc_norm_fn_fwd(x, fn)
    if splits is None:
        assert torch.equal(d, want[1]) and torch.equal(sqr_sum, want[2])
        d, sqr_sum = d[None], sqr_sum[None]
    for seen, one in zip(mhc.mhc_norm_fn_finish_fwd(d, sqr_sum, n * hidden), want, strict=True):
        assert torch.equal(seen, one)
    pre = mhc.mhc_pre_fwd(x, fn, scale, base)
    for seen, one in zip(mhc.mhc_pre_finish_fwd(x, d, sqr_sum, scale, base), pre, strict=True):
        assert torch.equal(seen, one)


def test_hc_prenorm_gemm_is_deepgemms(device):
    """Within DeepGEMM's own bound, and under its name."""
    a, b = torch.randn(13, 7680, device=device).bfloat16(), torch.nn.Parameter(torch.randn(24, 7680, device=device))
    d, sqr_sum = torch.empty(16, 13, 24, device=device), torch.empty(16, 13, device=device)
    deep_gemm.tf32_hc_prenorm_gemm(a, b, d, sqr_sum, num_splits=16)
    assert not d.requires_grad
    rounded = (b.detach().view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32).double()         # to TF32
    for seen, want in ((d.sum(0), a.double() @ rounded.T), (sqr_sum.sum(0), a.double().square().sum(1))):
        seen = seen.double()
        assert 1 - 2 * (seen * want).sum() / (seen.square() + want.square()).sum() < 1e-8
    with pytest.raises(ValueError, match="num_splits: is 4, want 16, that of d"):
        deep_gemm.hc_prenorm_gemm(a, b, d, sqr_sum, 4)


@pytest.mark.parametrize("n", [1, 3, 4, 8])
def test_split_sinkhorn(n, device):
    """Forward and gradients are those of the two ops, to the bit."""
    torch.manual_seed(n)
    given = [torch.randn(*shape, device=device) for shape in ((50, n * (n + 2)), (3,), (n * (n + 2),))]
    grads = [torch.randn(*shape, device=device) for shape in ((50, n), (50, n), (50, n, n))]
    made = []
    for fused in (True, False):
        leaves = [t.clone().requires_grad_() for t in given]
        if fused:
            out = mhc.mhc_split_sinkhorn_fwd(*leaves, n, 1.5, 1e-2, 1e-3, 7, 1e-3)
        else:
            pre, post, logits = mhc.mhc_pre_split_mixes_fwd(*leaves, n, 1.5, 1e-2, 1e-3)
            out = pre, post, mhc.mhc_sinkhorn_fwd(logits, 7, 1e-3)
        torch.autograd.backward(out, grads)
        made.append([*out, *(t.grad for t in leaves)])
    for seen, want in zip(*made, strict=True):
        assert torch.equal(seen, want)


@pytest.mark.parametrize("n", [1, 3, 4, 8])
def test_post_without_comb(n, device):
    """Is post with the identity, to the bit, but for its gradient: the residual's is handed on, which keeps -0."""
    torch.manual_seed(n)
    y, x, post = (torch.randn(*shape, device=device) for shape in ((37, 72), (37, n, 72), (37, n)))
    given = y.bfloat16(), x.bfloat16(), post
    grad = torch.randn(37, n, 72, device=device).bfloat16()
    made = []
    for comb in (None, torch.eye(n, device=device).repeat(37, 1, 1)):
        leaves = [t.clone().requires_grad_() for t in given]
        out = mhc.mhc_post_fwd(*leaves, comb)
        made.append([out, *torch.autograd.grad(out, leaves, grad)])
    for seen, want in zip(*made, strict=True):
        assert torch.equal(seen, want)
    grad_x, grad_post = mhc.mhc_post_bwd(grad, *given)
    assert torch.equal(grad_x, made[0][1]) and torch.equal(grad_post, made[0][3])


@pytest.mark.parametrize("n", [1, 3, 4, 8])
def test_a_block_of_ops(n, device):
    """A sublayer's seam, forward and backward, against plain torch in double."""
    torch.manual_seed(n)
    tokens, hidden = 37, 72
    x = torch.randn(tokens, n, hidden, device=device).bfloat16()
    y = torch.randn(tokens, hidden, device=device).bfloat16()
    mixes, scale = torch.randn(tokens, n * (n + 2), device=device), torch.randn(3, device=device)
    base = torch.randn(n * (n + 2), device=device)
    leaves = [t.requires_grad_() for t in (x, y, mixes, scale, base)]
    pre, post, logits = mhc.mhc_pre_split_mixes_fwd(mixes, scale, base, n, 1.5, 1e-2)
    comb = mhc.mhc_sinkhorn_fwd(logits, 10, 1e-3)
    inner = mhc.mhc_pre_apply_mix_fwd(x, pre)
    out = mhc.mhc_post_fwd(y, x, post, comb)
    up = torch.randn_like(out), torch.randn_like(inner)
    grads = torch.autograd.grad((out, inner), leaves, up)
    doubles = [t.detach().double().requires_grad_() for t in leaves]
    dx, dy, dm, ds, db = doubles
    dpre, dpost, dlogits = reference.mhc_pre_split_mixes_ref(dm, ds, db, n, 1.5, 1e-2)
    dcomb = reference.sinkhorn_normalize_ref(dlogits, 10, 1e-3)
    dinner = (dx * dpre).sum(-2)
    dout = torch.einsum("tio,tih->toh", dcomb, dx) + dy[:, None] * dpost
    wanted = torch.autograd.grad((dout, dinner), doubles, [t.double() for t in up])
    names = ("out", "inner", "x", "y", "mixes", "scale", "base")
    for seen, want, name in zip((out, inner, *grads), (dout, dinner, *wanted), names, strict=True):
        rounding = 2**-7 if seen.dtype == torch.bfloat16 else 1e-5      # that of x is a sum of two, each rounded
        bound = rounding * want.abs() + rounding * want.abs().max()
        assert ((seen.double() - want).abs() <= bound).all(), name


def test_unused_outputs_have_no_gradient(device):
    mixes = torch.randn(5, 8, device=device).requires_grad_()
    scale, base = torch.randn(3, device=device), torch.randn(8, device=device)
    _, _, comb = mhc.mhc_pre_split_mixes_fwd(mixes, scale, base, 2)
    grad, = torch.autograd.grad(comb.sum(), mixes)
    torch.testing.assert_close(grad[:, 4:], scale[2].expand(5, 4))
    assert (grad[:, :4] == 0).all()


def test_messages(device):
    x = torch.randn(3, 2, 2, device=device)
    with pytest.raises(ValueError, match="repeat: is 0, want"):
        mhc.mhc_sinkhorn_fwd(x, 0)
    with pytest.raises(ValueError, match=r"x: shape is \[3, 2, 1\], want \[3, 1..8, 2\]"):
        mhc.mhc_sinkhorn_fwd(x[:, :, :1].contiguous())
    with pytest.raises(ValueError, match="num_streams: is 9, want"):
        mhc.mhc_expand_fwd(x[0].bfloat16(), 9)
    residual = torch.randn(3, 2, 8, device=device).bfloat16()
    for rows, scales in ((8, 3), (4, 2), (2, 1)):
        args = (torch.randn(*shape, device=device) for shape in ((rows, 16), (scales,), (rows,)))
        with pytest.raises(ValueError, match="norm_scale: is 0, want another number"):
            mhc.mhc_pre_fwd(residual, *args, norm=True, norm_scale=0.0)
