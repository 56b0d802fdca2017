# SPDX-License-Identifier: MIT
"""A pytest plugin by which processes that were given the same files share them (tests/run).

Each comes to a file's first test in its own time; who makes the file's mark in the folder TEGULA_TEST_CLAIMS runs its
tests, and the others pass over them.
"""
import os, pathlib

folder = pathlib.Path(os.environ["TEGULA_TEST_CLAIMS"])
mine = {}


def pytest_runtest_protocol(item, nextitem):
    if item.path not in mine:
        try:
            (folder / item.path.name).touch(exist_ok=False)
            mine[item.path] = True
        except FileExistsError:
            mine[item.path] = False
    if not mine[item.path]:
        return True                 # done, and nothing is reported
    if nextitem and nextitem.path != item.path:     # perhaps another's: no fixture waits for it
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return True
    return None
