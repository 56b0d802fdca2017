# SPDX-License-Identifier: MIT
"""Runs a libFuzzer target: 20 seconds, or in the slow set as many calls as TARGETS says.

    python3 fuzz.py PROGRAM
"""
import os, pathlib, subprocess, sys, tempfile

# Calls of the slow set, a minute or more each; bytes of the longest input, which are tried from the start.
TARGETS = {"fuzz_tensor": (10**8, 64), "fuzz_ops": (10**5, 128)}

program = pathlib.Path(sys.argv[1])
runs, longest = TARGETS[program.name]
slow = os.environ.get("TEGULA_TEST_SLOW", "0") not in ("", "0")
crashes = program.parent.parent / "crashes"         # an input that broke it is kept here
crashes.mkdir(exist_ok=True)
with tempfile.TemporaryDirectory() as corpus:
    status = subprocess.run([program, f"-runs={runs}" if slow else "-max_total_time=20", f"-max_len={longest}",
                             "-len_control=0", "-timeout=10", "-verbosity=0", "-print_final_stats=1",
                             f"-artifact_prefix={crashes}/{program.name}-", corpus]).returncode
print(f"{int(status == 0)} passed, {int(status != 0)} failed, 0 skipped")
sys.exit(status != 0)
