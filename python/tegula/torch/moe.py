# SPDX-License-Identifier: MIT
import torch
import torch.nn.functional as F

from .transpose import _bits


def stable_topk(scores, num_topk):
    """The indices of the num_topk largest of a row, largest first; the lower index wins a tie."""
    best = scores.sort(dim=1, descending=True, stable=True).indices[:, :num_topk]
    return best.clone(memory_format=torch.contiguous_format)    # of a single row too


topk_gate = stable_topk


def topk_sum_and_topk_group_idx(scores, num_group_sum_topk, num_topk_groups):
    """tegula.moe.topk_sum_and_topk_group_idx: the groups whose best scores have the largest sums."""
    best = scores.sort(dim=2, descending=True).values[:, :, :num_group_sum_topk]
    worth = best[:, :, 0]
    for i in range(1, num_group_sum_topk):
        worth = worth + best[:, :, i]
    return stable_topk(worth, num_topk_groups)


def mask_indices_by_tp(indices, n, num_ep_ranks, tp_rank, num_tp_ranks):
    """tegula.moe.mask_indices_by_tp: experts as their rank numbers them, -1 for those of other TP ranks."""
    per_rank = n // num_ep_ranks
    rank = indices // per_rank
    mine = rank // num_tp_ranks * per_rank + indices % per_rank
    return mine.masked_fill((indices < 0) | (rank % num_tp_ranks != tp_rank), -1)


def normalize_weight(topk_weights):
    """(denominator, normalized_weights), with the terms of a sum in order."""
    total = topk_weights.new_full(topk_weights.shape[:1], 1e-20)
    for k in range(topk_weights.shape[1]):
        total = total + topk_weights[:, k]
    return total, topk_weights / total[:, None]


def inplace_unique_group_indices(group_indices, num_groups):
    """tegula.moe.inplace_unique_group_indices: repeated groups of a row become -1, in place."""
    earlier = (group_indices[:, :, None] == group_indices[:, None, :]).tril(-1).any(dim=2)
    group_indices.masked_fill_(earlier & (group_indices >= 0), -1)


def _valid(indices, count):
    return (indices >= 0) & (indices < count)


def group_count(group_idx, num_groups):
    """tegula.moe.group_count: how often each group occurs."""
    counted = group_idx[_valid(group_idx, num_groups)].long()
    return counted.bincount(minlength=num_groups).int()


def aux_fi(topk_idx, num_experts, num_aux_topk):
    """tegula.moe.aux_fi: count * num_experts / (num_tokens * num_aux_topk) of every expert."""
    products = group_count(topk_idx, num_experts).long() * num_experts
    # a tensor, since torch multiplies by the reciprocal of a number on CUDA
    return products.float() / products.new_tensor(max(topk_idx.shape[0], 1) * num_aux_topk, dtype=torch.float)


# ---- gates ----

def _score(logits, scoring_func):
    score = {"sigmoid": torch.sigmoid, "sqrtsoftplus": lambda x: F.softplus(x).sqrt(),
             "softmax": lambda x: x.softmax(dim=1), "identity": lambda x: x}[scoring_func]
    return score(logits.masked_fill(logits.isnan(), float("-inf"))).masked_fill(logits.isnan(), 0)


def _choose(scores, logits, bias, num_topk, num_topk_groups, num_groups, scoring_func):
    """The best experts of every token, by keys of which a NaN is the worst."""
    keys = logits if scoring_func == "softmax" else scores
    keys = keys if bias is None else keys + bias
    keys = keys.masked_fill(logits.isnan() | keys.isnan(), float("-inf"))
    if num_groups != num_topk_groups:
        groups = keys.unflatten(1, (num_groups, -1))
        best = topk_sum_and_topk_group_idx(groups, min(2, groups.shape[2]), num_topk_groups)
        left = torch.zeros(groups.shape[:2], dtype=torch.bool, device=keys.device).scatter_(1, best, True)
        # -inf must not tie with a group that was left out: its experts go to the end of the order
        order = stable_topk(keys, keys.shape[1])
        is_left = left.repeat_interleave(groups.shape[2], dim=1).gather(1, order)
        return order.gather(1, stable_topk(is_left.float(), num_topk))
    return stable_topk(keys, num_topk)


def _weigh(scores, chosen, routed_scaling_factor, renormalize):
    """The scores of the chosen experts, normalised and scaled; 0 for an empty slot."""
    valid = _valid(chosen, scores.shape[1])
    weights = scores.gather(1, chosen.long().masked_fill(~valid, 0)).masked_fill(~valid, 0)
    if renormalize:
        weights = normalize_weight(weights)[1]
    return (weights * torch.tensor(routed_scaling_factor, dtype=torch.float32)).masked_fill(~valid, 0)


