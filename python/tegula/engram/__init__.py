# SPDX-License-Identifier: MIT
"""Engram, a memory that a layer looks up by the last few token ids: from ids to rows of its table. Most functions are
builtins; those here only sort arguments."""
import typing as _typing

from .._rows import functions as _functions
from .._tegula import engram_rows as _engram_rows

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


__all__ = sorted(name for name in globals() if not name.startswith("_"))
