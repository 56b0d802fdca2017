# SPDX-License-Identifier: MIT
"""Compiled kernels that another wheel, tegula-cubins, has installed beside this package (scripts/cubins)."""
import os


def use():
    """Lets the library look there first, unless the user has named a folder."""
    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tegula_cubins")
    if "TEGULA_CACHE_READONLY" not in os.environ and os.path.isdir(folder):
        os.environ["TEGULA_CACHE_READONLY"] = folder
