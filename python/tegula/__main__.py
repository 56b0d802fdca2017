# SPDX-License-Identifier: MIT
"""`python -m tegula`, and the command `tegula` of an installed wheel: runs the command-line tool. With --cmake-dir or
--include-dir, prints where the wheel has files for C and C++ programs:

    cmake -Dtegula_DIR=$(python -m tegula --cmake-dir) ...
"""
import os
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
FOLDERS = {"--cmake-dir": FOLDER / "cmake", "--include-dir": FOLDER / "include"}


def tool():
    """The program: in a wheel inside the package, in a build folder beside it."""
    for path in (FOLDER / "bin/tegula", FOLDER.parent.parent / "bin/tegula"):
        if path.exists():
            return str(path)
    raise SystemExit(f"tegula: no command-line tool in {FOLDER / 'bin'}: this package was built without it")


def main():
    if sys.argv[1:] and sys.argv[1] in FOLDERS:
        folder = FOLDERS[sys.argv[1]]
        if not folder.exists():
            raise SystemExit(f"tegula: no {folder}: only an installed wheel has it")
        print(folder)
        return
    os.execv(program := tool(), [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
