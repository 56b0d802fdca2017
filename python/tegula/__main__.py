# SPDX-License-Identifier: MIT
"""`python -m tegula`, and the command `tegula` of an installed wheel: runs the command-line tool. With --cmake-dir or
--include-dir, prints where the wheel has files for C and C++ programs:

    cmake -Dtegula_DIR=$(python -m tegula --cmake-dir) ...
"""
import os
import pathlib
import sys

from . import __path__ as _FOLDERS      # of an editable install two: that of the sources, and that of what was built

FOLDER = pathlib.Path(__file__).resolve().parent
NAMES = {"--cmake-dir": "cmake", "--include-dir": "include"}


def find(name):
    """A file or folder of the wheel, or None."""
    return next((path for folder in _FOLDERS if (path := pathlib.Path(folder).resolve() / name).exists()), None)


def tool():
    """The program: in a wheel inside the package, in a build folder beside it."""
    for path in (find("bin/tegula"), FOLDER.parent.parent / "bin/tegula"):
        if path and path.exists():
            return str(path)
    raise SystemExit(f"tegula: no command-line tool in {FOLDER / 'bin'}: this package was built without it")


def main():
    if sys.argv[1:] and sys.argv[1] in NAMES:
        name = NAMES[sys.argv[1]]
        if not (folder := find(name)):
            raise SystemExit(f"tegula: no {FOLDER / name}: only an installed wheel has it")
        print(folder)
        return
    os.execv(program := tool(), [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
