# SPDX-License-Identifier: MIT
"""Ops under jax.jit: every operator as torch runs it, on the calls of cases.py; errors; the ABI that xla.c declares."""
import ast
import functools
import inspect
import os
import pathlib
import re
import subprocess

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

jax = pytest.importorskip("jax")
numpy = pytest.importorskip("numpy")
import tegula.jax                                               # noqa: E402
from cases import IDS, Call, copies, tensors_in                  # noqa: E402
from tegula import _tegula, moe, quant                          # noqa: E402
from tegula._rows import rows                                   # noqa: E402

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() and jax.default_backend() == "gpu" else ["cpu"]
KNOWN = {row.name: row for row in rows()}
BITS = {torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.uint8}


@pytest.fixture(autouse=True)
def int64():
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        yield


def to_jax(t):
    """The same bits on the same device; through NumPy, which has no dtype of eight bits but by ml_dtypes."""
    array = t.detach().cpu().contiguous().view(BITS.get(t.dtype, t.dtype)).numpy()
    name = str(t.dtype).removeprefix("torch.")
    device = jax.devices("gpu")[t.device.index or 0] if t.is_cuda else jax.devices("cpu")[0]
    return jax.device_put(array.view(jax.numpy.dtype(name)), device)


def bits_of(x):
    """As NumPy compares them: NaN equals itself, -0.0 is not 0.0."""
    if isinstance(x, torch.Tensor):
        return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return numpy.ascontiguousarray(numpy.asarray(x)).reshape(-1).view("uint8")


class Recorder(TorchDispatchMode):
    """The calls of our operators: (name, arguments by name before the call, outputs and what was written)."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if op.namespace != "tegula" or op._overloadname != "default":
            return op(*args, **kwargs)
        row = KNOWN[op._opname]
        values = row.bind(args, kwargs)
        before = copies(values)
        made = op(*args, **kwargs)
        written = [values[p.name] for p in row.params if p.is_in_place and values[p.name] is not None]
        self.calls.append((row, before, copies([*tensors_in(made), *written])))
        return made


def public_arguments(row, values):
    if row.face is None:
        return values
    return {name: values[params[0]] if len(params) == 1 else
            None if values[params[0]] is None else tuple(values[p] for p in params) for name, params in row.face}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", IDS)
def test_as_torch(case, device):
    if device == "cuda" and case.endswith("-engram_lookup_staged"):
        pytest.skip("it writes page-locked memory of the host: JAX passes none (test_xla.py has the error)")
    with Recorder() as recorder:
        Call(case, device)()
    assert recorder.calls
    for row, values, want in recorder.calls:
        if any(p.is_on_host and p.is_in_place and values[p.name] is not None for p in row.params):
            continue                # memory of the host that the GPU writes: JAX has none
        arrays = {p.name: to_jax(values[p.name]) for p in row.params
                  if p.kind == "Tensor" and values[p.name] is not None}
        function = getattr(tegula.jax, row.name)
        seen = jax.jit(lambda arrays: function(**public_arguments(row, {**values, **arrays})))(arrays)
        seen = jax.tree.leaves(seen)
        assert [x.shape for x in seen] == [tuple(t.shape) for t in want]
        assert [str(x.dtype) for x in seen] == [str(t.dtype).removeprefix("torch.") for t in want]
        for x, t in zip(seen, want):
            assert (bits_of(x) == bits_of(t)).all(), row.name
        for name, array in arrays.items():
            assert (bits_of(array) == bits_of(values[name])).all(), f"{row.name} wrote to {name}"


def test_without_int64():
    """Indices are int32 then, as everywhere in JAX."""
    x = numpy.random.default_rng(0).standard_normal((9, 40), dtype=numpy.float32)
    with jax.enable_x64(False) if hasattr(jax, "enable_x64") else jax.experimental.disable_x64():
        seen = jax.jit(lambda x: tegula.jax.topk_gate(x, 3))(x)
        assert seen.dtype == "int32" and (numpy.asarray(seen) == moe.topk_gate(x, 3)).all()


@pytest.mark.parametrize("case", IDS)
def test_as_torch_without_int64(case):
    """JAX's default: indices are int32, and three arguments that have to be int64 are refused."""
    with Recorder() as recorder:
        Call(case, "cpu")()
    with jax.enable_x64(False) if hasattr(jax, "enable_x64") else jax.experimental.disable_x64():
        for row, values, want in recorder.calls:
            arrays = {p.name: to_jax(values[p.name]) for p in row.params
                      if p.kind == "Tensor" and values[p.name] is not None}
            call = functools.partial(getattr(tegula.jax, row.name), **public_arguments(row, {**values, **arrays}))
            if row.name in ("engram_hash", "engram_rows") or values.get("clamped_count") is not None:
                with pytest.raises(jax.errors.JaxRuntimeError, match="(multipliers|clamped_count): dtype is i32, want i64"):
                    jax.block_until_ready(call())
                continue
            for x, t in zip(jax.tree.leaves(call()), want, strict=True):
                assert (bits_of(x) == bits_of(t.int() if t.dtype == torch.int64 else t)).all(), row.name


