# SPDX-License-Identifier: MIT
"""tegula.testing.pytest_plugin: options, marker and fixtures that tests written for TileKernels use."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

# As TileKernels' tree has it: plugins by name, which do not exist here, and a test of either kind.
CONFTEST = """
from tilelang.utils.target import determine_target
pytest_plugins = ["tests.pytest_random_plugin", "tests.pytest_benchmark_plugin"]
IS_HIP = determine_target(return_object=True).kind.name == "hip"
"""
TESTS = """
import random
import pytest, torch
import tile_kernels
from tile_kernels.testing.bench import make_param_id
from tile_kernels.testing.numeric import count_bytes
from tests.conftest import IS_HIP

PARAMS = [{"num_rows": 64, "dtype": torch.bfloat16}]


@pytest.mark.parametrize("params", PARAMS, ids=make_param_id)
def test_transpose(params):
    x = torch.randn(params["num_rows"], 128)
    print("random", x[0, 0].item(), random.random())
    assert not IS_HIP and torch.equal(tile_kernels.transpose.transpose(x), x.T)


@pytest.mark.parametrize("num_sms", [1, 2])
def test_fixtures(seed, num_sms):
    assert random.random() == random.Random(seed).random() and torch.initial_seed() == seed
    assert tile_kernels.get_num_sms() == tile_kernels.get_device_num_sms()     # what the other has set is gone
    tile_kernels.set_num_sms(num_sms)


@pytest.mark.benchmark
@pytest.mark.parametrize("params", PARAMS, ids=make_param_id)
def test_transpose_benchmark(benchmark_timer, benchmark_record, params):
    x = torch.randn(params["num_rows"], 128)
    t_us = benchmark_timer(lambda: tile_kernels.transpose.transpose(x), rep=5)
    assert t_us > 0
    benchmark_record(kernel="transpose", operation="fwd", params=params, time_us=t_us,
                     bandwidth_gbs=count_bytes(x, x) / t_us / 1e3, extras={"speedup": 2.0})
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "tests").mkdir()
    for name, text in (("__init__.py", ""), ("conftest.py", CONFTEST), ("test_transpose.py", TESTS)):
        (tmp_path / "tests" / name).write_text(text)

    def run(*words, code=0):
        import tegula
        env = {**os.environ, "PYTHONPATH": f"{pathlib.Path(tegula.__file__).parent.parent}", "PYTEST_ADDOPTS": ""}
        command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "-p", "tegula.testing.pytest_plugin"]
        done = subprocess.run([*command, *words, "tests"], cwd=tmp_path, env=env, text=True, capture_output=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    return run


def numbers_in(out):
    return [line for line in out.splitlines() if "random" in line][0].split()[-2:]


def test_flags(run, tmp_path):
    out = run()
    assert "3 passed, 1 skipped" in out and "benchmarks" not in out

    key = {"kernel": "transpose", "operation": "fwd", "params": {"dtype": "torch.bfloat16", "num_rows": 64}}
    (tmp_path / "slow.jsonl").write_text(json.dumps({**key, "time_us": 1e9}) + "\n")
    (tmp_path / "fast.jsonl").write_text(json.dumps({**key, "time_us": 1e-3}) + "\n")
    again = run("--run-benchmark", "--benchmark-output", "records.jsonl", "--benchmark-verbose", "--benchmark-baseline",
                "slow.jsonl")
    assert "4 passed" in again and numbers_in(again) == numbers_in(out) and "slower" not in again
    assert "transpose/fwd[dtype=torch.bfloat16,num_rows=64]: " in again and "'speedup': 2.0" in again
    record, = map(json.loads, (tmp_path / "records.jsonl").read_text().splitlines())
    assert {name: record[name] for name in key} == key and record["time_us"] > 0 and record["bandwidth_gbs"] > 0
    other = run("--seed", "7", "--run-benchmark", "--benchmark-baseline", "fast.jsonl", code=1)
    assert "slower: transpose/fwd" in other and all(a != b for a, b in zip(numbers_in(out), numbers_in(other)))


def test_v2(run, tmp_path):
    """tile_kernels is TileKernels 2 from conftest.py on."""
    (tmp_path / "tests" / "conftest.py").write_text("from tile_kernels.config import get_device\n" + CONFTEST)
    (tmp_path / "tests" / "test_transpose.py").write_text("""
import pytest, torch
from tests.conftest import get_device
from tile_kernels.engram import engram_sinkhorn_momentum_update
from tile_kernels.rand import randn
from tile_kernels.testing.bench import make_param_id
from tile_kernels.testing.generator import generate_num_sms, get_test_level
from tile_kernels.testing.numeric import assert_equal
from tile_kernels.torch.engram import engram_sinkhorn_momentum_update_ref
from tile_kernels.utils import str_to_dtype

PARAMS = [{"dtype": dtype, "num_sms": n} for dtype in ("bf16", "fp32") for n in generate_num_sms(get_test_level())]


@pytest.mark.parametrize("params", PARAMS, ids=make_param_id)
def test_update(params):
    grad, momentum = (randn(512, dtype=str_to_dtype(params["dtype"]), device=get_device()) for _ in range(2))
    copy = momentum.clone()
    assert_equal(engram_sinkhorn_momentum_update(grad, momentum, 0.95),
                 engram_sinkhorn_momentum_update_ref(grad, copy, 0.95))
    assert_equal(momentum, copy)
""")
    run(code=4)         # tile_kernels 1.0 has no get_device
    assert "4 passed" in run("--v2")


def test_fall_back(run, tmp_path):
    (tmp_path / "tile_kernels").mkdir()
    (tmp_path / "tile_kernels" / "__init__.py").write_text("def only_theirs(): return 5\n")
    (tmp_path / "tests" / "test_theirs.py").write_text(
        "import tile_kernels\ndef test(): assert tile_kernels.only_theirs() == 5\n")
    assert "4 passed" in run("--fall-back")
    assert "1 failed, 3 passed" in run(code=1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_cuda_is_the_cpu():
    """tile_kernels_plugin: generators, the text of tensors (in messages of failed tests), TF32 and the bits of exp."""
    code = """if True:
        import tile_kernels_plugin, torch
        x, y = (torch.rand(2, device="cuda", generator=torch.Generator(device="cuda").manual_seed(42)) for _ in range(2))
        assert torch.equal(x, y) and x.device.type == "cpu"
        for _ in range(2): assert repr(torch.ones(2).cuda()) == "tensor([1., 1.])"
        torch.backends.cuda.matmul.allow_tf32 = True
        assert (torch.full((1, 1), 1 + 2**-12) @ torch.ones(1, 1)).item() == 1      # the modes are still on

        x = torch.cat([torch.linspace(-110, 95, 10000), torch.tensor([-torch.inf, torch.inf, torch.nan, 0])])
        torch.testing.assert_close(x.exp(), x.double().exp().float(), equal_nan=True, rtol=1.2e-7, atol=1e-44)
        from tegula import quant
        from tegula.torch import swiglu_backward
        torch.manual_seed(0)
        x = quant.per_token_cast(2 * torch.randn(8192, 1024), "e4m3", 128)
        at = torch.arange(8192, dtype=torch.int32)
        rest = torch.randn(8192, 512).bfloat16(), torch.rand(8192, 1), at, at[:, None], 128
        out, _, grad, _ = quant.swiglu_backward_and_per_token_cast(x, *rest, False)
        want_out, want_grad, _ = swiglu_backward(x, *rest)
        assert torch.equal(out, want_out.bfloat16()) and torch.equal(grad, want_grad.bfloat16())"""
    folder = pathlib.Path(__file__).parent
    path = os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})
