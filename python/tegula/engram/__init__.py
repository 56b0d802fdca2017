# SPDX-License-Identifier: MIT
"""Engram, a memory that a layer looks up by the last few token ids: from ids to rows of its table. Most functions are
builtins; those here only sort arguments."""
import typing as _typing

from .._rows import WORDS as _WORDS, functions as _functions, name_of as _name_of
from .._tegula import engram_lookup as _engram_lookup, engram_rows as _engram_rows

globals().update(_functions("engram"))


class NGram(_typing.NamedTuple):
    """What makes rows of ids: tensors multipliers [L, N], vocab_sizes [L, N - 1, J], offsets [L, (N - 1) * J], the id
    behind the map that stands for none, the map of ids, and the id, before the map, that ends a window."""
    multipliers: object
    vocab_sizes: object
    offsets: object
    pad_id: int
    token_map: object = None
    stop_id: _typing.Optional[int] = None


def engram_rows(input_ids, ngram, cu_seqlens=None, start_pos=None, history=None, ring=None, slots=None,
                image_token_mask=None, *, layout="ltc", history_newest_first=False, hash_masked=False, keep_ring=False,
                null_slot=None, out=None):
    """From raw token ids to table rows, for all layers, in one launch: [L, T, C], or [T, L, C] with layout "tlc", in
    the dtype of ngram.offsets. Request b has tokens cu_seqlens[b] .. cu_seqlens[b + 1] - 1; start_pos[b] tokens of it
    came before. Their raw ids are in history [B, N - 1], oldest first, or in row slots[b] of ring [S, R], by position
    modulo R, where the ids of this call are then stored. Rows of masked, negative and unmapped tokens are -1."""
    if layout not in ("ltc", "tlc"):
        raise ValueError(f"layout: is {layout!r}, want 'ltc' or 'tlc'")
    tlc = layout == "tlc"
    multipliers, vocab_sizes, offsets, pad_id, token_map, stop_id = ngram
    rows = _engram_rows(input_ids, multipliers, vocab_sizes, offsets, pad_id, token_map, stop_id, cu_seqlens, start_pos,
                        history, ring, slots, image_token_mask, tlc, history_newest_first, hash_masked, keep_ring,
                        null_slot, out=out.swapaxes(0, 1) if tlc and out is not None else out)
    if out is not None:
        return out
    return rows.swapaxes(0, 1) if tlc else rows


def engram_lookup(table, indices, table_sf=None, *, row_begin=0, packed=False, dtype=None, num_sms=0, out=None,
                  out_sf=None):
    """Rows indices[t, c] - row_begin of a table [R, D], as [T, C, D]; zeros where there is no such row. An e4m3 table
    becomes bfloat16, its codes times 2^(E - 127) with a byte E of table_sf [R, D / 32] for 32 codes, or times table_sf
    [1]; other tables, and those with dtype= their own, are copied; dtype=torch.bfloat16 rounds. packed: [T, C, D + D /
    32] bytes, codes and then scale factors. out_sf [T, C * D / 128], int32 with columns side by side, gets the factors
    of copied codes as an FP8 GEMM takes them. For indices on a GPU, table and table_sf [R, D / 32] may be in pinned
    memory; num_sms bounds the SMs that read it."""
    name = _name_of(table.dtype) if dtype is None and hasattr(table, "dtype") else _name_of(dtype)
    word = "bf16" if dtype is None and name == "float8_e4m3fn" else _WORDS.get(name)
    if word not in ("bf16", "e4m3", "f16", "f32"):
        raise ValueError(f"dtype: is {dtype or name}, want bfloat16 or that of table")
    factors = table_sf.reshape(1, -1) if getattr(table_sf, "ndim", 2) == 1 else table_sf
    return _engram_lookup(indices, table, factors, row_begin, packed, word, num_sms, out_sf, out=out)


__all__ = sorted(name for name in globals() if not name.startswith("_"))
