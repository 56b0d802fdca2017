# SPDX-License-Identifier: MIT
"""The casts against plain torch, bit for bit, over TileKernels' matrix of parameters and beyond it; with
fewer tokens but on a GPU with TK_FULL_TEST=1."""
import itertools

import pytest
import torch

import tegula.torch as reference
from conftest import HAS_CUDA, IS_FULL
from tegula import moe, quant
from tegula.testing import assert_equal, calc_diff
from tegula.testing.generator import (
    generate_e5m6_inputs, generate_hidden_sizes, generate_moe_params, generate_num_tokens,
    generate_rand_float, generate_topk_idx,
)

NUM_TOKENS = {"cpu": [0, 1, 37], "cuda": generate_num_tokens() if IS_FULL else [0, 1, 37]}
HIDDEN_SIZES = generate_hidden_sizes() if IS_FULL else [576, 1024]
INF, NAN = float("inf"), float("nan")
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
LAYOUTS = {"row": (False, False, False), "row_round": (False, True, False), "col": (True, False, False),
           "col_round": (True, True, False), "packed": (True, True, True)}
each_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
each_layout = pytest.mark.parametrize("flags", LAYOUTS.values(), ids=LAYOUTS)
each_hidden = pytest.mark.parametrize("hidden", HIDDEN_SIZES)
each_format = pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])


def make(num_tokens, hidden, dtype, device):
    """Rows of normal numbers; of both zeros; below the floor; near the largest float; subnormal; of few
    values, with many ties; of all magnitudes; some with NaN or an infinity."""
    x = torch.randn(num_tokens, hidden, device=device)
    x[1::8] *= 0
    x[2::8] *= 1e-7
    x[3::8] *= 2.0**124
    x[4::8] *= 2.0**-130
    x[5::8] = (x[5::8] * 8).round() / 8
    x[6::8] *= torch.randint(-60, 61, x[6::8].shape, device=device).exp2()
    x = x.clamp(-3e38, 3e38).to(dtype)
    x[7::16, 5], x[15::16, 9] = NAN, INF
    return x


def options(flags):
    return dict(zip(("use_tma_aligned_col_major_sf", "round_sf", "use_packed_ue8m0"), flags))


def same(seen, want):
    """Data and factors: bits, dtypes, shapes, strides."""
    for a, b in zip(seen, want, strict=True):
        assert_equal(a, b)


def same_numbers(seen, want):
    """The bits, but a NaN of torch may have others."""
    assert torch.equal(seen.isnan(), want.isnan())
    assert_equal(seen.masked_fill(seen.isnan(), 0), want.masked_fill(want.isnan(), 0))


# ---- per_token_cast ----

@each_format
@each_layout
@each_dtype
@each_hidden
def test_per_token_cast(hidden, dtype, flags, fmt, device):
    for num_tokens, num_per_channels in itertools.product(NUM_TOKENS[device], (16, 32, 64, 128, hidden, 100)):
        x = make(num_tokens, hidden, dtype, device)
        want = reference.cast(x, fmt, (1, num_per_channels), **options(flags))
        same(quant.per_token_cast(x, fmt, num_per_channels, **options(flags)), want)
        sf = quant.per_token_cast_with_sf_only(x, fmt, num_per_channels, **options(flags))
        assert_equal(sf, want[1])
        args = x, fmt, num_per_channels, sf
        assert_equal(quant.per_token_cast_with_precomputed_sf(*args),
                     reference.cast(x, fmt, (1, num_per_channels), sf=sf))


