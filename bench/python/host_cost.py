# SPDX-License-Identifier: MIT
"""Host nanoseconds per eager call, against torch's own ops in the same run.

    PYTHONPATH=build/python python bench/python/host_cost.py [--device cpu|cuda] [--json FILE] [--check]

Tensors are tiny, so that time is the host's. Batches of calls of all statements take turns, so that drifts
of the machine hit all alike; each turn starts with the device idle and a batch of bare cuLaunchKernelEx,
which is subtracted in the column "beyond launch". Medians over the turns. --check fails if a call with one
output costs as much as torch's x + 1, or on CUDA more than the budget beyond the launch: 2000 ns with one
output, 1400 for each further one, 600 with out=."""

import argparse
import ctypes
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import timeit

import torch

import tegula
from tegula import _tegula

BATCH, TURNS = 200, 60
ONE_OUTPUT, FURTHER, GIVEN = 2000, 1400, 600
LIGHT = "transpose", "batched_transpose", "topk_gate", "group_count"    # next to no work on tiny CPU tensors
STATEMENTS = [  # statement, what it is, its budget
    ("transpose(x)", "the public function", ONE_OUTPUT),
    ("transpose(x, out=o)", "into a given tensor", GIVEN),
    ("batched_transpose(b)", "", ONE_OUTPUT),
    ("raw(x)", "without the guards", None),
    ("op(x)", "torch.ops.tegula.transpose.default", None),
    ("transpose(g)", "with a gradient", None),
    ("topk_gate(x, 4)", "", ONE_OUTPUT),
    ("top2_sum_gate(*gate)", "2 outputs", ONE_OUTPUT + FURTHER),
    ("top2_sum_gate(*gate, out=idx_and_weights)", "", GIVEN),
    ("hash_gate(x, ids, table, 1.5)", "2 outputs", ONE_OUTPUT + FURTHER),
    ("group_count(idx, 16)", "with a workspace", ONE_OUTPUT),
    ("get_fused_mapping(idx, 16, 300, 16)", "7 outputs", ONE_OUTPUT + 6 * FURTHER),
    ("get_fused_mapping(idx, 16, 300, 16, out=mapping)", "", GIVEN),
    ("get_fused_mapping(idx, 16, 0, 16)", "7 outputs, waits for the result", None),
    ("route(*gate, 16, 300, 16)", "9 outputs", ONE_OUTPUT + 8 * FURTHER),
    ("expand_to_fused(x, mapping[3], mapping[0])", "", ONE_OUTPUT),
    ("reduce_fused(y, None, mapping[3])", "", ONE_OUTPUT),
    ("per_token_cast(x, 'e4m3', 16)", "2 outputs", ONE_OUTPUT + FURTHER),
    ("per_token_cast(x, 'e4m3', 16, out=cast)", "", GIVEN),
    ("per_token_cast(cast, 'e2m1', 16, (1, 16))", "2 outputs, of a pair", ONE_OUTPUT + FURTHER),
    ("cast_back(cast, 'bf16', (1, 16))", "", ONE_OUTPUT),
    ("x + 1", "torch", None),
    ("x.t().contiguous()", "torch", None),
    ("torch.empty_strided((16, 16), (16, 1), device=d)", "torch, an allocation", None),
]


def bare_launch():
    """A function count, stream -> ns per launch, compiled from bare_launch.c."""
    source, folder = pathlib.Path(__file__).with_name("bare_launch.c"), tempfile.mkdtemp()
    library = pathlib.Path(folder) / "bare_launch.so"
    subprocess.run(
        [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True
    )
    c = ctypes.CDLL(str(library))
    c.bare_launch_init.restype, c.bare_launch_ns.restype = ctypes.c_char_p, ctypes.c_double
    if (why := c.bare_launch_init()) is not None:
        sys.exit(f"bare launch: {why.decode()}")
    pdl = tegula.config.get_pdl() and torch.cuda.get_device_capability() >= (9, 0)
    return lambda: c.bare_launch_ns(BATCH, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), int(pdl))


def measure(device):
    """[(statement, note, median ns, median ns beyond the launch or None)]"""
    x = torch.randn(16, 16, device=device)
    gate = x, x[0], 4, 0, 0, False, 0, 1.5, 0, 1, 0, 1, "sigmoid"
    idx = tegula.moe.topk_gate(x, 4)
    names = {
        **vars(tegula.transpose), **vars(tegula.moe), **vars(tegula.quant),
        "torch": torch, "d": torch.device(device), "raw": _tegula.transpose_raw, "op": torch.ops.tegula.transpose.default,
        "x": x, "b": x[None].clone(), "o": torch.empty_like(x), "g": x.clone().requires_grad_(), "idx": idx,
        "gate": gate, "idx_and_weights": tegula.moe.top2_sum_gate(*gate), "y": x.repeat(19, 1)[:300],
        "mapping": tegula.moe.get_fused_mapping(idx, 16, 300, 16)[:7],
        "ids": torch.arange(16, device=device), "table": idx,
        "cast": tegula.quant.per_token_cast(x, "e4m3", 16),
    }
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    launch = bare_launch() if device == "cuda" else lambda: 0.0
    timers = [timeit.Timer(statement, globals=names) for statement, *_ in STATEMENTS]
    times, bare = [[] for _ in timers], []
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
        rows.append(("cuLaunchKernelEx", "the driver alone", statistics.median(bare), None))
    for (statement, note, _), out in zip(STATEMENTS, times):
        beyond = statistics.median(t - b for t, b in zip(out[2:], bare)) if device == "cuda" else None
        rows.append((statement, note, statistics.median(out[2:]), beyond))
    return rows


def check(device, rows):
    """Sentences about what is over budget."""
    ns = {statement: (total, beyond) for statement, _, total, beyond in rows}
    limit = ns["x + 1"][0]
    for statement, _, budget in STATEMENTS:
        total, beyond = ns[statement]
        is_compared = budget is not None and budget <= ONE_OUTPUT
        if is_compared and (device == "cuda" or statement.startswith(LIGHT)) and total >= limit:
            yield f"{device}: {statement} takes {total:.0f} ns, want less than torch's x + 1, {limit:.0f} ns"
        if None not in (budget, beyond) and beyond > budget:
            yield f"{device}: {statement} takes {beyond:.0f} ns beyond the launch, want at most {budget} ns"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], action="append")
    parser.add_argument("--json", metavar="FILE", help="append a JSON line per row")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    problems = []
    for device in options.device or ["cpu"] + ["cuda"] * torch.cuda.is_available():
        rows = measure(device)
        about = {
            "bench": "host_cost",
            "device": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "version": tegula.__version__,
        }
        print(f"{about['device']}, torch {torch.__version__}, Python {platform.python_version()}")
        print(f"{'ns':>8} {'beyond launch' if device == 'cuda' else '':>14}  call")
        for statement, note, total, beyond in rows:
            beyond_text = "" if beyond is None else f"{beyond:.0f}"
            print(f"{total:8.0f} {beyond_text:>14}  {statement:48}  {note}".rstrip())
        if options.json:
            with open(options.json, "a") as file:
                for statement, _, total, beyond in rows:
                    row = {
                        **about,
                        "call": statement,
                        "ns": round(total),
                        "beyond_launch_ns": None if beyond is None else round(beyond),
                    }
                    file.write(json.dumps(row) + "\n")
        problems += check(device, rows)
    print("\n".join(problems) or "within budget")
    return bool(problems) and options.check


if __name__ == "__main__":
    sys.exit(main())
