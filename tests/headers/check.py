# SPDX-License-Identifier: MIT
"""Headers compile alone, twice in a row, as C11 and (those that users or kernels read) as C++17: the public ones with gcc
and with clang, for a reader who makes every pedantic warning an error; internal ones with one compiler, as the other builds
all that includes them. Then all ways to meet DLPack's own header.

    python3 check.py SOURCE_FOLDER
"""
import importlib.util, itertools, pathlib, re, shutil, subprocess, sys, tempfile

root = pathlib.Path(sys.argv[1])
languages = {"c": ["-std=c11"], "c++": ["-std=c++17"]}
strict = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wundef", "-Werror"]
ours = ["-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-D_GNU_SOURCE", f"-I{root}/src", f"-I{root}",
        f"-I{root}/tests"]
public = sorted((root / "include/tegula").glob("*.h"))


def read_by_kernels():
    """Headers of ours that kernels include, which are C++, and those that these include."""
    files = sorted(root.glob("src/*/*.cu"))
    for path in files:                          # grows
        for name in re.findall(r'^#include "(.*)"', path.read_text(), re.M):
            files += [p for p in (root / "src" / name, root / "src/cuda" / name) if p.exists() and p not in files]
    return {p for p in files if p.suffix == ".h"}


internal = sorted(read_by_kernels())
# Others may be C alone: atomics, alignment and initializers are spelled differently in C++.
c_only = sorted({*root.glob("src/**/*.h"), *root.glob("cases/**/*.h"), *root.glob("tests/*.h")} - {*internal})

passed = failed = skipped = 0


def compiles(what, compiler, language, text, flags):
    global passed, failed
    command = [compiler, "-x", language, *languages[language], "-fsyntax-only", f"-I{root}/include", *flags, "-"]
    run = subprocess.run(command, input=text, text=True, capture_output=True)
    if run.returncode == 0:
        passed += 1
    else:
        failed += 1
        print(f"{what}, {language}, {compiler}: does not compile\n  {' '.join(command)}\n{text}{run.stderr}")


def found_compilers():
    global skipped
    for compiler in ("gcc", "clang"):
        # The same driver compiles C and C++ when no linking is asked for, given that C++'s own headers are there.
        if not shutil.which(compiler):
            print(f"  skipped: no {compiler}")
            skipped += 1
        else:
            yield compiler


with tempfile.TemporaryDirectory() as scratch:
    # DLPack's header as <dlpack/dlpack.h>: a stand-in always, and the real one where torch brings it.
    dlpacks = {"a stand-in for DLPack": root / "tests/headers/include"}
    torch = importlib.util.find_spec("torch")           # importing it takes seconds
    if not torch:
        print("  skipped: DLPack's real header, as there is no torch")
        skipped += 1
    elif (real := pathlib.Path(torch.origin).parent / "include/ATen/dlpack.h").exists():
        (pathlib.Path(scratch) / "dlpack").mkdir()
        shutil.copy(real, pathlib.Path(scratch) / "dlpack/dlpack.h")
        dlpacks["torch's DLPack"] = pathlib.Path(scratch)

    use = "int64_t elements(const DLTensor *t);\nint64_t elements(const DLTensor *t) { return t->shape[t->ndim - 1]; }\n"
    compilers = list(found_compilers())
    for compiler, language in itertools.product(compilers, languages):
        for header in public:
            include = f'#include "tegula/{header.name}"\n'
            compiles(f"tegula/{header.name} alone", compiler, language, include * 2, strict)
        for header in (internal + (c_only if language == "c" else [])) * (compiler == compilers[0]):
            include = f'#include "{header}"\n'
            compiles(f"{header.relative_to(root)} alone", compiler, language, include * 2, ours)
        ours_first = '#include "tegula/tegula.h"\n'
        theirs = "#include <dlpack/dlpack.h>\n"
        compiles("without DLPack", compiler, language, ours_first + use, strict)
        for name, folder in dlpacks.items():
            flags = [*strict, "-isystem", str(folder)]
            compiles(f"with {name} on the path", compiler, language, ours_first + use, flags)
            compiles(f"with {name} before", compiler, language, theirs + ours_first + use, flags)
            compiles(f"with {name} after", compiler, language, ours_first + theirs + use, flags)
            # Found under another name only, and included before: its guard tells us.
            by_path = f'#include "{folder}/dlpack/dlpack.h"\n'
            relaxed = [flag for flag in strict if flag != "-Wpedantic"]     # not a system header this time
            compiles(f"with {name} before, by path", compiler, language, by_path + ours_first + use, relaxed)

print(f"{passed} passed, {failed} failed, {skipped} skipped")
sys.exit(failed > 0 or passed == 0)
