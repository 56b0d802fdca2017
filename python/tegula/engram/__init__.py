# SPDX-License-Identifier: MIT
"""Engram, a memory that a layer looks up by the last few token ids: from ids to rows of its table, the gate that lets
a value in, and the table's optimiser. Functions are builtins; those here only sort arguments."""
from __future__ import annotations

import typing as _typing

from .. import _tegula
from .._help import helped_by as _helped_by
from .._rows import WORDS as _WORDS, functions as _functions, name_of as _name_of

if _typing.TYPE_CHECKING:
    from typing import Literal

    from .._engram import *         # a stub made from the table of functions
    from .._typing import AnyTensor, Array, Saved

globals().update(_functions("engram"))


class NGram(_typing.NamedTuple):
    """What makes rows of ids: tensors multipliers [L, N], vocab_sizes [L, N - 1, J], offsets [L, (N - 1) * J], the id
    behind the map that stands for none, the map of ids, and the id, before the map, that ends a window."""
    multipliers: Array
    vocab_sizes: Array
    offsets: Array
    pad_id: int
    token_map: Array | None = None
    stop_id: int | None = None


def _named(error, **names):
    """A builtin's error with the names that arguments have here."""
    name, colon, rest = str(error).partition(":")
    said, shared, other = rest.partition("memory is shared with ")
    other, comma, want = other.partition(",")
    if name not in names and other not in names:
        return error
    return type(error)(names.get(name, name) + colon + said + shared + names.get(other, other) + comma + want)


@_helped_by(_tegula.engram_rows)
def engram_rows(input_ids: AnyTensor, ngram: NGram, cu_seqlens: Array | None = None, start_pos: Array | None = None,
                history: Array | None = None, ring: Array | None = None, slots: Array | None = None,
                image_token_mask: Array | None = None, *, layout: Literal["ltc", "tlc"] = "ltc",
                history_newest_first: bool = False, hash_masked: bool = False, keep_ring: bool = False,
                null_slot: int | None = None, out: Array | None = None) -> AnyTensor:
    """From raw token ids to table rows, for all layers, in one launch. Request b has tokens cu_seqlens[b] ..
    cu_seqlens[b + 1] - 1; start_pos[b] tokens of it came before. Their raw ids are in history, oldest first, or in row
    slots[b] of ring, by position modulo ring_size, where the ids of this call are then stored. Rows of masked, negative
    and unmapped tokens are -1.

    Args:
        ngram: an NGram
        layout: 'ltc' or 'tlc', the order of the result's dimensions

    Returns:
        rows: as ngram.offsets [num_layers, num_tokens, (max_ngram - 1) * num_heads]; with layout
            'tlc' [num_tokens, num_layers, (max_ngram - 1) * num_heads]

    Example:
        >>> ngram = NGram(torch.ones(1, 2, dtype=torch.int64), torch.full((1, 1, 3), 97), torch.arange(3).view(1, 3) * 97, 0)
        >>> engram_rows(torch.arange(5), ngram).shape
        torch.Size([1, 5, 3])
    """
    if layout not in ("ltc", "tlc"):
        raise ValueError(f"layout: is {layout!r}, want 'ltc' or 'tlc'")
    if not isinstance(ngram, (tuple, list)) or len(ngram) != len(NGram._fields):
        raise TypeError(f"ngram: is a {type(ngram).__name__}, want an NGram")
    tlc = layout == "tlc"
    multipliers, vocab_sizes, offsets, pad_id, token_map, stop_id = ngram
    try:
        rows = _tegula.engram_rows(
            input_ids, multipliers, vocab_sizes, offsets, pad_id, token_map, stop_id, cu_seqlens, start_pos, history, ring,
            slots, image_token_mask, tlc, history_newest_first, hash_masked, keep_ring, null_slot,
            out=out.swapaxes(0, 1) if tlc and out is not None else out)
    except (TypeError, ValueError) as e:
        raise _named(e, **dict.fromkeys(("rows", "out"), "out.swapaxes(0, 1)" if tlc else "out")) from None
    if out is not None:
        return out
    return rows.swapaxes(0, 1) if tlc else rows


@_typing.overload
def engram_lookup(table: Array, indices: AnyTensor, table_sf: Array | None = None, *, row_begin: int = 0,
                  packed: bool = False, dtype: object = None, num_sms: int = 0, out: Array | None = None,
                  out_sf: Array | None = None) -> AnyTensor: ...


