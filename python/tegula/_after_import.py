# SPDX-License-Identifier: MIT
"""Runs an action after another module is imported, by anyone. Importing torch takes a second and torch._dynamo
another: only their users should pay, but the ops must be registered with both."""

import sys


class _Finder:
    """Is first in sys.meta_path until the module is executed. importlib.util.find_spec() alone does not count."""

    def __init__(self, name, action):
        self.name, self.action = name, action

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1:]:
            if (spec := finder.find_spec(name, path, target)) is not None:
                break
        else:
            return None
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self.action()

        spec.loader.exec_module = exec_module
        return spec


def run(name, action):
    """Calls action() now if the module `name` is imported, otherwise right after its first import."""
    if sys.modules.get(name) is not None:       # None there blocks an import
        action()
    else:
        sys.meta_path.insert(0, _Finder(name, action))
