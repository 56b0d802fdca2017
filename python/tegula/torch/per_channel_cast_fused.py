# SPDX-License-Identifier: MIT
import torch

from .quant import cast, cast_back


def per_channel_cast_fused(x, num_per_tokens, num_per_channels, round_sf, pos_to_token):
    """(out, sf) with blocks of num_per_tokens x 1, of gathered rows; a row of padding is all +0."""
    values = cast_back(x, "fp32", (1, num_per_channels)) if isinstance(x, tuple) else x.float()
    if pos_to_token is not None:
        known = (pos_to_token >= 0) & (pos_to_token < len(values))
        gathered = torch.zeros(len(pos_to_token), values.shape[1], device=values.device)
        gathered[known] = values[pos_to_token[known].long()]
        values = gathered
    return cast(values, "e4m3", (num_per_tokens, 1), round_sf=round_sf)
