# SPDX-License-Identifier: MIT
"""Host nanoseconds per eager call, against torch's own ops in the same run.

    PYTHONPATH=build/python python bench/python/host_cost.py [--device cpu|cuda] [--only REGEX] [--json FILE] [--commit TEXT]
        [--check]

Tensors are tiny, so that all time is the host's; CPU ops run in warm-up mode, where they do all but their work.
Batches of all statements take turns, so that drifts of the machine affect all alike. Each turn starts with an idle
device and a batch of bare cuLaunchKernelEx, which is subtracted in the column "beyond launch". The fastest tenth of
the turns counts, as on a quiet core. --check fails if a call with one output costs as much as torch's x + 1, or on
CUDA more than the budget beyond the launch: 2000 ns with one output, 1400 for each further one, 600 with out=."""

import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import timeit

import torch

import machine
import tegula
from tegula import _tegula, modeling

BATCH, TURNS = 200, 60
ONE_OUTPUT, FURTHER, GIVEN = 2000, 1400, 600
GATE = "x, bias, 4, 0, 0, False, 0, 1.5, 0, 1, 0, 1, 'sigmoid'"
STATEMENTS = [  # statement, outputs that it makes (0: none, or they are given; None: no budget), what it is
    ("transpose(x)", 1, "the public function"),
    ("transpose(x, out=o)", 0, "into a given tensor"),
    ("batched_transpose(b)", 1, ""),
    ("raw(x)", None, "without the guards"),
    ("op(x)", None, "torch.ops.tegula.transpose.default"),
    ("transpose(g)", None, "with a gradient"),
    ("topk_gate(x, 4)", 1, ""),
    ("topk_sum_and_topk_group_idx(groups, 2, 2)", 1, ""),
    (f"top2_sum_gate({GATE})", 2, ""),
    (f"top2_sum_gate({GATE}, out=idx_and_weights)", 0, ""),
    ("hash_gate(x, ids, idx, 1.5)", 2, ""),
    ("mask_indices_by_tp(idx, 16, 2, 0, 2)", 1, ""),
    ("normalize_weight(x)", 2, ""),
    ("inplace_unique_group_indices(marks, 16)", 0, ""),
    ("group_count(idx, 16)", 1, ""),
    ("group_count(many, 16)", 1, "with a workspace"),
    ("aux_fi(idx, 16, 4)", 1, ""),
    ("get_fused_mapping(idx, 16, 300, 16)", 7, ""),
    ("get_fused_mapping(idx, 16, 300, 16, out=mapping)", 0, ""),
    ("get_fused_mapping(idx, 16, 300, 16, with_psum=True)", 9, ""),
    ("get_fused_mapping(idx, 16, 0, 16)", None, "waits for the result"),
    (f"route({GATE}, 16, 300, 16)", 9, ""),
    (f"route({GATE}, 16, 300, 16, out=routed)", 0, ""),
    ("expand_to_fused(x, mapping[3], mapping[0])", 1, ""),
    ("expand_to_fused_with_sf(cast, 16, mapping[3], mapping[0])", 2, ""),
    ("reduce_fused(y, None, mapping[3])", 1, ""),
    ("reduce_fused(y, None, mapping[3], 'e4m3')", 1, ""),
    ("per_token_cast(x, 'e4m3', 16)", 2, ""),
    ("per_token_cast(x, 'e4m3', 16, out=given)", 0, ""),
    ("per_token_cast(x, 'e5m6', 16)", 2, ""),
    ("per_token_cast(cast, 'e2m1', 16, (1, 16))", 2, "of a pair"),
    ("per_token_cast_with_sf_only(x, 'e4m3', 16)", 1, ""),
    ("per_token_cast_with_precomputed_sf(x, 'e4m3', 16, cast[1])", 1, ""),
    ("per_block_cast(x, 'e4m3', (16, 16))", 2, ""),
    ("per_block_cast_with_sf_only(x, 'e4m3', (16, 16))", 1, ""),
    ("per_block_cast_with_precomputed_sf(x, 'e4m3', (1, 16), cast[1])", 1, ""),
    ("per_block_cast_lossless(fp4, 'e4m3', (1, 16), (16, 16))", 2, ""),
    ("per_channel_cast(x, 'e4m3', 16)", 2, ""),
    ("per_channel_cast_fused(cast, 'e4m3', 16, False, 16)", 2, "of a pair"),
    ("per_channel_cast_and_transpose(x, 'e4m3', 16)", 2, ""),
    ("cast_back(cast, 'bf16', (1, 16))", 1, ""),
    ("cast_back(cast, 'bf16', (1, 16), out=back)", 0, ""),
    ("per_token_cast_back(cast, 'bf16', 16)", 1, ""),
    ("unpack_from_e2m1fn_x2(fp4[0])", None, "a view and a view of it"),
    ("swiglu_forward_and_per_token_cast(x, 'e4m3', 8)", 2, ""),
    ("swiglu_forward_and_per_channel_cast_and_transpose(x, 'e4m3', 16)", 2, ""),
    ("swiglu_backward_and_per_token_cast(halves, half, weights, pairs, places, 8)", 5, ""),
    ("engram_hash(windows, *columns)", 1, ""),
    ("ngram_windows(ids, 3, 2)", 1, ""),
    ("engram_rows(ids, ngram)", 1, ""),
    ("engram_rows(ids, ngram, cu, start, ring=ring, out=rows)", None, "with a ring: 8 tensors"),
    ("engram_lookup(codes, windows, factors)", 1, ""),
    ("engram_lookup(codes, windows, factors, out=looked_up)", 0, ""),
    ("engram_lookup(codes, None, factors)", 1, "all rows"),
    ("engram_lookup_bwd(looked_up, windows, 16)", 3, "with a workspace"),
    ("engram_lookup_bwd(looked_up, windows, 16, grad_table=grad_table)", 0, "with a workspace"),
    ("fused_weight(w, w)", 1, ""),
    ("engram_gate_fwd(streams, streams, v, fused, 1e-20, 1e-6)", 5, ""),
    ("engram_gate_fwd(streams, streams, v, fused, 1e-20, 1e-6, False)", 1, ""),
    ("engram_gate_kv_fwd(streams, kv, None, 1e-20, 1e-6, False, None, True, weights=(w, w))", 0, "in place"),
    ("engram_gate_bwd(streams, streams, streams, v, fused, *saved, 1e-6)", 4, ""),
    ("engram_gate_kv_bwd(streams, streams, kv, fused, *saved, 1e-6)", 3, ""),
    ("grad_w_reduce(partial, w, w, *grads)", 0, ""),
    ("short_conv(streams, w, taps)", 2, ""),
    ("short_conv(streams, w, taps, residual=streams, save_for_backward=False)", 1, ""),
    ("short_conv(streams, w, taps, residual=streams, save_for_backward=False, out=conv_out)", 0, ""),
    ("short_conv(streams, w, taps, 3, *conv_options, ring=conv_ring, start_pos=start)", None, "with a ring: 7 tensors"),
    ("short_conv_bwd(streams, streams, w, taps, rstd)", 4, ""),
    ("engram_gate_conv_fwd(streams, streams, v, fused, 1e-20, 1e-6, w, taps)", 1, ""),
    ("engram_gate_conv_fwd(streams, streams, v, fused, 1e-20, 1e-6, w, taps, out=conv_out)", 0, ""),
    ("engram_sinkhorn_momentum_update(x, o, 0.95)", 1, ""),
    ("engram_sinkhorn_step(x, scales, bias, 1.0)", 2, ""),
    ("engram_sinkhorn_step_reduce(x, scales)", 0, ""),
    ("engram_sinkhorn_finalize(x, scales, bias, 1.0, 4.0)", 1, ""),
    ("mhc_expand_fwd(layer, 4)", 1, ""),
    ("mhc_norm_fn_fwd(residual, fn)", 3, "with a workspace"),
    ("mhc_pre_fwd(residual, fn, gates, base)", 4, "with a workspace"),
    ("mhc_pre_split_mixes_fwd(mixes, gates, base, 4)", 3, ""),
    ("mhc_sinkhorn_fwd(comb)", 1, ""),
    ("mhc_pre_apply_mix_fwd(residual, gate)", 1, ""),
    ("mhc_post_fwd(layer, residual, gate, comb)", 1, ""),
    ("mhc_post_fwd(layer, residual, gate, comb, out=residual)", 0, ""),
    ("mhc_post_bwd(residual, layer, residual, gate, comb)", 4, ""),
    ("mhc_pre(residual, fn, gates, base)", None, "a layer, without gradients"),
    ("mhc_pre(leaf, fn, gates, base)", None, "a layer, with gradients"),
    ("mhc_post(layer, residual, gate, comb)", None, "a layer, without gradients"),
    ("mhc_post(layer, leaf, gate, comb)", None, "a layer, with gradients"),
    ("mhc_head(residual, fn[:4], gates[:1], base[:4])", None, "a layer, without gradients"),
    ("engram_gate(residual, residual, layer, both, both, 1e-6, 1e-20)", None, "a layer, without gradients"),
    ("engram_gate(leaf, residual, layer, both, both, 1e-6, 1e-20)", None, "a layer, with gradients"),
    ("lookup(table, windows)", None, "a layer, without gradients"),
    ("lookup(table_leaf, windows)", None, "a layer, with gradients"),
    ("conv_layer(streams, w, taps)", None, "a layer, without gradients"),
    ("conv_layer(streams_leaf, w, taps)", None, "a layer, with gradients"),
    ("x + 1", None, "torch"),
    ("x.t().contiguous()", None, "torch"),
    ("torch.empty_strided((16, 16), (16, 1), device=d)", None, "torch, an allocation"),
]