def test_int64_that_does_not_fit():
    """JAX would look up row 5 of 2**32 + 5."""
    table = numpy.zeros((10, 16), "float32")
    with jax.enable_x64(False) if hasattr(jax, "enable_x64") else jax.experimental.disable_x64():
        for value, kind in ((2**32 + 5, "int64"), (-2**31 - 1, "int64"), (2**32, "uint64")):
            for indices in (numpy.array([[value]], kind), torch.from_numpy(numpy.array([[value]], kind))):
                message = f"^indices: has values that {kind.replace('64', '32')} does not hold, and JAX has {kind} only with"
                with pytest.raises(ValueError, match=message):
                    tegula.jax.engram_lookup(indices=indices, table=table, fmt="f32")
        largest = numpy.array([[2**31 - 1, -2**31]])
        assert not tegula.jax.engram_lookup(indices=largest, table=table + 1, fmt="f32").any()
    assert not tegula.jax.engram_lookup(indices=numpy.array([[2**32 + 5]]), table=table + 1, fmt="f32").any()


def test_between_other_operations():
    x = numpy.random.default_rng(0).standard_normal((6, 256), dtype=numpy.float32)

    @jax.jit
    def f(x):
        pair = tegula.jax.per_token_cast(x * 2, "e2m1", 32, use_tma_aligned_col_major_sf=True, round_sf=True,
                                         use_packed_ue8m0=True)
        return tegula.jax.cast_back(pair, "fp32", (1, 32)) + 1

    data, sf = quant.per_token_cast(torch.from_numpy(x * 2), "e2m1", 32, use_tma_aligned_col_major_sf=True, round_sf=True,
                                    use_packed_ue8m0=True)
    assert (numpy.asarray(f(x)) == quant.cast_back((data, sf), "fp32", (1, 32)).numpy() + 1).all()
    assert (jax.vmap(tegula.jax.transpose)(x.reshape(2, 3, 256)) == x.reshape(2, 3, 256).transpose(0, 2, 1)).all()
    halves = tegula.jax.per_token_cast(x.reshape(2, 3, 256).astype("float16"), "e4m3", 128)
    assert halves[0].shape == (2, 3, 256) and halves[1].shape == (2, 3, 2)


@pytest.mark.parametrize("call, error, message", [
    (lambda t, x: t.topk_gate(x), TypeError, r"^topk_gate\(\): num_topk is missing"),
    (lambda t, x: t.topk_gate(x, 2, 3), TypeError, r"^topk_gate\(\) takes 2 positional arguments, got 3"),
    (lambda t, x: t.topk_gate(x, 2, scores=x), TypeError, r"^topk_gate\(\): scores is given twice"),
    (lambda t, x: t.topk_gate(x, k=2), TypeError, r"^topk_gate\(\) has no argument 'k'"),
    (lambda t, x: t.topk_gate(x[0], 2), ValueError, "^scores: has 1 dimensions, want 2"),
    (lambda t, x: t.per_token_cast(x, "e9m9", 128), ValueError, "^fmt: is 'e9m9', want one of 'e4m3', 'e2m1', 'e5m6'"),
    (lambda t, x: t.topk_gate(x.astype("float16"), 2), jax.errors.JaxRuntimeError,
     "INVALID_ARGUMENT: tegula: topk_gate: scores: dtype is f16, want f32"),
    (lambda t, x: t.engram_lookup(x, x), TypeError,
     r"^engram_lookup\(\) takes arguments by name: indices, table, table_sf"),
    (lambda t, x: t.no_such_op(x), AttributeError, "has no attribute 'no_such_op'"),
], ids=range(9))
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        jax.block_until_ready(jax.jit(lambda x: call(tegula.jax, x))(numpy.zeros((3, 8), "float32")))


