# SPDX-License-Identifier: MIT
from collections.abc import Sequence
from itertools import zip_longest

import torch
from torch import Tensor

from ...._tegula import mhc_multilayer_recompute as _recompute
from ._shapes import flat_out

# Of one layer: the dimensions behind those of tokens.
_LAST = {"pre_mix_list": "n", "layer_output_list": "h", "post_mix_list": "n", "comb_mix_list": "nn",
         "layer_input_list": "h", "residual_list": "nh"}

_library = torch.library.Library("tegula", "FRAGMENT")
_library.define(
    "mhc_multilayer_recompute(Tensor initial_residual, Tensor[] pre_mix_list, Tensor[] layer_output_list, "
    "Tensor[] post_mix_list, Tensor[] comb_mix_list, Tensor(a!)[] layer_input_list, Tensor(b!)[] residual_list) -> ()",
    tags=(torch.Tag.pt2_compliant_tag,))


def _run(residual, *lists):
    _recompute(residual, tuple(zip_longest(*lists)))
    torch.autograd.graph.increment_version((*lists[4], *lists[5]))


_library.impl("mhc_multilayer_recompute", _run, "CompositeExplicitAutograd")
_library.impl("mhc_multilayer_recompute", lambda *args: None, "Meta")
_library.impl("mhc_multilayer_recompute", torch.library.fallthrough_kernel, "Autograd")     # called without gradients


def _flat(name, t, last, residual):
    """A view as [T, ...], as it has to be; of a mix [..., N, 1] or [..., N]."""
    if last == "n" and t.ndim == residual.ndim:
        t = t.squeeze(-1)
    *lead, n, h = residual.shape
    want = [*lead, *({"n": n, "h": h}[size] for size in last)]
    if list(t.shape) != want:
        raise ValueError(f"{name}: shape is {list(t.shape)}, want {want}, as residual {list(residual.shape)}")
    return flat_out(t, t.shape, len(last))


@torch.no_grad()
def mhc_multilayer_recompute(initial_residual: Tensor, pre_mix_list: Sequence[Tensor],
                             layer_output_list: Sequence[Tensor], post_mix_list: Sequence[Tensor],
                             comb_mix_list: Sequence[Tensor], layer_input_list: Sequence[Tensor],
                             residual_list: Sequence[Tensor]) -> None:
    """The inputs of consecutive sublayers, and the residuals after them, from the first residual, the mixes and the
    sublayers' outputs: writes layer_input_list, of as many tensors as pre_mix_list has, and residual_list, of as many
    or one less. All in one launch (64 layers), to the bits of mhc_pre_apply_mix and mhc_post. All tensors but the first
    are packed; residual_list[0] may be initial_residual.

    Args:
        initial_residual: bfloat16 [..., num_streams, hidden]
        pre_mix_list: num_layers of float32 [..., num_streams, 1] or [..., num_streams]
        layer_output_list: as many, or one less, of bfloat16 [..., hidden]
        post_mix_list: as many as layer_output_list of float32 [..., num_streams, 1] or
            [..., num_streams]
        comb_mix_list: as many as layer_output_list of float32 [..., num_streams, num_streams]
        layer_input_list: num_layers of bfloat16 [..., hidden]; are written
        residual_list: as many as layer_output_list of bfloat16 [..., num_streams, hidden]; are written

    Returns:
        None

    Example:
        >>> residual, output = torch.randn(6, 4, 64).bfloat16(), torch.randn(6, 64).bfloat16()
        >>> pre_mix, post_mix, comb_mix = torch.rand(6, 4), torch.rand(6, 4), torch.rand(6, 4, 4)
        >>> layer_input, new_residual = torch.empty_like(output), torch.empty_like(residual)
        >>> mhc_multilayer_recompute(residual, [pre_mix], [output], [post_mix], [comb_mix], [layer_input], [new_residual])
    """
    count, posts = len(pre_mix_list), len(layer_output_list)
    lengths = len(layer_input_list), len(post_mix_list), len(comb_mix_list), len(residual_list)
    if count < 1 or posts not in (count - 1, count) or lengths != (count, posts, posts, posts):
        raise ValueError(f"lists: have {count} pre mixes, {posts} layer outputs, {lengths[0]} layer inputs, {lengths[1]} "
                         f"and {lengths[2]} mixes, {lengths[3]} residuals; want L >= 1 pre mixes and layer inputs, and L "
                         "or L - 1 of the others")
    lists = pre_mix_list, layer_output_list, post_mix_list, comb_mix_list, layer_input_list, residual_list
    torch.ops.tegula.mhc_multilayer_recompute(
        flat_out(initial_residual, initial_residual.shape, 2),
        *([_flat(name, t, last, initial_residual) for t in tensors]
          for (name, last), tensors in zip(_LAST.items(), lists)))
