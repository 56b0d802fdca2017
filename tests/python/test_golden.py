# SPDX-License-Identifier: MIT
"""Recorded inputs and outputs, and the reader itself."""
import pytest
import torch

import golden
import tegula


@pytest.mark.parametrize("case", golden.cases("transpose"), ids=str)
def test_transpose(case, device):
    case.check("out", getattr(tegula.transpose, case.op)(**case.inputs(device), **case.args))


def test_data_is_here():
    assert len(golden.cases("transpose")) >= 13


NAN = float("nan")


@pytest.mark.parametrize("got, want, how, fails", [
    ([1, -0.0], [1, -0.0], {"mode": "bits"}, False), ([1, 0.0], [1, -0.0], {"mode": "bits"}, True), ([NAN],
    [-NAN], {"mode": "bits"}, False), ([NAN], [1], {"mode": "bits"}, True), ([1.01, NAN], [1, NAN], {"mode":
    "close", "atol": 0, "rtol": 0.011}, False), ([1.01, NAN], [1, 2], {"mode": "close", "atol": 0, "rtol":
    0.011}, True), ([float("inf")], [float("inf")], {"mode": "close", "atol": 0, "rtol": 0}, False), ([1,
    2.01], [1, 2], {"mode": "calc_diff", "max": 1e-5}, False), ([1, 2.01], [1, 2], {"mode": "calc_diff",
    "max": 9e-6}, True), ([NAN, 2], [1, 2], {"mode": "calc_diff", "max": 1}, True),
])
def test_compare(got, want, how, fails):
    assert (
        bool(
            golden.compare(
                torch.tensor(got, dtype=torch.float32), torch.tensor(want, dtype=torch.float32), how
            )
        )
        == fails
    )


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


def test_nan_payload():
    a, b = torch.tensor([0x7FC1], dtype=torch.int16).view(torch.bfloat16), torch.tensor(
        [0x7FC0], dtype=torch.int16
    ).view(torch.bfloat16)
    assert not golden.compare(a, b, {"mode": "bits"})
    assert golden.compare(a, b, {"mode": "bits", "nan_payload": True})