def budget_of(outputs):
    return None if outputs is None else GIVEN if outputs == 0 else ONE_OUTPUT + (outputs - 1) * FURTHER


def bare_launch():
    """A function count, stream -> ns per launch, compiled from bare_launch.c."""
    source, folder = pathlib.Path(__file__).with_name("bare_launch.c"), tempfile.mkdtemp()
    library = pathlib.Path(folder) / "bare_launch.so"
    command = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", source, "-o", library, "-ldl"]
    subprocess.run(command, check=True)
    c = ctypes.CDLL(str(library))
    c.bare_launch_init.restype, c.bare_launch_ns.restype = ctypes.c_char_p, ctypes.c_double
    if (why := c.bare_launch_init()) is not None:
        sys.exit(f"bare launch: {why.decode()}")
    pdl = tegula.config.get_pdl() and torch.cuda.get_device_capability() >= (9, 0)
    return lambda: c.bare_launch_ns(BATCH, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), int(pdl))


def quiet(times):
    return statistics.quantiles(times, n=10)[0]


def measure(device, statements):
    """[(statement, note, ns, ns beyond the launch or None)]"""
    engram, moe, quant = tegula.engram, tegula.moe, tegula.quant
    x = torch.randn(16, 16, device=device)
    bias, idx = x[0].clone(), moe.topk_gate(x, 4)
    pairs = torch.arange(16, dtype=torch.int32, device=device)
    windows, w = idx[:, :3].int().contiguous(), x[:2, :8].bfloat16()
    columns = torch.ones(1, 3, dtype=torch.int64, device=device), windows[:1, :2, None] + 9, windows[:1, :2].clone()
    streams, v, codes = x.bfloat16().view(16, 2, 8), x[:, :8].bfloat16(), x.repeat(1, 2).to(torch.float8_e4m3fn)
    fused, factors = engram.fused_weight(w, w), torch.full((16, 1), 127, dtype=torch.uint8, device=device)
    looked_up = engram.engram_lookup(codes, windows, factors)
    taps = torch.randn(16, 4, device=device).bfloat16()
    residual, mixes = torch.randn(16, 4, 16, device=device).bfloat16(), torch.randn(16, 24, device=device)
    names = {
        **vars(tegula.transpose), **vars(tegula.mhc), "mhc_pre": modeling.mhc.mhc_pre, "mhc_head": modeling.mhc.mhc_head,
        "mhc_post": modeling.mhc.ops.mhc_post, "engram_gate": modeling.engram.engram_gate,
        "residual": residual, "leaf": residual.clone().requires_grad_(), "layer": residual[:, 0].contiguous(),
        "mixes": mixes, "fn": torch.randn(24, 64, device=device), "gates": mixes[0, :3].clone(), "base": mixes[0].clone(),
        "gate": torch.rand(16, 4, device=device), "comb": torch.rand(16, 4, 4, device=device), "both": residual[0].clone(),
        **vars(engram), **vars(moe), **vars(quant), "torch": torch, "d": torch.device(device),
        "raw": _tegula.transpose_raw, "op": torch.ops.tegula.transpose.default,
        "x": x, "b": x[None].clone(), "o": torch.empty_like(x), "g": x.clone().requires_grad_(),
        "bias": bias, "groups": x.view(16, 4, 4), "idx": idx, "many": idx.repeat(1024, 1), "marks": idx.clone(),
        "ids": torch.arange(16, device=device), "y": x.repeat(19, 1)[:300],
        "idx_and_weights": eval(f"moe.top2_sum_gate({GATE})"), "routed": eval(f"moe.route({GATE}, 16, 300, 16)"),
        "mapping": moe.get_fused_mapping(idx, 16, 300, 16)[:7],
        "cast": quant.per_token_cast(x, "e4m3", 16), "given": quant.per_token_cast(x, "e4m3", 16),
        "fp4": quant.per_token_cast(x, "e2m1", 16, round_sf=True), "back": torch.empty_like(x).bfloat16(),
        "halves": (quant.per_token_cast(x, "e4m3", 8)), "half": x[:, :8].bfloat16(),
        "weights": torch.rand(4, 4, device=device), "pairs": pairs, "places": pairs.view(4, 4),
        "windows": windows, "columns": columns, "ngram": engram.NGram(*columns, 2), "cu": pairs[:2] * 16,
        "start": pairs[:1].clone(), "ring": torch.zeros(1, 8, dtype=torch.int32, device=device),
        "rows": engram.engram_hash(windows, *columns), "codes": codes, "factors": factors, "looked_up": looked_up,
        "grad_table": torch.zeros(16, 32, device=device), "w": w, "fused": fused, "streams": streams, "v": v,
        "kv": torch.cat([streams, v[:, None]], 1), "scales": torch.ones(16, device=device),
        "saved": engram.engram_gate_fwd(streams, streams, v, fused, 1e-20, 1e-6)[1:],
        "taps": taps, "rstd": engram.short_conv(streams, w, taps)[1], "conv_out": torch.empty_like(streams),
        "conv_ring": torch.zeros(1, 12, 2, 8, device=device).bfloat16(),
        "conv_options": (1e-5, "silu", None, False, None, pairs[:2] * 16, None, False),
        "lookup": modeling.engram.lookup, "table": fused.repeat(8, 1), "table_leaf": fused.repeat(8, 1).requires_grad_(),
        "conv_layer": modeling.engram.short_conv, "streams_leaf": streams.clone().requires_grad_(),
        "partial": torch.zeros(64, 2, 8, device=device), "grads": torch.zeros(2, 2, 8, device=device).unbind(),
    }
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    launch = bare_launch() if device == "cuda" else lambda: 0.0
    timers = [timeit.Timer(statement, globals=names) for statement, *_ in statements]
    times, bare = [[] for _ in timers], []
    with tegula.warmup(architecture="sm_90a") if device == "cpu" else contextlib.nullcontext():
        for turn in range(TURNS + 2):
            synchronize()
            bare.append(launch())
            for timer, out in zip(timers, times):
                synchronize()
                timer.timeit(5)
                synchronize()
                out.append(timer.timeit(BATCH) / BATCH * 1e9)
    rows, bare = [], bare[2:]                               # the first two turns warm up
    if device == "cuda":
        rows.append(("cuLaunchKernelEx", "the driver alone", quiet(bare), None))
    for (statement, _, note), out in zip(statements, times):
        beyond = quiet(t - b for t, b in zip(out[2:], bare)) if device == "cuda" else None
        rows.append((statement, note, quiet(out[2:]), beyond))
    return rows


