# SPDX-License-Identifier: MIT
"""The wheel: built from a copy of the source, installed into an empty environment, used there."""
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
pytestmark = pytest.mark.slow
PARTS = ["CHANGELOG.md", "CMakeLists.txt", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md", "pyproject.toml", "cases",
         "cmake", "docs", "include", "python", "src", "tools"]

if not (ROOT / "pyproject.toml").exists() or not (ROOT / "src").exists():
    pytest.skip("not a source tree", allow_module_level=True)


def run(*command, **kwargs):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **kwargs)
    assert done.returncode == 0, f"{command}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / "source" / part, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            (folder / "source").mkdir(exist_ok=True)
            shutil.copy(source, folder / "source")
    isolation = []
    if importlib.util.find_spec("scikit_build_core"):
        isolation = ["--no-build-isolation"]
    else:
        probe = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "0", "--timeout", "10"]
        if subprocess.run([*probe, "-d", folder / "net", "scikit-build-core"], capture_output=True).returncode:
            pytest.skip("no scikit-build-core here and no network to get it from")
    # The folder has another name each time: ccache, where tests/run uses it, must not see it.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    env |= {"CCACHE_BASEDIR": str(folder), "CCACHE_NOHASHDIR": "1"}
    # What is in a wheel and where does not depend on optimisation, which takes two thirds of the time.
    quick = ["-C", "cmake.build-type=Debug", "-C", "cmake.define.CMAKE_C_FLAGS_DEBUG=-O0"]
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolation, "-C", f"build-dir={folder / 'build'}",
        *([] if os.environ.get("TEGULA_TEST_SLOW") else quick), "-w", folder / "dist", folder / "source", env=env)
    made, = (folder / "dist").glob("*.whl")
    return made


def test_sdist(tmp_path):
    """It has the sources, LICENSE among them, and none of the files of that name in a contributor's environment."""
    pytest.importorskip("scikit_build_core")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("LICENSE", "README.md", "pyproject.toml", ".gitignore"):
        shutil.copy(ROOT / name, source)
    for name in ("include", "cases"):
        shutil.copytree(ROOT / name, source / name)
    (tmp_path / "cache/lib").mkdir(parents=True)
    (tmp_path / "cache/lib/LICENSE").touch()
    (source / ".venv").symlink_to(tmp_path / "cache")                   # as scripts/setup makes it
    shutil.copytree(tmp_path / "cache", source / ".venv-other")
    code = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    run(sys.executable, "-c", code, tmp_path, cwd=source)
    made, = tmp_path.glob("*.tar.gz")
    names = {name.partition("/")[2] for name in tarfile.open(made).getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "include/tegula/core.h", "PKG-INFO"} <= names
    assert not [name for name in names if name.startswith(".venv") or name.endswith("/LICENSE")], names


def test_tags_and_contents(wheel):
    version = __import__("tegula").__version__
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name == f"tegula-{version}-cp310-abi3-{platform}.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"tegula/__init__.py", "tegula/_tegula.abi3.so", "tegula/libtegula.so.0.1", "tegula/testing/numeric.py",
            "tegula/torch/transpose.py", "tegula/as_tile_kernels.py", "tegula/py.typed", "tegula/_moe.pyi",
            "tegula/moe/__init__.pyi", "tegula/jax.pyi",
            "tegula/bin/tegula", "tegula/include/tegula/moe.h", "tegula/cmake/tegulaConfig.cmake"} <= names
    assert len([n for n in names if "libtegula" in n]) == 1 and wheel.stat().st_size < 4 << 20
    assert all(n.startswith(("tegula/", f"tegula-{version}.dist-info/")) for n in names), names
    metadata = zipfile.ZipFile(wheel).read(f"tegula-{version}.dist-info/METADATA").decode()
    for line in ("Requires-Python: >=3.10", "Provides-Extra: cuda13", "Provides-Extra: cuda12", "Provides-Extra: dev",
                 "Provides-Extra: test", "License-Expression: MIT", "Classifier: Typing :: Typed"):
        assert line in metadata
    assert "Requires-Dist: torch" not in metadata.replace("Requires-Dist: torch>=2.10; extra", "")


def test_documents(wheel):
    """What headers cite, and links of documents, is there."""
    archive = zipfile.ZipFile(wheel)
    names = {path for name in archive.namelist() for path in (name, *map(str, pathlib.PurePosixPath(name).parents))}
    for name in sorted(names):
        if name.endswith(".h"):
            cited = re.findall(r"\b(?:docs|src|tests|cases)/[\w./-]*\w", archive.read(name).decode())
            assert not [path for path in cited if f"tegula/{path}" not in names], (name, cited)
    assert {"tegula/docs/engram.md", "tegula/docs/python.md"} <= names and "tegula/docs/testing.md" not in names
    for name in names:
        if name.endswith(".md"):
            links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", archive.read(name).decode())
            dead = [link for link in links if not re.match("[a-z]+:", link) and
                    os.path.normpath(f"{pathlib.PurePosixPath(name).parent}/{link}") not in names]
            assert not dead, (name, dead)


