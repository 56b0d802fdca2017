#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fills the tables of the documents from committed measurements.

    results_tables.py [--check] [DOCUMENT...]      all of README.md and docs/ without

A document marks where a table goes and what it is made of:

    <!-- table: bench/results/h200/transpose.jsonl op=transpose against=bench/peers/tilekernels-1.0.0-h200.jsonl -->
    <!-- end table -->

`op` and `against` may be left out. What is between the two lines is written anew; --check only says whether that would
change anything (exit status 1 if so).
"""
import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECTION = re.compile(r"(^<!-- table: (\S+)((?: \w+=\S+)*) -->\n)(.*?)(^<!-- end table -->$)", re.M | re.S)


def rows_of(path):
    return [json.loads(line) for line in (ROOT / path).read_text().splitlines() if line.strip()]


def number(value, scale=1.0):
    """Three or four digits, as `tegula bench` prints them."""
    if value is None:
        return ""
    value *= scale
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def percent(value):
    return "" if value is None else f"{100 * value:.0f} %"


def caption(rows, shown):
    """Where, with what and at which commits the shown rows were measured, and the copy rate of the file's first run."""
    first = shown[0]
    parts = [first["device"]]
    if first.get("driver"):
        parts.append(f"driver {first['driver']}")
    if first.get("threads"):
        parts.append(f"{first['threads']:.0f} threads")
    commits = dict.fromkeys(r["commit"] for r in shown if r.get("commit"))
    parts.append(f"tegula {first['library']}" + (f" at {', '.join(commits)}" if commits else ""))
    copies = [r for r in rows if r["op"] == "copy"]
    if copies:
        parts.append(f"plain copy {number(copies[0]['gb_per_s'])} GB/s ({copies[0]['params']})")
    return ", ".join(parts) + "."


def table(path, op=None, against=None):
    rows = rows_of(path)
    shown = [r for r in rows if r["op"] != "copy" and op in (None, r["op"])]
    if not shown:
        raise SystemExit(f"{path} has no row of {op}")
    columns = [("op and parameters" if op is None else "parameters", "---"), ("cold us", "---:"), ("GB/s", "---:"),
               ("of copy", "---:"), ("warm us", "---:")]
    on_gpu = any(r.get("graph_us") is not None for r in shown)
    if on_gpu:
        columns += [("graph us", "---:"), ("host us", "---:")]
    best = {}
    if against:
        for r in rows_of(against):
            if r["row"] not in best or r["cold_us"] < best[r["row"]]["cold_us"]:
                best[r["row"]] = r
        columns += [(next(iter(best.values()))["peer"].split(",")[0] + " us", "---:"), ("ratio", "---:")]
    lines = [caption(rows, shown), "", "| " + " | ".join(name for name, _ in columns) + " |",
             "| " + " | ".join(line for _, line in columns) + " |"]
    for r in shown:
        cells = [r["row"] if op is None else r["params"], number(r["cold_us"]), number(r["gb_per_s"]),
                 percent(r.get("copy_share")), number(r.get("warm_us"))]
        if on_gpu:
            cells += [number(r.get("graph_us")), number(r.get("host_ns"), 1e-3)]
        if against:
            peer = best.get(r["row"])
            cells += [number(peer["cold_us"]), f"{r['cold_us'] / peer['cold_us']:.2f}"] if peer else ["", ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def filled(text):
    def replace(match):
        settings = dict(pair.split("=", 1) for pair in match[3].split())
        return match[1] + table(match[2], **settings) + match[5]
    return SECTION.sub(replace, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("document", nargs="*", type=Path)
    options = parser.parse_args()
    stale = []
    for path in options.document or [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        text = path.read_text()
        if text.count("\n<!-- table: ") != len(SECTION.findall(text)):
            sys.exit(f"{path}: a <!-- table: --> has no <!-- end table -->, or does not read as one")
        new = filled(text)
        if new == text:
            continue
        stale.append(str(path))
        if not options.check:
            path.write_text(new)
            print(f"wrote {path}")
    if options.check and stale:
        sys.exit(f"not what the measurements say: {', '.join(stale)}; run scripts/results_tables.py")


if __name__ == "__main__":
    main()
