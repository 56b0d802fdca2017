# SPDX-License-Identifier: MIT
"""What the benches of this folder say about a measurement: which code, on which processor."""

import pathlib
import platform
import re
import subprocess


def said_by(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def commit():
    """Of this source tree, as `tegula bench` writes it; "" outside a repository."""
    folder = str(pathlib.Path(__file__).parent)
    return said_by("git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")


def cpu():
    name = re.search(r"^Model name: *(\S.*)$", said_by("lscpu"), re.M)
    return name[1] if name else platform.processor() or platform.machine()
