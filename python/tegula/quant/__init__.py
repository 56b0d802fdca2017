# SPDX-License-Identifier: MIT
"""Casts to FP8 (e4m3), FP4 (e2m1) and a 12-bit format (e5m6) with scale factors, back again, and fused with
SwiGLU. Functions here only sort arguments of builtins; one by one, since a call with * costs half a
microsecond.

A quantised tensor is a pair (data, sf): value = code * sf. Data is float8_e4m3fn, int8 (pairs of e2m1) or
uint8 (e5m6). sf has a factor for every block of values, in float32; with use_tma_aligned_col_major_sf its
columns lie one after the other, each padded to a multiple of four. round_sf makes factors powers of two. With
both, use_packed_ue8m0 puts the exponents of four neighbours into an int32."""
from .._tegula import (
    cast_back as _cast_back, cast_back_e5m6 as _cast_back_e5m6, per_block_cast as _per_block_cast,
    per_block_cast_lossless as _per_block_cast_lossless,
    per_block_cast_with_precomputed_sf as _per_block_cast_with_precomputed_sf,
    per_block_cast_with_sf_only as _per_block_cast_with_sf_only, per_channel_cast,
    per_channel_cast_and_transpose, per_channel_cast_fused as _per_channel_cast_fused,
    per_token_cast as _per_token_cast,
    per_token_cast_with_precomputed_sf as _per_token_cast_with_precomputed_sf,
    per_token_cast_with_sf_only as _per_token_cast_with_sf_only,
    swiglu_backward_and_per_token_cast as _swiglu_backward_and_per_token_cast,
    swiglu_forward_and_per_channel_cast_and_transpose,
    swiglu_forward_and_per_token_cast as _swiglu_forward_and_per_token_cast,
    unpack_from_e2m1fn_x2 as _unpack_from_e2m1fn_x2,
)
from . import types

__all__ = [
    "cast_back", "per_block_cast", "per_block_cast_lossless", "per_block_cast_with_precomputed_sf",
    "per_block_cast_with_sf_only", "per_channel_cast", "per_channel_cast_and_transpose",
    "per_channel_cast_fused", "per_token_cast", "per_token_cast_back", "per_token_cast_with_precomputed_sf",
    "per_token_cast_with_sf_only", "swiglu_backward_and_per_token_cast",
    "swiglu_forward_and_per_channel_cast_and_transpose", "swiglu_forward_and_per_token_cast", "types",
    "unpack_from_e2m1fn_x2",
]


def _refuse_packed():
    raise ValueError("use_packed_ue8m0: is True, want use_tma_aligned_col_major_sf and round_sf True, too")


_PAIR = tuple, list


def _take_pair(x, x_block_size):
    """data, sf, x_num_per_tokens, x_num_per_channels"""
    if not isinstance(x, _PAIR):
        raise ValueError(f"x_block_size: is {x_block_size}, want None where x is no pair (data, sf)")
    if x_block_size is None:
        raise ValueError("x_block_size: is None, want two integers where x is a pair (data, sf)")
    data, sf = x
    rows, cols = x_block_size
    return data, sf, rows, cols


# ---- a factor per piece of a row ----

def per_token_cast(x, fmt, num_per_channels, x_block_size=None, use_tma_aligned_col_major_sf=False,
                   round_sf=False, use_packed_ue8m0=False, *, out=None):
    """(out, out_sf): x in 'e4m3', 'e2m1' or 'e5m6' with a factor per num_per_channels values of a row. x is
    bfloat16 or float32, or a pair (data, sf) with blocks of x_block_size, which is dequantised first."""
    if use_packed_ue8m0 and not (use_tma_aligned_col_major_sf and round_sf):
        _refuse_packed()
    x_sf, rows, cols = None, 1, 0       # whole rows
    if x_block_size is not None or isinstance(x, _PAIR):
        x, x_sf, rows, cols = _take_pair(x, x_block_size)
    return _per_token_cast(x, x_sf, rows, cols, fmt, num_per_channels,
                                  use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0, out=out)