def test_in_an_empty_environment(wheel, tmp_path):
    """Without torch, NumPy or anything else, and away from the source."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    site = run(python, "-c", "import site; print(site.getsitepackages()[0])").strip()
    zipfile.ZipFile(wheel).extractall(site)                         # what pip does with a wheel of this kind
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LD_LIBRARY"))}
    code = """if True:
        import sys, tegula, tegula.as_tile_kernels
        assert tegula.__file__.startswith(sys.prefix), tegula.__file__
        assert tegula.config.get_num_threads() >= 1 and tegula.compile_count() == 0
        try: tegula.transpose.transpose(3)
        except TypeError as e: print(e)"""
    assert "want a tensor" in run(python, "-c", code, env=env, cwd=tmp_path)


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The Python of an environment into which pip has installed the wheel alone."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin/python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel)
    return folder / "bin/python"


def run_clean(*command, **kwargs):
    """Without the built folder on Python's path, or settings."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TEGULA_"))}
    return run(*command, env=env, **kwargs)


def test_command(installed, tmp_path):
    version = __import__("tegula").__version__
    for command in ([installed, "-m", "tegula"], [installed.parent / "tegula"]):
        assert run_clean(*command, "--version").strip() == f"tegula {version}"
        out = run_clean(*command, "check", "transpose", "num_rows=7", "num_cols=9", "dtype=f32", "--device", "cpu", cwd=tmp_path)
        assert out.splitlines()[1].split()[:4] == ["transpose", "cpu", "1", "0"]
    assert subprocess.run([installed, "-m", "tegula", "nonsense"], capture_output=True).returncode == 2


def test_command_finds_nvrtc_beside_it(installed, tmp_path):
    """In the wheel of NVIDIA that an extra installs."""
    nvrtc = list(pathlib.Path(sys.prefix).glob("lib/python*/site-packages/nvidia/cu13"))
    if not nvrtc:
        pytest.skip("no NVRTC here")
    site = pathlib.Path(run_clean(installed, "-c", "import site; print(site.getsitepackages()[0])").strip())
    (site / "nvidia").mkdir()
    (site / "nvidia/cu13").symlink_to(nvrtc[0])
    out = run_clean(installed.parent / "tegula", "compile", "transpose", "num_rows=64", "num_cols=64", "dtype=bf16", "--arch",
                    "sm_90a", "-o", tmp_path)
    assert "compiled" in out and list(tmp_path.rglob("*")), out


def test_compiled_kernels(wheel, tmp_path):
    """A wheel of kernels is found by the package beside it, the command too; what the user names wins."""
    library = ROOT / "build/lib/librecording_nvrtc.so"                  # compiles nothing
    if not library.exists():
        pytest.skip("the libnvrtc of tests was not built")
    env = {**os.environ, "TEGULA_LIBNVRTC": str(library), "TEGULA_TEST_NVRTC": "12.8"}
    out = run(sys.executable, ROOT / "scripts/cubins", "--arch", "sm_90a", "-o", tmp_path, env=env)
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    made, = tmp_path.glob("tegula_cubins-*-py3-none-any.whl")
    python = tmp_path / "venv/bin/python"
    run(python, "-m", "pip", "install", "--quiet", "--no-index", wheel, made)
    site = run_clean(python, "-c", "import tegula_cubins; print(tegula_cubins.__path__[0])", cwd=tmp_path).strip()
    count = len(list(pathlib.Path(site).glob("*.tgl")))
    assert count > 50 and f"{count} kernels" in out
    again = [sys.executable, ROOT / "scripts/cubins", "--from", site, "-o", tmp_path / "again", "--arch"]
    run(*again, "sm_90a")
    assert (tmp_path / "again" / made.name).read_bytes() == made.read_bytes()
    first = min(pathlib.Path(site).glob("*.tgl"))
    kernel = first.read_bytes()
    for missing, arch, change in (("for sm_80: not in the cache", "sm_80,sm_90a", lambda: None),
                                  ("for sm_90a: not in the cache", "sm_90a", first.unlink)):
        change()
        done = subprocess.run([*again, arch], capture_output=True, text=True)
        assert done.returncode == 1 and missing in done.stderr, done.stderr
    first.write_bytes(kernel)
    code = "import os, tegula; print(os.environ['TEGULA_CACHE_READONLY'])"
    assert run_clean(python, "-c", code, cwd=tmp_path).strip() == site
    assert site in run_clean(tmp_path / "venv/bin/tegula", "info", cwd=tmp_path)
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {"TEGULA_CACHE_READONLY": "/mine"}
    assert run(python, "-c", code, cwd=tmp_path, env=env).strip() == "/mine"


@pytest.mark.skipif(not shutil.which("cmake"), reason="no CMake here")
def test_c_program(installed, tmp_path):
    """Finds headers and library in the wheel, by tegula_DIR or with site-packages in CMAKE_PREFIX_PATH."""
    folder = run_clean(installed, "-m", "tegula", "--cmake-dir").strip()
    site = pathlib.Path(folder).parent.parent
    assert (pathlib.Path(run_clean(installed, "-m", "tegula", "--include-dir").strip()) / "tegula/tegula.h").exists()
    for name, where in (("dir", f"-Dtegula_DIR={folder}"), ("prefix", f"-DCMAKE_PREFIX_PATH={site}")):
        run_clean("cmake", "-S", ROOT / "tests/install", "-B", tmp_path / name, where)
        run_clean("cmake", "--build", tmp_path / name, "--target", "use_c")
        assert "C, tegula" in run_clean(tmp_path / name / "use_c")


def test_with_the_packages_of_this_one(wheel, tmp_path):
    """The installed package, not the built folder, transposes a NumPy array."""
    pytest.importorskip("numpy")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    code = """if True:
        import numpy, tegula
        x = numpy.arange(6.0).reshape(2, 3)
        assert (tegula.transpose.transpose(x) == x.T).all()
        print(tegula.__file__)"""
    assert str(tmp_path) in run(sys.executable, "-c", code, env=env, cwd=tmp_path)
