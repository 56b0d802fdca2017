# SPDX-License-Identifier: MIT
"""Runs a libFuzzer target: 20 seconds, or in the slow set as many calls as RUNS says.

    python3 fuzz.py PROGRAM
"""
import os, pathlib, subprocess, sys, tempfile

RUNS = {"fuzz_tensor": 10**8, "fuzz_mapping": 3 * 10**5}      # a minute or more each

program = pathlib.Path(sys.argv[1])
slow = os.environ.get("TEGULA_TEST_SLOW", "0") not in ("", "0")
crashes = program.parent.parent / "crashes"         # an input that broke it is kept here
crashes.mkdir(exist_ok=True)
with tempfile.TemporaryDirectory() as corpus:
    status = subprocess.run([program, f"-runs={RUNS[program.name]}" if slow else "-max_total_time=20", "-timeout=10", "-print_final_stats=1",
                             f"-artifact_prefix={crashes}/{program.name}-", corpus]).returncode
print(f"{int(status == 0)} passed, {int(status != 0)} failed, 0 skipped")
sys.exit(status != 0)
