#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Plants the faults of planted.txt one by one: each must be noticed by the test that its line names.

    planted.py [--seeds N] [--mode MODE,...] [--only WORD,...] [FOLDER]
    planted.py --check                  only whether every line can be planted

Builds the tests in FOLDER (default build/planted), which may be there from an earlier run. A line of planted.txt is

    file | text | replacement | test program, words of its blocks, NAME=VALUE of its environment | mode

The text occurs once in the file. The fault is noticed when the program (only blocks whose names contain one of the words,
if there are words) fails with one of the seeds 0 .. N-1, and passes with that seed without the fault. Modes are those of
planting.py. --only takes faults whose line contains one of the words. The last line is "N of N noticed"; the exit status
is 1 if one was not."""
import argparse, pathlib, re, sys
from planting import Tests, modes, planted, root


def faults():
    for line in pathlib.Path(__file__).with_name("planted.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            fields = [f.strip() for f in re.split(r"\s\|(?=\s)", line)]
            if len(fields) != 5 or fields[4] not in modes:
                sys.exit(f"planted.txt: want 5 fields, the last a mode: {line}")
            yield line, *fields


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default=str(root / "build/planted"))
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--mode", default="", help="only these, separated by commas")
    parser.add_argument("--only", default="", help="words, separated by commas")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.check:
        lost = [line for line, file, text, *_ in faults() if (root / file).read_text().count(text) != 1]
        print(*(f"not once in its file: {line}" for line in lost), sep="\n")
        return bool(lost)
    wanted = [fault for fault in faults() if (not args.mode or fault[5] in args.mode.split(",")) and
              (not args.only or any(word in fault[0] for word in args.only.split(",")))]
    tests, noticed = Tests(args.folder), 0
    for mode in sorted({fault[5] for fault in wanted}):
        tests.build(mode, {fault[4].split()[0] for fault in wanted if fault[5] == mode})
    for line, file, text, replacement, test, mode in wanted:
        source = (root / file).read_text()
        if source.count(text) != 1:
            print(f"{file}: {source.count(text)} times in the file, want once: {text}", flush=True)
            continue
        program, *blocks = test.split()
        with planted(file, source.replace(text, replacement)) as fault:
            for seed in range(args.seeds):
                if seen := tests.run(mode, program, seed, blocks, fault):
                    break
        # the same seed without the fault: else anything may have been what failed
        if seen and (wrong := tests.run(mode, program, seed, blocks)):
            seen, verdict = "", f"FAILS WITHOUT THE FAULT, TOO: {wrong[:200]}"
        else:
            verdict = f"seed {seed}: {seen[:100]}" if seen else "NOT NOTICED"
        noticed += bool(seen)
        print(f"{file}: {text[:44]} -> {replacement[:44] or 'nothing'}: {mode}, {verdict}", flush=True)
    tried = len(wanted)
    print(f"{noticed} of {tried} noticed")
    return noticed != tried or not tried


if __name__ == "__main__":
    sys.exit(main())
