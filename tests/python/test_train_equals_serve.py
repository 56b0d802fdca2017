# SPDX-License-Identifier: MIT
"""What a trainer computes and what an engine samples from are the same bits: models of four sublayers, in the forms
that DeepSeek-V4, V4.1, GLM-5.3 and HY-V4 have, through the layers with gradients, through the op that is one launch, in
batches of any size and order; all against every token alone, through the separate ops. The last test plants faults into
the served path, and each must be noticed."""
from typing import NamedTuple

import pytest
import torch

import tegula
from conftest import HAS_CUDA, on_one_device
from tegula import mhc
from tegula.modeling.mhc import expand_from_embedding, mhc_head, ops

N, SITES, PRE_EPS, SINKHORN_EPS, REPEAT = 4, 4, 1e-6, 1e-6, 20


class Form(NamedTuple):
    rms_eps: float
    is_shifted: bool = False        # a site's input is collapsed by the gate of the site before
    has_comb: bool = True
    post_eps: float = 0.0
    exit: str = "head"


FORMS = {"V4": Form(1e-6), "V4.1": Form(1e-20, is_shifted=True, exit="last_mix"), "GLM-5.3": Form(1e-5, exit="mean"),
         "HY-V4": Form(1e-5, has_comb=False, post_eps=1e-6)}


class Site(NamedTuple):
    fn: torch.Tensor
    scale: torch.Tensor
    base: torch.Tensor
    weights: torch.Tensor           # of the sublayer


def make_model(hidden, device):
    rows = N * (N + 2)
    sites = [Site(torch.randn(rows, N * hidden, device=device) / hidden**0.5, torch.randn(3, device=device),
                  torch.randn(rows, device=device), torch.randn(2, hidden, device=device)) for _ in range(SITES)]
    head = torch.randn(N, N * hidden, device=device) / hidden**0.5, torch.ones(1, device=device), torch.zeros(
        N, device=device)
    return sites, head


def sublayer(u, weights):
    """Element by element, by products and sums alone: its own bits do not depend on the batch."""
    u = u.float()
    return (u * weights[0] + u.roll(1, -1) * weights[1]).clamp(-8, 8).bfloat16()


# ---- three ways to a site's gates and input: (A [T, N], C [T, N], comb [T, N, N], input [T, H]) ----

def by_separate_ops(x, site, form, carried, wide):
    mixes = mhc.mhc_norm_fn_fwd(x, site.fn, None, form.rms_eps)[0]
    a, c, logits = mhc.mhc_pre_split_mixes_fwd(mixes, site.scale, site.base, N, 2.0, PRE_EPS, form.post_eps)
    comb = mhc.mhc_sinkhorn_fwd(logits, REPEAT, SINKHORN_EPS)
    return a, c, comb, mhc.mhc_pre_apply_mix_fwd(x, carried if form.is_shifted else a)


def by_layers(x, site, form, carried, wide):
    """With gradients."""
    mixes = ops.mhc_pre_norm_fn(x, site.fn, None, form.rms_eps)
    if form.post_eps:
        a, c, logits = mhc.mhc_pre_split_mixes_fwd(mixes, site.scale, site.base, N, 2.0, PRE_EPS, form.post_eps)
    else:
        a, c, logits = ops.mhc_pre_split_mixes(mixes, site.scale, site.base, N, 2.0, PRE_EPS)
    comb = ops.sinkhorn_normalize(logits, REPEAT, SINKHORN_EPS)
    return a.view(-1, N), c.view(-1, N), comb, ops.mhc_pre_apply_mix(x, carried if form.is_shifted else a)


def by_one_launch(x, site, form, carried, wide):
    """Without comb from as many rows of fn as a model has that knows none."""
    groups, rows = (3, N * (N + 2)) if form.has_comb else (2, 2 * N)
    u, a, c, *comb = mhc.mhc_pre_fwd(x, site.fn[:rows], site.scale[:groups], site.base[:rows], rms_eps=form.rms_eps,
                                     pre_eps=PRE_EPS, sinkhorn_eps=SINKHORN_EPS, post_eps=form.post_eps, repeat=REPEAT)
    return a, c, comb[0] if comb else None, mhc.mhc_pre_apply_mix_fwd(x, carried) if form.is_shifted else u


