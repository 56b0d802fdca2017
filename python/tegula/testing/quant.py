# SPDX-License-Identifier: MIT
"""Comparing packed scale factors."""
import torch


def clear_unused_sf(sf, hidden, num_per_channels):
    """The bytes of packed scale factors, four to an int32 word, with those past the last group of a row set
    to 0: a uint8 copy with a row of whole words for each row of sf."""
    num_groups = -(-hidden // num_per_channels)
    packed = sf.clone(memory_format=torch.contiguous_format)    # contiguous() leaves a single column as it is
    rows = packed.view(torch.uint8).view(-1, -(-num_groups // 4) * 4)
    rows[:, num_groups:] = 0
    return rows
