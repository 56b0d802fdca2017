# SPDX-License-Identifier: MIT
"""What editors, help() and type checkers say of a function is what the running one does."""
import ast
import doctest
import importlib
import importlib.util
import inspect
import json
import os
import pathlib
import pkgutil
import re
import shutil
import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch")

import tegula                                               # noqa: E402
from cases import FUNCTIONS                                 # noqa: E402

PACKAGE = pathlib.Path(tegula.__file__).parent
CALLS = pathlib.Path(__file__).parent / "typed_calls.py"
MODULES = "transpose moe quant engram mhc".split()
BUILTINS = {name: f for name, f in FUNCTIONS.items() if inspect.isbuiltin(f)}
HAVE_A_STUB = {name: f for name, f in FUNCTIONS.items() if name not in ("cast_back_e5m6", "per_token_cast_to_e5m6")}


LAYERS = {f"{module.__name__.removeprefix('tegula.')}.{name}": getattr(module, name) for module in
          (tegula.modeling.engram, tegula.modeling.mhc, tegula.modeling.mhc.ops) for name in module.__all__
          if not isinstance(getattr(module, name), (type, types.ModuleType))}
WRITTEN = {name: f for name, f in FUNCTIONS.items() if name not in BUILTINS} | LAYERS


def stubs():
    """{function: its forms in the stub} of all modules: of builtins, and of what is written around them."""
    found = {}
    for module in MODULES:
        files = [PACKAGE / f"_{module}.pyi", *PACKAGE.glob(f"{module}/__init__.pyi")]
        for node in [node for file in files for node in ast.parse(file.read_text()).body]:
            if isinstance(node, ast.FunctionDef):
                found.setdefault((module, node.name), []).append(node)
    return found


STUBS = stubs()


def signature_of(node):
    """Of a function in a stub, without its annotations."""
    words = ast.FunctionDef(node.name, node.args, [ast.Pass()], [], lineno=0)
    for argument in [*words.args.args, *words.args.kwonlyargs]:
        argument.annotation = None
    here = {}
    exec(compile(ast.fix_missing_locations(ast.Module([words], [])), "stub", "exec"), here)
    return inspect.signature(here[node.name])


def test_every_function_has_a_stub():
    assert {name for _, name in STUBS} == HAVE_A_STUB.keys()
    for module, name in STUBS:
        assert getattr(tegula, module).__dict__[name] is FUNCTIONS[name]
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.parametrize("module, name", STUBS, ids=[name for _, name in STUBS])
def test_stub_and_function(module, name):
    function, forms = FUNCTIONS[name], STUBS[module, name]
    assert inspect.cleandoc(ast.get_docstring(forms[0])) == inspect.getdoc(function)
    if name not in BUILTINS:
        for form in forms:
            assert [(p.name, p.kind) for p in signature_of(form).parameters.values()] == \
                [(p.name, p.kind) for p in inspect.signature(function).parameters.values()]
        return
    results = getattr(torch.ops.tegula, name).default._schema.returns
    returns = [f"tuple[{', '.join([kind] * len(results))}]" if len(results) > 1 else kind for kind in ("Tensor", "Any")]
    assert [ast.unparse(form.returns) for form in forms] == (returns if results else ["None"])
    for form in forms:
        assert signature_of(form) == inspect.signature(function)


def numbers_of(name):
    """Arguments that are integers."""
    arguments = getattr(torch.ops.tegula, name).default._schema.arguments
    return [a.name for a in arguments if str(a.type) in ("int", "Optional[int]", "bool")]


@pytest.mark.parametrize("name", BUILTINS)
def test_help(name):
    """Every argument and result with its type and shape; an example; nothing of the table's own grammar."""
    text, function = inspect.getdoc(BUILTINS[name]), BUILTINS[name]
    summary, args, returns, example = re.fullmatch(
        r"(.+?)\n\nArgs:\n(.+?)\n\nReturns:\n(.+?)\n\nExample:\n(.+)", text, re.DOTALL).groups()
    assert re.findall(r"^    (\w+): \S", args, re.MULTILINE) == list(inspect.signature(function).parameters)
    schema = getattr(torch.ops.tegula, name).default._schema
    assert len(re.findall(r"^    \w+: .*\[", returns, re.MULTILINE)) == len(schema.returns)
    assert not re.search(r"->|\]\?|\]!|\w: \{", summary + args + returns), text
    sizes = " ".join(re.findall(r"\[(.*?)\]", re.sub(r"\s+", " ", args + returns)))
    assert not re.search(r"\b(if|else)\b|[<>]", sizes), text
    others = {name for name in inspect.signature(function).parameters if name != "out"} - set(numbers_of(name))
    assert not others & set(re.findall(r"\w+", sizes)), text
    assert not re.search(r"\b[A-Z]\b|\b(f32|i32|i64|u8|bf16\[)\b", args + returns), text
    assert max(map(len, text.splitlines())) <= 100
    call = ast.parse(inspect.cleandoc(example)).body[-1].value
    assert ast.unparse(call.func) == f"tegula.{function.__module__.split('.')[1]}.{name}"
    inspect.signature(function).bind(*call.args, **{k.arg: k.value for k in call.keywords})