def run(model, form, embedding, way):
    """{output: [T, ...]} of every site, and of the exit."""
    sites, head = model
    made = {}
    x = wide = expand_from_embedding(embedding, N)
    carried = torch.zeros(len(embedding), N, device=x.device)
    carried[:, 0] = 1
    for i, site in enumerate(sites):
        a, c, comb, u = way(x, site, form, carried, wide)
        comb = comb if form.has_comb else None
        y = sublayer(u, site.weights)
        # what is not rounded, for a planted fault
        mixed = torch.einsum("tio,tih->toh", comb, x.float()) if form.has_comb else x.float()
        wide = mixed + c.unsqueeze(-1) * y.float().unsqueeze(1)
        x = ops.mhc_post(y, x, c, comb)
        made |= {f"site {i} {name}": t for name, t in
                 (("pre_mix", a), ("post_mix", c), ("comb_mix", comb), ("input", u), ("residual", x)) if t is not None}
        carried = a
    made["exit"] = (mhc_head(x, *head) if form.exit == "head" else mhc.mhc_pre_apply_mix_fwd(x, carried)
                    if form.exit == "last_mix" else (x.float().sum(1) / N).bfloat16())
    return made


def in_batches(model, form, embedding, way, sizes):
    parts, begin = [], 0
    while begin < len(embedding):
        count = sizes[len(parts) % len(sizes)]
        parts.append(run(model, form, embedding[begin:begin + count], way))
        begin += count
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def check_same(where, seen, want):
    for name in want:
        a, b = seen[name].detach().flatten(1), want[name].detach().flatten(1)
        assert a.dtype == b.dtype and a.shape == b.shape, f"{where}: {name}"
        bits = torch.int16 if a.dtype == torch.bfloat16 else torch.int32
        differs = a.contiguous().view(bits) != b.contiguous().view(bits)
        if differs.any():
            token, column = differs.nonzero()[0].tolist()
            raise AssertionError(f"{where}: {name}, token {token}, column {column}: is {a[token, column]:.9g}, alone "
                                 f"{b[token, column]:.9g}; {int(differs.sum())} of {differs.numel()} differ")


def setup(hidden, device):
    count = 300 if device == "cuda" else 133 if hidden < 1000 else 5        # a CPU takes 5 ms per token and site
    model, embedding = make_model(hidden, device), torch.randn(count, hidden, device=device).bfloat16()
    embedding[1] = 0
    return model, embedding


@torch.no_grad()
def alone(model, form, embedding):
    return in_batches(model, form, embedding, by_separate_ops, [1])


@pytest.mark.parametrize("hidden", [256, 5120, *((4096, 7168) if HAS_CUDA else ())])
@pytest.mark.parametrize("name", FORMS)
def test_train_equals_serve(name, hidden, device):
    form = FORMS[name]
    model, embedding = setup(hidden, device)
    want = alone(model, form, embedding)
    leaf = embedding.clone().requires_grad_()
    trained = run(model, form, leaf, by_layers)
    assert trained["exit"].requires_grad
    check_same(f"{name}, with gradients", trained, want)
    trained["exit"].float().sum().backward()
    assert leaf.grad[2:].isfinite().all()
    with torch.no_grad():
        for way in (by_one_launch, by_separate_ops):
            check_same(f"{name}, {way.__name__}", run(model, form, embedding, way), want)
        for size in [1, 7, 16, 64, 97, 129][:6 if len(embedding) > 129 else 1]:
            check_same(f"{name}, batches of {size}", in_batches(model, form, embedding, by_one_launch, [size]), want)
        check_same(f"{name}, mixed batches", in_batches(model, form, embedding, by_one_launch, [3, 1, 33, 8, 65]), want)
        order = torch.randperm(len(embedding), device=device)
        shuffled = run(model, form, embedding[order], by_one_launch)
        check_same(f"{name}, shuffled", shuffled, {key: t[order] for key, t in want.items()})