def per_token_cast_with_sf_only(x, fmt, num_per_channels, x_block_size=None,
                                use_tma_aligned_col_major_sf=False, round_sf=False, use_packed_ue8m0=False,
                                *, out=None):
    """The out_sf of per_token_cast."""
    if use_packed_ue8m0 and not (use_tma_aligned_col_major_sf and round_sf):
        _refuse_packed()
    x_sf, rows, cols = None, 1, 0       # whole rows
    if x_block_size is not None or isinstance(x, _PAIR):
        x, x_sf, rows, cols = _take_pair(x, x_block_size)
    return _per_token_cast_with_sf_only(x, x_sf, rows, cols, fmt, num_per_channels,
                                               use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0,
                                               out=out)


def per_token_cast_with_precomputed_sf(x, fmt, num_per_channels, sf, x_block_size=None,
                                       use_tma_aligned_col_major_sf=False, round_sf=False,
                                       use_packed_ue8m0=False, *, out=None):
    """The out of per_token_cast with given factors. Their dtype and strides tell their layout; the flags are
    not read."""
    x_sf, rows, cols = None, 1, 0       # whole rows
    if x_block_size is not None or isinstance(x, _PAIR):
        x, x_sf, rows, cols = _take_pair(x, x_block_size)
    return _per_token_cast_with_precomputed_sf(x, x_sf, rows, cols, fmt, num_per_channels, sf,
                                                      out=out)


# ---- a factor per block ----

def per_block_cast(x, fmt, block_size, use_tma_aligned_col_major_sf=False, round_sf=False,
                   use_packed_ue8m0=False, *, out=None):
    """(out, out_sf): x, bfloat16 or float32, in 'e4m3' or 'e2m1' with a factor per block of block_size, rows
    and columns."""
    if use_packed_ue8m0 and not (use_tma_aligned_col_major_sf and round_sf):
        _refuse_packed()
    rows, cols = block_size
    return _per_block_cast(x, fmt, rows, cols, use_tma_aligned_col_major_sf, round_sf,
                                  use_packed_ue8m0, out=out)


def per_block_cast_with_sf_only(x, fmt, block_size, use_tma_aligned_col_major_sf=False, round_sf=False,
                                use_packed_ue8m0=False, *, out=None):
    """The out_sf of per_block_cast."""
    if use_packed_ue8m0 and not (use_tma_aligned_col_major_sf and round_sf):
        _refuse_packed()
    rows, cols = block_size
    return _per_block_cast_with_sf_only(x, fmt, rows, cols, use_tma_aligned_col_major_sf, round_sf,
                                               use_packed_ue8m0, out=out)


def per_block_cast_with_precomputed_sf(x, fmt, block_size, sf, use_tma_aligned_col_major_sf=False,
                                       round_sf=False, use_packed_ue8m0=False, *, out=None):
    """The out of per_block_cast with given factors. Their dtype and strides tell their layout; the flags are
    not read."""
    rows, cols = block_size
    return _per_block_cast_with_precomputed_sf(x, fmt, rows, cols, sf, out=out)


def per_block_cast_lossless(x, fmt, x_block_size, out_block_size, use_tma_aligned_col_major_sf=False,
                            round_sf=False, use_packed_ue8m0=False, *, inexact=None, out=None):
    """(out, out_sf): a pair of e2m1 and powers of two with blocks of x_block_size as 'e4m3' with larger
    blocks of out_block_size, without a change of value while exponents in a block differ by at most 14.
    inexact, an int32 tensor of one element, is set to 1 where a value changed. Factors are powers of two
    without round_sf, too."""
    if use_packed_ue8m0 and not use_tma_aligned_col_major_sf:
        raise ValueError("use_packed_ue8m0: is True, want use_tma_aligned_col_major_sf True, too")
    data, sf = x
    x_rows, x_cols = x_block_size
    rows, cols = out_block_size
    return _per_block_cast_lossless(data, sf, fmt, x_rows, x_cols, rows, cols,
                                           use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0, inexact,
                                           out=out)


# ---- a factor per piece of a column ----

def per_channel_cast_fused(x, fmt, num_per_tokens, round_sf=False, num_per_channels=None, pos_to_token=None,
                           *, out=None):
    """(out, out_sf): as per_channel_cast, of the rows x[pos_to_token], where a negative one is padding. x may
    be a pair of e4m3 and a factor per num_per_channels values of a row."""
    data, sf = x if isinstance(x, _PAIR) else (x, None)
    if sf is None and num_per_channels is not None:
        raise ValueError(f"num_per_channels: is {num_per_channels}, want None where x is no pair (data, sf)")
    if sf is not None and num_per_channels is None:
        raise ValueError("num_per_channels: is None, want an integer where x is a pair (data, sf)")
    return _per_channel_cast_fused(data, sf, fmt, num_per_tokens, round_sf, num_per_channels or 0,
                                          pos_to_token, out=out)


