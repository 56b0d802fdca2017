#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Maps measurements of TileKernels to the names of our bench rows.

    map_tilekernels.py            writes tilekernels-1.0.0-h200.jsonl from tilekernels-1.0.0-h200.recorded.jsonl
    map_tilekernels.py --check    fails if that file is not what would be written

The recorded file has one JSON object per row as it was measured: domain, op, shape and dtypes in the words of that
table, cold and warm GPU time, host time of the Python call. The mapped file has the fields of `tegula bench --json`, so
that `tegula bench --against` reads it. A new domain adds functions to OPS; rows of ops that are not there are counted.
"""
import json
import math
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
RECORDED = FOLDER / "tilekernels-1.0.0-h200.recorded.jsonl"
MAPPED = FOLDER / "tilekernels-1.0.0-h200.jsonl"

DTYPES = {"bf16": "bf16", "e4m3": "e4m3", "fp32": "f32", "fp16": "f16"}
BITS = {"bf16": 16, "e4m3": 8, "f32": 32, "f16": 16}


def numbers(shape):
    """'8x128x7168' -> [8, 128, 7168]"""
    if not re.fullmatch(r"\d+(x\d+)+", shape):
        raise ValueError(f"shape {shape!r}")
    return [int(n) for n in shape.split("x")]


def transpose(shape, dtypes):
    rows, cols = numbers(shape)
    dtype = DTYPES[dtypes]
    return f"num_rows={rows} num_cols={cols} dtype={dtype}", 2 * rows * cols * BITS[dtype] // 8


def batched_transpose(shape, dtypes):
    batches, rows, cols = numbers(shape)
    dtype = DTYPES[dtypes]
    return f"num_batches={batches} num_rows={rows} num_cols={cols} dtype={dtype}", 2 * batches * rows * cols * BITS[dtype] // 8


def fields(shape, pattern):
    """The numbers of a shape that is written like the pattern, in which each stands as *."""
    match = re.fullmatch(re.escape(pattern).replace(r"\*", r"(\d+)"), shape)
    if not match:
        raise ValueError(f"shape {shape!r}, want {pattern!r}")
    return [int(n) for n in match.groups()]


def topk_gate(shape, dtypes):
    tokens, experts, topk = fields(shape, "tokens=* experts=* topk=*")
    moved = 4 * tokens * experts + 8 * tokens * topk
    return f"num_tokens={tokens} num_experts={experts} num_topk={topk}", moved


def topk_sum_and_topk_group_idx(shape, dtypes):
    tokens, experts, groups, best, kept = fields(shape, "tokens=* experts=* groups=* top*-sum, * groups")
    best = "" if best == 2 else f" num_topk_sum={best}"     # our default
    return (f"num_tokens={tokens} num_groups={groups} experts_per_group={experts // groups}{best} "
            f"num_topk_groups={kept}", 4 * tokens * experts + 8 * tokens * kept)


def mask_indices_by_tp(shape, dtypes):
    tokens, topk, experts, ep, tp = fields(shape, "tokens=* topk=* experts=* EP* TP*")
    return (f"num_tokens={tokens} num_topk={topk} num_experts={experts} num_ep_ranks={ep} num_tp_ranks={tp}",
            16 * tokens * topk)


def normalize_weight(shape, dtypes):
    tokens, topk = fields(shape, "tokens=* topk=*")
    return f"num_tokens={tokens} num_topk={topk}", 8 * tokens * topk + 4 * tokens


def inplace_unique_group_indices(shape, dtypes):
    tokens, topk, groups = fields(shape, "tokens=* topk=* groups=*")
    return f"num_tokens={tokens} num_topk={topk} num_groups={groups}", 16 * tokens * topk


def top2_sum_gate(shape, dtypes):
    sizes, function = shape.rsplit(" ", 1)
    tokens, experts, topk, groups, kept = fields(sizes, "tokens=* experts=* topk=* groups=*/*")
    limit = f" num_groups={groups} num_topk_groups={kept}" if groups else ""
    scoring = "" if function == "sigmoid" else f" scoring={function}"      # our default
    moved = 4 * tokens * experts + 4 * experts + 12 * tokens * topk
    return f"num_tokens={tokens} num_experts={experts} num_topk={topk}{limit}{scoring}", moved


def group_count(shape, dtypes):
    tokens, topk, groups = fields(shape, "tokens=* topk=* groups=*")
    return f"num_tokens={tokens} num_topk={topk} num_groups={groups}", 8 * tokens * topk + 4 * groups


def aux_fi(shape, dtypes):
    tokens, topk, experts = fields(shape, "tokens=* topk=* experts=*")
    return f"num_tokens={tokens} num_topk={topk} num_experts={experts}", 8 * tokens * topk + 4 * experts


def routed(tokens, topk, experts, align, ranks):
    """Tokens with a slot here, slots here, positions: what a uniform choice of experts gives on average. With ranks > 1
    each of them has so many tokens, and an equal share of the experts is here."""
    everyone, here = tokens * ranks, experts // ranks
    nowhere = math.prod((experts - here - i) / (experts - i) for i in range(topk))
    share = topk / experts              # of the tokens, to one expert
    length = 0
    for count in range(1, everyone + 1):
        likely = (math.lgamma(everyone + 1) - math.lgamma(count + 1) - math.lgamma(everyone - count + 1)
                  + count * math.log(share) + (everyone - count) * math.log1p(-share))
        length += math.exp(likely) * -(-count // align) * align
    return everyone * (1 - nowhere), everyone * topk / ranks, here * length


def routing(shape):
    """The routing of a shape in our words, what it gives, and what else the shape says."""
    match = re.fullmatch(r"tokens=(\d+)( hidden=\d+)? topk=(\d+) experts=(\d+)( EP8 \(local 32\))? align=(\d+)(.*)",
                         shape)
    if not match:
        raise ValueError(f"shape {shape!r}")
    tokens, topk, experts, align = (int(match[i]) for i in (1, 3, 4, 6))
    ranks = 8 if match[5] else 1
    hidden = int(match[2].split("=")[1]) if match[2] else None
    words = [f"num_tokens={tokens} num_topk={topk} num_experts={experts // ranks}"]
    words += [f"num_ranks={ranks}"] * (ranks > 1) + [f"hidden={hidden}"] * (hidden is not None) + [f"alignment={align}"]
    return " ".join(words), routed(tokens, topk, experts, align, ranks), topk, experts // ranks, hidden, match[7]


def get_fused_mapping(shape, dtypes):
    words, (tokens, _, positions), topk, experts, _, rest = routing(shape)
    host = {" no sync": "", " host-sync": " host=1"}[rest]
    return words + host, 12 * tokens * topk + 12 * positions + 12 * experts


def expand_to_fused(shape, dtypes):
    words, (tokens, _, positions), topk, _, hidden, _ = routing(shape)
    return words, (tokens + positions) * 2 * hidden + 4 * tokens * topk + 4 * positions


def expand_to_fused_with_sf(shape, dtypes):
    words, (tokens, _, positions), topk, _, hidden, _ = routing(shape)
    is_packed = {"e4m3, sf fp32 row-major block 1x128": False,
                 "e4m3, sf packed ue8m0 TMA-aligned col-major block 1x128": True}[dtypes]
    factors = -(-hidden // (512 if is_packed else 128))
    return (words + (" sf_dtype=i32 out_sf_layout=columns" if is_packed else ""),
            (tokens + positions) * (hidden + 4 * factors) + 4 * tokens * topk + 4 * positions)


def reduce_fused(shape, dtypes):
    words, (tokens, slots, positions), topk, _, hidden, _ = routing(shape)
    more, bits, out_bits, with_weights, with_sf = {
        "bf16->bf16, fp32 weights": ("", 16, 16, True, False),
        "bf16->bf16, no weights": (" weights=0", 16, 16, False, False),
        "bf16 + row sf->bf16, weights": (" x_sf=1", 16, 16, True, True),
        "bf16->e4m3 (scalar sf), weights": (" out_dtype=e4m3 sf=0.37", 16, 8, True, False),
        "fp32->fp32, weights": (" dtype=f32 out_dtype=f32", 32, 32, True, False),
    }[dtypes]
    moved = (slots * bits + tokens * out_bits) * hidden / 8 + 4 * tokens * topk * (1 + with_weights)
    return words + more, moved + 4 * positions * with_sf


# The op of the recorded row -> our op, and a function of (shape, dtypes) that gives our parameters and the bytes moved.
OPS = {
    "transpose": ("transpose", transpose),
    "batched_transpose": ("batched_transpose", batched_transpose),
    "topk_gate": ("moe_topk_gate", topk_gate),
    "topk_sum_and_topk_group_idx": ("moe_topk_sum_and_topk_group_idx", topk_sum_and_topk_group_idx),
    "mask_indices_by_tp": ("moe_mask_indices_by_tp", mask_indices_by_tp),
    "normalize_weight": ("moe_normalize_weight", normalize_weight),
    "inplace_unique_group_indices": ("moe_inplace_unique_group_indices", inplace_unique_group_indices),
    "top2_sum_gate": ("moe_top2_sum_gate", top2_sum_gate),
    "group_count": ("moe_group_count", group_count),
    "aux_fi": ("moe_aux_fi", aux_fi),
    "get_fused_mapping": ("moe_get_fused_mapping", get_fused_mapping),
    "expand_to_fused": ("moe_expand_to_fused", expand_to_fused),
    "expand_to_fused_with_sf": ("moe_expand_to_fused_with_sf", expand_to_fused_with_sf),
    "reduce_fused": ("moe_reduce_fused", reduce_fused),
}
# Here the recorded bytes are those of one random routing, ours those of the average one.
ROUTED = {"get_fused_mapping", "expand_to_fused", "expand_to_fused_with_sf", "reduce_fused"}


def mapped(row):
    op, function = OPS[row["op"]]
    params, moved = function(row["shape"], row["dtypes"])
    cold = row["cold_us"]
    recorded_rate, rate = row["gb_per_s"], 1e-3 * moved / cold
    tolerance = 0.02 if row["op"] in ROUTED else 0.01
    if abs(rate - recorded_rate) > 0.5 + tolerance * recorded_rate:     # a whole number; cold_us has three digits
        raise ValueError(f"{row}: our bytes give {rate:.0f} GB/s")
    return {
        "op": op,
        "row": f"{op} {params}",
        "params": params,
        "device": "NVIDIA " + row["device"],
        "peer": row["peer"],
        "timer": "cupti",
        "flush": "write",
        "bytes": round(moved),
        "cold_us": cold,
        "warm_us": row["warm_us"],
        "host_ns": None if row["host_us"] is None else round(1000 * row["host_us"]),
        "gb_per_s": row["gb_per_s"],
    }


def main():
    recorded = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    rows = [mapped(row) for row in recorded if row["op"] in OPS and row["cold_us"] is not None]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    print(f"{len(rows)} of {len(recorded)} recorded rows are mapped")
    if "--check" in sys.argv[1:]:
        if MAPPED.read_text() != text:
            sys.exit(f"{MAPPED.name} is not what {RECORDED.name} gives: run {Path(__file__).name}")
        return
    MAPPED.write_text(text)


if __name__ == "__main__":
    main()
