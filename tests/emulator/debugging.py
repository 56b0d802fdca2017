# SPDX-License-Identifier: MIT
"""Keeps docs/debugging-kernels.md true: its commands run, its reports are what planted faults give.

    python3 debugging.py SOURCE_FOLDER BUILD_FOLDER

A block of text after <!-- report: divergent_barrier --> is what that fault of faults.cu writes; addresses and
spellings of types may differ."""
import os, pathlib, re, shutil, signal, subprocess, sys, tempfile

source, build = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
counts = {"passed": 0, "failed": 0, "skipped": 0}


def check(name, ok, seen=""):
    counts["passed" if ok else "failed"] += 1
    if not ok:
        print(f"{name}: not as the document says; it gives\n{seen}")


def run(function):
    """Status and output of its commands, which are killed, with all that they started, if they do not end."""
    process = subprocess.Popen(["sh", "-eu", str(source / "tests/emulator/debugging.sh"), function], cwd=place, env=env,
                               text=True, errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, start_new_session=True)
    try:
        output = process.communicate(timeout=120)[0]
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0] + "\nkilled after 120 s"


def same_everywhere(text):
    """Without addresses and without types, which compilers spell differently."""
    return re.sub(r"'[^']*'", "'...'", re.sub(r"0x[0-9a-f]{7,}", "0x...", text)).strip()


def debug():
    if not shutil.which("gdb"):
        return "no gdb here (Debian package gdb)"
    # The breakpoint's condition calls a function. Where gdb cannot do that (13 on a CPU with AMX), it would wait for ever.
    tried = subprocess.run(["gdb", "-q", "-batch", "-ex", "break main", "-ex", "run", "-ex", "print (int)getpid() > 0",
                            "--args", str(build / "bin/tegula"), "list"], cwd=place, env=env, text=True, errors="replace",
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120).stdout
    if re.search(r"ptrace: Operation not permitted|Could not trace the inferior", tried):
        return "gdb may not trace processes here"
    if "Couldn't write extended state status" in tried:
        return "this gdb is too old for this CPU: it cannot call functions of the program"
    check("gdb calls a function", re.search(r"^\$1 = (1|true)$", tried, re.M), tried)
    status, output = run("debugger")
    # what the session must show; the numbers in it change with the kernel; kernels that are not in the cache compile on threads
    wanted = [r"^(Thread 1 \"tegula\" hit )?Breakpoint 1(\.\d+)?, tile_put \(.* at transpose/tile\.cuh:\d+$", r"^\$1 = \d+$",
              r"^\$2 = \{x = 0x[0-9a-f]+, ", r"^emulator: stopped in kernel transpose, seed 5$",
              r"^  block \(0,1,0\):$", r"no wait yet: threads ",
              r"^transpose \(a=\.\.\.\) at transpose/transpose\.cu:\d+$",
              r"^\$3 = \{row_tile = 0, ", r"^\$4 = 77$", r"exited normally\]$"]
    at = 0
    for pattern in wanted:
        found = re.compile(pattern, re.M).search(output, at)
        check(f"gdb: {pattern}", status == 0 and found, output)
        at = found.end() if found else at
    return None


with tempfile.TemporaryDirectory() as folder:
    place = pathlib.Path(folder)
    for name, target in ("build", build), ("src", source / "src"), ("tests", source / "tests"):
        (place / name).symlink_to(target)
    env = {n: value for n, value in os.environ.items() if not n.startswith("EMU_")}
    env.update(TEGULA_LIBCUDA=str(build / "lib/libcuda_emulated.so"),
               TEGULA_LIBNVRTC=str(build / "lib/libnvrtc_emulated.so"),
               TEGULA_CACHE_DIR=str(build / "tests/cache"))

    status, output = run("one_case")
    found = re.search(r"^transpose +cuda:0 \(emulated device\) +1 +0 ", output, re.M)
    check("one_case", status == 0 and found, output)
    status, output = run("seeds")
    check("seeds", status == 0 and len(re.findall(r"^transpose +cuda:0", output, re.M)) == 8, output)

    status, output = run("planted")
    check("planted", status == 0, output)
    seen = dict(re.findall(r"^---- (\w+)\n(.*?)(?=^---- |^  \d+ faults)", output, re.M | re.S))
    document = (source / "docs/debugging-kernels.md").read_text()
    reports = re.findall(r"<!-- report: (\w+) -->\n```text\n(.*?)```", document, re.S)
    check("the document", len(reports) > 5, f"{len(reports)} reports")
    for name, text in reports:
        real = seen.get(name, "no such fault")
        check(name, same_everywhere(real) == same_everywhere(text), real)

    reason = debug()
    if reason:
        counts["skipped"] += 1
        print(f"  skipped: {reason}")

print("{passed} passed, {failed} failed, {skipped} skipped".format(**counts))
sys.exit(counts["failed"] > 0)