@_typing.overload
def engram_lookup(table: AnyTensor, indices: None, table_sf: Array | None = None, *, row_begin: Literal[0] = 0,
                  packed: Literal[False] = False, dtype: object = None, num_sms: int = 0, out: Array | None = None,
                  out_sf: Array | None = None) -> AnyTensor: ...


@_helped_by(_tegula.engram_lookup, _tegula.engram_lookup_all)
def engram_lookup(table: AnyTensor, indices: AnyTensor | None, table_sf: Array | None = None, *, row_begin: int = 0,
                  packed: bool = False, dtype: object = None, num_sms: int = 0, out: Array | None = None,
                  out_sf: Array | None = None) -> AnyTensor:
    """Rows indices[t, c] - row_begin of a table; zeros where there is no such row. An e4m3 table becomes bfloat16, its
    codes times 2^(E - 127) with a byte E of table_sf for 32 codes, or times the one factor of table_sf; other tables, and
    those with dtype= their own, are copied; dtype=torch.bfloat16 rounds. packed: bytes, codes and then scale factors.
    out_sf, with columns side by side, gets the factors of copied codes as an FP8 GEMM takes them. For indices on a GPU,
    table and table_sf of bytes may be in pinned memory; num_sms bounds the SMs that read it. indices None: all rows, in
    order, as of packed bytes, which two views of them unpack.

    Args:
        indices: int32 or int64 [num_tokens, num_columns], or None for [table_rows, 1]
        table_sf: uint8 or float8_e8m0fnu [table_rows, dim / 32], or float32 [1], or None
        dtype: a dtype, or None

    Returns:
        out: in dtype [num_tokens, num_columns, dim]; with packed uint8
            [num_tokens, num_columns, dim + dim / 32]

    Example:
        >>> engram_lookup(torch.randn(100, 64), torch.randint(100, (5, 3))).shape
        torch.Size([5, 3, 64])
    """
    if not hasattr(table, "dtype"):
        raise TypeError(f"table: is a {type(table)}, want a tensor")
    if packed and dtype is not None:
        raise ValueError("dtype: is given, want None with packed")
    name = _name_of(table.dtype if dtype is None else dtype)
    word = "bf16" if dtype is None and name == "float8_e4m3fn" else _WORDS.get(name)
    if word not in ("bf16", "e4m3", "f16", "f32"):
        raise ValueError(f"dtype: is {dtype or name}, want bfloat16 or that of table")
    factors = table_sf.reshape(1, -1) if getattr(table_sf, "ndim", 2) < 2 else table_sf
    if indices is None:
        if packed or row_begin:
            raise ValueError(f"indices: is None, want a tensor with {'packed' if packed else 'row_begin'}")
        return _tegula.engram_lookup_all(table, factors, word, num_sms, out_sf, out=out)
    return _tegula.engram_lookup(indices, table, factors, row_begin, packed, word, num_sms, out_sf, out=out)


@_helped_by(_tegula.engram_lookup_staged)
def engram_lookup_staged(table: Array, indices: AnyTensor, table_sf: Array, staging: Array, *, row_begin: int = 0,
                         out: Array | None = None) -> AnyTensor:
    """engram_lookup with packed=True by the copy engine, for indices on a GPU and a table in host memory, which need not
    be pinned: in the order of the stream indices are copied to staging, CPU cores gather rows to staging, one copy
    brings them to the GPU. No SM is used. staging is pinned, of at least -(-4 * n // 256) * 256 + n * (dim + dim // 32)
    bytes for n indices of 4 bytes; table and staging are in use until the stream has passed. Experimental.

    Example:
        >>> table, table_sf = torch.randn(100, 64).to(torch.float8_e4m3fn), torch.full((100, 2), 127, dtype=torch.uint8)
        >>> indices = torch.randint(100, (5, 3), dtype=torch.int32, device="cuda")
        >>> staging = torch.empty(256 + 15 * 66, dtype=torch.uint8, pin_memory=True)
        >>> engram_lookup_staged(table, indices, table_sf, staging).shape
        torch.Size([5, 3, 66])
    """
    return _tegula.engram_lookup_staged(indices, table, table_sf, staging, row_begin, out=out)


@_typing.overload
def engram_lookup_bwd(grad_out: AnyTensor, indices: Array, num_rows: int, *, row_begin: int = 0,
                      grad_table: None = None,
                      out: tuple[Array | None, ...] | None = None) -> tuple[AnyTensor, AnyTensor, AnyTensor]: ...


