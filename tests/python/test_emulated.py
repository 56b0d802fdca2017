# SPDX-License-Identifier: MIT
"""Runs the cases of emulated.py, each in a process with the emulated device."""
import os
import pathlib
import re
import subprocess
import sys

import pytest

import tegula

LIBRARIES = pathlib.Path(tegula.__file__).resolve().parents[2] / "lib"
CUDA, NVRTC = LIBRARIES / "libcuda_emulated.so", LIBRARIES / "libnvrtc_emulated.so"
SCRIPT = pathlib.Path(__file__).with_name("emulated.py")
COLD = ("gil", "warmup", "warmup_architecture", "jit_never")       # they want an empty cache; others share that of the tests
NAMES = re.findall(r"\w+", re.search(r"^CASES = \[([^]]*)\]$", SCRIPT.read_text(), re.M)[1])

pytestmark = pytest.mark.skipif(not CUDA.exists() or not NVRTC.exists(), reason="the emulated device was not built")


@pytest.mark.parametrize("name", NAMES)
def test_emulated(name, tmp_path):
    pytest.importorskip("numpy")
    tmp_path.chmod(0o700)
    env = {"TEGULA_CACHE_DIR": str(tmp_path), **os.environ, "TEGULA_LIBCUDA": str(CUDA), "TEGULA_LIBNVRTC": str(NVRTC),
           "EMU_SMS": "4"}
    if name in COLD:
        env["TEGULA_CACHE_DIR"] = str(tmp_path)
        env.pop("EMU_CACHE", None)
    done = subprocess.run([sys.executable, SCRIPT, name], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
