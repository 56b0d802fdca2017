# SPDX-License-Identifier: MIT
import torch


def make_offsets(vocab_sizes):
    """Where each table of a layer begins, if they lie one behind the other: [L, N - 1, J] -> [L, (N - 1) * J]."""
    flat = vocab_sizes.flatten(1)
    return flat.cumsum(1, dtype=vocab_sizes.dtype) - flat


def engram_hash_ref(ngram_token_ids, multipliers, vocab_sizes, offsets, image_token_mask=None):
    """tegula.engram.engram_hash: rows of a table for every window of token ids; masked tokens have none."""
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


def _window(ids, there, max_ngram, pad_id, lookup, stop_id, is_dead):
    """Windows, newest first, of the ids of one sequence, of which the first max_ngram - 1 came before it. `there` says
    which of them do exist; those of is_dead cut a window, too."""
    windows, exist = (t.unfold(0, max_ngram, 1).flip(1) for t in (ids, there & ~is_dead(ids)))
    is_cut = ~exist
    if stop_id is not None:
        is_cut[:, 1:] |= windows[:, 1:] == stop_id
    is_cut = is_cut.cumsum(1) > 0
    if lookup is not None:
        has = (windows >= 0) & (windows < len(lookup))
        windows = torch.where(has, lookup.long()[windows.masked_fill(~has, 0)], windows) if len(lookup) else windows
    return windows.masked_fill(is_cut, pad_id)


def _spans(cu_seqlens, num_tokens):
    """(number, begin, end) of all requests; the boundaries held in order."""
    if cu_seqlens is None:
        return [(0, 0, num_tokens)]
    bounds = cu_seqlens.long().clamp(0, num_tokens).cummax(0).values.tolist()
    return [(b, *span) for b, span in enumerate(zip(bounds, bounds[1:]))]


def ngram_windows_ref(input_ids, max_ngram_size, pad_id, cu_seqlens=None, history=None, lookup=None, stop_id=None):
    """tegula.engram.ngram_windows: the last max_ngram_size ids of every token, newest first."""
    ids, past = input_ids.long(), input_ids.new_zeros(max_ngram_size - 1, dtype=torch.long)
    out = torch.full((len(ids), max_ngram_size), pad_id, device=ids.device)
    for b, begin, end in _spans(cu_seqlens, len(ids)):
        all_ids = torch.cat([past if history is None else history[b].long(), ids[begin:end]])
        there = torch.arange(len(all_ids), device=ids.device) >= (len(past) if history is None else 0)
        if end > begin:
            out[begin:end] = _window(all_ids, there, max_ngram_size, pad_id, lookup, stop_id, lambda v: v != v)
    return out.int()


def engram_rows_ref(input_ids, ngram, cu_seqlens=None, start_pos=None, history=None, ring=None, slots=None,
                    image_token_mask=None, *, layout="ltc", history_newest_first=False, hash_masked=False,
                    keep_ring=False, null_slot=None):
    """tegula.engram.engram_rows, request by request: table rows of the windows of raw token ids. Writes the ring."""
    multipliers, vocab_sizes, offsets, pad_id, token_map, stop_id = ngram
    max_ngram = multipliers.shape[1]
    ids = input_ids.long()
    if image_token_mask is not None:
        ids = ids.masked_fill(image_token_mask, -1)

    def is_dead(v):
        return (v < 0) | (v >= (len(token_map) if token_map is not None else 2**63 - 1))

    windows = torch.full((len(ids), max_ngram), pad_id, device=ids.device)
    has_rows = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    writes = []
    for b, begin, end in _spans(cu_seqlens, len(ids)):
        if end == begin:
            continue
        start = max(int(start_pos[b]), 0) if start_pos is not None else max_ngram if history is not None else 0
        slot = -1 if ring is None else b if slots is None else int(slots[b])
        if ring is not None and not (0 <= slot < len(ring) and slot != null_slot):
            slot = -1
        before = torch.arange(max_ngram - 1, 0, -1, device=ids.device)      # tokens before the chunk, oldest first
        past = torch.full_like(before, -1)
        if history is not None:
            past = history[b].flip(0).long() if history_newest_first else history[b].long()
        elif slot >= 0:
            past = ring[slot].long()[(start - before) % ring.shape[1]]
        past = past.masked_fill(before > start, -1)
        all_ids = torch.cat([past, ids[begin:end]])
        windows[begin:end] = _window(all_ids, torch.ones_like(all_ids, dtype=torch.bool), max_ngram, pad_id, token_map,
                                     stop_id, is_dead)
        has_rows[begin:end] = ~is_dead(ids[begin:end]) | hash_masked
        if slot >= 0 and not keep_ring:
            kept = ids[begin:end][-ring.shape[1]:]
            kept = kept.masked_fill(is_dead(kept) | (kept > torch.iinfo(ring.dtype).max), -1).to(ring.dtype)
            at = torch.arange(end - begin - len(kept), end - begin, device=ids.device)
            writes.append((slot, (start + at) % ring.shape[1], kept))
    for slot, at, kept in writes:
        ring[slot, at] = kept
    rows = engram_hash_ref(windows, multipliers, vocab_sizes, offsets, ~has_rows)
    return rows.transpose(0, 1).clone(memory_format=torch.contiguous_format) if layout == "tlc" else rows


