# SPDX-License-Identifier: MIT
"""The Engram ops from Python against plain torch; test_ops.py has what holds for all functions."""
import pytest
import torch

import golden
import tegula.torch as reference
from tegula import engram
from tegula.testing import assert_equal


def constants(max_ngram, num_layers, num_heads, device, dtype=torch.int32):
    """(multipliers, vocab_sizes, offsets) as in TileKernels' tests."""
    multipliers = torch.randint(0, 100000, (num_layers, max_ngram), device=device)
    vocab_sizes = torch.randint(100000, 1000000, (num_layers, max_ngram - 1, num_heads), dtype=dtype, device=device)
    return multipliers, vocab_sizes, reference.make_offsets(vocab_sizes)


def any_bits(*shape, dtype, device):
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max, shape, dtype=dtype, device=device)


# ---- engram_hash ----

@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["i32", "i64"])
@pytest.mark.parametrize("max_ngram, num_layers, num_heads", [
    (3, 2, 8), (2, 1, 1), (4, 2, 8), (5, 7, 3), (8, 2, 16), (1, 2, 8), (11, 1, 2)])
def test_hash(max_ngram, num_layers, num_heads, dtype, device):
    columns = constants(max_ngram, num_layers, num_heads, device, dtype)
    for num_tokens in (0, 1, 33, 512):
        ids = torch.randint(0, 100000, (num_tokens, max_ngram), dtype=torch.int32, device=device)
        mask = torch.rand(num_tokens, device=device) < 0.1
        assert_equal(engram.engram_hash(ids, *columns), reference.engram_hash_ref(ids, *columns))
        assert_equal(engram.engram_hash(ids, *columns, mask), reference.engram_hash_ref(ids, *columns, mask))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["i32", "i64"])
def test_hash_of_any_bits(dtype, device):
    """Products wrap, hashes are negative, moduli are none, sums are cut."""
    ids, multipliers = any_bits(70, 4, dtype=dtype, device=device), any_bits(3, 4, dtype=torch.int64, device=device)
    sizes, offsets = any_bits(3, 3, 5, dtype=dtype, device=device), any_bits(3, 15, dtype=dtype, device=device)
    sizes[0], sizes[1, 0, 0], sizes[1, 0, 1] = sizes[0] >> 20, 0, 1
    args = ids, multipliers, sizes, offsets
    assert_equal(engram.engram_hash(*args), reference.engram_hash_ref(*args))
    wide = torch.empty(3, 70, 15, dtype=torch.int64, device=device)
    engram.engram_hash(*args, out=wide)
    assert_equal(wide, reference.engram_hash_ref(*args[:3], offsets.long()))


def test_strided_windows(device):
    """Windows of a sequence are rows that overlap."""
    columns, ids = constants(3, 2, 8, device), torch.randint(0, 100000, (40,), dtype=torch.int32, device=device)
    for windows in (ids.as_strided((38, 3), (1, 1)), ids.view(10, 4)[:, 1:], ids[:3].expand(7, 3)):
        assert_equal(engram.engram_hash(windows, *columns), reference.engram_hash_ref(windows, *columns))


@pytest.mark.parametrize("case", [c for c in golden.cases("engram") if c.op == "make_offsets"], ids=str)
def test_recorded_offsets(case, device):
    case.check("out", reference.make_offsets(**case.inputs(device)))
