# SPDX-License-Identifier: MIT
"""Calls from many threads, and other threads during a call."""
import threading
import time

import pytest

numpy = pytest.importorskip("numpy")
import tegula                           # noqa: E402
from in_threads import in_threads       # noqa: E402
from tegula.transpose import transpose  # noqa: E402


def test_the_gil_is_released():
    """A thread that only counts goes on while another one waits in C."""
    toy = pytest.importorskip("_toy")
    x, ticks, done = numpy.zeros(1), [], threading.Event()

    def count(_):
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    def wait(_):
        time.sleep(0.05)
        span.append(time.perf_counter())
        toy.wait(x, 300)
        span.append(time.perf_counter())
        done.set()

    span = []
    in_threads(lambda i: (count, wait)[i](i), range(2))
    assert sum(span[0] < t < span[1] for t in ticks) > 20


def test_many_threads():
    x = [numpy.random.default_rng(i).standard_normal((50 + i, 60)) for i in range(4)]
    want = [a.T.copy() for a in x]

    def work(i):
        for _ in range(300):
            assert (transpose(x[i]) == want[i]).all()

    in_threads(work, range(4))


def test_errors_belong_to_their_thread():
    def work(i):
        x, out = numpy.zeros((3 + i, 5)), numpy.zeros((1, 1))
        for _ in range(300):
            with pytest.raises(ValueError, match=rf"out: shape is \[1, 1\], want \[5, {3 + i}\]"):
                transpose(x, out=out)

    in_threads(work, range(4))


def test_shapes_may_change_meanwhile():
    """Another thread may resize the tensor while C works on it; the call goes on with what it read."""
    torch = pytest.importorskip("torch")
    toy = pytest.importorskip("_toy")
    import test_rows                    # noqa: F401  (binds the toys to torch)
    x = torch.zeros(8)

    def wait(_):
        toy.wait(x, 100)

    def change(_):
        time.sleep(0.03)
        x.resize_(0).resize_(2, 2, 2)

    in_threads(lambda i: (wait, change)[i](i), range(2))


def test_threads_setting():
    before = tegula.config.get_num_threads()
    try:
        x = numpy.arange(1000.0 * 500).reshape(1000, 500)
        for n in (1, 2, 3):
            tegula.config.set_num_threads(n)
            assert tegula.config.get_num_threads() == n
            assert (transpose(x) == x.T).all()
    finally:
        tegula.config.set_num_threads(before)
