# SPDX-License-Identifier: MIT
"""Runs TileKernels' tests and benchmarks, as they are, on this package:

    pytest -p tegula.testing.pytest_plugin tests/moe --run-benchmark --benchmark-output records.jsonl

tile_kernels is tegula. The options, the marker `benchmark` and the fixtures are those of TileKernels' own plugins, which this
one replaces: theirs time with TileLang. TK_FULL_TEST=1 asks the generators of parameters (tegula.testing.generator) for
all of them. Ours are --benchmark-baseline, where records that are slower than the file's fail the run, --v2 and --fall-back
(tegula.as_tile_kernels) and the fixture `seed`."""
import hashlib
import importlib.util
import json
import pathlib
import random
import statistics
import sys
import time
import types

import pytest
import torch

import tegula.as_tile_kernels  # noqa: F401

from .bench import make_param_key

_FLUSH_BYTES = 256 << 20        # of a buffer that empties the caches before each call
_NUM_CALLS, _SECONDS = 30, 0.5  # of a measurement: at most

if importlib.util.find_spec("tilelang") is None:    # whose target the tests ask for
    for _name in ("tilelang", "tilelang.utils", "tilelang.utils.target"):
        sys.modules[_name] = types.ModuleType(_name)
    _target = types.SimpleNamespace(kind=types.SimpleNamespace(name="cuda"))
    sys.modules["tilelang.utils.target"].determine_target = lambda *args, **kwargs: _target


def pytest_addoption(parser, pluginmanager):
    group = parser.getgroup("tegula", "tests and benchmarks of TileKernels")
    group.addoption("--run-benchmark", action="store_true", help="run tests that are marked benchmark, too")
    group.addoption("--benchmark-output", metavar="PATH", help="append a JSON line for each record")
    group.addoption("--benchmark-baseline", metavar="PATH", help="compare with the records of this file")
    group.addoption("--benchmark-regression-threshold", type=float, default=0.15, metavar="X",
                    help="how much slower than the baseline fails (default: 0.15)")
    group.addoption("--benchmark-verbose", action="store_true", help="show what else a record has")
    group.addoption("--seed", type=int, default=0, help="of random numbers; every test adds a number of its own")
    group.addoption("--v2", action="store_true", help="tile_kernels is TileKernels 2, as far as it is here: tegula.v2")
    group.addoption("--fall-back", action="store_true", help="what tegula lacks is that of the installed tile_kernels")
    for name in ("tests.pytest_benchmark_plugin", "tests.pytest_random_plugin"):
        pluginmanager.register(types.ModuleType(name), name)       # conftest.py asks for them: they are here already


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    if early_config.known_args_namespace.v2:        # a conftest.py may import tile_kernels
        tegula.as_tile_kernels.use_v2()


def pytest_configure(config):
    config.addinivalue_line("markers", "benchmark: measures, and needs --run-benchmark")
    config.stash[_RECORDS] = []
    if config.getoption("--fall-back"):
        tegula.as_tile_kernels.fall_back()
    worker = getattr(config, "workerinput", {}).get("workerid", "")       # "gw3" of pytest-xdist: workers share the GPUs
    if worker and torch.cuda.is_available():
        torch.cuda.set_device(int(worker.removeprefix("gw")) % torch.cuda.device_count())


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--run-benchmark"):
        for item in items:
            if item.get_closest_marker("benchmark"):
                item.add_marker(pytest.mark.skip(reason="needs --run-benchmark"))


def _seed_of(item):
    """A test's random numbers depend on --seed and its name alone."""
    digest = hashlib.sha256(item.nodeid.encode()).hexdigest()
    return item.config.getoption("--seed") + int(digest, 16) % 2**31


def pytest_runtest_setup(item):
    seed = _seed_of(item)
    torch.manual_seed(seed)
    random.seed(seed)           # as TileKernels 2 does


@pytest.fixture
def seed(request):
    """What torch and Python's random began this test with."""
    return _seed_of(request.node)


@pytest.fixture(autouse=True)
def _num_sms_as_before():
    """What a test sets does not reach the next one."""
    before = tegula.get_num_sms()
    yield
    tegula.set_num_sms(before)


# ---- measuring ----

def _time_on_gpu(function, flush):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flush.zero_()
    begin.record()
    function()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end)


def _time_on_cpu(function, flush):
    flush.zero_()
    begin = time.perf_counter()
    function()
    return 1e6 * (time.perf_counter() - begin)


@pytest.fixture
def benchmark_timer():
    """benchmark_timer(function): the median time of a call with cold caches, in us."""
    def measure(function, **options_of_theirs):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=device)
        time_once = _time_on_gpu if device == "cuda" else _time_on_cpu
        time_once(function, flush)
        until, times = time.monotonic() + _SECONDS, []
        while not times or (len(times) < _NUM_CALLS and time.monotonic() < until):
            times.append(time_once(function, flush))
        return statistics.median(times)

    return measure


# ---- records ----

_RECORDS = pytest.StashKey()


def _key(record):
    return f"{record['kernel']}/{record['operation']}[{make_param_key(record['params'])}]"


@pytest.fixture
def benchmark_record(request):
    config = request.config

    def record(*, kernel, operation, params, time_us, bandwidth_gbs=None, extras=None):
        params = {name: value if isinstance(value, (int, float, str, bool)) else str(value)
                  for name, value in sorted(params.items())}
        made = {"kernel": kernel, "operation": operation, "params": params, "time_us": round(time_us, 2),
                "bandwidth_gbs": None if bandwidth_gbs is None else round(bandwidth_gbs, 4), "extras": extras or {}}
        config.stash[_RECORDS].append(made)
        if path := config.getoption("--benchmark-output"):
            with pathlib.Path(path).open("a") as file:
                file.write(json.dumps(made) + "\n")

    return record


def _baseline(config):
    path = config.getoption("--benchmark-baseline")
    lines = pathlib.Path(path).read_text().splitlines() if path else []
    return {_key(record): record["time_us"] for record in map(json.loads, filter(None, lines))}


def _regressions(config):
    """[(record, its time in the baseline)] of those that are slower than allowed."""
    limit, before = 1 + config.getoption("--benchmark-regression-threshold"), _baseline(config)
    timed = [(r, before[_key(r)]) for r in config.stash[_RECORDS] if _key(r) in before]
    return [(r, us) for r, us in timed if r["time_us"] > limit * us]


def pytest_sessionfinish(session):
    if session.exitstatus == 0 and _regressions(session.config):
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter, config):
    if not config.stash[_RECORDS]:
        return
    terminalreporter.section("benchmarks")
    for record in config.stash[_RECORDS]:
        rate = "" if record["bandwidth_gbs"] is None else f", {record['bandwidth_gbs']:.1f} GB/s"
        more = f", {record['extras']}" if record["extras"] and config.getoption("--benchmark-verbose") else ""
        terminalreporter.write_line(f"{_key(record)}: {record['time_us']:.2f} us{rate}{more}")
    for record, before in _regressions(config):
        terminalreporter.write_line(f"slower: {_key(record)}: {record['time_us']:.2f} us, was {before:.2f}", red=True)