@pytest.mark.parametrize("name", FORMS)
def test_settings_change_nothing(name, device):
    """Threads of a CPU; SMs and early launches of a GPU."""
    form = FORMS[name]
    model, embedding = setup(256, device)
    embedding = embedding[:40]
    want = alone(model, form, embedding)
    config = tegula.config
    with torch.no_grad():
        if device == "cpu":
            before = config.get_num_threads()
            for threads in (1, 2, 5):
                config.set_num_threads(threads)
                check_same(f"{name}, {threads} threads", run(model, form, embedding, by_one_launch), want)
            config.set_num_threads(before)
            return
        before = config.get_num_sms(), config.get_pdl()
        for sms in (16, 33, 132):
            for pdl in (False, True):
                config.set_num_sms(min(sms, config.get_device_num_sms())), config.set_pdl(pdl)
                check_same(f"{name}, {sms} SMs, PDL {pdl}", run(model, form, embedding, by_one_launch), want)
        config.set_num_sms(before[0]), config.set_pdl(before[1])


@on_one_device
def test_compiled_is_the_same(device):
    form = FORMS["V4"]
    model, embedding = setup(256, device)
    embedding = embedding[:8]
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    check_same("V4, compiled", compiled(model, form, embedding, by_layers), alone(model, form, embedding))


@pytest.mark.skipif(not HAS_CUDA, reason="a CPU has no graphs")
@pytest.mark.parametrize("count", [1, 40, 300])         # few tokens and many: other kernels
@torch.no_grad()
def test_replayed_is_the_same(count):
    form, device = FORMS["V4"], "cuda"
    model, embedding = setup(4096, device)
    embedding = embedding[:count]
    want, given = alone(model, form, embedding), embedding.clone()
    run(model, form, given, by_one_launch)              # kernels are loaded before a capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = run(model, form, given, by_one_launch)
    for _ in range(3):
        given.copy_(torch.randn_like(given)), graph.replay()
        given.copy_(embedding), graph.replay()
        check_same(f"V4, {count} tokens, replayed", made, want)


# ---- the sublayer's RMSNorm, which pre_fwd has as an option ----

def squares_of(v):
    """Sums over columns in the order that docs/mhc.md gives: units of 8 by fma, then a tree of at least 1024 units."""
    x = torch.nn.functional.pad(v, (0, -v.shape[1] % 8)).view(len(v), -1, 8).double()
    sums = torch.zeros(x.shape[:2], device=v.device)
    for c in range(8):
        sums = (x[..., c] * x[..., c] + sums.double()).float()
    sums = torch.nn.functional.pad(sums, (0, (1 << max(sums.shape[1] - 1, 1023).bit_length()) - sums.shape[1]))
    while sums.shape[1] > 1:
        sums = sums[:, ::2] + sums[:, 1::2]
    return sums


def normed(v, squared, gain, eps):
    """RMSNorm of v by the squares of squared: every operation rounded to float32, the last to bfloat16."""
    rstd = (squares_of(squared) / v.shape[1] + eps).double().rsqrt().float()
    return ((v.float() * rstd) * gain.float()).bfloat16()


def with_norm(hidden, device):
    """(residual, its site, gain, the input after a norm of its own, and after one that sums squares before they are rounded),
    every token alone."""
    (site, *_), _ = make_model(hidden, device)
    count = 20 if device == "cuda" or hidden < 1000 else 5
    residual = torch.randn(count, N, hidden, device=device).bfloat16()
    gain = torch.randn(hidden, device=device).bfloat16()
    rounded, unrounded = [], []
    for t in range(count):
        x = residual[t:t + 1]
        a, _, _, v = by_separate_ops(x, site, FORMS["V4"], None, None)
        rounded.append(normed(v, v.float(), gain, 1e-6))
        exact = torch.zeros(1, hidden, device=device)
        for i in range(N):
            exact = (a[:, i, None].double() * x[:, i].double() + exact.double()).float()
        assert torch.equal(exact.bfloat16(), v)
        unrounded.append(normed(v, exact, gain, 1e-6))
    return residual, site, gain, torch.cat(rounded), torch.cat(unrounded)