def _finish(scores, chosen, weights, mask, num_shared, shared_weight, ranks, to_physical_map, logical_count,
            unmapped_topk_idx):
    """From the chosen experts to topk_idx and topk_weights."""
    ep_rank, num_ep_ranks, tp_rank, num_tp_ranks = ranks
    num_tokens, num_experts = scores.shape
    chosen = chosen.long()
    tokens = torch.arange(num_tokens, device=scores.device)[:, None]
    shared = torch.arange(num_experts, num_experts + num_shared, device=scores.device).expand(num_tokens, -1)
    logical = torch.cat([chosen.masked_fill(~_valid(chosen, num_experts), -1), shared], dim=1)
    weights = torch.cat([weights, weights.new_full(shared.shape, shared_weight)], dim=1)
    physical, num_extra = logical, 0
    if to_physical_map is not None:
        num_extra = to_physical_map.shape[1] - 1
        expert = logical.clamp(min=0)
        replica = (ep_rank + tokens * 23333) % logical_count[expert].long().clamp(min=1)
        physical = to_physical_map[expert, replica].long().masked_fill(logical < 0, -1)
    topk_idx = mask_indices_by_tp(physical, num_experts + num_extra, num_ep_ranks, tp_rank, num_tp_ranks)
    if mask is not None:
        topk_idx, weights = topk_idx.masked_fill(~mask[:, None], -1), weights.masked_fill(~mask[:, None], 0)
        chosen = chosen.masked_fill(~mask[:, None], -1)
    if unmapped_topk_idx is not None:
        unmapped_topk_idx.copy_(chosen)
    return topk_idx, weights


def top2_sum_gate(logits, bias, num_topk, num_topk_groups, num_groups, use_shared_as_routed,
                  num_shared_experts, routed_scaling_factor, ep_rank, num_ep_ranks, tp_rank, num_tp_ranks,
                  scoring_func, mask=None, fix_routing_mask=None, to_physical_map=None, logical_count=None,
                  unmapped_topk_idx=None):
    """tegula.moe.top2_sum_gate: (topk_idx, topk_weights)."""
    scores = _score(logits, scoring_func)
    chosen = _choose(scores, logits, bias, num_topk, num_topk_groups, num_groups, scoring_func)
    if fix_routing_mask is not None:
        chosen = torch.where(fix_routing_mask[:, None], unmapped_topk_idx.long(), chosen)
    weights = _weigh(scores, chosen, routed_scaling_factor, True)
    ranks = ep_rank, num_ep_ranks, tp_rank, num_tp_ranks
    return _finish(scores, chosen, weights, mask, num_shared_experts if use_shared_as_routed else 0, 1, ranks,
                   to_physical_map, logical_count, unmapped_topk_idx)


def hash_gate(logits, input_ids, tid2eid, routed_scaling_factor, scoring_func="sqrtsoftplus",
              renormalize=True, mask=None, use_shared_as_routed=False, num_shared_experts=0, ep_rank=0,
              num_ep_ranks=1, tp_rank=0, num_tp_ranks=1, to_physical_map=None, logical_count=None,
              unmapped_topk_idx=None, shared_weight=1.0):
    """tegula.moe.hash_gate: (topk_idx, topk_weights) of experts that the token's id names."""
    scores = _score(logits, scoring_func)
    known = _valid(input_ids, tid2eid.shape[0])
    chosen = torch.full((len(input_ids), tid2eid.shape[1]), -1, device=logits.device)
    chosen[known] = tid2eid[input_ids[known].long()].long()
    weights = _weigh(scores, chosen, routed_scaling_factor, renormalize)
    mask = known if mask is None else mask & known
    ranks = ep_rank, num_ep_ranks, tp_rank, num_tp_ranks
    return _finish(scores, chosen, weights, mask, num_shared_experts if use_shared_as_routed else 0,
                   shared_weight, ranks, to_physical_map, logical_count, unmapped_topk_idx)


# ---- from token-major to expert-major and back ----