def check(device, statements, rows):
    """Sentences about what is over budget."""
    ns = {statement: (total, beyond) for statement, _, total, beyond in rows}
    limit = ns["x + 1"][0]
    for statement, outputs, _ in statements:
        (total, beyond), budget = ns[statement], budget_of(outputs)
        if outputs == 1 and total >= limit:
            yield f"{device}: {statement} takes {total:.0f} ns, want less than torch's x + 1, {limit:.0f} ns"
        if None not in (budget, beyond) and beyond > budget:
            yield f"{device}: {statement} takes {beyond:.0f} ns beyond the launch, want at most {budget} ns"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], action="append")
    parser.add_argument("--json", metavar="FILE", help="append a JSON line per row")
    parser.add_argument("--commit", default=machine.commit(), metavar="TEXT", help="what to write as commit")
    parser.add_argument("--only", default="", metavar="REGEX", help="calls that match, and torch's")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    problems = []
    statements = [row for row in STATEMENTS if re.search(options.only, row[0]) or row[2].startswith("torch")]
    for device in options.device or ["cpu"] + ["cuda"] * torch.cuda.is_available():
        rows = measure(device, statements)
        name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
        about = {"bench": "host_cost", "device": name, "cpu": machine.cpu(), "torch": torch.__version__,
                 "python": platform.python_version(), "version": tegula.__version__, "commit": options.commit}
        print(f"{about['device']}, {about['cpu']}, torch {torch.__version__}, Python {platform.python_version()}")
        print(f"{'ns':>8} {'beyond launch' if device == 'cuda' else '':>14}  call")
        for statement, note, total, beyond in rows:
            beyond_text = "" if beyond is None else f"{beyond:.0f}"
            print(f"{total:8.0f} {beyond_text:>14}  {statement:75}  {note}".rstrip())
        if options.json:
            with open(options.json, "a") as file:
                for statement, _, total, beyond in rows:
                    beyond = None if beyond is None else round(beyond)
                    row = {**about, "call": statement, "ns": round(total), "beyond_launch_ns": beyond}
                    file.write(json.dumps(row) + "\n")
        problems += check(device, statements, rows)
    print("\n".join(problems) or "within budget")
    return bool(problems) and options.check


if __name__ == "__main__":
    sys.exit(main())