@_typing.overload
def engram_lookup_bwd(grad_out: AnyTensor, indices: Array, num_rows: int, *, row_begin: int = 0, grad_table: Array,
                      out: None = None) -> None: ...


@_helped_by(_tegula.engram_lookup_bwd, _tegula.engram_lookup_bwd_into)
def engram_lookup_bwd(grad_out: AnyTensor, indices: Array, num_rows: int, *, row_begin: int = 0,
                      grad_table: Array | None = None,
                      out: tuple[Array | None, ...] | None = None) -> tuple[AnyTensor, AnyTensor, AnyTensor] | None:
    """The gradient of a table's num_rows rows, from that of engram_lookup's output: (unique_rows, grad_rows,
    num_unique), the rows that occur in ascending order, then -1; their sums, of which those behind num_unique are not
    written; how many they are. With grad_table, of num_rows rows, sums are added to it, and the result is None. num_rows 0
    is all. The order of summation is defined: results do not depend on the device.

    Args:
        grad_table: float32 [table_rows, dim], or None; is written

    Example:
        >>> rows, sums, count = engram_lookup_bwd(torch.ones(2, 3, 64), torch.tensor([[7, 9, 7], [9, 9, -1]]), 100)
        >>> rows[:2], sums[:2, 0], int(count)
        (tensor([7, 9]), tensor([2., 3.]), 2)
    """
    if grad_table is None:
        return _tegula.engram_lookup_bwd(grad_out, indices, num_rows, row_begin, out=out)
    if out is not None:
        raise ValueError("out: is given, want None with grad_table")
    rows, *_ = getattr(grad_table, "shape", ()) or (num_rows,)      # of what is no table the builtin says so
    if num_rows not in (0, rows):
        raise ValueError(f"num_rows: is {num_rows}, want 0 or {rows}, as grad_table has")
    return _tegula.engram_lookup_bwd_into(grad_out, indices, grad_table, row_begin)


def _wanted(wanted, count):
    """As bools."""
    if len(wanted) != count:
        raise ValueError(f"wanted: has {len(wanted)} items, want {count}")
    return tuple(map(bool, wanted))


def _without(made, wanted):
    """None in place of empty tensors for what is not wanted."""
    return made if all(wanted) else tuple(t if is_wanted else None for t, is_wanted in zip(made, wanted))


