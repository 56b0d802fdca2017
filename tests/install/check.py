# SPDX-License-Identifier: MIT
"""Installs a build into a folder of its own, moves that folder, and uses it from a project outside: with find_package,
with pkg-config, and with add_subdirectory on the sources.

    python3 check.py SOURCE_FOLDER BUILD_FOLDER SCRATCH_FOLDER CC CXX
"""
import os, pathlib, re, shutil, subprocess, sys

source, build, scratch = (pathlib.Path(a).resolve() for a in sys.argv[1:4])
cc, cxx = sys.argv[4:6]
here = source / "tests/install"
passed = failed = skipped = 0


def run(*command, fails=False, **environment):
    """The output of a command that has to succeed (or to fail)."""
    done = subprocess.run([str(c) for c in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, **environment})
    if (done.returncode != 0) != fails:
        raise RuntimeError(f"{' '.join(map(str, command))}\nexit status {done.returncode}\n{done.stdout}")
    return done.stdout


def check(f):
    global passed, failed
    try:
        f()
        passed += 1
    except (RuntimeError, OSError) as e:
        failed += 1
        print(f"{f.__name__}: {e}")


shutil.rmtree(scratch, ignore_errors=True)
scratch.mkdir(parents=True)
prefix = scratch / "moved here"         # with a space, which careless package files do not survive
run("cmake", "--install", build, "--prefix", scratch / "installed")
(scratch / "installed").rename(prefix)
configure = ["cmake", "-S", here, f"-DCMAKE_C_COMPILER={cc}", f"-DCMAKE_CXX_COMPILER={cxx}"]


@check
def find_package():
    out = scratch / "find_package"
    run(*configure, "-B", out, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", out)
    run(out / "use_c")
    run(out / "use_cpp")


@check
def find_package_of_another_version():
    out = run(*configure, "-B", scratch / "version", f"-DCMAKE_PREFIX_PATH={prefix}", "-DWANT_VERSION=99.0", fails=True)
    if "compatible with requested version" not in " ".join(out.split()):       # CMake breaks lines
        raise RuntimeError(out)


@check
def add_subdirectory():
    out = scratch / "add_subdirectory"
    run(*configure, "-B", out, f"-DTEGULA_SOURCE={source}", "-DCMAKE_BUILD_TYPE=Debug")     # -O3 takes four times as long
    run("cmake", "--build", out, "--parallel", os.cpu_count())
    run(out / "use_c")
    run(out / "use_cpp")


@check
def installed_tool():
    out = run(prefix / "bin/tegula", "info")
    if "tegula" not in out.lower():
        raise RuntimeError(out)


@check
def manual_and_completion():
    """As the tool prints them. zsh reads the first line of a file in its folders."""
    for name, words in (("man/man1/tegula.1", ["help", "man"]), ("bash-completion/completions/tegula", ["completion", "bash"]),
                        ("zsh/site-functions/_tegula", ["completion", "zsh"])):
        if (prefix / "share" / name).read_text() != run(prefix / "bin/tegula", *words):
            raise RuntimeError(f"{name} is not what `tegula {' '.join(words)}` prints")
    if not (prefix / "share/zsh/site-functions/_tegula").read_text().startswith("#compdef tegula\n"):
        raise RuntimeError("zsh does not see the completion")


@check
def nothing_else_is_installed():
    files = {str(f.relative_to(prefix)) for f in prefix.rglob("*") if not f.is_dir()}
    strange = [f for f in files if "internal" in f or "/examples/op/" in f or (f.endswith((".a", ".o", ".py")) and "/examples/" not in f)]
    if strange:
        raise RuntimeError(f"installed: {strange}")


@check
def documents_and_examples():
    folder = next(prefix.rglob("getting-started.md")).parent.parent
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/moe.md", "examples/transpose.c"):
        if not (folder / name).exists():
            raise RuntimeError(f"{name} is not installed")
    for header in prefix.rglob("*.h"):
        cited = re.findall(r"\b(?:docs|src|tests|cases)/[\w./-]+", header.read_text())
        if missing := [name for name in cited if not (folder / name).exists()]:
            raise RuntimeError(f"{header.name} cites {missing}, which are not installed")


@check
def links_of_documents():
    documents = [path for path in prefix.rglob("*") if path.suffix == ".md"]
    links = [(path, target) for path in documents for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", path.read_text())
             if not re.match("[a-z]+:", target)]
    dead = [f"{path.name}: {target}" for path, target in links if not (path.parent / target).exists()]
    if dead or not links:
        raise RuntimeError(f"of {len(links)} links, these lead nowhere: {dead}")


@check
def static_library():
    out, installed = scratch / "static", scratch / "static_installed"
    run("cmake", "-S", source, "-B", out, f"-DCMAKE_C_COMPILER={cc}", "-DBUILD_SHARED_LIBS=OFF", "-DTEGULA_TOOLS=OFF",
        "-DCMAKE_BUILD_TYPE=Debug")
    run("cmake", "--build", out, "--parallel", os.cpu_count(), "--target", "tegula")
    run("cmake", "--install", out, "--prefix", installed)
    if list(installed.rglob("*.so*")) or not list(installed.rglob("libtegula.a")):
        raise RuntimeError(f"installed: {sorted(installed.rglob('*tegula*'))}")
    run(*configure, "-B", scratch / "uses_static", f"-DCMAKE_PREFIX_PATH={installed}")
    run("cmake", "--build", scratch / "uses_static")
    run(scratch / "uses_static/use_c")
    run(scratch / "uses_static/use_cpp")
    if shutil.which("pkg-config"):
        folder = next(installed.rglob("tegula.pc")).parent
        run("sh", "-ec", f'{cc} -std=c11 {here}/use.c $(pkg-config --static --cflags --libs tegula) -o {out}/use',
            PKG_CONFIG_PATH=str(folder))
        run(out / "use")


if shutil.which("pkg-config"):
    @check
    def pkg_config():
        folder = next(prefix.rglob("tegula.pc")).parent
        # pkg-config quotes for a shell, so a shell reads it.
        for compiler, program in ((f"{cc} -std=c11", "use.c"), (f"{cxx} -std=c++17", "use.cpp")):
            out = scratch / f"pkg_config_{program}.out"
            run("sh", "-ec", f'flags=$(pkg-config --cflags --libs tegula); eval "{compiler} -Wall -Wextra -Werror '
                f'{here}/{program} $flags -o {out}"', PKG_CONFIG_PATH=str(folder))
            run(out, LD_LIBRARY_PATH=str(folder.parent))
else:
    print("  skipped: pkg-config is not here")
    skipped += 1

print(f"{passed} passed, {failed} failed, {skipped} skipped")
sys.exit(failed > 0)
