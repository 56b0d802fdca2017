# SPDX-License-Identifier: MIT
"""Checks what every text file of the tree has in common: python3 scripts/check_style.py ROOT

UTF-8, lines that end in LF alone and not in blanks, a newline at the end, no tabs but in the Makefile; source files begin with
their licence; those in C have no code that is switched off with #if 0. Where their lines break is clang-format's to say
(check_format.py); strings, comments and what is marked as written by hand have at most 140 columns.
"""
import pathlib, re, subprocess, sys

root = pathlib.Path(sys.argv[1]).resolve()
SOURCES = {".c", ".h", ".cu", ".cuh", ".cpp", ".py", ".sh", ".pyi"}
C = SOURCES - {".py", ".pyi", ".sh"}
DATA = {".npy", ".jsonl", ".svg"}
passed = failed = 0

listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, text=True, capture_output=True).stdout
for name in sorted(set(listed.splitlines())):
    path = root / name
    if path.suffix in DATA or not path.is_file():
        continue
    problems = []
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError:
        problems, text = ["is not UTF-8"], "\n"
    if text and (not text.endswith("\n") or text.endswith("\n\n")):
        problems.append("does not end in one newline")
    if path.suffix in SOURCES and "SPDX-License-Identifier: MIT" not in "".join(text.splitlines(True)[:3]):
        problems.append("does not begin with SPDX-License-Identifier: MIT")
    for number, line in enumerate(text.split("\n"), 1):
        if line != line.rstrip():
            problems.append(f"{number}: blanks at the end")
        if "\t" in line and path.name != "Makefile":
            problems.append(f"{number}: a tab")
        if path.suffix in C and len(line) > 140:
            problems.append(f"{number}: {len(line)} columns, want at most 140")
        if path.suffix in C and re.match(r"\s*#\s*if 0\b", line):
            problems.append(f"{number}: #if 0")
    passed += not problems
    failed += bool(problems)
    for problem in problems:
        print(f"{name}:{problem}" if problem[0].isdigit() else f"{name}: {problem}")

print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed > 0)
