# SPDX-License-Identifier: MIT
"""The helpers of tegula.testing: names and meanings are TileKernels'."""
import pytest
import torch

import tegula
import tegula.testing as testing
from tegula.testing import bench, generator, numeric, quant


def test_assert_equal(device):
    x = torch.tensor([[1.0, float("nan")], [-0.0, 3.0]], device=device)
    numeric.assert_equal(x, x.clone())
    positive = x.clone()
    positive[1, 0] = 0.0  # abs() would also change the bits of the NaN, on a GPU
    for y, message in [
        (x.double(), "dtype is torch.float32, want torch.float64"),
        (x[:1], r"shape is \[2, 2\], want \[1, 2\]"),
        (x.t().contiguous().t(), r"strides are \(2, 1\), want \(1, 2\)"),
        (positive, r"1 of 4 elements differ, first at \[1, 0\]: 0x80000000, want 0x00000000"),
    ]:
        with pytest.raises(AssertionError, match=message):
            numeric.assert_equal(x, y)
    numeric.assert_equal(x, x.t().contiguous().t(), check_stride=False)
    numeric.assert_equal(x, x.view(torch.int32), check_dtype=False)
    numeric.assert_equal(x, x.flatten(), check_shape=False, check_stride=False)
    numeric.assert_equal(x[:, :0], x.t()[:, :0], check_stride=True)
    column = torch.empty_strided((1, 1), (1, 4), device=device).fill_(3)
    numeric.assert_equal(column, x[1:, 1:], check_stride=False)


def test_calc_diff():
    x, one, zero = torch.tensor([1.0, 2.0]), torch.ones(3), torch.zeros(3)
    assert numeric.calc_diff(x, torch.tensor([1.0, 2.01], dtype=torch.float64)) == pytest.approx(9.96e-6, rel=1e-3)
    assert numeric.calc_diff(zero, zero) == 0 == numeric.calc_diff(zero[:0], zero[:0])
    assert numeric.calc_diff(one, -one) == 2 and numeric.calc_diff(one, zero) == 1
    assert not numeric.calc_diff(one * float("nan"), one) < 1e9


def test_check_bias():
    ref = torch.randn(100000, dtype=torch.float64)
    numeric.check_bias(ref.float(), ref)
    numeric.check_bias(ref, ref)
    with pytest.raises(AssertionError, match="1.0000 of 100000 elements are below"):
        numeric.check_bias(ref - 1e-9, ref_x=ref)
    numeric.check_bias(ref[:0], ref[:0])


def test_count_bytes():
    x = torch.zeros(3, 5)
    assert testing.count_bytes(x, None, (x.half(), [x.bool()])) == 60 + 30 + 15
    assert testing.count_bytes(x[:, :2]) == 24


def test_generators(monkeypatch):
    monkeypatch.delenv("TK_FULL_TEST", raising=False)
    assert generator.generate_num_tokens() == [4001, 8001]
    assert generator.generate_num_tokens(alignment=64) == [4032, 8064]
    assert generator.generate_hidden_sizes() == [576, 2048, 2560, 3072, 4096, 6144, 7168]
    assert generator.generate_hidden_sizes(128) == [2048, 2560, 3072, 4096, 6144, 7168]
    low, high = generator.generate_num_sms()
    assert high - low == 20
    monkeypatch.setenv("TK_FULL_TEST", "1")
    assert generator.generate_num_tokens(64) == [0, 4032, 8064]
    assert generator.generate_num_tokens(64, is_benchmark=True) == [4032, 8064]
    assert generator.generate_num_sms() == [1, low, high]


def test_generators_with_levels():
    from tegula.v2.testing import generator as leveled
    assert leveled.generate_num_tokens(1) == leveled.generate_num_tokens(0) == [512, 8001]
    assert leveled.generate_num_tokens(0, backward_only=True) == [8001]
    assert leveled.generate_num_tokens(1, backward_only=True) == [512, 8001]
    assert leveled.generate_num_tokens(2, 64) == [0, 64, 512, 8064]
    assert leveled.generate_hidden_sizes() == [128, 192, 384, 768, 2048, 2560, 3072, 4096, 6144, 7168]
    assert leveled.generate_hidden_sizes(256) == [768, 2048, 2560, 3072, 4096, 6144, 7168]
    assert list(leveled.generate_samples(1, a=[1, 2, 3], b=(True, False))) == [
        {"a": 1, "b": True}, {"a": 2, "b": False}, {"a": 3, "b": True}]
    assert [tuple(s.values()) for s in leveled.generate_samples(2, a=[1, 2], b="xy")] == [
        (1, "x"), (1, "y"), (2, "x"), (2, "y")]


def test_v2_levels(monkeypatch):
    levels, count = tegula.v2.testing.generator, tegula.config.get_device_num_sms()
    monkeypatch.delenv("TK_TEST_LEVEL", raising=False)
    assert levels.get_test_level() == 1
    for level, want in ("0", [count]), ("1", [count - 19, count]), ("2", [1, count - 19, count]):
        monkeypatch.setenv("TK_TEST_LEVEL", level)
        assert levels.generate_num_sms(levels.get_test_level()) == want
    monkeypatch.setattr(tegula.config, "get_device_num_sms", lambda: 16)
    assert levels.generate_num_sms(1) == [16] and levels.generate_num_sms(2) == [1, 16]
    monkeypatch.setenv("TK_TEST_LEVEL", "3")
    with pytest.raises(ValueError, match="TK_TEST_LEVEL: is '3', want 0, 1 or 2"):
        levels.get_test_level()


