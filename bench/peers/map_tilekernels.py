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
}


def mapped(row):
    op, function = OPS[row["op"]]
    params, moved = function(row["shape"], row["dtypes"])
    cold = row["cold_us"]
    recorded_rate, rate = row["gb_per_s"], 1e-3 * moved / cold
    if abs(rate - recorded_rate) > 0.5 + 0.01 * recorded_rate:      # a whole number; cold_us has three digits
        raise ValueError(f"{row}: our bytes give {rate:.0f} GB/s")
    return {
        "op": op,
        "row": f"{op} {params}",
        "params": params,
        "device": "NVIDIA " + row["device"],
        "peer": row["peer"],
        "timer": "cupti",
        "flush": "write",
        "bytes": moved,
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
