#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Removes one synchronisation at a time from the kernels and runs their tests on the emulated device.

    mutate.py [--seeds N] [--tsan] [--only FILE[:LINE],...] [FOLDER]

Works on a copy of the sources in FOLDER (default build/mutate), built there once and then again for each
mutant. A mutant is noticed when a test of its domain (tests/<domain>/test_*.c) fails at one of the seeds. One
that is not noticed must be listed in mutations.txt beside this file, with the reason; no other may be.
The exit status is 1 if that does not hold."""
import argparse, os, pathlib, re, shutil, subprocess, sys

root = pathlib.Path(__file__).resolve().parents[2]
# a statement that orders threads or waits; the arguments hold no semicolon
calls = (r"__syncthreads|__syncwarp|mbar_wait|mbar_wait_cluster|mbar_init_fence|cluster_wait|bulk_fence"
         r"|pdl_wait|(?:barrier_sync|barrier_arrive|copy_async_wait|bulk_wait|bulk_wait_read)<[^>]*>")
statement = re.compile(r"\b(" + calls + r")\([^;]*\);")


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S)


def mutants(text):
    """(line, the statement, the text without it) for each."""
    code = without_comments(text)
    for m in statement.finditer(code):
        begin = m.start()
        if m[1] == "cluster_wait":      # with its arrive: without it, it is merely misuse
            arrive = max(code.rfind(f"cluster_arrive{x}();", 0, begin) for x in ("", "_relaxed"))
            if arrive >= 0 and code.count("\n", arrive, begin) <= 2:
                begin = arrive
        yield text.count("\n", 0, m.start()) + 1, m[0], text[:begin] + ";" + text[m.end():]


def command(*words, **options):
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, errors="replace",
                          **options)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default=str(root / "build/mutate"))
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--tsan", action="store_true", help="with ThreadSanitizer (clang)")
    parser.add_argument("--only", default="", help="src/x/y.cu or src/x/y.cu:12, separated by commas")
    args = parser.parse_args()
    only = [o for o in args.only.split(",") if o]

    source, build = pathlib.Path(args.folder) / "source", pathlib.Path(args.folder) / "build"
    shutil.rmtree(args.folder, ignore_errors=True)
    source.mkdir(parents=True)
    for name in ("CMakeLists.txt", "cmake", "include", "src", "bench", "tests", "tools", "examples"):
        if (root / name).is_dir():
            shutil.copytree(root / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (root / name).exists():
            shutil.copy(root / name, source / name)
    configure = ["cmake", "-S", source, "-B", build, "-DTEGULA_TOOLS=OFF", "-DTEGULA_PYTHON=OFF"]
    if args.tsan:
        configure += ["-DTEGULA_SANITIZE=thread", "-DTEGULA_OPENMP=OFF", "-DCMAKE_C_COMPILER=clang",
                      "-DCMAKE_CXX_COMPILER=clang++"]
    if (r := command(*configure)).returncode:
        sys.exit(r.stdout + r.stderr)

    accepted = {}                       # (file, which of its statements): reason
    listed = pathlib.Path(__file__).with_name("mutations.txt")
    for line in listed.read_text().splitlines() if listed.exists() else []:
        if line and not line.startswith("#"):
            file, which, reason = line.split(None, 2)
            accepted[file, int(which)] = reason

    def test(domain, seeds):
        """'' if all tests of the domain pass with all seeds, else what was seen first."""
        programs = sorted(p.stem for p in (source / "tests" / domain).glob("test_*.c"))
        r = command("cmake", "--build", build, "-j2", "--target", *programs)
        if r.returncode:
            return "does not build: " + (r.stdout + r.stderr)[-300:]
        for seed in range(seeds):
            for program in programs:
                env = dict(os.environ, TEGULA_TEST_DEVICE="cuda", EMU_SEED=str(seed), EMU_SMS="17",
                           TEGULA_LIBCUDA=str(build / "lib/libcuda_emulated.so"),
                           TEGULA_LIBNVRTC=str(build / "lib/libnvrtc_emulated.so"),
                           TEGULA_CACHE_DIR=str(build / "tests/cache"),
                           TSAN_OPTIONS="halt_on_error=1:atexit_sleep_ms=0")
                try:
                    r = command(build / "tests" / program, env=env, timeout=600)
                except subprocess.TimeoutExpired:
                    return f"seed {seed}: {program} hangs"
                if r.returncode:
                    seen = re.search(r"emulator: .*|WARNING: ThreadSanitizer: .*|  .*\.c:\d+: .*",
                                     r.stderr + r.stdout)
                    what = seen[0].strip().replace(f"{source}/", "") if seen else f"{program} fails"
                    return f"seed {seed}: {what[:100]}"
        return ""

    wrong = tried = noticed = 0
    domains = sorted({p.parent.name for p in (source / "src").glob("*/*.cu")})
    for domain in domains:
        files = sorted([*(source / "src" / domain).glob("*.cu"), *(source / "src" / domain).glob("*.cuh")])
        wanted = [(f, f.relative_to(source).as_posix()) for f in files]
        if only and not any(o.split(":")[0] == name for o in only for _, name in wanted):
            continue
        if seen := test(domain, 1):
            sys.exit(f"{domain}: fails without a change: {seen}")
        for file, name in wanted:
            text = file.read_text()
            for which, (line, what, mutant) in enumerate(mutants(text)):
                if only and name not in only and f"{name}:{line}" not in only:
                    continue
                file.write_text(mutant)
                seen = test(domain, args.seeds)
                file.write_text(text)
                tried += 1
                noticed += bool(seen)
                reason = accepted.get((name, which))
                if not seen and not reason:
                    wrong += 1
                if seen and reason and not args.tsan:
                    wrong += 1
                    seen += "   BUT IT IS IN mutations.txt"
                verdict = seen or (f"not noticed ({reason})" if reason else "NOT NOTICED")
                print(f"{name}:{line:<4} {what[:40]:42} {verdict}", flush=True)
    print(f"{noticed} of {tried} noticed, {wrong} wrong")
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