def engram_lookup_ref(table, indices, table_sf=None, *, row_begin=0, packed=False, dtype=None):
    """Without out_sf. Bytes of table_sf are exponents as float8_e8m0fnu reads them. indices None: all rows, in order."""
    if indices is None:
        indices = torch.arange(table.shape[0], device=table.device)[:, None]
    rows = indices.long() - row_begin
    is_here = (rows >= 0) & (rows < table.shape[0])
    rows = rows.clamp(0, max(table.shape[0] - 1, 0)) if table.shape[0] else rows.new_zeros(rows.shape)
    source = table if table.shape[0] else table.new_empty((1, table.shape[1]))
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[table.element_size()]
    made = source.view(width)[rows].view(table.dtype)           # [T, C, D], bits as they are
    dtype = dtype or (torch.bfloat16 if table.dtype == torch.float8_e4m3fn else table.dtype)
    if packed:
        made = torch.cat([made.view(torch.uint8), table_sf.view(torch.uint8)[rows]], 2)
    elif dtype != table.dtype:
        made = made.float()
        if table_sf is not None and table_sf.ndim == 1:
            made = made * table_sf
        elif table_sf is not None:
            exponents = table_sf.view(torch.uint8)[rows].int()
            factors = torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents - 127)
            made = made * factors.masked_fill(exponents == 255, torch.nan).repeat_interleave(32, dim=2)
        made = made.to(dtype)
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[made.element_size()]
    return made.view(whole).masked_fill(~is_here[:, :, None], 0).view(made.dtype)


def engram_lookup_bwd_ref(grad_out, indices, num_rows, *, row_begin=0):
    """(unique_rows, grad_rows) of the rows that occur. Sums chunks of 32 occurrences, then those."""
    flat, grads = indices.reshape(-1).long() - row_begin, grad_out.reshape(indices.numel(), -1).float()
    is_here = (flat >= 0) & (flat < num_rows) if num_rows else flat >= 0
    places = is_here.nonzero()[:, 0]
    rows, order = flat[places].sort(stable=True)
    unique, counts = rows.unique_consecutive(return_counts=True)
    grads, sums, begin = grads[places[order]], [], 0
    for count in counts.tolist():
        total = None
        for chunk in grads[begin:begin + count].split(32):
            part = torch.zeros_like(chunk[0])
            for grad in chunk:
                part = part + grad
            total = part if total is None else total + part
        sums.append(total)
        begin += count
    made = torch.stack(sums) if sums else grads.new_zeros(0, grads.shape[1])
    return (unique + row_begin).to(indices.dtype), made


# ---- gate ----

def fused_weight_ref(weight_hidden, weight_embed):
    """tegula.engram.fused_weight: the product in float32."""
    return weight_hidden.float() * weight_embed.float()


def engram_gate_ref(hidden_states, k, v, weight_hidden, weight_embed, clamp_value, eps, save_for_backward=False):
    """Differentiable, in float32 and rounded at the end; the sign of 0 is 0."""
    x, k, hidden = hidden_states.float(), k.float(), hidden_states.shape[-1]
    rstd_x = (x.square().mean(-1) + eps).rsqrt()
    rstd_k = (k.square().mean(-1) + eps).rsqrt()
    dot = ((x * weight_hidden.float()) * (k * weight_embed.float())).sum(-1)
    score = dot * rstd_x * rstd_k * hidden**-0.5
    gate_score = (score.sign() * score.abs().clamp_min(clamp_value).sqrt()).sigmoid()
    output = (x + gate_score.unsqueeze(-1) * v.float().unsqueeze(-2)).to(hidden_states.dtype)
    return (output, dot, gate_score, rstd_x, rstd_k) if save_for_backward else output