QUANTISING = {
    "per_token_cast": lambda fmt, x: tegula.quant.per_token_cast(x, fmt, 32)[0],
    "per_token_cast_with_precomputed_sf": lambda fmt, x: tegula.quant.per_token_cast_with_precomputed_sf(
        x, fmt, 32, torch.ones(8, 3)),
    "per_block_cast": lambda fmt, x: tegula.quant.per_block_cast(x, fmt, (4, 32))[0],
    "per_block_cast_with_precomputed_sf": lambda fmt, x: tegula.quant.per_block_cast_with_precomputed_sf(
        x, fmt, (4, 32), torch.ones(2, 3)),
    "swiglu_forward_and_per_token_cast": lambda fmt, x: tegula.quant.swiglu_forward_and_per_token_cast(
        torch.cat([x, x], 1), fmt, 32)[0]}


def items_in_help(name):
    """{argument or result: what help() says of it, as one line}; results come last."""
    return {name: re.sub(r"\s+", " ", words) for name, words in
            re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", inspect.getdoc(BUILTINS[name]), re.MULTILINE)}


@pytest.mark.parametrize("name", QUANTISING)
def test_help_of_formats(name):
    """dtype and shape of codes for every fmt, as a call has them; so for the pairs that a cast takes."""
    said, x = items_in_help(name), torch.ones(8, 96)
    sizes = {"num_rows": 8, "num_cols": 96}

    def is_as(words, t):
        dtype, shape = re.fullmatch(r"(\w+) \[(.*)\]", words).groups()
        return dtype == str(t.dtype).removeprefix("torch.") and [eval(size, sizes) for size in shape.split(", ")] == [*t.shape]

    formats = re.findall(r"'(\w+)'", said["fmt"])
    first, *others = said["out"].split("; with fmt ")
    forms = {formats[0]: first} | {other.partition("' ")[0][1:]: other.partition("' ")[2] for other in others}
    assert list(forms) == formats
    for fmt, words in forms.items():
        assert is_as(words, QUANTISING[name](fmt, x)), (fmt, words)
    for fmt, words in zip(("e4m3", "e2m1", "e5m6"), re.findall(r"(?:float8|u?int8)\w* \[.*?\]", said["x"])):
        assert is_as(words, tegula.quant.per_token_cast(x, fmt, 32)[0]), (fmt, words)


def test_help_of_pairs():
    """What is given to go back: each format has the shape of its bytes."""
    for name, count in (("cast_back", 3), ("per_token_cast_back", 3), ("per_token_cast", 2)):
        forms = re.findall(r"(float8_e4m3fn|u?int8) \[num_rows, (.*?)\]", items_in_help(name)["x"])
        assert forms == [("float8_e4m3fn", "num_cols"), ("int8", "num_cols / 2"), ("uint8", "num_cols * 3 / 2")][:count]


@pytest.mark.parametrize("name", WRITTEN)
def test_help_of_what_is_written_in_python(name):
    """The same; its example has a prompt, and test_examples.py runs it."""
    text, function = inspect.getdoc(WRITTEN[name]), inspect.unwrap(WRITTEN[name])
    assert len(re.findall(r"^(?:Args|Returns|Example):$", text, re.MULTILINE)) == 3, text
    summary, args, returns, example = re.fullmatch(
        r"(.+?)\n\nArgs:\n(.+?)\n\nReturns:\n(.+?)\n\nExample:\n(.+)", text, re.DOTALL).groups()
    assert re.findall(r"^    (\w+): \S", args, re.MULTILINE) == list(inspect.signature(function).parameters)
    results = re.findall(r"^    (\w+): \S", returns, re.MULTILINE)
    assert (results or returns == "    None") and not re.search(r"->|\]\?|\]!|\w: \{|\bwant_", args + returns), text
    assert not re.search(r"\b[A-Z]\b|\btensor \[|\b(f32|i32|i64|u8|bf16\[)\b", args + returns), text
    assert max(map(len, [*args.splitlines(), *returns.splitlines()])) <= 100
    calls = [node for e in doctest.DocTestParser().get_examples(example) for node in ast.walk(ast.parse(e.source))
             if isinstance(node, ast.Call) and getattr(node.func, "id", None) == function.__name__]
    assert calls
    for call in calls:
        if not any(isinstance(a, ast.Starred) for a in call.args):
            inspect.signature(function).bind(*call.args, **{k.arg: k.value for k in call.keywords})


def test_help_of_references():
    """Each has a sentence; functions of tegula that it names are there."""
    modules = [tegula.torch, *(importlib.import_module(f"tegula.torch.{m.name}") for m in pkgutil.iter_modules(tegula.torch.__path__))]
    functions = {f for module in modules if inspect.ismodule(module) for name, f in vars(module).items()
                 if inspect.isfunction(f) and name[0] != "_" and f.__module__.startswith("tegula.torch")}
    assert len(functions) > 40
    assert not [f.__qualname__ for f in functions if not inspect.getdoc(f)]
    for f in functions:
        for path in re.findall(r"\btegula(?:\.\w+)+", inspect.getdoc(f)):
            package, _, name = path.rpartition(".")
            assert callable(getattr(importlib.import_module(package), name)), (f.__qualname__, path)


@pytest.mark.parametrize("name", tegula.v2.mhc.__all__)
def test_help_of_forms_of_tilekernels_2(name):
    """As of layers, but for an example; what a call writes is marked."""
    function = inspect.unwrap(getattr(tegula.v2.mhc, name))
    _, args, returns = re.fullmatch(
        r"(.+?)\n\nArgs:\n(.+?)\n\nReturns:\n(.+?)(?:\n\nExample:\n.+)?", inspect.getdoc(function), re.DOTALL).groups()
    assert re.findall(r"^    (\w+): \S", args, re.MULTILINE) == list(inspect.signature(function).parameters)
    assert not re.search(r"\b[A-Z]\b|\btensor \[|\b(f32|i32|i64|u8|bf16\[)\b", args + returns)
    assert max(map(len, [*args.splitlines(), *returns.splitlines()])) <= 100
    written = re.findall("(?:is|are) (?:written|added to)|a tensor to write to", args)
    assert written if returns == "    None" else re.findall(r"^    \w+: \S", returns, re.MULTILINE)


@pytest.mark.parametrize("name", ["EngramGateFn", "EngramGateKvFn", "EngramLookupFn", "ShortConvFn"])
def test_help_of_autograd_functions(name):
    """It names the function that calls it, whose help has the arguments, in order."""
    function = getattr(tegula.modeling.engram, name)
    text = re.sub(r"\s+", " ", inspect.getdoc(function))
    caller = getattr(tegula.modeling.engram, re.search(r"(\w+)\(\) calls it, and has its arguments\.$", text)[1])
    names = [word.partition("=")[0] for word in re.match(r"apply\((.*?)\)", text)[1].split(", ")]
    assert names == list(inspect.signature(function.forward).parameters)[1:]
    assert set(names) == set(inspect.signature(caller).parameters)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_dir(name):
    """As completion in a notebook sees it."""
    assert name in dir(sys.modules[FUNCTIONS[name].__module__])


def test_modules():
    """Settings have help, and modules show what is theirs."""
    config = tegula.config
    assert [name for name in config.__all__ if not inspect.getdoc(getattr(config, name))] == []
    for module in [tegula.modeling.engram, *(getattr(tegula, name) for name in MODULES)]:
        shown = {name for name in dir(module) if name[0] != "_" and not inspect.ismodule(getattr(module, name))}
        assert shown <= set(module.__all__), module.__name__


# ---- type checkers ----

def wrong_lines():
    return {i for i, line in enumerate(CALLS.read_text().splitlines(), 1) if "# wrong: " in line}


def checker(name):
    return pytest.param(name, marks=[pytest.mark.slow, pytest.mark.skipif(
        importlib.util.find_spec(name) is None, reason=f"no {name} here")])


def run_checker(name, tmp_path):
    """{a line that it finds wrong}, and all that it says."""
    calls = shutil.copy(CALLS, tmp_path)
    if name == "pyright":
        (tmp_path / "pyrightconfig.json").write_text(json.dumps(
            {"include": [CALLS.name], "extraPaths": [str(PACKAGE.parent)]}))
        done = subprocess.run([sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p",
                               tmp_path], capture_output=True, text=True)
        assert done.stdout, done.stderr
        return {d["range"]["start"]["line"] + 1 for d in json.loads(done.stdout)["generalDiagnostics"]
                if d["severity"] == "error"}, done.stdout
    # as an installed package: its own code is of no interest
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\n[mypy-tegula.*]\nfollow_imports = silent\n")
    # tests/run keeps a folder between runs: reading torch's types takes most of the time
    kept = pathlib.Path(os.environ.get("TEGULA_CACHE_DIR") or tmp_path) / "mypy"
    done = subprocess.run([sys.executable, "-m", name, "--config-file", tmp_path / "mypy.ini", "--cache-dir", kept, calls],
                          capture_output=True, text=True, env={"MYPYPATH": str(PACKAGE.parent), "PATH": "/usr/bin:/bin"})
    lines = re.findall(r"^(\S+\.pyi?):(\d+): error", done.stdout, re.MULTILINE)
    assert {pathlib.Path(path).name for path, _ in lines} == {CALLS.name}, done.stdout + done.stderr
    return {int(line) for _, line in lines}, done.stdout


@pytest.mark.parametrize("name", [checker("mypy"), checker("pyright")])
def test_type_checker(name, tmp_path):
    """Accepts all right calls and refuses each wrong one."""
    found, said = run_checker(name, tmp_path)
    assert found == wrong_lines(), said


def test_a_type_checker_that_does_not_start(tmp_path):
    """What it said on stderr is in the message."""
    with pytest.raises(AssertionError, match="No module named not_mypy"):
        run_checker("not_mypy", tmp_path)
