# SPDX-License-Identifier: MIT
"""Runs tests on the emulated device with a fault planted in a kernel, for mutate.py and planted.py.

The tests are built once per mode. A fault is a folder with the changed file, from which they compile their kernels
(TEGULA_TEST_SOURCE), so any number of faults can be tried side by side. A mode says how tests are built and run:

    plain   as users build it
    any     the same; every case has a thread order of its own, some with other kernels that can do it (TEGULA_TEST_SEEDS)
    asan    address and undefined behaviour sanitizers; cases run with other kernels and fewer blocks, too
            (TEGULA_TEST_SEEDS)
    older   as `any`, on a device of sm_80, which has other code in some kernels
    tsan    thread sanitizer (clang)
    msan    memory sanitizer (clang)
    weak    weak memory: stores of a block reach others late and out of order (EMU_WEAK)
    limit   kernels that stride over their work have 2 blocks, so that every loop takes a second trip (TEGULA_TEST_GRID)
"""
import contextlib, os, pathlib, re, subprocess, sys, tempfile

root = pathlib.Path(__file__).resolve().parents[2]
modes = {  # mode: preset, environment
    "plain": ("release", {}),
    "any": ("release", {"TEGULA_TEST_SEEDS": "1"}),
    "asan": ("asan", {"TEGULA_TEST_SEEDS": "1"}),
    "older": ("release", {"TEGULA_TEST_SEEDS": "1", "EMU_ARCH": "80"}),
    "tsan": ("tsan", {}),
    "msan": ("msan", {}),
    "weak": ("release", {"EMU_WEAK": "1"}),
    "limit": ("release", {"TEGULA_TEST_GRID": "2"}),
}


def command(*words, **options):
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, errors="replace", **options)


@contextlib.contextmanager
def planted(file, text):
    """A folder that gives a kernel's file (below the root) another text, for run()."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, file.removeprefix("src/"))
        path.parent.mkdir(parents=True)
        path.write_text(text)
        yield folder


class Tests:
    """Test programs built in folder/build-<preset>. Kernels without a fault are kept in folder/cache."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()

    def build(self, mode, programs):
        preset = modes[mode][0]
        folder = self.folder / f"build-{preset}"
        for words in (("cmake", "--preset", preset, "-B", folder, "-DTEGULA_TOOLS=OFF", "-DTEGULA_PYTHON=OFF"),
                      ("cmake", "--build", folder, f"-j{os.cpu_count()}", "--target", *sorted(programs))):
            r = command(*words, cwd=root)
            if r.returncode:
                sys.exit(r.stdout + r.stderr)

    def run(self, mode, program, seed, blocks=(), fault=None, timeout=600):
        """'' if the test program passes, else what was seen first. `blocks`: only blocks whose names contain one of these
        words; a word NAME=VALUE is a variable of the environment. `fault`: a folder from planted()."""
        preset, environment = modes[mode]
        num_sms = 129 if re.fullmatch("test_(pre|norm_fn|norm_fn_parts)_fwd", program) else 17     # as tests/CMakeLists.txt
        build = self.folder / f"build-{preset}"
        env = {**os.environ, "TEGULA_TEST_DEVICE": "cuda", "EMU_SEED": str(seed), "EMU_SMS": str(num_sms),
               "TEGULA_LIBCUDA": str(build / "lib/libcuda_emulated.so"),
               "TEGULA_LIBNVRTC": str(build / "lib/libnvrtc_emulated.so"), "TEGULA_CACHE_DIR": str(self.folder / "cache"),
               "TEGULA_TEST_SHARE": "0/1",      # all cases, and no kernel is compiled that none of them launches
               "TEGULA_TEST_STOP": "1",
               "ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1:atexit_sleep_ms=0",
               **environment, **dict(word.split("=", 1) for word in blocks if "=" in word)}
        if preset in ("tsan", "msan"):
            env["EMU_CXX"] = "clang++"
        if fault:
            env |= {"TEGULA_CACHE_READONLY": env["TEGULA_CACHE_DIR"], "TEGULA_CACHE_DIR": f"{fault}/cache",
                    "TEGULA_TEST_SOURCE": fault}
        try:
            r = command(build / "tests" / program, *(word for word in blocks if "=" not in word), env=env, timeout=timeout)
        except subprocess.TimeoutExpired:
            return f"{program} hangs"
        if r.returncode == 0:
            return ""
        said = r.stderr + r.stdout
        seen = re.search(r"SUMMARY: MemorySanitizer: .*", said) or \
            re.search(r"emulator: .*|(?:WARNING|ERROR|==\d+==ERROR): \w+Sanitizer: .*|  .*\.[ch]:\d+: .*", said)
        return seen[0].strip().replace(f"{root}/", "") if seen else f"{program} gives status {r.returncode}"