@each_format
@pytest.mark.parametrize("flags", [LAYOUTS["row_round"], LAYOUTS["packed"], LAYOUTS["col"]], ids=str)
@pytest.mark.parametrize("x_block_size", [(128, 128), (32, 32), (1, 32), (1, 128), (3, 100)], ids=str)
@pytest.mark.parametrize("x_fmt", ["e4m3", "e2m1"])
@each_hidden
def test_per_token_cast_of_codes(hidden, x_fmt, x_block_size, flags, fmt, device):
    for num_tokens, num_per_channels in itertools.product(NUM_TOKENS[device], (32, 128)):
        x = reference.cast(make(num_tokens, hidden, torch.float32, device), x_fmt, x_block_size,
                           **options(flags))
        want = reference.cast(x, fmt, (1, num_per_channels), None, x_block_size, **options(flags))
        args = x, fmt, num_per_channels, x_block_size
        same(quant.per_token_cast(*args, **options(flags)), want)
        assert_equal(quant.per_token_cast_with_sf_only(*args, **options(flags)), want[1])
        assert_equal(quant.per_token_cast_with_precomputed_sf(*args[:3], want[1], x_block_size),
                     reference.cast(x, fmt, (1, num_per_channels), want[1], x_block_size))


# ---- e5m6 ----

@each_layout
@each_dtype
@each_hidden
def test_e5m6(hidden, dtype, flags, device):
    for num_tokens in NUM_TOKENS[device]:
        inputs = [*generate_e5m6_inputs(num_tokens, hidden, dtype, device),
                  (make(num_tokens, hidden, dtype, device), None)]
        for (x, is_special), num_per_channels in itertools.product(inputs, (hidden, 64)):
            want = reference.cast_to_e5m6(x, num_per_channels, **options(flags))
            pair = quant.per_token_cast(x, "e5m6", num_per_channels, **options(flags))
            same(pair, want)
            for fmt, back in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
                args = pair, fmt, (1, num_per_channels)
                numbers = quant.cast_back(*args, x_special_fmt="e5m6")
                same_numbers(numbers, reference.cast_back_from_e5m6(*args))
                assert_equal(quant.per_token_cast_back(pair, fmt, num_per_channels, "e5m6"), numbers)
                if is_special is not None and back == dtype and num_per_channels == hidden and flags[1]:
                    assert calc_diff(x, numbers) < (5e-6 if is_special else 1e-4)


# ---- per_block_cast ----

@each_format
@each_layout
@each_dtype
@each_hidden
def test_per_block_cast(hidden, dtype, flags, fmt, device):
    blocks = (128, 128), (32, 32), (32, 128), (128, 32), (3, 100)
    for num_tokens, block_size in itertools.product(NUM_TOKENS[device], blocks):
        x = make(num_tokens, hidden, dtype, device)
        want = reference.cast(x, fmt, block_size, **options(flags))
        same(quant.per_block_cast(x, fmt, block_size, **options(flags)), want)
        sf = quant.per_block_cast_with_sf_only(x, fmt, block_size, **options(flags))
        assert_equal(sf, want[1])
        assert_equal(quant.per_block_cast_with_precomputed_sf(x, fmt, block_size, sf),
                     reference.cast(x, fmt, block_size, sf=sf))


@pytest.mark.parametrize("out_flags", [LAYOUTS["row_round"], LAYOUTS["packed"], LAYOUTS["col"]], ids=str)
@pytest.mark.parametrize("in_flags", [LAYOUTS["row_round"], LAYOUTS["packed"]], ids=str)
@pytest.mark.parametrize("out_block_size", [(1, 128), (32, 32), (128, 128)], ids=str)
@each_hidden
def test_per_block_cast_lossless(hidden, out_block_size, in_flags, out_flags, device):
    """Values are the same afterwards, by the reference and by the op."""
    for num_tokens in NUM_TOKENS[device]:
        x = generate_rand_float((num_tokens, hidden), device)
        if num_tokens:
            x = x.sign() * x.abs().clamp(min=float(x.abs().max()) / 2**9)
        pair = reference.cast(x, "e2m1", (1, 32), **options(in_flags))
        inexact = torch.zeros(1, dtype=torch.int32, device=device)
        seen = quant.per_block_cast_lossless(pair, "e4m3", (1, 32), out_block_size, **options(out_flags),
                                             inexact=inexact)
        want = reference.cast_back(pair, "fp32", (1, 32))
        assert_equal(reference.cast_back(seen, "fp32", out_block_size), want)
        assert_equal(quant.cast_back(seen, "fp32", out_block_size), want)
        assert inexact.item() == 0


