# SPDX-License-Identifier: MIT
"""`import tegula.as_tile_kernels` makes this package importable as tile_kernels, so that code written for
TileKernels runs unchanged:

    import tegula.as_tile_kernels
    from tile_kernels.transpose import transpose
"""
import importlib
import importlib.machinery
import sys

import tegula

_NAME = "tile_kernels"


class _Alias:
    """Finds and loads tile_kernels.x as tegula.x: the same module under a second name, never a second copy."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name.startswith(_NAME + ".") else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        real = "tegula" + module.__name__[len(_NAME):]
        sys.modules[module.__name__] = importlib.import_module(real)
        for name in [name for name in sys.modules if name.startswith(real + ".")]:
            # here already: importing it again would put it in place of what the package has of that name
            sys.modules[_NAME + name[len("tegula"):]] = sys.modules[name]


if sys.modules.get(_NAME, tegula) is not tegula:
    raise ImportError("tile_kernels is already imported: import tegula.as_tile_kernels before it")
sys.modules[_NAME] = tegula
if not any(type(finder) is _Alias for finder in sys.meta_path):
    sys.meta_path.insert(0, _Alias())
