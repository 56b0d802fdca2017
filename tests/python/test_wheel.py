# SPDX-License-Identifier: MIT
"""The wheel: built from a copy of the source, installed into an empty environment, used there."""
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
pytestmark = pytest.mark.slow
PARTS = ["CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "cmake", "include", "python", "src", "tools"]

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
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolation, "-C", f"build-dir={folder / 'build'}",
        "-w", folder / "dist", folder / "source", env=env)
    made, = (folder / "dist").glob("*.whl")
    return made


def test_tags_and_contents(wheel):
    version = __import__("tegula").__version__
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name == f"tegula-{version}-cp310-abi3-{platform}.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"tegula/__init__.py", "tegula/_tegula.abi3.so", "tegula/libtegula.so.0", "tegula/testing/numeric.py",
            "tegula/torch/transpose.py", "tegula/as_tile_kernels.py"} <= names
    assert all(n.startswith(("tegula/", f"tegula-{version}.dist-info/")) for n in names), names
    metadata = zipfile.ZipFile(wheel).read(f"tegula-{version}.dist-info/METADATA").decode()
    for line in ("Requires-Python: >=3.10", "Provides-Extra: cuda13", "Provides-Extra: cuda12", "License-Expression: MIT"):
        assert line in metadata
    assert "Requires-Dist: torch" not in metadata.replace("Requires-Dist: torch>=2.10; extra", "")


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
