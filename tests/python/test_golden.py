# SPDX-License-Identifier: MIT
"""The comparisons of recorded outputs: test_ops.py has the outputs themselves."""
import pytest
import torch

import golden

INF, NAN = float("inf"), float("nan")
BITS = {"mode": "bits"}
CLOSE = {"mode": "close", "atol": 0, "rtol": 0.011}


@pytest.mark.parametrize("got, want, how, fails", [
    ([1, -0.0], [1, -0.0], BITS, False),
    ([1, 0.0], [1, -0.0], BITS, True),
    ([NAN], [-NAN], BITS, False),
    ([NAN], [-NAN], BITS | {"nan_payload": True}, True),
    ([NAN], [1], BITS, True),
    ([1.01, NAN], [1, NAN], CLOSE, False),
    ([1.01, NAN], [1, 2], CLOSE, True),
    ([INF], [INF], CLOSE, False),
    ([1, 2.01], [1, 2], {"mode": "calc_diff", "max": 1e-5}, False),
    ([1, 2.01], [1, 2], {"mode": "calc_diff", "max": 9e-6}, True),
    ([NAN, 2], [1, 2], {"mode": "calc_diff", "max": 1}, True),
])
def test_compare(got, want, how, fails):
    got, want = (torch.tensor(t, dtype=torch.float32) for t in (got, want))
    assert bool(golden.compare(got, want, how)) == fails


def test_compare_bf16():
    want = torch.full((100,), 1.0, dtype=torch.bfloat16)
    one_step, two_steps = want.clone(), want.clone()
    one_step[3], two_steps[3] = 1.0078125, 1.015625
    rule = {"mode": "bf16", "ulp": 1, "atol": 0, "mismatch": 0.02}
    assert not golden.compare(one_step, want, rule)
    assert "first at [3]" in golden.compare(two_steps, want, rule)
    assert not golden.compare(two_steps, want, {**rule, "atol": 0.02})
    one_step[10:14] = 1.0078125
    assert "5 elements differ in bits" in golden.compare(one_step, want, rule)
    zeros = torch.tensor([0.0], dtype=torch.bfloat16), torch.tensor([-0.0], dtype=torch.bfloat16)
    assert not golden.compare(*zeros, rule)
