#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fills the tables of the documents from committed measurements, and draws docs/speed.svg.

    results_tables.py [--check] [DOCUMENT...]      all of README.md and docs/ without

A document marks where a table goes and what it is made of:

    <!-- table: bench/results/h200/transpose.jsonl op=transpose against=bench/peers/tilekernels-1.0.0-h200.jsonl -->
    <!-- end table -->

    <!-- rows: bench/results/h200 against=bench/peers/tilekernels-1.0.0-h200.jsonl
    moe_top2_sum_gate num_tokens=128 num_experts=256
    -->
    <!-- end rows -->

`op` and `against` may be left out. A table of rows has one of each label, with the command that measures it. What is
between the two lines is written anew; --check only says whether that would change anything (exit status 1 if so).
"""
import argparse
import json
import math
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEER = "bench/peers/tilekernels-1.0.0-h200.jsonl"
DOMAINS = ["transpose", "moe", "quant", "engram", "mhc"]
ROWS = re.compile(r"(^<!-- rows: (\S+) against=(\S+)\n(.*?)^-->\n)(.*?)(^<!-- end rows -->$)", re.M | re.S)
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


def best_of(path):
    """The fastest of each label."""
    best = {}
    for r in rows_of(path):
        if r["cold_us"] is not None and (r["row"] not in best or r["cold_us"] < best[r["row"]]["cold_us"]):
            best[r["row"]] = r
    return best


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
    gathers = any(r.get("gather_us") for r in shown)        # rows of a table in host memory: a plain gather of them
    if gathers:
        columns += [("gather us", "---:"), ("of gather", "---:")]
    best = best_of(against) if against else {}
    if against:
        columns += [(next(iter(best.values()))["peer"].split(",")[0] + " us", "---:"), ("ratio", "---:")]
    lines = [caption(rows, shown), "", "| " + " | ".join(name for name, _ in columns) + " |",
             "| " + " | ".join(line for _, line in columns) + " |"]
    for r in shown:
        cells = [r["row"] if op is None else r["params"], number(r["cold_us"]), number(r["gb_per_s"]),
                 percent(r.get("copy_share")), number(r.get("warm_us"))]
        if on_gpu:
            cells += [number(r.get("graph_us")), number(r.get("host_ns"), 1e-3)]
        if gathers:
            gather = r.get("gather_us")
            cells += [number(gather), percent(gather / r["cold_us"])] if gather else ["", ""]
        if against:
            peer = best.get(r["row"])
            cells += [number(peer["cold_us"]), f"{r['cold_us'] / peer['cold_us']:.2f}"] if peer else ["", ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def table_of_rows(folder, against, labels):
    """A row each of several domains, with the command that gives it."""
    best = best_of(against)
    ours = {r["row"]: r for domain in DOMAINS for r in rows_of(f"{folder}/{domain}.jsonl")}
    peer = next(iter(best.values()))["peer"].split(",")[0]
    lines = [f"| command | us | of a plain copy | {peer} |", "| --- | ---: | ---: | ---: |"]
    for label in labels:
        if label not in ours:
            raise SystemExit(f"{folder} has no row {label}")
        theirs = f"{number(best[label]['cold_us'])} us" if label in best else ""
        lines.append(f"| `tegula bench {label}` | {number(ours[label]['cold_us'])} | "
                     f"{percent(ours[label].get('copy_share'))} | {theirs} |")
    return "\n".join(lines) + "\n"


# ---- the picture ----

SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="13">
<style>
text {{ fill: #24292f }} .dim {{ fill: #57606a }} .bar {{ fill: #2f81f7 }} .line {{ stroke: #8c959f; stroke-width: 1 }}
@media (prefers-color-scheme: dark) {{ text {{ fill: #e6edf3 }} .dim {{ fill: #9198a1 }} .line {{ stroke: #6e7681 }} }}
</style>
{parts}
</svg>
"""


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def median(values):
    return sorted(values)[len(values) // 2]


def reads_host(row):
    """From a table in host memory: its rate is that of PCIe, not to be compared with a copy's."""
    return row["op"].endswith("_staged") or bool({"at=host", "at=huge"} & set(row["params"].split()))


def domain_facts(folder):
    """[(domain, [times of the peer over ours], [shares of a copy of rows that move 64 MB and more])]"""
    best, facts = best_of(PEER), []
    for domain in DOMAINS:
        rows = [r for r in rows_of(f"{folder}/{domain}.jsonl") if r["op"] != "copy" and not reads_host(r)]
        facts.append((domain, [best[r["row"]]["cold_us"] / r["cold_us"] for r in rows if r["row"] in best],
                      [r["copy_share"] for r in rows if r.get("copy_share") and r["bytes"] >= 64e6]))
    return facts


def picture(folder):
    """Two panels, one below the other so that a phone shows them, with a bar per domain; a line marks 1 in each."""
    facts, parts = domain_facts(folder), []
    width, left, scale, row, top = 540, 90, 150, 26, 0
    for title, mark, bars in (
            ("times as fast as TileKernels 1.0: geometric mean", "TileKernels",
             [(d, ratios and geometric_mean(ratios), "{:.2f}, {} rows", len(ratios)) for d, ratios, _ in facts]),
            ("share of a plain copy's rate: median of rows that move 64 MB or more", "copy",
             [(d, median(shares), "{:.0%}, {} rows", len(shares)) for d, _, shares in facts])):
        end = top + 44 + row * len(bars)
        parts.append(f'<text x="10" y="{top + 18}">{title}</text>')
        parts.append(f'<line class="line" x1="{left + scale}" y1="{top + 42}" x2="{left + scale}" y2="{end}" stroke-dasharray="3 3"/>')
        parts.append(f'<text class="dim" x="{left + scale}" y="{top + 37}" text-anchor="middle">{mark}</text>')
        for i, (domain, value, label, num_rows) in enumerate(bars):
            y = top + 46 + row * i
            parts.append(f'<text x="{left - 10}" y="{y + 14}" text-anchor="end">{domain}</text>')
            if value:
                parts.append(f'<rect class="bar" x="{left}" y="{y}" width="{value * scale:.1f}" height="18" rx="2"/>')
            text = label.format(value, num_rows).replace("%", " %") if value else "not timed there"
            x = left + max(value or 0, 1) * scale + 8           # beside the bar and the line, whichever is longer
            parts.append(f'<text class="dim" x="{x:.1f}" y="{y + 14}">{text}</text>')
        top = end + 14
    return SVG.format(width=width, height=top - 6, parts="\n".join(parts))


def filled(text):
    def replace(match):
        settings = dict(pair.split("=", 1) for pair in match[3].split())
        return match[1] + table(match[2], **settings) + match[5]

    def replace_rows(match):
        return match[1] + table_of_rows(match[2], match[3], match[4].splitlines()) + match[6]
    return ROWS.sub(replace_rows, SECTION.sub(replace, text))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("document", nargs="*", type=Path)
    options = parser.parse_args()
    stale = []
    drawn, drawing = ROOT / "docs/speed.svg", picture("bench/results/h200")
    if not options.document and (not drawn.exists() or drawn.read_text() != drawing):
        stale.append(str(drawn))
        if not options.check:
            drawn.write_text(drawing)
            print(f"wrote {drawn}")
    for path in options.document or [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        text = path.read_text()
        if text.count("\n<!-- table: ") != len(SECTION.findall(text)):
            sys.exit(f"{path}: a <!-- table: --> has no <!-- end table -->, or does not read as one")
        if text.count("\n<!-- rows: ") != len(ROWS.findall(text)):
            sys.exit(f"{path}: a <!-- rows: --> has no <!-- end rows -->, or does not read as one")
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
