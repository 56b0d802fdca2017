# SPDX-License-Identifier: MIT
"""Checks that C and CUDA sources are laid out as clang-format does it (.clang-format): check_format.py ROOT [--fix]

With --fix it writes them so. The version is that of scripts/requirements.txt, since others break lines elsewhere; it is taken
from beside this Python, from ROOT/.venv or from the PATH. Where there is none the check is skipped.
"""
import concurrent.futures, os, pathlib, re, shutil, subprocess, sys

root = pathlib.Path(sys.argv[1]).resolve()
fix = "--fix" in sys.argv
version = re.search(r"(?m)^clang-format==(\S+)", (root / "scripts/requirements.txt").read_text())[1]


def find():
    for folder in (pathlib.Path(sys.executable).parent, root / ".venv/bin", None):
        program = shutil.which("clang-format", path=folder)
        if program and version in subprocess.run([program, "--version"], text=True, capture_output=True).stdout.split():
            return program


program = find()
if not program:
    print(f"no clang-format {version} here; scripts/setup test installs it\n0 passed, 0 failed, 1 skipped")
    sys.exit(fix)

listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.c", "*.h", "*.cu", "*.cuh"], cwd=root, text=True,
                        capture_output=True).stdout
names = [name for name in sorted(set(listed.splitlines())) if (root / name).is_file()]


def run(names):
    """What clang-format says of these files: for each that it would change, a line that begins with its name."""
    done = subprocess.run([program, *(["-i"] if fix else ["--dry-run", "-Werror", "--ferror-limit=1"]), *names], cwd=root,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout if done.returncode else ""


jobs = os.cpu_count() or 1
with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
    said = "".join(pool.map(run, [names[i::jobs] for i in range(jobs)]))
wrong = set(re.findall(r"(?m)^(\S+?):\d+:\d+: ", said))
print(said, end="")
print(f"{len(names) - len(wrong)} passed, {len(wrong)} failed, 0 skipped")
sys.exit(bool(said))