# ---- per_channel_cast ----

@pytest.mark.parametrize("round_sf", [False, True])
@each_dtype
@each_hidden
def test_per_channel_cast(hidden, dtype, round_sf, device):
    for num_tokens, num_per_tokens in itertools.product((*NUM_TOKENS[device], 128, 200), (32, 128)):
        x = make(num_tokens, hidden, dtype, device)
        out, sf = reference.cast(x, "e4m3", (num_per_tokens, 1), round_sf=round_sf)
        same(quant.per_channel_cast(x, "e4m3", num_per_tokens, round_sf), (out, sf))
        same(quant.per_channel_cast_fused(x, "e4m3", num_per_tokens, round_sf), (out, sf))
        same(quant.per_channel_cast_and_transpose(x, "e4m3", num_per_tokens, round_sf),
             (reference.transpose(out), sf))


MOE_PARAMS = list(generate_moe_params())[::1 if IS_FULL and HAS_CUDA else 4]


@pytest.mark.parametrize("is_quantised", [False, True])
@pytest.mark.parametrize("round_sf", [False, True])
@pytest.mark.parametrize("params", MOE_PARAMS, ids=lambda p: "-".join(map(str, p.values())))
def test_per_channel_cast_fused(params, round_sf, is_quantised, device):
    is_large = IS_FULL and device == "cuda"
    params = params if is_large else params | {"num_send_tokens": min(9, params["num_send_tokens"])}
    idx = generate_topk_idx(params, device)
    mapping = moe.get_fused_mapping(idx, params["num_experts"], 0, 128)
    for hidden in HIDDEN_SIZES if is_large else HIDDEN_SIZES[-1:]:
        x = moe.expand_to_fused(make(len(idx), hidden, torch.bfloat16, device), mapping[3], mapping[0])
        pair = quant.per_token_cast(x, "e4m3", 128) if is_quantised else x
        num_per_channels = 128 if is_quantised else None
        rows = mapping[1]
        for pos_to_token in (rows, rows[:77], torch.full_like(rows[:5], -1), rows[:0]):
            same(quant.per_channel_cast_fused(pair, "e4m3", 128, round_sf, num_per_channels, pos_to_token),
                 reference.per_channel_cast_fused(pair, 128, num_per_channels, round_sf, pos_to_token))


# ---- cast_back ----

@pytest.mark.parametrize("fmt", ["bf16", "fp32"])
@pytest.mark.parametrize("x_fmt", ["e4m3", "e2m1"])
@each_layout
@each_hidden
def test_cast_back(hidden, flags, x_fmt, fmt, device):
    blocks = (1, 128), (1, hidden), (128, 1), (128, 128), (32, 32), (1, 32), (3, 100)
    for num_tokens, block_size in itertools.product(NUM_TOKENS[device], blocks):
        x = make(num_tokens, hidden, torch.float32, device)
        pair = reference.cast(x, x_fmt, block_size, **options(flags))
        want = reference.cast_back(pair, fmt, block_size)
        same_numbers(quant.cast_back(pair, fmt, block_size), want)
        if block_size[0] == 1:
            same_numbers(quant.per_token_cast_back(pair, fmt, block_size[1]), want)