@pytest.mark.parametrize("hidden", [256, 1280, 5120])
@torch.no_grad()
def test_norm_of_the_input(hidden, device):
    """In the same launch as all the rest, and in batches; a sum of squares that were not rounded must be noticed."""
    residual, site, gain, want, unrounded = with_norm(hidden, device)
    for size in (1, 3, len(residual)):
        made = torch.cat([mhc.mhc_pre_fwd(part, site.fn, site.scale, site.base, None, gain, True)[0]
                          for part in residual.split(size)])
        check_same(f"norm, batches of {size}", {"input": made}, {"input": want})
    with pytest.raises(AssertionError, match="norm, unrounded: input, token"):
        check_same("norm, unrounded", {"input": unrounded}, {"input": want})


# ---- faults ----

def truncated(t):
    return (t.view(torch.int32) & ~0x1fff).view(torch.float32)


def tf32(t):
    return ((t.view(torch.int32) + 0x1000) & ~0x1fff).view(torch.float32)


def with_mixes(mixes_of):
    """A site whose mixes are mixes_of(x, site, rms_eps, the residual before rounding)."""
    def way(x, site, form, carried, wide):
        mixes = mixes_of(x, site, form.rms_eps, wide)
        a, c, logits = mhc.mhc_pre_split_mixes_fwd(mixes, site.scale, site.base, N, 2.0, PRE_EPS, form.post_eps)
        comb = mhc.mhc_sinkhorn_fwd(logits, REPEAT, SINKHORN_EPS)
        return a, c, comb, mhc.mhc_pre_apply_mix_fwd(x, carried if form.is_shifted else a)

    return way


def from_unrounded(x, site, eps, wide):
    v = wide.float().flatten(1)
    return v @ tf32(site.fn).T * (v.square().mean(1, keepdim=True) + eps).rsqrt()


def split_by_tokens(x, site, eps, wide):
    """As many partial sums as there are tokens' tiles to spare, as kernels for small batches have."""
    v, splits = x.flatten(1).float(), 16 if len(x) <= 16 else 1
    parts = v.view(len(v), splits, -1), tf32(site.fn).view(N * (N + 2), splits, -1)
    products = torch.einsum("tsk,psk->stp", *parts).sum(0)
    return products * (v.square().mean(1, keepdim=True) + eps).rsqrt()


def summed_weight(x, site, eps, wide):
    """The first site from one stream, with fn summed over streams: all are equal there."""
    is_entry = bool((x == x[:, :1]).all())
    if not is_entry:
        return mhc.mhc_norm_fn_fwd(x, site.fn, None, eps)[0]
    return mhc.mhc_norm_fn_fwd(x[:, :1], site.fn.view(len(site.fn), N, -1).sum(1), None, eps)[0]


def cut_weight(x, site, eps, wide):
    return mhc.mhc_norm_fn_fwd(x, truncated(site.fn), None, eps)[0]


def input_before_rounding(x, site, form, carried, wide):
    """The sublayer's input from a residual that was not rounded."""
    a, c, comb, _ = by_one_launch(x, site, form, carried, wide)
    return a, c, comb, (wide.float() * (carried if form.is_shifted else a).unsqueeze(-1)).sum(1).bfloat16()


FAULTS = {f.__name__: with_mixes(f) for f in (from_unrounded, split_by_tokens, summed_weight, cut_weight)}
FAULTS["input_before_rounding"] = input_before_rounding


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", FORMS)
@torch.no_grad()
def test_faults_are_noticed(name, fault, device):
    model, embedding = setup(256, device)
    embedding = embedding[:20]
    want = alone(model, FORMS[name], embedding)
    with pytest.raises(AssertionError, match=rf"{name}, {fault}: (site \d|exit).*, token \d+, column \d+: is .*alone"):
        check_same(f"{name}, {fault}", run(model, FORMS[name], embedding, FAULTS[fault]), want)
