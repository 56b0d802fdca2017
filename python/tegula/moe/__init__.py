# SPDX-License-Identifier: MIT
"""Routing of tokens to experts: choosing experts and their weights, the mapping from tokens to experts, moving tokens
to their experts and back. Most functions are builtins; those here only prepare arguments."""
from __future__ import annotations as _annotations

from math import prod as _prod
from operator import index as _index
from typing import TYPE_CHECKING as _TYPE_CHECKING, overload as _overload

from . import scoring
from .. import _after_import, _tegula
from .._help import helped_by as _helped_by
from .._rows import functions as _functions

if _TYPE_CHECKING:
    from .._moe import *            # a stub made from the table of functions
    from typing import Any, Literal

    from .._typing import AnyTensor, Array

globals().update(_functions("moe"))


def _flag(name, value):
    """A bool; accepts what the builtins accept."""
    kind = type(value)
    if not (isinstance(value, int) and value in (0, 1)) and (
            kind.__module__ != "numpy" or kind.__name__ not in ("bool", "bool_")):
        raise TypeError(f"{name}: is {value!r}, want True or False")
    return bool(value)


@_overload
def get_fused_mapping(topk_idx: AnyTensor, num_experts: int, num_expanded_tokens: int, alignment: int,
                      force_no_sync: bool = False, *, with_psum: Literal[False] = False,
                      out: tuple[Array | None, ...] | None = None) -> tuple[
                          AnyTensor, AnyTensor, AnyTensor, AnyTensor, AnyTensor, AnyTensor, AnyTensor, list[int]]: ...


@_overload
def get_fused_mapping(topk_idx: AnyTensor, num_experts: int, num_expanded_tokens: int, alignment: int,
                      force_no_sync: bool = False, *, with_psum: bool,
                      out: tuple[Array | None, ...] | None = None) -> tuple[Any, ...]: ...


@_helped_by(_tegula.get_fused_mapping)
def get_fused_mapping(topk_idx: AnyTensor, num_experts: int, num_expanded_tokens: int, alignment: int,
                      force_no_sync: bool = False, *, with_psum: bool = False,
                      out: tuple[Array | None, ...] | None = None) -> tuple[Any, ...]:
    """Maps pairs of token and slot to positions of a buffer in which the pairs of each expert are one segment, padded
    to a multiple of alignment. Returns (pos_to_expert, pos_to_token, pos_to_token_topk, token_topk_to_pos,
    expert_start, expert_end, num_tokens_per_expert, num_tokens_per_expert_list); with_psum adds (count, psum_end): the
    number of pairs of each expert, and the position after the last of them.

    The buffer has num_expanded_tokens positions, and the list is empty. If num_expanded_tokens is 0, the function waits
    for the result: the buffer has as many positions as needed, and the list has the lengths of the segments. With
    force_no_sync it does not wait: the buffer is empty, and no pair has a position. out= takes the tensors without the
    list, if the function does not wait.

    Args:
        force_no_sync: bool
        with_psum: bool
        out: 7 tensors to write to, or 9 with with_psum, a tuple; those that are None are made

    Returns:
        num_tokens_per_expert_list: list of int
        count: int32 [num_experts], with with_psum
        psum_end: int32 [num_experts], with with_psum

    Example:
        >>> topk_idx = torch.tensor([[2, 0], [0, 1], [2, -1]])
        >>> *_, token_topk_to_pos, start, end, counts, lengths = get_fused_mapping(topk_idx, 3, 0, 4)
        >>> start.tolist(), end.tolist(), lengths
        ([0, 4, 8], [4, 8, 12], [4, 4, 4])
    """
    if with_psum is not False and with_psum is not True:            # a call of _flag() costs 200 ns
        with_psum = _flag("with_psum", with_psum)
    if force_no_sync is not False and force_no_sync is not True:
        force_no_sync = _flag("force_no_sync", force_no_sync)
    mapping = _tegula.get_fused_mapping_with_psum if with_psum else _tegula.get_fused_mapping
    if not force_no_sync and num_expanded_tokens == 0:
        made, lengths = _wait_for_mapping(mapping, topk_idx, num_experts, num_expanded_tokens, alignment, out)
    else:
        made, lengths = mapping(topk_idx, num_experts, num_expanded_tokens, alignment, out=out), []
    return made[:7] + (lengths, *made[7:]) if with_psum else made + (lengths,)


_pinned = {}  # {length: page-locked tensors that no call uses now}


def _wait_for_mapping(mapping, topk_idx, num_experts, zero, alignment, out):
    """(tensors of a mapping with as many positions as it needs, the lengths of its segments as a list)."""
    if out is not None:
        raise ValueError("out: is given, want None where num_expanded_tokens is 0: sizes are not known yet")
    try:
        num_pairs, num_experts, alignment = _prod(topk_idx.shape), _index(num_experts), _index(alignment)
        _index(zero)                            # 0.0 is no integer
    except (AttributeError, TypeError):
        mapping(topk_idx, num_experts, zero, alignment)     # its message names the argument
        raise
    enough = num_pairs + (alignment - 1) * num_experts
    # Otherwise 0: the builtin refuses such numbers.
    enough = enough // alignment * alignment if alignment > 0 and 0 <= enough < 2**31 else 0
    if getattr(topk_idx, "is_meta", False):
        raise ValueError("num_expanded_tokens: is 0, want a number of positions, or force_no_sync, for a meta "
                         "tensor: there is nothing to wait for")
    if getattr(topk_idx, "is_cuda", False):     # of torch: the kernel writes to page-locked memory
        import torch
        if torch.cuda.is_current_stream_capturing():
            raise ValueError("num_expanded_tokens: is 0, want a number of positions, or force_no_sync, while a "
                             "graph is captured: nothing can be waited for")
        unused = _pinned.setdefault(num_experts, [])
        try:
            host = unused.pop()
        except IndexError:
            _tegula.check("get_fused_mapping", (tuple(topk_idx.shape), num_experts, 0, alignment, None))
            host = torch.empty(num_experts, dtype=torch.int32, pin_memory=True)
        made = mapping(topk_idx, num_experts, enough, alignment, host)
        torch.cuda.current_stream(topk_idx.device).synchronize()
        lengths = host.tolist()
        unused.append(host)
    else:
        made = mapping(topk_idx, num_experts, enough, alignment)
        lengths = made[6].tolist()
    if _tegula.is_preparing():                  # nothing has run: keep the largest possible sizes
        return made, [0] * num_experts
    total = sum(lengths)
    return (*(pos[:total] for pos in made[:3]), *made[3:]), lengths


