# SPDX-License-Identifier: MIT
"""CPU ops against the same work in torch, with the same number of threads, in one run.

    PYTHONPATH=build/python python bench/python/cpu_speed.py [--threads N] [--json FILE] [--check]

Calls of both take turns, so that drifts of the machine hit both alike; times are medians, outputs are allocated
in the call on both sides. --check fails if a row of ours is slower than torch's. A new op adds rows to ROWS.
"""

import argparse
import json
import platform
import statistics
import sys
import time

import torch

import tegula

DTYPES = {1: torch.uint8, 2: torch.bfloat16, 4: torch.float32, 8: torch.int64}


def matrix(element_bytes, *shape):
    return torch.randint(0, 100, shape).to(DTYPES[element_bytes])


def transpose_rows():
    """(name, ours, torch's, inputs)"""
    for shape in ((4096, 7168), (4095, 7167), (128, 7168)):
        for b in DTYPES:
            name = f"transpose {shape[0]}x{shape[1]}, {b} bytes"
            yield name, tegula.transpose.transpose, lambda x: x.t().contiguous(), (matrix(b, *shape),)
    for b in DTYPES:
        ours = tegula.transpose.batched_transpose
        yield f"batched_transpose 2000x64x64, {b} bytes", ours, lambda x: x.transpose(1, 2).contiguous(), (
            matrix(b, 2000, 64, 64),
        )


ROWS = [transpose_rows]


def compare(ours, theirs, inputs):
    """Median seconds of both; turns until a second has passed, nine at least."""
    times, begin = ([], []), time.perf_counter()
    while len(times[0]) < 11 or time.perf_counter() - begin < 1:
        for f, out in zip((ours, theirs), times):
            start = time.perf_counter()
            f(*inputs)
            out.append(time.perf_counter() - start)
    return statistics.median(times[0][2:]), statistics.median(times[1][2:])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", metavar="FILE", help="append a JSON line per row")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tegula.config.set_num_threads(options.threads)
    print(f"{platform.machine()}, {options.threads} threads, torch {torch.__version__}")
    print(f"{'ours us':>10} {'torch us':>10} {'ratio':>6}")
    slower = []
    for name, ours, theirs, inputs in (row for rows in ROWS for row in rows()):
        assert torch.equal(ours(*inputs), theirs(*inputs)), name
        a, b = compare(ours, theirs, inputs)
        print(f"{a * 1e6:10.0f} {b * 1e6:10.0f} {b / a:6.2f}  {name}", flush=True)
        if a > b:
            slower.append(name)
        if options.json:
            with open(options.json, "a") as file:
                row = {"bench": "cpu_speed", "row": name, "machine": platform.machine()}
                row |= {"threads": options.threads, "torch": torch.__version__, "version": tegula.__version__}
                file.write(json.dumps(row | {"us": round(a * 1e6, 1), "torch_us": round(b * 1e6, 1)}) + "\n")
    print(f"slower than torch: {', '.join(slower)}" if slower else "nothing is slower than torch")
    return bool(slower) and options.check


if __name__ == "__main__":
    sys.exit(main())
