# SPDX-License-Identifier: MIT
"""A copy of the sources in which faults are planted, for mutate.py and planted.py.

A mode says how the copy is built and its tests are run on the emulated device:

    plain   as users build it
    asan    address and undefined behaviour sanitizers
    tsan    thread sanitizer (clang)
    msan    memory sanitizer (clang)
    weak    weak memory: stores of a block reach others late and out of order (EMU_WEAK)
    limit   kernels that stride over their work have 2 blocks, so that every loop takes a second trip (TEGULA_TEST_GRID)
"""
import contextlib, os, pathlib, re, shutil, subprocess

root = pathlib.Path(__file__).resolve().parents[2]
modes = {  # mode: preset, environment
    "plain": ("release", {}),
    "asan": ("asan", {}),
    "tsan": ("tsan", {}),
    "msan": ("msan", {}),
    "weak": ("release", {"EMU_WEAK": "1"}),
    "limit": ("release", {"TEGULA_TEST_GRID": "2"}),
}


def command(*words, **options):
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, errors="replace", **options)


class Copy:
    """The sources under folder/source, built per preset in folder/build-<preset>; one cache of kernels for all, in folder
    unless one is given that several copies share."""

    def __init__(self, folder, cache=None):
        self.folder = pathlib.Path(folder).resolve()
        self.cache = cache or self.folder / "cache"
        self.source = self.folder / "source"
        self.configured = set()
        wanted = set()
        for name in ("CMakeLists.txt", "CMakePresets.json", "cmake", "include", "src", "cases", "tests", "tools", "examples"):
            files = (root / name).rglob("*") if (root / name).is_dir() else [root / name]
            wanted |= {f.relative_to(root) for f in files if f.is_file() and "__pycache__" not in f.parts}
        for file in self.source.rglob("*"):
            if file.is_file() and file.relative_to(self.source) not in wanted:
                file.unlink()
        for file in wanted:         # what is as it was keeps its time and is not built anew; a fault left behind is not
            to = self.source / file
            if not to.exists() or to.read_bytes() != (root / file).read_bytes():
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(root / file, to)

    def build(self, mode, programs):
        """'' or what went wrong."""
        preset = modes[mode][0]
        folder = self.folder / f"build-{preset}"
        if preset not in self.configured:
            generator = ("-G", "Ninja") if shutil.which("ninja") else ()     # builds what changed in half the time
            r = command("cmake", "--preset", preset, "-B", folder, *generator, "-DTEGULA_TOOLS=OFF",
                        "-DTEGULA_PYTHON=OFF", cwd=self.source)
            if r.returncode:
                return r.stdout + r.stderr
            self.configured.add(preset)
        r = command("cmake", "--build", folder, "-j2", "--target", *programs)
        return "does not build: " + (r.stdout + r.stderr)[-2000:] if r.returncode else ""

    def run(self, mode, program, seed, blocks=(), timeout=600, **more):
        """'' if the test program (its blocks whose names contain a word of `blocks`) passes, else what was seen first. A word
        NAME=VALUE is a variable of the environment."""
        more |= dict(word.split("=", 1) for word in blocks if "=" in word)
        blocks = [word for word in blocks if "=" not in word]
        preset, environment = modes[mode]
        build = self.folder / f"build-{preset}"
        compiler = {"EMU_CXX": "clang++"} if preset in ("tsan", "msan") else {}
        env = {**os.environ, "TEGULA_TEST_DEVICE": "cuda", "EMU_SEED": str(seed), "EMU_SMS": "17",
               "TEGULA_LIBCUDA": str(build / "lib/libcuda_emulated.so"),
               "TEGULA_LIBNVRTC": str(build / "lib/libnvrtc_emulated.so"), "TEGULA_CACHE_DIR": str(self.cache),
               "TEGULA_TEST_SHARE": "0/1",      # all cases, and no kernel is compiled that none of them launches
               "ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1:atexit_sleep_ms=0",
               **compiler, **environment, **more}
        try:
            r = command(build / "tests" / program, *blocks, env=env, timeout=timeout)
        except subprocess.TimeoutExpired:
            return f"{program} hangs"
        if r.returncode == 0:
            return ""
        said = r.stderr + r.stdout
        seen = re.search(r"SUMMARY: MemorySanitizer: .*", said) or \
            re.search(r"emulator: .*|(?:WARNING|ERROR|==\d+==ERROR): \w+Sanitizer: .*|  .*\.c:\d+: .*", said)
        return seen[0].strip().replace(f"{self.source}/", "") if seen else f"{program} gives status {r.returncode}"

    @contextlib.contextmanager
    def planted(self, file, text):
        """The file of the copy has another text while this lasts."""
        path = self.source / file
        before = path.read_text()
        path.write_text(text)
        try:
            yield
        finally:
            path.write_text(before)