def test_v2_dtypes_and_numbers():
    utils, rand = tegula.v2.utils, tegula.v2.rand
    for name, dtype in ("fp32", torch.float32), ("bf16", torch.bfloat16), ("e4m3", torch.float8_e4m3fn), ("e2m1", torch.int8):
        assert utils.str_to_dtype(name) is dtype and utils.dtype_to_str(dtype) == name
    with pytest.raises(ValueError, match="name: is 'fp64', want one of 'fp32', 'bf16', 'e4m3', 'e2m1'"):
        utils.str_to_dtype("fp64")
    with pytest.raises(ValueError, match="dtype: is torch.float64"):
        utils.dtype_to_str(torch.float64)
    assert [utils.next_power_of_two(n) for n in (0, 1, 2, 3, 8, 9)] == [1, 1, 2, 4, 8, 16]
    device = tegula.v2.config.get_device()
    rand.set_seed(1)
    x = rand.randn(2, 3, dtype=torch.bfloat16, device=device)
    rand.set_seed(1)
    assert torch.equal(x, rand.randn((2, 3), dtype=torch.bfloat16, device=device)) and rand.randn_like(x).dtype == x.dtype
    assert x.device.type == ("cuda" if torch.cuda.is_available() else "cpu") and not tegula.v2.config.is_ascend()


def test_moe_params(monkeypatch):
    monkeypatch.delenv("TK_FULL_TEST", raising=False)
    params = list(generator.generate_moe_params())
    assert len(params) == 12 and params[0] == \
        {"num_send_tokens": 4001, "num_topk": 2, "num_experts": 9, "num_ep_ranks": 8}
    assert {(p["num_experts"], p["num_ep_ranks"]) for p in params} == {(9, 8), (32, 8), (4, 64)}
    assert {p["num_topk"] for p in params} == {2, 6, 8, 9}
    monkeypatch.setenv("TK_FULL_TEST", "1")
    params = list(generator.generate_moe_params())
    assert len(params) == 79 and params[0] == \
        {"num_send_tokens": 0, "num_topk": 1, "num_experts": 1, "num_ep_ranks": 1}
    assert list(generator.generate_moe_params(is_benchmark=True)) == params[1:]
    assert {p["num_experts"] for p in params} == {1, 4, 6, 9, 32, 36, 48, 72, 256, 288, 384}


def test_topk_idx(device):
    params = {"num_send_tokens": 100, "num_topk": 6, "num_experts": 9, "num_ep_ranks": 8}
    idx = generator.generate_topk_idx(params, device)
    assert idx.dtype == torch.int64 and idx.device.type == device and idx.shape[1] == 6
    assert idx.min() == -1 and idx.max() == 8 and (idx >= 0).any(dim=1).all()
    held = idx.sort(dim=1).values
    assert not ((held.diff(dim=1) == 0) & (held[:, 1:] >= 0)).any()             # no expert twice
    assert abs(int((idx >= 0).sum()) / 600 - 1) < 0.15                          # each rank gets its share
    assert generator.generate_topk_idx(params | {"num_send_tokens": 0}, device).shape == (0, 6)


def test_rand_float(device):
    values = [generator.generate_rand_float((3, 50), device) for _ in range(30)]
    limit = torch.finfo(torch.float32).max / 8
    assert all(v.shape == (3, 50) and v.abs().max() <= limit and v.device.type == device for v in values)
    exponents = [v.abs().max().log2().item() for v in values]
    assert min(exponents) < -20 and max(exponents) > 40                         # one scale each, far apart
    assert all(v.abs().max() < v.abs().mean() * 30 for v in values)


def test_e5m6_inputs(device):
    for dtype in (torch.bfloat16, torch.float32):
        inputs = list(generator.generate_e5m6_inputs(3, 16, dtype, device))
        assert [is_special for _, is_special in inputs] == [False, True, True, True]
        assert all(x.shape == (3, 16) and x.dtype == dtype and x.device.type == device for x, _ in inputs)
        assert all((x[:, -1] == 65024).all() for x, _ in inputs[1:])
        assert [x[0, 0].item() for x, _ in inputs[1:]] == [2**-20, 2**-14 * 63 / 64, 2**-14]


def test_names():
    assert bench.make_param_id({"num_tokens": 4001, "dtype": torch.bfloat16}) == "num_tokens=4001-dtype=bf16"
    assert bench.make_param_id({"b": (128, 128), "c": None}) == "b=128x128-c=None"
    assert bench.make_param_id({}) == "default"
    assert bench.make_param_key({"num_tokens": 4001, "dtype": torch.int8}) == "dtype=e2m1,num_tokens=4001"
    assert [bench.dtype_to_str(t) for t in (torch.float32, torch.float8_e4m3fn)] == ["fp32", "e4m3"]
    assert bench.dtype_to_str(torch.float16) == "float16"


def test_clear_unused_sf():
    sf = torch.full((3, 2), 0x01020304, dtype=torch.int32)      # 5 groups of 128 in 8 bytes a row
    rows = quant.clear_unused_sf(sf, 600, 128)
    assert rows.tolist() == [[4, 3, 2, 1, 4, 0, 0, 0]] * 3 and (sf == 0x01020304).all()
    column = torch.full((5, 1), 0x01020304, dtype=torch.int32).as_strided((5, 1), (1, 8))
    assert quant.clear_unused_sf(column, 128, 128).tolist() == [[4, 0, 0, 0]] * 5
    assert quant.clear_unused_sf(column[:1], 128, 128).tolist() == [[4, 0, 0, 0]]
    assert testing.clear_unused_sf is quant.clear_unused_sf