def _wait_outside_graphs():
    """torch.compile breaks its graph at a call that waits for sizes."""
    import torch
    global _wait_for_mapping
    _wait_for_mapping = torch.compiler.disable(_wait_for_mapping, reason=(
        "num_expanded_tokens is 0, so get_fused_mapping waits for its sizes: give it a number of positions"))


_after_import.run("torch._dynamo", _wait_outside_graphs)


@_helped_by(_tegula.route)
def route(logits: AnyTensor, bias: Array | None, num_topk: int, num_topk_groups: int, num_groups: int,
          use_shared_as_routed: bool, num_shared_experts: int, routed_scaling_factor: float, ep_rank: int,
          num_ep_ranks: int, tp_rank: int, num_tp_ranks: int, scoring_func: str, num_experts: int,
          num_expanded_tokens: int, alignment: int, mask: Array | None = None, fix_routing_mask: Array | None = None,
          to_physical_map: Array | None = None, logical_count: Array | None = None,
          unmapped_topk_idx: Array | None = None, *, with_psum: bool = False,
          out: tuple[Array | None, ...] | None = None) -> tuple[AnyTensor, ...]:
    """top2_sum_gate and get_fused_mapping, in one launch for few tokens. Returns (topk_idx, topk_weights) and the seven
    tensors of the mapping for num_experts experts; with_psum adds (count, psum_end). It never waits, so there is no
    list.

    Args:
        with_psum: bool
        out: 9 tensors to write to, or 11 with with_psum, a tuple; those that are None are made

    Returns:
        count: int32 [num_experts], with with_psum
        psum_end: int32 [num_experts], with with_psum

    Example:
        >>> idx, weights, *mapping = route(
        ...     torch.randn(6, 16), None, num_topk=2, num_topk_groups=2, num_groups=4, use_shared_as_routed=False,
        ...     num_shared_experts=0, routed_scaling_factor=1.0, ep_rank=0, num_ep_ranks=1, tp_rank=0, num_tp_ranks=1,
        ...     scoring_func="sigmoid", num_experts=16, num_expanded_tokens=64, alignment=4)
        >>> idx.shape, len(mapping)
        (torch.Size([6, 2]), 7)
    """
    if with_psum is not False and with_psum is not True:
        with_psum = _flag("with_psum", with_psum)
    function = _tegula.route_with_psum if with_psum else _tegula.route
    return function(logits, bias, num_topk, num_topk_groups, num_groups, use_shared_as_routed,
                    num_shared_experts, routed_scaling_factor, ep_rank, num_ep_ranks, tp_rank, num_tp_ranks,
                    scoring_func, num_experts, num_expanded_tokens, alignment, mask, fix_routing_mask,
                    to_physical_map, logical_count, unmapped_topk_idx, out=out)


@_helped_by(_tegula.reduce_fused_e4m3)
def reduce_fused(x: AnyTensor | tuple[AnyTensor, Array | None], topk_weights: Array | None, token_topk_to_pos: Array,
                 fp8_format: str = "", sf: Array | None = None, out: Array | None = None) -> AnyTensor:
    """Sums each token's rows, times their weights, in the order of its slots. With fp8_format='e4m3' the result is
    multiplied by sf and cast. x may be a pair, with one scale factor per row. topk_weights None is all 1.

    Args:
        x: float32, bfloat16, float16 or float8_e4m3fn [num_positions, hidden], or a pair (x, x_sf);
            x_sf: float32 [num_positions]
        fp8_format: '' or 'e4m3'

    Returns:
        out: as x [num_tokens, hidden]; with fp8_format 'e4m3' float8_e4m3fn

    Example:
        >>> x, token_topk_to_pos = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[2, 0], [1, -1]]).int()
        >>> reduce_fused(x, torch.tensor([[1.0, 0.5], [1.0, 1.0]]), token_topk_to_pos)
        tensor([[4.5000],
                [2.0000]])
    """
    data, x_sf = x, None
    if isinstance(x, (tuple, list)):
        if len(x) != 2:
            raise ValueError(f"x: has {len(x)} items, want 2")
        data, x_sf = x
    if fp8_format == "e4m3":
        return _tegula.reduce_fused_e4m3(data, x_sf, topk_weights, token_topk_to_pos, sf, out=out)
    if fp8_format != "":
        raise ValueError(f"fp8_format: is {fp8_format!r}, want '' or 'e4m3'")
    if sf is not None:
        raise ValueError("sf: is given, want None where fp8_format is ''")
    return _tegula.reduce_fused(data, x_sf, topk_weights, token_topk_to_pos, out=out)


__all__ = sorted(name for name in globals() if not name.startswith("_"))