def get_fused_mapping(topk_idx, num_experts, num_expanded_tokens, alignment, force_no_sync=False, *,
                      with_psum=False):
    """tegula.moe.get_fused_mapping, by a stable sort of the pairs."""
    flat = topk_idx.flatten().long()
    pairs = _valid(flat, num_experts).nonzero()[:, 0]
    pairs = pairs[flat[pairs].argsort(stable=True)]             # by expert, then in their own order
    experts = flat[pairs]
    count = experts.bincount(minlength=num_experts)
    length = (count + alignment - 1) // alignment * alignment
    end = length.cumsum(0)
    start = end - length
    place = torch.arange(len(pairs), device=flat.device) - (count.cumsum(0) - count)[experts]
    pos = start[experts] + place
    is_sync = num_expanded_tokens == 0 and not force_no_sync
    lengths = length.tolist() if is_sync else []
    num_positions = sum(lengths) if is_sync else num_expanded_tokens
    fits = pos < num_positions

    def scatter(size, at, values):
        return torch.full((size,), -1, device=flat.device).scatter_(0, at[fits], values[fits]).int()

    num_topk = topk_idx.shape[1]
    made = (scatter(num_positions, pos, experts),
            scatter(num_positions, pos, pairs // max(num_topk, 1)),
            scatter(num_positions, pos, pairs),
            scatter(flat.numel(), pairs, pos).view(topk_idx.shape),
            start.int(), end.int(), length.int(), lengths)
    return made + (count.int(), (start + count).int()) if with_psum else made


def route(logits, bias, num_topk, num_topk_groups, num_groups, use_shared_as_routed, num_shared_experts,
          routed_scaling_factor, ep_rank, num_ep_ranks, tp_rank, num_tp_ranks, scoring_func, num_experts,
          num_expanded_tokens, alignment, mask=None, fix_routing_mask=None, to_physical_map=None,
          logical_count=None, unmapped_topk_idx=None, *, with_psum=False):
    """tegula.moe.route: top2_sum_gate, then get_fused_mapping."""
    gate = top2_sum_gate(logits, bias, num_topk, num_topk_groups, num_groups, use_shared_as_routed,
                         num_shared_experts, routed_scaling_factor, ep_rank, num_ep_ranks, tp_rank,
                         num_tp_ranks, scoring_func, mask, fix_routing_mask, to_physical_map, logical_count,
                         unmapped_topk_idx)
    mapping = get_fused_mapping(gate[0], num_experts, num_expanded_tokens, alignment, True, with_psum=with_psum)
    return *gate, *mapping[:7], *mapping[8:]


def _expand(x, token_topk_to_pos, out):
    """x's rows at their positions in out."""
    flat = token_topk_to_pos.flatten().long()
    pairs = _valid(flat, out.shape[0]).nonzero()[:, 0]
    _bits(out)[flat[pairs]] = _bits(x)[pairs // max(token_topk_to_pos.shape[1], 1)]
    return out


def _without_padding(token_topk_to_pos, pos_to_expert):
    """Positions that are padding become -1: their rows are zeros, whoever is sent there."""
    is_padding = torch.cat([pos_to_expert < 0, pos_to_expert.new_ones(1, dtype=torch.bool)])
    is_there = (token_topk_to_pos >= 0) & (token_topk_to_pos < len(pos_to_expert))
    at = torch.where(is_there, token_topk_to_pos, len(pos_to_expert)).long()
    return torch.where(is_padding[at], -1, token_topk_to_pos)


def expand_to_fused(x, token_topk_to_pos, pos_to_expert):
    """tegula.moe.expand_to_fused: tokens' rows at their positions, zeros in the padding."""
    out = torch.zeros(len(pos_to_expert), x.shape[1], dtype=x.dtype, device=x.device)
    return _expand(x, _without_padding(token_topk_to_pos, pos_to_expert), out)


def expand_to_fused_with_sf(x, num_per_channels, token_topk_to_pos, pos_to_expert,
                            use_tma_aligned_col_major_sf=False):
    """tegula.moe.expand_to_fused_with_sf: (rows, their scale factors) of a pair x."""
    data, sf = x
    num_positions, num_sf = len(pos_to_expert), sf.shape[1]
    out_sf = sf.new_zeros(num_positions, num_sf)
    if use_tma_aligned_col_major_sf:
        out_sf = sf.new_zeros(num_sf, (num_positions + 3) // 4 * 4).t()[:num_positions]
    return expand_to_fused(data, token_topk_to_pos, pos_to_expert), \
        _expand(sf, _without_padding(token_topk_to_pos, pos_to_expert), out_sf)


def _fma(x, y, z):
    """x * y + z of float32, rounded once. The product is exact in float64, the sum is rounded to odd there:
    away from a tie or a wrong side when it is rounded again."""
    product, z = x.double() * y.double(), z.double().expand_as(x)
    total = product + z
    part = total - product
    error = (product - (total - part)) + (z - part)             # of the sum, exactly
    bits = total.view(torch.int64)
    step = torch.where((error > 0) == (total > 0), 1, -1)
    return torch.where((error.abs() > 0) & (bits % 2 == 0), bits + step, bits).view(torch.float64).float()


def reduce_fused(x, topk_weights, token_topk_to_pos, fp8_format="", sf=None, out=None):
    """tegula.moe.reduce_fused: every token's rows, weighted, added in the order of its slots."""
    data, x_sf = x if isinstance(x, (tuple, list)) else (x, None)
    total = torch.zeros(token_topk_to_pos.shape[0], data.shape[1], device=data.device)
    for k in range(token_topk_to_pos.shape[1]):
        tokens = _valid(token_topk_to_pos[:, k], data.shape[0]).nonzero()[:, 0]
        pos = token_topk_to_pos[tokens, k].long()
        scale = total.new_ones(len(tokens)) if topk_weights is None else topk_weights[tokens, k]
        if x_sf is not None:
            scale = scale * x_sf[pos]
        total[tokens] = _fma(data.float()[pos], scale[:, None], total[tokens])
    if sf is not None:
        total = total * sf
    if fp8_format == "e4m3":
        total = total.clamp(-448, 448).masked_fill(total.isnan(), float("nan")).to(torch.float8_e4m3fn)
    total = total.to(data.dtype) if fp8_format == "" else total
    return total if out is None else out.copy_(total)
