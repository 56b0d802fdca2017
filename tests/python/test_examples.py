# SPDX-License-Identifier: MIT
"""The examples in the help of functions written in Python, and of all of mHC's and Engram's, run and give what they say."""
import doctest
import importlib
import inspect

import pytest
import torch

import tegula
from tegula import engram, mhc, modeling, moe, quant
from tegula.modeling.mhc import ops
from tegula.quant.cast_back_e5m6_kernel import cast_back_e5m6
from tegula.quant.per_token_cast_to_e5m6_kernel import per_token_cast_to_e5m6

NEED_A_GPU = {"engram_lookup_staged"}
MODULES = engram, mhc, moe, quant, modeling.engram, modeling.mhc, ops
WRITTEN = {f"{module.__name__}.{name}": f for module in MODULES for name in module.__all__
           if inspect.isfunction(f := getattr(module, name)) and (
               name not in NEED_A_GPU or torch.cuda.is_available())}
WRITTEN |= {f.__name__: f for f in (cast_back_e5m6, per_token_cast_to_e5m6)}
MADE = {f"{module.__name__}.{name}": f for module in (engram, mhc) for name in module.__all__
        if inspect.isbuiltin(f := getattr(module, name))}


@pytest.mark.parametrize("name", WRITTEN)
def test_written(name):
    function = WRITTEN[name]
    module = importlib.import_module(function.__module__)
    names = {**vars(module), "tegula": tegula, "torch": torch}
    test, = doctest.DocTestFinder().find(inspect.unwrap(function), function.__name__, module=module, globs=names)
    assert test.examples, f"{name} has no example"
    report = []
    doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert not report, "".join(report)


@pytest.mark.parametrize("name", MADE)
def test_made(name):
    """Of builtins: made by python/src/row_help.py, from row_examples.py."""
    _, _, example = inspect.getdoc(MADE[name]).partition("\nExample:\n")
    names = {"torch": torch, "tegula": tegula}
    exec(inspect.cleandoc(example), names)
    assert example.count(f"{name}(") == 1