def grad_w_reduce_ref(grad_w_partial, weight_hidden, weight_embed, grad_weight_hidden, grad_weight_embed):
    """tegula.engram.grad_w_reduce: adds the gradients of both weights to the last two arguments."""
    total = grad_w_partial.sum(0)
    grad_weight_hidden += total * weight_embed.float()
    grad_weight_embed += total * weight_hidden.float()


def short_conv_ref(x, norm_weight, conv_weight, dilation=3, eps=1e-5, activation="silu", bias=None, add_input=False,
                   residual=None, cu_seqlens=None, past_state=None, save_for_backward=True, *, mask=None,
                   zero_centered=False, round_each=False, rstd=None):
    """In float32, or in float64 if x is, which is then not rounded in between. Differentiable. With the rstd of the call
    it is compared with, it rounds the same normed values as that."""
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    rounded = (lambda v: v) if kind == torch.float64 else (lambda v: v.bfloat16().to(kind))
    each = rounded if round_each else lambda v: v
    taps = conv_weight.reshape(conv_weight.shape[0], -1).to(kind)
    (tokens, streams, hidden), size = x.shape, taps.shape[1]
    alive = torch.ones(tokens, dtype=torch.bool, device=x.device) if mask is None else ~mask
    wide = x.to(kind).where(alive[:, None, None], torch.zeros((), dtype=kind, device=x.device))
    if rstd is None:
        rstd = (wide.square().mean(-1) + eps).rsqrt()
    norm = norm_weight.to(kind) + (1 if zero_centered else 0)
    normed = rounded(wide * rstd[..., None] * norm) * alive[:, None, None]
    cuts = [0, tokens] if cu_seqlens is None else cu_seqlens.tolist()
    rows, present = [], []
    for b, (begin, end) in enumerate(zip(cuts, cuts[1:])):
        before = (normed.new_zeros((size - 1) * dilation, streams, hidden) if past_state is None
                  else past_state[b].to(kind))
        a = torch.cat([before, normed[begin:end]])
        z = normed.new_zeros(end - begin, streams, hidden) if bias is None else bias.to(kind).view(streams, hidden)
        for j in range(size):
            z = z + taps[:, j].view(streams, hidden) * a[j * dilation:j * dilation + end - begin]
        z = each(z)
        rows.append(each(z * z.sigmoid()) if activation == "silu" else z)
        present.append(a[end - begin:])
    rest = normed.new_zeros(tokens - cuts[-1], streams, hidden)
    out = torch.cat([*rows, rest])
    alive = alive & (torch.arange(tokens, device=x.device) < cuts[-1])
    if add_input:
        out = each(out + wide)
    out = out * alive[:, None, None]
    if residual is not None:
        out = out + residual.to(kind)
    made = out.to(x.dtype), rstd.float() * alive[:, None] if save_for_backward else None
    return made if past_state is None else (*made, torch.stack(present).to(past_state.dtype))


def engram_sinkhorn_momentum_update_ref(grad, momentum_buffer, beta1, nesterov=True):
    """Changes momentum_buffer in place. In double: a product of floats is exact there, and a sum of two nearly so."""
    old, new = (torch.tensor(x, dtype=torch.float32).double().item() for x in (beta1, 1 - beta1))
    g = grad.double()
    momentum = (momentum_buffer.double() * old + (g * new).float().double()).float()
    momentum_buffer.copy_(momentum)
    return (g * new + (momentum.double() * old).float().double()).float() if nesterov else momentum


def _scaled(matrix, row_scale, col_scale):
    return row_scale[:, None] * matrix * col_scale


def engram_sinkhorn_step_ref(matrix, row_scale, col_scale, eps, col_sumsq=None):
    """Changes row_scale in place; the partial sums are one row."""
    x = _scaled(matrix, row_scale, col_scale)
    row_norm = x.norm(dim=1)
    factor = 1 / (row_norm + eps)
    row_scale *= factor
    partial = (x * factor[:, None]).square().sum(dim=0, keepdim=True)
    if col_sumsq is not None:
        col_sumsq.copy_(partial[0])
    return row_norm, partial


def engram_sinkhorn_step_reduce_ref(col_sumsq_partial, col_sumsq):
    """tegula.engram.engram_sinkhorn_step_reduce: writes col_sumsq."""
    col_sumsq.copy_(col_sumsq_partial.sum(dim=0))


def engram_sinkhorn_finalize_ref(matrix, row_scale, col_scale, eps, alpha, out=None):
    """tegula.engram.engram_sinkhorn_finalize: the scaled matrix, every row over its norm, times alpha."""
    x = _scaled(matrix, row_scale, col_scale)
    direction = x * (alpha / (x.norm(dim=1, keepdim=True) + eps))
    return direction if out is None else out.copy_(direction)
