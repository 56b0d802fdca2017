# SPDX-License-Identifier: MIT
"""A pytest plugin by which processes that were given the same files share them (tests/run).

Each comes to a file's first test in its own time; who makes the file's mark in the folder TEGULA_TEST_CLAIMS runs its
tests, and the others pass over them. In the end the mark has the CPU seconds of these tests.
"""
import os, pathlib

folder = pathlib.Path(os.environ["TEGULA_TEST_CLAIMS"])
mine = {}
running = []        # the mark of the file whose tests run, and the CPU seconds before them


def change_to(mark):
    now = sum(os.times()[:4])
    if running:
        running[0].write_text(str(now - running[1]))
    running[:] = mark, now


def pytest_sessionfinish():
    change_to(None)


def pytest_runtest_protocol(item, nextitem):
    if item.path not in mine:
        try:
            mark = folder / item.path.name
            mark.touch(exist_ok=False)
            change_to(mark)
            mine[item.path] = True
        except FileExistsError:
            mine[item.path] = False
    if not mine[item.path]:
        return True                 # done, and nothing is reported
    if nextitem and nextitem.path != item.path:     # perhaps another's: no fixture waits for it
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return True
    return None