@pytest.mark.parametrize("num_tokens", [1, 4, 6])
def test_memory_of_column_major_factors(num_tokens, device):
    """Whole columns of a multiple of four: DeepGEMM's TMA loads them all."""
    x, length = torch.randn(num_tokens, 512, device=device).bfloat16(), -(-num_tokens // 4) * 4
    for flags, columns in ((LAYOUTS["col"], 4), (LAYOUTS["packed"], 1)):
        for sf in (quant.per_token_cast(x, "e4m3", 128, None, *flags)[1],
                   quant.per_token_cast_with_sf_only(x, "e4m3", 128, None, *flags)):
            assert sf.shape == (num_tokens, columns) and sf.stride() == (1, length)
            assert sf.untyped_storage().nbytes() == 4 * columns * length


# ---- x of more dimensions, and of float16 ----

@pytest.mark.parametrize("shape", [(3, 5, 256), (2, 3, 4, 128), (0, 5, 128), (3, 5, 0), (1, 1, 128)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("fmt", ["e4m3", "e2m1", "e5m6"])
def test_x_of_more_dimensions(device, shape, dtype, fmt):
    x = torch.randn(shape, device=device).to(dtype)
    rows = x.reshape(-1, shape[-1]) if x.numel() else x.new_empty(shape[0] * shape[1], shape[-1])
    want = quant.per_token_cast(rows.float() if dtype is torch.float16 else rows, fmt, 128)
    for seen, flat in zip(quant.per_token_cast(x, fmt, 128), want):
        assert seen.dtype == flat.dtype and seen.shape == (*shape[:-1], flat.shape[-1]) and seen.is_contiguous()
        assert torch.equal(seen.view(torch.uint8).flatten(), flat.view(torch.uint8).flatten())


def test_float16(device):
    """The bits of float32, subnormals and infinities too, with every way to name the arguments; out= takes the results."""
    x = torch.arange(-2**15, 2**15, device=device).to(torch.int16).view(torch.float16).reshape(512, 128)
    x = torch.where(x.isnan(), 1, x)
    want = quant.per_token_cast(x.float(), "e4m3", 128)
    outs = tuple(map(torch.empty_like, want))
    for seen in (quant.per_token_cast(x, "e4m3", 128), quant.per_token_cast(fmt="e4m3", num_per_channels=128, x=x),
                 quant.per_token_cast(x, "e4m3", 128, out=outs)):
        assert torch.equal(seen[0].view(torch.uint8), want[0].view(torch.uint8)) and torch.equal(seen[1], want[1])
    assert quant.per_token_cast(x, "e4m3", 128, out=outs)[0] is outs[0]
    packed = {"use_tma_aligned_col_major_sf": True, "round_sf": True, "use_packed_ue8m0": True}
    assert torch.equal(quant.per_token_cast(x, "e4m3", 128, **packed)[1], quant.per_token_cast(x.float(), "e4m3", 128, **packed)[1])


def test_more_dimensions_compiled(device):
    def cast(x):
        return quant.per_token_cast(x, "e4m3", 64)

    compiled = torch.compile(cast, fullgraph=True, backend="eager")
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.randn(2, 3, 128, device=device).to(dtype)
        for seen, want in zip(compiled(x), cast(x)):
            assert seen.shape == want.shape and torch.equal(seen.view(torch.uint8), want.view(torch.uint8))


def test_more_dimensions_that_are_refused(device):
    x = torch.randn(2, 3, 128, device=device)
    with pytest.raises(ValueError, match="^x: has 3 dimensions, want 2 with use_tma_aligned_col_major_sf$"):
        quant.per_token_cast(x, "e4m3", 64, use_tma_aligned_col_major_sf=True)
    outs = x.new_empty((6, 128), dtype=torch.float8_e4m3fn), x.new_empty((6, 2))
    with pytest.raises(ValueError, match="^x: has 3 dimensions, want 2$"):
        quant.per_token_cast(x, "e4m3", 64, out=outs)
    with pytest.raises(ValueError, match="^x: has 1 dimensions, want 2$"):
        quant.per_token_cast(x[0, 0], "e4m3", 64)
    with pytest.raises(ValueError, match="^x: has 3 dimensions, want 2$"):
        quant.per_block_cast(x, "e4m3", (1, 64))
    codes = torch.zeros(2, 3, 128, dtype=torch.float8_e4m3fn, device=device)
    with pytest.raises(ValueError, match="^x: has 3 dimensions, want 2$"):
        quant.per_token_cast((codes, torch.ones(6, 1, device=device)), "e4m3", 64, x_block_size=(1, 128))