# ---- back ----

def cast_back(x, fmt, x_block_size, x_special_fmt=None, *, out=None):
    """The values of a pair (data, sf) with blocks of x_block_size, in 'bf16' or 'fp32'. Bytes (uint8) of e5m6
    want x_special_fmt='e5m6'."""
    if x_special_fmt not in (None, "e5m6"):
        raise ValueError(f"x_special_fmt: is {x_special_fmt!r}, want None or 'e5m6'")
    op = _cast_back if x_special_fmt is None else _cast_back_e5m6
    data, sf = x
    rows, cols = x_block_size
    return op(data, sf, fmt, rows, cols, out=out)


def per_token_cast_back(x, fmt, num_per_channels, x_special_fmt=None, *, out=None):
    """cast_back with blocks of 1 x num_per_channels."""
    return cast_back(x, fmt, (1, num_per_channels), x_special_fmt, out=out)


_WORDS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float8_e4m3fn": "e4m3"}


def unpack_from_e2m1fn_x2(x, out_dtype=None):
    """The numbers of pairs of e2m1 (int8 or uint8), the low four bits first: the last dimension is twice as
    long. out_dtype is float32 if None."""
    if len(x.shape) == 0:
        raise ValueError("x: has 0 dimensions, want 1 or more")
    name = "float32" if out_dtype is None else str(out_dtype).removeprefix("torch.")
    numbers = _unpack_from_e2m1fn_x2(x.reshape(-1), _WORDS.get(name, "f32"))
    numbers = numbers.reshape(*x.shape[:-1], 2 * x.shape[-1])
    return numbers if name in _WORDS else numbers.to(out_dtype)


# ---- fused with SwiGLU ----

def swiglu_forward_and_per_token_cast(x, fmt, num_per_channels, pos_to_token_topk=None, topk_weights=None,
                                      pos_to_expert=None, use_tma_aligned_col_major_sf=False, round_sf=False,
                                      use_packed_ue8m0=False, swiglu_clamp_value=None, clamped_count=None,
                                      sf_clamp_min=None, *, out=None):
    """(out, out_sf): silu(gate) * up of rows of gates and ups, times the weight number pos_to_token_topk[i],
    in 'e4m3' or 'e2m1' as per_token_cast has it. Rows whose pos_to_expert is negative are not computed.
    swiglu_clamp_value c holds gates to at most c and ups to -c .. c; clamped_count, three int64, grows by the
    number of gates and ups above c and ups below -c. sf_clamp_min replaces the floor of 1e-4."""
    if use_packed_ue8m0 and not (use_tma_aligned_col_major_sf and round_sf):
        _refuse_packed()
    if clamped_count is not None and swiglu_clamp_value is None:
        raise ValueError("clamped_count: is given, want None where swiglu_clamp_value is None")
    return _swiglu_forward_and_per_token_cast(
        x, fmt, num_per_channels, pos_to_token_topk, topk_weights, pos_to_expert,
        use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0, swiglu_clamp_value, clamped_count,
        sf_clamp_min, out=out)


def _flat(t):
    return t if len(t.shape) == 2 else t.reshape(-1, t.shape[-1])


def swiglu_backward_and_per_token_cast(x, grad_out, weight, pos_to_token_topk, token_topk_to_pos,
                                       num_per_channels, round_sf=False, swiglu_clamp_value=None, *,
                                       out=None):
    """(out, (x_grad_fp8, x_grad_sf), x_grad, weight_grad): the weighted activation again, in bfloat16, and
    the gradients of x, a pair of e4m3 and a factor per num_per_channels values of each half of a row, and of
    weight. out= takes the five tensors in this order."""
    data, sf = x
    made = _swiglu_backward_and_per_token_cast(
        _flat(data), _flat(sf), _flat(grad_out), weight, pos_to_token_topk, token_topk_to_pos,
        num_per_channels, round_sf, swiglu_clamp_value, out=out)
    return made[0], made[1:3], *made[3:]