@pytest.mark.parametrize("call, argument, name", [
    (lambda x: moe.topk_gate(x, 2), "scores", "topk_gate"),
    (lambda x: quant.cast_back((numpy.zeros((3, 8), "int8"), x), "fp32", (1, 8)), "x_sf", "cast_back"),
    (lambda x: moe.reduce_fused((x, None), None, x), "x", "reduce_fused")], ids=["topk_gate", "pair", "wrapped"])
@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())], ids=["jit", "vmap", "grad"])
def test_tracers(transform, call, argument, name):
    """A call of tegula's own function says which one is for traced code."""
    assert callable(getattr(tegula.jax, name))
    sentence = rf"^{argument}: is a <class '.*Tracer'>, want a tensor; under jax.jit call tegula.jax.{name}(\n|$)"
    with pytest.raises(TypeError, match=sentence):
        transform(call)(jax.numpy.zeros((2, 3, 8), "float32"))


@pytest.mark.parametrize("name", KNOWN)
def test_help(name):
    """Its arguments as the call takes them, without out=; what comes back; a call of tegula.jax."""
    function, row = getattr(tegula.jax, name), KNOWN[name]
    signature, text = inspect.signature(function), inspect.getdoc(function)
    assert len(re.findall(r"^(?:Args|Returns|Example):$", text, re.MULTILINE)) == 3, text
    summary, args, returns, example = re.fullmatch(
        r"(.+?)\n\nArgs:\n(.+?)\n\nReturns:\n(.+?)\n\nExample:\n(.+)", text, re.DOTALL).groups()
    parameters = signature.parameters
    assert re.findall(r"^    (\w+): \S", args, re.MULTILINE) == list(parameters)
    assert list(parameters) == [n for n, _ in row.face or ()] or list(parameters) == [p.name for p in row.params]
    assert "out" not in parameters and not re.search("tensors? to write to|is written", text)
    assert all(p.kind == p.KEYWORD_ONLY for p in parameters.values()) == (row.is_wrapped and row.face is None)
    written = [p.name for p in row.params if p.is_in_place]
    results = [alternatives[0].name for alternatives in row.results]
    assert re.findall(r"^    (\w+): \S", returns, re.MULTILINE) == results + written
    assert returns.count("int64") == returns.count("int64 (int32 without x64)")
    call = ast.parse(inspect.cleandoc(example)).body[-1].value
    assert ast.unparse(call.func) == f"tegula.jax.{name}"
    signature.bind(*call.args, **{k.arg: k.value for k in call.keywords})
    stub = ast.parse((pathlib.Path(tegula.jax.__file__).with_suffix(".pyi")).read_text())
    form, = (node for node in stub.body if getattr(node, "name", None) == name)
    positional, by_name = form.args.args, form.args.kwonlyargs
    assert [a.arg for a in [*positional, *by_name]] == list(parameters)
    assert [a.arg for a in by_name] == [p.name for p in parameters.values() if p.kind == p.KEYWORD_ONLY]
    defaults = [None] * (len(positional) - len(form.args.defaults)) + form.args.defaults + form.args.kw_defaults
    assert [inspect.Parameter.empty if d is None else ast.literal_eval(d) for d in defaults] == \
        [p.default for p in parameters.values()]


