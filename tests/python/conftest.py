# SPDX-License-Identifier: MIT
"""Run with the built package on the path: PYTHONPATH=build/python pytest tests/python."""
import hashlib
import inspect
import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
try:
    import torch
except ImportError:
    torch = None

HAS_CUDA = torch is not None and torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="no GPU here")
# The whole matrices of TileKernels' tests (tests/run --slow sets it), with all sizes of rows but few of them: the slow
# lists of the C tests have the rest. Of casts as many rows as there on a GPU.
IS_FULL = os.environ.get("TK_FULL_TEST") in ("1", "true", "True")


class NeedsTorch(pytest.Module):
    """A file that imports torch, where there is none."""
    def collect(self):
        pytest.skip("no torch here", allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    if torch is None and "\nimport torch\n" in module_path.read_text():
        return NeedsTorch.from_parent(parent, path=module_path)


@pytest.fixture(params=["cpu", "cuda"] if HAS_CUDA else ["cpu"])
def device(request):
    """Where a test runs: on both where there is a GPU. Where there is none, test_cuda.py's skipped tests
    say so once."""
    return request.param


# What is made for tracing (schemas, fake tensors, twins) does not look at the device: one is enough to test it,
# and with a GPU that is the one which runs without a GPU do not see.
on_one_device = pytest.mark.parametrize("device", ["cuda" if HAS_CUDA else "cpu"])


@pytest.fixture(autouse=True)
def seed(request):
    """A test's random numbers depend on its name alone."""
    if torch is not None:
        torch.manual_seed(int.from_bytes(hashlib.sha256(request.node.nodeid.encode()).digest()[:4], "little"))


@pytest.fixture(autouse=True)
def forget_compiled():
    """Dynamo counts the recompilations of all tests that compile a builtin together, and stops at eight."""
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def pytest_report_header(config):
    import tegula
    what = "no torch: most tests are left out"
    if torch is not None:
        what = f"torch {torch.__version__}, {'CUDA' if HAS_CUDA else 'no CUDA'}"
    return f"tegula {tegula.__version__} of {pathlib.Path(tegula.__file__).parent}, {what}"


def names_and_defaults(function):
    """A signature without its types, of which none is missing."""
    signature = inspect.signature(function)
    types = [signature.return_annotation, *(p.annotation for p in signature.parameters.values())]
    assert inspect.Signature.empty not in types, function
    return str(signature.replace(return_annotation=inspect.Signature.empty, parameters=[
        p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]))
