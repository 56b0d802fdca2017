# SPDX-License-Identifier: MIT
"""Records the cases `mhc_form` of mhc: the hyper-connections of four models, from the embedding over three sites to the exit,
in plain PyTorch, in float64 but for what the models round to bfloat16.

    python3 tests/golden/mhc_forms.py

Formulas are written as in the models' papers and code, one line each, and share nothing with Tegula."""
import json, pathlib

import numpy as np
import torch

FOLDER = pathlib.Path(__file__).parent / "mhc"
TOKENS, STREAMS, SITES, REPEAT, EPS = 3, 4, 3, 20, 1e-6

# scales: 3 with comb, 2 without. shifted: a site's input is collapsed by the gate of the site before.
FORMS = {
    "deepseek_v4": dict(scales=3, shifted=False, rms_eps=1e-6, norm_eps=1e-6, post_eps=0.0, exit="head"),
    "deepseek_v4_1": dict(scales=3, shifted=True, rms_eps=1e-20, norm_eps=1e-20, post_eps=0.0, exit="last"),
    "glm_5_3": dict(scales=3, shifted=False, rms_eps=1e-5, norm_eps=1e-5, post_eps=0.0, exit="mean"),
    "hy_v4": dict(scales=2, shifted=False, rms_eps=1e-5, norm_eps=1e-5, post_eps=1e-6, exit="head"),
}


def bf16(x):
    return x.float().bfloat16().double()


def tf32(x):
    return (x.float().view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32).double()


def rms_norm(x, gain, eps):
    return bf16(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain)


def mixes(x, fn, eps):
    flat = x.flatten(1)
    return (flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + eps)) @ fn.T


def sinkhorn(logits):
    m = torch.softmax(logits, -1) + EPS
    m = m / (m.sum(-2, keepdim=True) + EPS)
    for _ in range(REPEAT - 1):
        m = m / (m.sum(-1, keepdim=True) + EPS)
        m = m / (m.sum(-2, keepdim=True) + EPS)
    return m                                                    # [token, input stream, output stream]


def gates(m, scale, base, post_eps):
    n = STREAMS
    pre = torch.sigmoid(m[:, :n] * scale[0] + base[:n]) + EPS
    post = 2 * torch.sigmoid(m[:, n:2 * n] * scale[1] + base[n:2 * n]) + post_eps if len(scale) > 1 else None
    comb = sinkhorn((m[:, 2 * n:] * scale[2] + base[2 * n:]).view(-1, n, n)) if len(scale) > 2 else None
    return pre, post, comb


def record(name, form, hidden):
    torch.manual_seed(hidden + list(FORMS).index(name))
    rows = STREAMS * (2 + STREAMS) if form["scales"] == 3 else 2 * STREAMS
    given = {
        "embedding": bf16(torch.randn(TOKENS, hidden) * torch.tensor([1.0, 1e-3, 30.0])[:, None]),     # eps shows in the second
        "y": bf16(torch.randn(SITES, TOKENS, hidden)),          # what the sublayers return, given their inputs
        "fn": tf32(torch.randn(SITES, rows, STREAMS * hidden) / 16), "scale": torch.randn(SITES, form["scales"]).double(),
        "base": torch.randn(SITES, rows).double(), "gain": bf16(1 + torch.randn(SITES, hidden) / 4),
    }
    if form["exit"] == "head":
        given |= {"head_fn": tf32(torch.randn(STREAMS, STREAMS * hidden) / 16), "head_scale": torch.randn(1).double(),
                  "head_base": torch.randn(STREAMS).double(), "head_gain": bf16(1 + torch.randn(hidden) / 4)}
    else:                                                       # of the first site, or of the exit
        one_hot = torch.eye(STREAMS)[0].double().expand(TOKENS, STREAMS)
        given["mix"] = one_hot if form["shifted"] else torch.full_like(one_hot, 1 / STREAMS)
    made = {"pre_mix": [], "post_mix": [], "comb_mix": [], "input": [], "residual": []}
    x = given["embedding"][:, None].expand(-1, STREAMS, -1)
    carried = given.get("mix")
    for site in range(SITES):
        a, c, b = gates(mixes(x, given["fn"][site], form["rms_eps"]), given["scale"][site], given["base"][site],
                        form["post_eps"])
        v = bf16(((carried if form["shifted"] else a)[:, :, None] * x).sum(1))
        mixed = x if b is None else torch.einsum("tio,tih->toh", b, x)
        # The shifted form's norm is not among the ops: its inputs are recorded before it.
        made["input"].append(v if form["shifted"] else rms_norm(v, given["gain"][site], form["norm_eps"]))
        x = bf16(mixed + c[:, :, None] * given["y"][site][:, None])
        carried = a
        for key, value in (("pre_mix", a), ("post_mix", c), ("comb_mix", b), ("residual", x)):
            made[key].append(value)
    if form["exit"] == "head":
        a, _, _ = gates(mixes(x, given["head_fn"], form["rms_eps"]), given["head_scale"], given["head_base"], 0.0)
        out = rms_norm(bf16((a[:, :, None] * x).sum(1)), given["head_gain"], form["norm_eps"])
    else:                                                       # by the last gate, from before the last post; the mean
        out = bf16(((carried if form["shifted"] else given["mix"])[:, :, None] * x).sum(1))
    if form["scales"] == 2:
        del made["comb_mix"]
    if form["shifted"]:
        del given["gain"]
    return given, {key: torch.stack(value) for key, value in made.items()} | {"out": out}


def main():
    path = FOLDER / "manifest.json"
    lines = path.read_text().splitlines()
    kept = [line.rstrip(",") for line in lines[5:-2] if '"op": "mhc_form"' not in line]
    for name, form in FORMS.items():
        for hidden in (64, 256):
            given, made = record(name, form, hidden)
            case, tensors = f"{name}_h{hidden}", []
            folder = FOLDER / "mhc_form" / case
            folder.mkdir(parents=True, exist_ok=True)
            for role, all_of in (("in", given), ("out", made)):
                for key, t in all_of.items():
                    is_bf16 = key in ("embedding", "y", "gain", "head_gain", "input", "residual", "out")
                    stored = t.float().bfloat16().view(torch.uint16) if is_bf16 else t.float()
                    np.save(folder / f"{key}.npy", stored.contiguous().numpy())
                    row = {"name": key, "role": role, "dtype": "bf16" if is_bf16 else "f32", "shape": list(t.shape)}
                    if role == "out" and is_bf16:       # a gate's last bits move a few roundings
                        row["compare"] = {"mode": "bf16", "ulp": 2, "atol": 1e-6, "mismatch": 0.01}
                    elif role == "out":
                        row["compare"] = {"mode": "close", "atol": 2e-5, "rtol": 2e-5}
                    tensors.append(row)
            args = {key: form[key] for key in ("shifted", "rms_eps", "norm_eps", "post_eps", "exit")} | {"repeat": REPEAT}
            kept.append("  " + json.dumps({"op": "mhc_form", "case": case, "args": args, "tensors": tensors}))
    path.write_text("\n".join(lines[:5]) + "\n" + ",\n".join(kept) + "\n" + "\n".join(lines[-2:]) + "\n")


if __name__ == "__main__":
    main()
