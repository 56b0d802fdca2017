#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Lines and files of an op, on average per domain, and of the whole: whether the pattern of an op stays small.

    scripts/op_lines.py [FOLDER]        a checkout; default: this one

Counted are tracked files as they are, blank lines and comments included; what several ops of a domain share is
divided among them."""
import collections, pathlib, re, subprocess, sys

root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
root = root if root.is_dir() else root.parents[1]
files = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
lines = {f: (root / f).read_bytes().count(b"\n") for f in files if f and (root / f).is_file()}
kinds = {                               # of a domain's files, by pattern
    "host": r"src/{0}/.*\.(c|h|inc)$",
    "kernels": r"src/{0}/.*\.cuh?$",
    "cases": r"(bench|cases)/{0}([_/].*)?\.(c|h)$",
    "C tests": r"tests/{0}/.*\.(c|h)$",
    "header": r"include/tegula/{0}\.h$",
    "docs": r"docs/{0}\.md$",
    "rows": r"python/src/{0}\.c$",
    "Python tests": r"tests/python/test_{1}.*\.py$",
}
test_names = {"engram": "(engram|short_conv|sinkhorn)"}     # of tests that do not begin with their domain


def ops_of(domain):
    header = (root / f"include/tegula/{domain}.h").read_text()
    return [name for name in re.findall(r"tgl_status (tgl_\w+)\(", header)]


print(f"{'lines per op':14}" + "".join(f"{kind:>14}" for kind in kinds) + f"{'files':>10}")
for domain in ("transpose", "moe", "quant", "engram", "mhc"):
    if not (root / f"include/tegula/{domain}.h").exists():      # an older checkout
        continue
    n, row, count = len(ops_of(domain)), [], 0
    for pattern in kinds.values():
        found = [f for f in lines if re.match(pattern.format(domain, test_names.get(domain, domain)), f)]
        row.append(sum(lines[f] for f in found) / n)
        count += len(found)
    print(f"{domain + f' ({n})':14}" + "".join(f"{x:14.0f}" for x in row) + f"{count / n:10.1f}")
total = collections.Counter()
for f, n in lines.items():
    folder = f.split("/")[0]
    if re.search(r"\.(c|h|inc|cu|cuh|cpp|hpp|py|txt|cmake|sh)$|/run$|/sanitize$", f) and "golden/" not in f and \
            folder in ("src", "include", "python", "tests", "bench", "cases", "tools", "examples", "scripts"):
        total["bench + cases" if folder in ("bench", "cases") else folder] += n
print(", ".join(f"{k} {v}" for k, v in total.most_common()),
      "; src + python + tests + bench + cases", sum(total[k] for k in ("src", "python", "tests", "bench + cases")))