def test_a_call_traced_by_another_version():
    x = numpy.zeros((3, 8), "float32")
    for numbers in ([3], [3, 0, -1, -1], [0, 0, -1], [-1, 0, 9]):
        call = jax.ffi.ffi_call("tegula_op", jax.ShapeDtypeStruct((8, 3), "float32"))
        with pytest.raises(jax.errors.JaxRuntimeError, match="INVALID_ARGUMENT: tegula: "):
            jax.block_until_ready(call(x, op="transpose", numbers=numpy.array(numbers, "int64")))
    with pytest.raises(jax.errors.JaxRuntimeError, match="traced by another version"):
        jax.block_until_ready(call(x, op="transposed", numbers=numpy.array([1, 0, -1], "int64")))


FIELDS = """Extension_Base type next; Api_Version major_version minor_version; Buffer dtype data rank dims; ByteSpan ptr len;
Array dtype size data; Args size types args; Rets size types rets; Attrs size types names attrs; Error_Create_Args message errc;
Error_Destroy_Args error; Stream_Get_Args ctx stream; DeviceOrdinal_Get_Args ctx device_ordinal;
Api api_version XLA_FFI_Error_Create XLA_FFI_Error_Destroy XLA_FFI_Stream_Get XLA_FFI_DeviceOrdinal_Get;
CallFrame api ctx stage args rets attrs; Metadata api_version traits; Metadata_Extension metadata"""


DTYPES = {                  # XLA's name: DLPack's code, bits
    "PRED": (6, 8), "S8": (0, 8), "S16": (0, 16), "S32": (0, 32), "S64": (0, 64), "U8": (1, 8), "U16": (1, 16),
    "U32": (1, 32), "U64": (1, 64), "F16": (2, 16), "F32": (2, 32), "F64": (2, 64), "BF16": (4, 16), "C64": (5, 64),
    "C128": (5, 128), "F8E5M2": (12, 8), "F8E4M3FN": (10, 8), "F8E5M2FNUZ": (13, 8), "F8E4M3FNUZ": (11, 8),
    "F8E8M0FNU": (14, 8)}


def test_dtypes_are_those_of_the_header():
    header = pathlib.Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h").read_text()
    numbers = {name: int(number) for name, number in re.findall(r"XLA_FFI_DataType_(\w+) = (\d+)", header)}
    ours = [(number, key >> 24, key >> 16 & 0xff) for _, key, *_, number in _tegula.dtypes() if number]
    assert sorted(ours) == sorted((numbers[name], *dtype) for name, dtype in DTYPES.items())


def test_structs_are_those_of_the_header(tmp_path):
    header = os.path.join(jax.ffi.include_dir(), "xla/ffi/api/c_api.h")
    pairs = [(name, field) for name, *fields in map(str.split, FIELDS.split(";")) for field in fields]
    offsets = ", ".join(f"(int)offsetof(XLA_FFI_{name}, {field})" for name, field in pairs)
    (tmp_path / "a.c").write_text(f'''#include <stdio.h>
#include "{header}"
int main(void)
{{
    int at[] = {{ {offsets} }};
    for (unsigned i = 0; i < sizeof at / sizeof at[0]; i++) printf("%d ", at[i]);
    return XLA_FFI_API_MAJOR || XLA_FFI_Extension_Metadata != 1 || XLA_FFI_ExecutionStage_EXECUTE != 3 ||
           XLA_FFI_AttrType_ARRAY != 1 || XLA_FFI_AttrType_STRING != 4 || XLA_FFI_ArgType_BUFFER != 1 ||
           XLA_FFI_DataType_S64 != 5 || XLA_FFI_Error_Code_INVALID_ARGUMENT != 3 ||
           XLA_FFI_Error_Code_RESOURCE_EXHAUSTED != 8 || XLA_FFI_Error_Code_INTERNAL != 13;
}}
''')
    try:
        subprocess.run(["cc", "-o", tmp_path / "a", tmp_path / "a.c"], check=True)
    except FileNotFoundError:
        pytest.skip("no C compiler here")
    made = subprocess.run([tmp_path / "a"], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert dict(zip(pairs, _tegula.xla_layout())) == dict(zip(pairs, map(int, made.split())))