def _num_gate_partials(hidden_states, is_wanted):
    """tgl_engram_gate_num_partials(), for symbolic sizes too; 0 if no gradient of the weights is wanted."""
    hidden = (getattr(hidden_states, "shape", None) or (1,))[-1]
    return min((3583 + hidden) // max(hidden, 1) * 66, 528) if is_wanted else 0


def _of_weights(weights):
    return {"weight_hidden": "weight_fused", "weight_embed": "weights"} if weights is None else {}


def _of_kv(weights):
    return {"k": "kv", "v": "kv", "grad_k": "grad_kv", "grad_v": "grad_kv", **_of_weights(weights)}


def _num_conv_partials(x):
    """tgl_engram_short_conv_num_partials(), for symbolic sizes too."""
    shape = getattr(x, "shape", ())
    num_streams, hidden = shape[-2:] if len(shape) > 1 else (1, 1)
    blocks = (max(hidden, 1) + 511) // 512
    return max((464 if blocks > 2 else 528) // (max(num_streams, 1) * blocks), 1)


def _both(weight_fused, weights):
    """(weight_hidden, weight_embed) for the builtins: the fused weight alone is the first."""
    if weights is None:
        return weight_fused, None
    if weight_fused is not None:
        raise ValueError("weight_fused: is given, want None with weights")
    if len(weights) != 2:
        raise ValueError(f"weights: has {len(weights)} items, want 2")
    return weights


_NOT_SAVED = (None,) * 4


@_helped_by(_tegula.engram_gate_fwd)
def engram_gate_fwd(hidden_states: AnyTensor, k: Array, v: Array, weight_fused: Array | None, eps: float,
                    clamp_value: float, save_for_backward: bool = True, *, weights: tuple[Array, Array] | None = None,
                    image_token_mask: Array | None = None, add_residual: bool = True, zero_centered: bool = False,
                    sign: Literal["zero", "bit"] = "zero",
                    out: object = None) -> tuple[AnyTensor, Saved, Saved, Saved, Saved]:
    """hidden_states + gate * v, where the gate of a token and stream is the sigmoid of the signed root of the dot product
    of two RMS norms, of hidden_states and k. Returns (output, dot, gate_score, rstd_x, rstd_k), of which the backward
    needs the last four; None without save_for_backward. weights = (weight_hidden, weight_embed) in place of their
    product weight_fused; zero_centered: they are stored minus 1. Masked tokens keep their hidden_states, or get 0 without residual. sign: what a
    score of 0 becomes, "zero" (gate 0.5) or "bit" (by its sign bit). out= takes the outputs, or the output alone if
    nothing is saved.

    Args:
        weight_fused: float32 [num_streams, hidden], or None
        weights: two of bfloat16 or float32 [num_streams, hidden], or None
        save_for_backward: bool

    Example:
        >>> x, v, weight = torch.randn(6, 4, 64).bfloat16(), torch.randn(6, 64).bfloat16(), torch.rand(4, 64)
        >>> output, *_ = engram_gate_fwd(x, x, v, weight, 1e-20, 1e-6, save_for_backward=False)
        >>> output.shape
        torch.Size([6, 4, 64])
    """
    hidden, embed = _both(weight_fused, weights)
    args = (hidden_states, k, v, hidden, embed, image_token_mask, eps, clamp_value, add_residual, zero_centered, sign)
    try:
        if save_for_backward:
            return _tegula.engram_gate_fwd(*args, out=out)
        return _tegula.engram_gate_fwd_alone(*args, out=out), *_NOT_SAVED
    except (TypeError, ValueError) as e:
        raise _named(e, **_of_weights(weights)) from None


@_helped_by(_tegula.engram_gate_scores)
def engram_gate_scores(hidden_states: AnyTensor, k: Array, weight_fused: Array | None, eps: float, clamp_value: float, *,
                       weights: tuple[Array, Array] | None = None, image_token_mask: Array | None = None,
                       zero_centered: bool = False, sign: Literal["zero", "bit"] = "zero",
                       out: tuple[Array | None, ...] | None = None) -> tuple[AnyTensor, AnyTensor, AnyTensor, AnyTensor]:
    """What engram_gate_fwd saves, (dot, gate_score, rstd_x, rstd_k), without its output: it needs no value.

    Args:
        weight_fused: float32 [num_streams, hidden], or None
        weights: two of bfloat16 or float32 [num_streams, hidden], or None

    Example:
        >>> x, weight = torch.randn(6, 4, 64).bfloat16(), torch.rand(4, 64)
        >>> dot, gate_score, rstd_x, rstd_k = engram_gate_scores(x, x, weight, 1e-20, 1e-6)
        >>> gate_score.shape
        torch.Size([6, 4])
    """
    hidden, embed = _both(weight_fused, weights)
    try:
        return _tegula.engram_gate_scores(hidden_states, k, hidden, embed, image_token_mask, eps, clamp_value,
                                          zero_centered, sign, out=out)
    except (TypeError, ValueError) as e:
        raise _named(e, **_of_weights(weights)) from None


@_helped_by(_tegula.engram_gate_kv_fwd)
def engram_gate_kv_fwd(hidden_states: AnyTensor, kv: Array, weight_fused: Array | None, eps: float, clamp_value: float,
                       save_for_backward: bool = True, image_token_mask: Array | None = None, inplace: bool = False, *,
                       weights: tuple[Array, Array] | None = None, add_residual: bool = True,
                       zero_centered: bool = False, sign: Literal["zero", "bit"] = "bit",
                       out: object = None) -> tuple[AnyTensor, Saved, Saved, Saved, Saved]:
    """engram_gate_fwd with keys and value in one tensor kv, the value last. inplace writes to hidden_states and returns
    it.

    Args:
        weight_fused: float32 [num_streams, hidden], or None
        weights: two of bfloat16 or float32 [num_streams, hidden], or None
        save_for_backward: bool
        inplace: bool

    Example:
        >>> x, kv = torch.randn(6, 4, 64).bfloat16(), torch.randn(6, 5, 64).bfloat16()
        >>> output, *saved = engram_gate_kv_fwd(x, kv, torch.rand(4, 64), 1e-20, 1e-6)
        >>> len(saved)
        4
    """
    hidden, embed = _both(weight_fused, weights)
    args = (hidden_states, kv, hidden, embed, image_token_mask, eps, clamp_value, add_residual, zero_centered, sign)
    if inplace and (save_for_backward or out is not None):
        other = "out" if out is not None else "save_for_backward"
        raise ValueError(f"inplace: is True, want False with {other}")
    try:
        if inplace:
            _tegula.engram_gate_kv_fwd_inplace(*args)
            return hidden_states, *_NOT_SAVED
        if save_for_backward:
            return _tegula.engram_gate_kv_fwd(*args, out=out)
        return _tegula.engram_gate_kv_fwd_alone(*args, out=out), *_NOT_SAVED
    except (TypeError, ValueError) as e:
        raise _named(e, output="hidden_states" if inplace else "output", **_of_kv(weights)) from None


@_helped_by(_tegula.engram_gate_bwd)
def engram_gate_bwd(grad_out: AnyTensor, hidden_states: Array, k: Array, v: Array, weight_fused: Array | None,
                    dot: Array, gate_score: Array, rstd_x: Array, rstd_k: Array, clamp_value: float, *,
                    weights: tuple[Array, Array] | None = None, image_token_mask: Array | None = None,
                    add_residual: bool = True, zero_centered: bool = False,
                    wanted: _typing.Sequence[bool] = (True,) * 4,
                    out: tuple[Array | None, ...] | None = None) -> tuple[Saved, Saved, Saved, Saved]:
    """The gradients of engram_gate_fwd: (grad_hidden_states, grad_k, grad_v, grad_w_partial). The sum of grad_w_partial
    over its first dimension is the gradient of the product of the weights: see grad_w_reduce. Those that are not wanted
    are None and cost nothing.

    Args:
        weight_fused: float32 [num_streams, hidden], or None
        weights: two of bfloat16 or float32 [num_streams, hidden], or None
        wanted: a bool for each result

    Example:
        >>> x, v, weight = torch.randn(6, 4, 64).bfloat16(), torch.randn(6, 64).bfloat16(), torch.rand(4, 64)
        >>> output, *saved = engram_gate_fwd(x, x, v, weight, 1e-20, 1e-6)
        >>> grad_x, grad_k, grad_v, grad_w_partial = engram_gate_bwd(output, x, x, v, weight, *saved, 1e-6)
        >>> grad_v.shape
        torch.Size([6, 64])
    """
    hidden, embed = _both(weight_fused, weights)
    *grads, of_weights = wanted = _wanted(wanted, 4)
    try:
        made = _tegula.engram_gate_bwd(grad_out, hidden_states, k, v, hidden, embed, image_token_mask, dot, gate_score,
                                       rstd_x, rstd_k, clamp_value, add_residual, zero_centered, *grads,
                                       _num_gate_partials(hidden_states, of_weights), out=out)
    except (TypeError, ValueError) as e:
        raise _named(e, **_of_weights(weights)) from None
    return _without(made, wanted)


@_helped_by(_tegula.engram_gate_kv_bwd)
def engram_gate_kv_bwd(grad_out: AnyTensor, hidden_states: Array, kv: Array, weight_fused: Array | None, dot: Array,
                       gate_score: Array, rstd_x: Array, rstd_k: Array, clamp_value: float,
                       image_token_mask: Array | None = None, *, weights: tuple[Array, Array] | None = None,
                       add_residual: bool = True, zero_centered: bool = False,
                       wanted: _typing.Sequence[bool] = (True,) * 3,
                       out: tuple[Array | None, ...] | None = None) -> tuple[Saved, Saved, Saved]:
    """The gradients of engram_gate_kv_fwd: (grad_hidden_states, grad_kv, grad_w_partial). Those that are not wanted are
    None and cost nothing.

    Args:
        weight_fused: float32 [num_streams, hidden], or None
        weights: two of bfloat16 or float32 [num_streams, hidden], or None
        wanted: a bool for each result

    Example:
        >>> x, kv, weight = torch.randn(6, 4, 64).bfloat16(), torch.randn(6, 5, 64).bfloat16(), torch.rand(4, 64)
        >>> output, *saved = engram_gate_kv_fwd(x, kv, weight, 1e-20, 1e-6)
        >>> grad_x, grad_kv, grad_w_partial = engram_gate_kv_bwd(output, x, kv, weight, *saved, 1e-6)
        >>> grad_kv.shape
        torch.Size([6, 5, 64])
    """
    hidden, embed = _both(weight_fused, weights)
    *grads, of_weights = wanted = _wanted(wanted, 3)
    try:
        made = _tegula.engram_gate_kv_bwd(grad_out, hidden_states, kv, hidden, embed, image_token_mask, dot, gate_score,
                                          rstd_x, rstd_k, clamp_value, add_residual, zero_centered, *grads,
                                          _num_gate_partials(hidden_states, of_weights), out=out)
    except (TypeError, ValueError) as e:
        raise _named(e, **_of_kv(weights)) from None
    return _without(made, wanted)


def _taps(conv_weight):
    """[C, K] of [C, K] or [C, 1, K]."""
    if getattr(conv_weight, "ndim", 2) != 3:
        return conv_weight
    channels, groups, taps = conv_weight.shape
    if groups != 1:
        raise ValueError(f"conv_weight: shape is {list(conv_weight.shape)}, want [C, K] or [C, 1, K]")
    return conv_weight.reshape(channels, taps)


def _is_silu(activation):
    if activation not in ("silu", "none"):
        raise ValueError(f"activation: is {activation!r}, want 'silu' or 'none'")
    return activation == "silu"


def _present(ring, cu_seqlens, num_tokens):
    """The rows of each request in the order of their positions: the ring has position p, counted from its oldest row
    on, at p modulo its size."""
    import torch
    size = ring.shape[1]
    if cu_seqlens is None:
        lengths = torch.full((1,), num_tokens, device=ring.device)
    else:
        ends = cu_seqlens.long().clamp(0, num_tokens).cummax(0).values
        lengths = ends[1:] - ends[:-1]
    entries = (lengths[:, None] + torch.arange(size, device=ring.device)) % max(size, 1)
    return ring.gather(1, entries[:, :, None, None].expand(ring.shape))


def _ring_of(past_state, taps, dilation):
    """(ring, start_pos) for past states of as many rows as these taps reach."""
    import torch
    if not isinstance(past_state, torch.Tensor):
        raise TypeError(f"past_state: is a {type(past_state).__name__}, want a torch.Tensor (use ring)")
    if len(getattr(taps, "shape", ())) != 2:
        return past_state, None     # the builtin names what is wrong with them
    size = (taps.shape[1] - 1) * dilation
    if past_state.ndim != 4 or past_state.shape[1] != size:
        raise ValueError(f"past_state: shape is {list(past_state.shape)}, want [B, {size}, H, D]")
    start_pos = torch.full(past_state.shape[:1], size, dtype=torch.int32, device=past_state.device)
    return past_state.clone(memory_format=torch.contiguous_format), start_pos


@_helped_by(_tegula.short_conv)
def short_conv(x: AnyTensor, norm_weight: Array, conv_weight: Array, dilation: int = 3, eps: float = 1e-5,
               activation: Literal["silu", "none"] = "silu", bias: Array | None = None, add_input: bool = False,
               residual: Array | None = None, cu_seqlens: Array | None = None, past_state: Array | None = None,
               save_for_backward: bool = True, *, ring: Array | None = None, slots: Array | None = None,
               start_pos: Array | None = None, mask: Array | None = None, zero_centered: bool = False,
               round_each: bool = False, keep_ring: bool = False, null_slot: int | None = None,
               out: object = None) -> tuple[AnyTensor, ...]:
    """RMSNorm of x, a causal depthwise convolution over the tokens of each request with taps conv_weight dilation tokens
    apart, SiLU; x is added if add_input, and residual. Returns (out, rstd); rstd is None without save_for_backward.
    Normed rows before a chunk are in row slots[b] of ring, by position modulo ring_size, where those of this call are
    then stored, or in past_state, oldest first; the result is then (out, rstd, present_state). mask: tokens that count as
    0, and whose result is the residual. zero_centered: norm_weight is stored minus 1. round_each: rounds to bfloat16
    after every step, as eager PyTorch does.

    Args:
        conv_weight: bfloat16 or float32 [num_streams * hidden, kernel_size], or
            [num_streams * hidden, 1, kernel_size]
        activation: 'silu' or 'none'
        past_state: bfloat16 [num_requests, (kernel_size - 1) * dilation, num_streams, hidden],
            or None
        save_for_backward: bool

    Returns:
        present_state: as past_state, if that is given

    Example:
        >>> out, rstd = short_conv(torch.randn(6, 4, 64).bfloat16(), torch.ones(4, 64), torch.randn(256, 4))
        >>> out.shape, rstd.shape
        (torch.Size([6, 4, 64]), torch.Size([6, 4]))
    """
    taps, is_past = _taps(conv_weight), past_state is not None
    if is_past:
        if ring is not None or start_pos is not None or slots is not None:
            raise ValueError("past_state: is given, want None with ring, start_pos or slots")
        if keep_ring or null_slot is not None:
            raise ValueError("past_state: is given, want None with keep_ring or null_slot")
        ring, start_pos = _ring_of(past_state, taps, dilation)
    args = (x, norm_weight, taps, bias, residual, mask, ring, cu_seqlens, start_pos, slots, dilation, eps,
            _is_silu(activation), add_input, zero_centered, round_each, keep_ring, null_slot)
    try:
        made = _tegula.short_conv(*args, out=out) if save_for_backward else \
            (_tegula.short_conv_alone(*args, out=out), None)
    except (TypeError, ValueError) as e:
        raise _named(e, **({"ring": "past_state"} if is_past else {})) from None
    return (*made, _present(ring, cu_seqlens, x.shape[0])) if is_past else tuple(made)


@_helped_by(_tegula.short_conv_bwd)
def short_conv_bwd(grad_out: AnyTensor, x: Array, norm_weight: Array, conv_weight: Array, rstd: Array, dilation: int = 3,
                   activation: Literal["silu", "none"] = "silu", bias: Array | None = None, add_input: bool = False,
                   cu_seqlens: Array | None = None, *, mask: Array | None = None, zero_centered: bool = False,
                   wanted: _typing.Sequence[bool] = (True,) * 4,
                   out: tuple[Array | None, ...] | None = None) -> tuple[Saved, Saved, Saved, Saved]:
    """The gradients of short_conv: (grad_x, grad_norm_partial, grad_conv_partial, grad_bias_partial). The sums over the
    first dimension of the last three are the gradients of the weights. That of residual is grad_out. What came before a
    chunk counts as 0. Those that are not wanted are None and cost nothing.

    Args:
        conv_weight: bfloat16 or float32 [num_streams * hidden, kernel_size], or
            [num_streams * hidden, 1, kernel_size]
        activation: 'silu' or 'none'
        wanted: a bool for each result

    Example:
        >>> x, norm_weight, conv_weight = torch.randn(6, 4, 64).bfloat16(), torch.ones(4, 64), torch.randn(256, 4)
        >>> out, rstd = short_conv(x, norm_weight, conv_weight)
        >>> grad_x, *of_weights = short_conv_bwd(out, x, norm_weight, conv_weight, rstd)
        >>> grad_x.shape, len(of_weights)
        (torch.Size([6, 4, 64]), 3)
    """
    wanted = _wanted(wanted, 4)
    made = _tegula.short_conv_bwd(grad_out, x, norm_weight, _taps(conv_weight), rstd, bias, mask, cu_seqlens, dilation,
                                  _is_silu(activation), add_input, zero_centered, *wanted, _num_conv_partials(x),
                                  out=out)
    return _without(made, wanted)


@_helped_by(_tegula.engram_gate_conv_fwd)
def engram_gate_conv_fwd(hidden_states: AnyTensor, k: Array, v: Array, weight_fused: Array | None, eps: float,
                         clamp_value: float, norm_weight: Array, conv_weight: Array, dilation: int = 3,
                         norm_eps: float = 1e-5, activation: Literal["silu", "none"] = "silu",
                         bias: Array | None = None, cu_seqlens: Array | None = None, *,
                         weights: tuple[Array, Array] | None = None, add_residual: bool = True,
                         zero_centered: bool = False, sign: Literal["zero", "bit"] = "zero",
                         norm_zero_centered: bool = False, round_each: bool = False, mask: Array | None = None,
                         ring: Array | None = None, slots: Array | None = None, start_pos: Array | None = None,
                         keep_ring: bool = False, null_slot: int | None = None, out: Array | None = None) -> AnyTensor:
    """hidden_states + gv + silu(conv(norm(gv))), gv = gate * v rounded to bfloat16: in one pass, bit for bit, what
    engram_gate_fwd gives with add_residual=False, and short_conv makes of it with add_input=True and
    residual=hidden_states. The gate's arguments, weights, zero_centered and sign are those of engram_gate_fwd, the others
    those of short_conv; k and v may be views of one tensor. Masked tokens keep their hidden_states, or get 0 without
    residual, and count as 0.

    Args:
        weight_fused: float32 [num_streams, hidden], or None
        weights: two of bfloat16 or float32 [num_streams, hidden], or None
        conv_weight: bfloat16 or float32 [num_streams * hidden, kernel_size], or
            [num_streams * hidden, 1, kernel_size]
        activation: 'silu' or 'none'

    Example:
        >>> x, v, weight = torch.randn(6, 4, 64).bfloat16(), torch.randn(6, 64).bfloat16(), torch.rand(4, 64)
        >>> engram_gate_conv_fwd(x, x, v, weight, 1e-20, 1e-6, torch.ones(4, 64), torch.randn(256, 4)).shape
        torch.Size([6, 4, 64])
    """
    hidden, embed = _both(weight_fused, weights)
    args = (hidden_states, k, v, hidden, embed, norm_weight, _taps(conv_weight), bias, mask, ring, cu_seqlens, start_pos,
            slots, eps, clamp_value, dilation, norm_eps, _is_silu(activation), add_residual, zero_centered, sign,
            norm_zero_centered, round_each, keep_ring, null_slot)
    try:
        return _tegula.engram_gate_conv_fwd(*args, out=out)
    except (TypeError, ValueError) as e:
        raise _named(e, **_of_weights(weights)) from None


def _as_matrix(name, x, shape):
    """A packed tensor as a matrix of one row; never a copy, as the op may write to it."""
    if tuple(x.shape) != tuple(shape):
        raise ValueError(f"{name}: shape is {list(x.shape)}, want {list(shape)}")
    if not (x.is_contiguous() if hasattr(x, "is_contiguous") else x.flags.c_contiguous):
        raise ValueError(f"{name}: has gaps, want packed memory")
    return x.reshape(1, -1)


@_helped_by(_tegula.engram_sinkhorn_momentum_update)
def engram_sinkhorn_momentum_update(grad: AnyTensor, momentum_buffer: Array, beta1: float, nesterov: bool = True, *,
                                    out: Array | None = None) -> AnyTensor:
    """momentum_buffer = beta1 * momentum_buffer + (1 - beta1) * grad, in place. Returns beta1 * momentum_buffer + (1 -
    beta1) * grad, or without nesterov the new momentum, in float32 before its rounding. All have one shape.

    Example:
        >>> momentum = torch.zeros(3, 4)
        >>> engram_sinkhorn_momentum_update(torch.ones(3, 4), momentum, 0.5, nesterov=False)[0], momentum[0]
        (tensor([0.5000, 0.5000, 0.5000, 0.5000]), tensor([0.5000, 0.5000, 0.5000, 0.5000]))
    """
    shape = getattr(grad, "shape", (0, 0))
    if len(shape) == 2:
        return _tegula.engram_sinkhorn_momentum_update(grad, momentum_buffer, beta1, nesterov, out=out)
    made = _tegula.engram_sinkhorn_momentum_update(
        _as_matrix("grad", grad, shape), _as_matrix("momentum_buffer", momentum_buffer, shape), beta1, nesterov,
        out=None if out is None else _as_matrix("out", out, shape))
    return made.reshape(shape) if out is None else out


def _num_partials(num_rows):
    """tgl_engram_sinkhorn_num_partials(), for symbolic sizes too."""
    rows_of_each = max((num_rows + 527) // 528, 8)
    return max((num_rows + rows_of_each - 1) // rows_of_each, 1)


@_helped_by(_tegula.engram_sinkhorn_step)
def engram_sinkhorn_step(matrix: AnyTensor, row_scale: Array, col_scale: Array, eps: float,
                         col_sumsq: Array | None = None, *,
                         out: tuple[Array | None, ...] | None = None) -> tuple[AnyTensor, AnyTensor]:
    """Divides the rows of x = row_scale * matrix * col_scale by their norms plus eps, by changing row_scale in place.
    Returns (row_norm, col_sumsq_partial): the norms before, and sums of the squares of columns after, each over some
    of the rows. With col_sumsq the sums over all rows are written there, as engram_sinkhorn_step_reduce does.

    Example:
        >>> row_scale = torch.ones(2)
        >>> row_norm, _ = engram_sinkhorn_step(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), row_scale, torch.ones(2), 0.0)
        >>> row_norm, row_scale
        (tensor([5., 2.]), tensor([0.2000, 0.5000]))
    """
    num_partials = _num_partials(matrix.shape[0]) if len(getattr(matrix, "shape", ())) else 1
    return _tegula.engram_sinkhorn_step(matrix, row_scale, col_scale, eps, num_partials, col_sumsq, out=out)


del annotations
__all__ = sorted(name for name in globals() if not name.startswith("_"))
