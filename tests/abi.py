# SPDX-License-Identifier: MIT
"""What libtegula.so shows to the world: the symbols of tests/abi.txt and no other, each declared with TGL_API in a public
header; the SONAME; the libraries it needs.

    python3 abi.py SOURCE_FOLDER LIBRARY        a new function: add its name to tests/abi.txt, in order
"""
import pathlib, re, shutil, subprocess, sys

root, library = pathlib.Path(sys.argv[1]), sys.argv[2]
passed = failed = 0


def check(what, seen, want):
    global passed, failed
    if seen == want:
        passed += 1
        return
    failed += 1
    print(f"{what}: missing {sorted(want - seen) or 'nothing'}, unexpected {sorted(seen - want) or 'nothing'}")


def output(*command):
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout


if sys.platform != "linux" or not shutil.which("nm") or not shutil.which("readelf"):
    print("  skipped: reads ELF with binutils\n0 passed, 0 failed, 1 skipped")
    sys.exit(0)

lines = [line for line in (root / "tests/abi.txt").read_text().splitlines() if line and not line.startswith("#")]
listed = set(lines)
exported = {line.split()[-1].split("@")[0] for line in output("nm", "-D", "--defined-only", library).splitlines()}
headers = "\n".join(h.read_text() for h in (root / "include/tegula").glob("*.h"))
headers = re.sub(r"/\*.*?\*/", "", headers, flags=re.S)
declared = set(re.findall(r"^TGL_API [^;(]*?\*?(\w+)\(", headers, flags=re.M))

check("exported symbols against tests/abi.txt", exported, listed)
check("functions in the headers against tests/abi.txt", declared, listed)
check("names that do not begin with tgl_", {name for name in exported if not name.startswith("tgl_")}, set())
check("order of tests/abi.txt", {"sorted, each once" if lines == sorted(listed) else "unsorted"}, {"sorted, each once"})

dynamic = output("readelf", "-d", library)
version = ".".join(re.search(rf"#define TGL_VERSION_{part} (\d+)", headers)[1] for part in ("MAJOR", "MINOR"))
check("SONAME", set(re.findall(r"SONAME\).*\[(.*)\]", dynamic)), {f"libtegula.so.{version}"})   # until 1.0
# OpenMP is libgomp (gcc) or libomp (clang); old glibcs have dl and pthread apart.
allowed = re.compile(r"(libc|libm|libdl|libpthread|libgomp|ld-linux.*)\.so\.\d+|libomp\.so(\.5)?")
needed = set(re.findall(r"NEEDED\).*\[(.*)\]", dynamic))
check("libraries needed", {name for name in needed if not allowed.fullmatch(name)}, set())

print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed > 0)
