#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Plants the faults of planted.txt one by one: each must be noticed by the test that its line names.

    planted.py [--seeds N] [--mode MODE,...] [--only WORD,...] [FOLDER]

Works on a copy of the sources in FOLDER (default build/planted), which can be there from an earlier run: then less is
built. A line of planted.txt is

    file | text | replacement | test program, words of its blocks, NAME=VALUE of its environment | mode

The text occurs once in the file. The fault is noticed when the program (only blocks whose names contain one of the words,
if there are words) fails with one of the seeds 0 .. N-1, and passes with that seed without the fault. Modes are those of
planting.py. --only takes faults whose line contains one of the words. The last line is "N of N noticed"; the exit status
is 1 if one was not."""
import argparse, pathlib, re, sys
from planting import Copy, modes, root


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
    args = parser.parse_args()
    copy = Copy(args.folder)
    tried, noticed, seen_by = 0, 0, []
    for line, file, text, replacement, test, mode in faults():
        if (args.mode and mode not in args.mode.split(",")) or \
                (args.only and not any(word in line for word in args.only.split(","))):
            continue
        tried += 1
        program, *blocks = test.split()
        source = (copy.source / file).read_text()
        if source.count(text) != 1:
            print(f"{file}: {source.count(text)} times in the file, want once: {text}", flush=True)
            continue
        with copy.planted(file, source.replace(text, replacement)):
            seed, what = None, copy.build(mode, [program])
            if what:
                print(f"{file}: {replacement[:50]}: {what}", flush=True)
                continue
            for seed in range(args.seeds):
                if what := copy.run(mode, program, seed, blocks):
                    break
        if what:
            seen_by.append((file, text, replacement, mode, program, seed, blocks))
        print(f"{file}: {text[:44]} -> {replacement[:44] or 'nothing'}: {mode}, " +
              (f"seed {seed}: {what[:100]}" if what else "NOT NOTICED"), flush=True)
    # the same seeds without a fault: else anything may have been what failed
    for file, text, replacement, mode, program, seed, blocks in seen_by:
        if what := copy.build(mode, [program]) or copy.run(mode, program, seed, blocks):
            print(f"{file}: {text[:44]}: {program} fails without the fault, too ({mode}, seed {seed}): {what[:200]}", flush=True)
        else:
            noticed += 1
    print(f"{noticed} of {tried} noticed")
    return noticed != tried or not tried


if __name__ == "__main__":
    sys.exit(main())
