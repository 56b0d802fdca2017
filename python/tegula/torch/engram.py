# SPDX-License-Identifier: MIT
import torch


def make_offsets(vocab_sizes):
    """Where each table of a layer begins, if they lie one behind the other: [L, N - 1, J] -> [L, (N - 1) * J]."""
    flat = vocab_sizes.flatten(1)
    return flat.cumsum(1, dtype=vocab_sizes.dtype) - flat


def engram_hash_ref(ngram_token_ids, multipliers, vocab_sizes, offsets, image_token_mask=None):
    num_heads, ids = vocab_sizes.shape[2], ngram_token_ids.long()
    hashes = ids[:, 0] * multipliers[:, :1]                             # [L, T]
    columns = [offsets.new_empty(*hashes.shape, 0).long()]
    for i in range(1, ids.shape[1]):
        hashes = hashes ^ (ids[:, i] * multipliers[:, i:i + 1])
        sizes = vocab_sizes[:, i - 1, None].long()
        begin = (i - 1) * num_heads
        rows = hashes[:, :, None].remainder(sizes.clamp(min=1)) + offsets[:, None, begin:begin + num_heads].long()
        columns.append(rows.masked_fill(sizes < 1, -1))
    rows = torch.cat(columns, dim=2)
    if image_token_mask is not None:
        rows = rows.masked_fill(image_token_mask[:, None], -1)
    return rows.to(offsets.dtype)
