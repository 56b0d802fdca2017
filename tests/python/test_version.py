# SPDX-License-Identifier: MIT
"""One version everywhere: header, package, change log, tag; and of clang-format, whose versions break lines differently."""
import pathlib
import re
import subprocess

import pytest
import tegula

ROOT = pathlib.Path(__file__).parent.parent.parent


def test_versions_agree():
    header = (ROOT / "include/tegula/core.h").read_text()
    version = ".".join(re.search(rf"#define TGL_VERSION_{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH"))
    assert tegula.__version__ == version
    newest = re.search(r"^## (\S+?),? (unreleased|\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest and newest[1] == version


def test_tag():
    """A commit that is tagged is that release, and its change log says when."""
    git = subprocess.run(["git", "-C", ROOT, "tag", "--points-at", "HEAD"], text=True, capture_output=True)
    tags = [tag for tag in git.stdout.split() if re.fullmatch(r"v[\d.]+", tag)]
    if not tags:
        pytest.skip("this commit has no version's tag")
    assert tags == [f"v{tegula.__version__}"]
    assert not re.search(rf"^## {re.escape(tegula.__version__)}, unreleased$", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_clang_format():
    """The hook brings its own: with a language of the system it would be skipped where there is none, and pass. pyproject.toml
    has it for contributors."""
    version = re.search(r"(?m)^clang-format==(\S+)$", (ROOT / "scripts/requirements.txt").read_text())[1]
    hook, = re.findall(r"(?ms)^      - id: clang-format$.*?(?=^      - id:|\Z)", (ROOT / ".pre-commit-config.yaml").read_text())
    assert re.search(r"(?m)^        language: python$", hook), hook
    assert re.search(r"additional_dependencies: \[clang-format==(.+)\]", hook)[1] == version
    dev = re.search(r"(?ms)^dev = \[(.*?)\]$", (ROOT / "pyproject.toml").read_text())[1]
    assert f'"clang-format=={version}"' in dev and '"pre-commit"' in dev
