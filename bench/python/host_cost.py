# SPDX-License-Identifier: MIT
"""Host nanoseconds per eager call, against torch's own ops in the same run.

    PYTHONPATH=build/python python bench/python/host_cost.py [--device cpu|cuda] [--json FILE] [--check]

Tensors are tiny, so that time is the host's. Batches of calls of all statements take turns, so that drifts
of the machine hit all alike; each turn starts with the device idle and a batch of bare cuLaunchKernelEx,
which is subtracted in the column "beyond launch". Medians over the turns. --check fails if a call costs as
much as torch's x + 1, or on CUDA more than the budget: 2000 ns beyond the launch, 600 with out=."""

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
BUDGET = {"transpose(x)": 2000, "batched_transpose(b)": 2000, "transpose(x, out=o)": 600}
STATEMENTS = [  # statement, what it is
    ("transpose(x)", "the public function"),
    ("transpose(x, out=o)", "into a given tensor"),
    ("batched_transpose(b)", ""),
    ("raw(x)", "without the guards"),
    ("op(x)", "torch.ops.tegula.transpose.default"),
    ("transpose(g)", "with a gradient"),
    ("x + 1", "torch"),
    ("x.t().contiguous()", "torch"),
    ("torch.empty_strided((16, 16), (16, 1), device=d)", "torch, an allocation"),
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
    names = {
        "torch": torch, "x": x, "b": x[None].clone(), "o": torch.empty_like(x), "g":
        x.clone().requires_grad_(), "d": torch.device(device), "transpose": tegula.transpose.transpose,
        "batched_transpose": tegula.transpose.batched_transpose, "raw": _tegula.transpose_raw, "op":
        torch.ops.tegula.transpose.default,
    }
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    launch = bare_launch() if device == "cuda" else lambda: 0.0
    timers = [timeit.Timer(statement, globals=names) for statement, _ in STATEMENTS]
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
    for (statement, note), out in zip(STATEMENTS, times):
        beyond = statistics.median(t - b for t, b in zip(out[2:], bare)) if device == "cuda" else None
        rows.append((statement, note, statistics.median(out[2:]), beyond))
    return rows


def check(device, rows):
    """Sentences about what is over budget."""
    ns = {statement: (total, beyond) for statement, _, total, beyond in rows}
    for statement in BUDGET:
        total, beyond = ns[statement]
        if total >= ns["x + 1"][0]:
            limit = ns["x + 1"][0]
            yield f"{device}: {statement} takes {total:.0f} ns, want less than torch's x + 1, {limit:.0f} ns"
        if beyond is not None and beyond > BUDGET[statement]:
            limit = BUDGET[statement]
            yield f"{device}: {statement} takes {beyond:.0f} ns beyond the launch, want at most {limit} ns"


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
            print(f"{total:8.0f} {beyond_text:>14}  {statement:24}  {note}".rstrip())
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
