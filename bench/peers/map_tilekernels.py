#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Maps measurements of TileKernels to the names of our bench rows.

    map_tilekernels.py            writes tilekernels-1.0.0-h200.jsonl from tilekernels-1.0.0-h200.recorded.jsonl
    map_tilekernels.py --check    fails if that file is not what would be written

The recorded file has one JSON object per row as it was measured: domain, op, shape and dtypes in the words of that table,
cold and warm GPU time, host time of the Python call. The mapped file has the fields of `tegula bench --json`, so that
`tegula bench --against` reads it. A new op is a row of OPS; recorded rows of other ops are left out.
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


def fields(shape, pattern):
    """The numbers that stand for each * of the pattern."""
    match = re.fullmatch(re.escape(pattern).replace(r"\*", r"(\d+)"), shape)
    if not match:
        raise ValueError(f"shape {shape!r}, want {pattern!r}")
    return [int(n) for n in match.groups()]


def plain(pattern, params, moved):
    """An op whose parameters are the numbers of the shape, and nothing else."""
    def function(shape, dtypes):
        numbers = fields(shape, pattern)
        return params.format(*numbers), moved(*numbers)
    return function


def transpose(names):
    def function(shape, dtypes):
        sizes, dtype = [int(n) for n in shape.split("x")], DTYPES[dtypes]
        params = [f"{name}={size}" for name, size in zip(names, sizes, strict=True)]
        return " ".join(params + [f"dtype={dtype}"]), 2 * math.prod(sizes) * BITS[dtype] // 8
    return function


def topk_sum_and_topk_group_idx(shape, dtypes):
    tokens, experts, groups, best, kept = fields(shape, "tokens=* experts=* groups=* top*-sum, * groups")
    best = "" if best == 2 else f" num_topk_sum={best}"     # our default
    return (f"num_tokens={tokens} num_groups={groups} experts_per_group={experts // groups}{best} "
            f"num_topk_groups={kept}", 4 * tokens * experts + 8 * tokens * kept)


def top2_sum_gate(shape, dtypes):
    sizes, function = shape.rsplit(" ", 1)
    tokens, experts, topk, groups, kept = fields(sizes, "tokens=* experts=* topk=* groups=*/*")
    limit = f" num_groups={groups} num_topk_groups={kept}" if groups else ""
    scoring = "" if function == "sigmoid" else f" scoring={function}"      # our default
    moved = 4 * tokens * experts + 4 * experts + 12 * tokens * topk
    return f"num_tokens={tokens} num_experts={experts} num_topk={topk}{limit}{scoring}", moved


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


# ---- quant ----

FORMAT_BITS = {"e4m3": 8, "e2m1": 4, "e5m6": 12, "bf16": 16, "f32": 32}
SF = {  # what it is called there -> our parameters, the bits of a scale factor
    "fp32 row-major": ("", 32),
    "fp32": ("", 32),
    "fp32 pow2 row-major": (" round=1", 32),
    "fp32 pow2 TMA-aligned col-major": (" round=1 sf=col", 32),
    "packed ue8m0 TMA-aligned col-major": (" round=1 sf=packed", 8),
}


def given(name, value, default):
    """A parameter, where it is not the default of our table."""
    return "" if value == default else f" {name}={value}"


def formats(dtypes):
    """'bf16->e4m3 transposed, sf fp32' -> bf16, e4m3, the layout of the factors"""
    match = re.fullmatch(r"(\w+)(?:\(1x128\))?->(\w+)(?: transposed)?, sf (.*)", dtypes)
    if not match:
        raise ValueError(f"dtypes {dtypes!r}")
    source, target, sf = match.groups()
    return DTYPES.get(source, source), DTYPES.get(target, target), sf


def factor_bytes(rows, cols, block_rows, block_cols, bits):
    """Of a grid of factors; packed ones fill words of four."""
    count = -(-cols // block_cols)
    return -(-rows // block_rows) * (4 * count if bits == 32 else 4 * -(-count // 4))


def cast_of(default_rows, extra="", has_out=True, has_round=True):
    """A cast of bf16 or fp32 in blocks; `default_rows` of a block as our table has it."""
    def function(shape, dtypes):
        rows, cols, block_rows, block_cols = fields(shape, "*x* block *x*")
        dtype, form, sf = formats(dtypes)
        layout, bits = SF[sf] if has_round else ("", 32)
        blocks = "" if default_rows is None else given("num_per_tokens", block_rows, default_rows)
        params = (f"num_rows={rows} num_cols={cols}{given('dtype', dtype, 'bf16')}{given('format', form, 'e4m3')}"
                  f"{blocks}{given('num_per_channels', block_cols, 128)}{layout}{extra}")
        moved = rows * cols * (BITS[dtype] + (FORMAT_BITS[form] if has_out else 0)) // 8
        return params, moved + factor_bytes(rows, cols, block_rows, block_cols, bits)
    return function


def per_token_cast_from_e4m3(shape, dtypes):
    rows, cols, x_rows, x_cols, _, out_cols = fields(shape, "*x* in *x*, out *x*")
    dtype, form, sf = formats(dtypes)
    layout, bits = SF[sf]
    return (f"num_rows={rows} num_cols={cols} dtype={dtype} format={form}{given('num_per_channels', out_cols, 128)}"
            f"{layout}{given('x_num_per_tokens', x_rows, 1)}{given('x_num_per_channels', x_cols, 128)} x_sf=packed",
            rows * cols * (FORMAT_BITS[dtype] + FORMAT_BITS[form]) // 8 +
            factor_bytes(rows, cols, x_rows, x_cols, bits) + factor_bytes(rows, cols, 1, out_cols, bits))


def per_block_cast_lossless(shape, dtypes):
    rows, cols, x_rows, x_cols, out_rows, out_cols = fields(shape, "*x* in *x*, out *x*")
    _, _, sf = formats(dtypes)
    layout, bits = SF[sf]
    packed = " sf=packed x_sf=packed" if "packed" in layout else ""
    return (f"num_rows={rows} num_cols={cols}{given('num_per_tokens', out_rows, 128)}"
            f"{given('num_per_channels', out_cols, 128)}{packed}",
            rows * cols * 12 // 8 + factor_bytes(rows, cols, x_rows, x_cols, bits) +
            factor_bytes(rows, cols, out_rows, out_cols, bits))


def per_channel_cast(shape, dtypes):
    rows, cols, block_rows, _ = fields(shape, "*x* block *x*")
    return (f"num_rows={rows} num_cols={cols}{given('num_per_tokens', block_rows, 128)}",
            3 * rows * cols + factor_bytes(rows, cols, block_rows, 1, 32))


def per_channel_cast_fused(shape, dtypes):
    dtype, _, _ = formats(dtypes)
    if "gather" in shape:
        # 4096 tokens of each of 8 ranks, 8 of 256 experts, of which 32 are here: about so many tokens have one of
        # these, in about so many rows of blocks of 128. Our map has these numbers exactly.
        _, cols = fields(shape, "tokens=* hidden=* block 128x1, gather topk 8 of 256 EP8")
        tokens, rows, mapping = 21504, 34816, " num_tokens=21504 map=experts"
    else:
        tokens, cols = fields(shape, "tokens=* hidden=* block 128x1")
        rows, mapping = tokens, ""
    x_factors = 4 * tokens * (cols // 128) if dtype == "e4m3" else 0
    return (f"num_rows={rows} num_cols={cols}{mapping}{given('dtype', dtype, 'bf16')}",
            tokens * cols * BITS[dtype] // 8 + x_factors + (4 * rows if mapping else 0) + rows * cols +
            factor_bytes(rows, cols, 128, 1, 32))


def cast_back(shape, dtypes):
    rows, cols, block_rows, block_cols = fields(shape, "*x* block *x*")
    form, dtype, sf = formats(dtypes)
    bits = SF[sf][1]
    return (f"num_rows={rows} num_cols={cols}{given('format', form, 'e4m3')}{given('dtype', dtype, 'bf16')}"
            f"{given('x_num_per_tokens', block_rows, 1)}{given('x_num_per_channels', block_cols, 128)}"
            f"{' x_sf=packed' if bits == 8 else ''}",
            rows * cols * (FORMAT_BITS[form] + BITS[dtype]) // 8 +
            factor_bytes(rows, cols, block_rows, block_cols, bits))


def swiglu_forward_and_per_token_cast(shape, dtypes):
    _, _, sf = formats(dtypes)
    layout, bits = SF[sf]
    clamp = count = weights = skip = ""
    maps = 0
    if shape.startswith("tokens="):     # of 8 ranks; with 32 experts here, in blocks of 16 rows
        tokens, = fields(shape.split()[0], "tokens=*")
        kind, = re.findall(r"EP8, (\S+) intermediate", shape)
        rows, used, skip = {128: (1280, 1024, " skip=5"), 4096: (33024, 32768, " skip=129")}[tokens]
        weights = " weights=8" if kind == "weights+mapping" else ""
        maps = 4 * rows + (4 * rows + 4 * 8 * (rows // 8 + 1) if weights else 0)
        cols, = fields(shape.split(kind + " ")[1], "intermediate=* block 1x128")
    else:
        rows, middle, cols = re.fullmatch(r"rows=(\d+) (.*)intermediate=(\d+) block 1x128", shape).groups()
        rows, cols = int(rows), int(cols)
        used = rows
        clamp = " clamp=10" if "clamp 10" in middle else ""
        count = " count=1" if "counts" in middle else ""
    return (f"num_rows={rows} num_cols={cols}{layout}{weights}{skip}{clamp}{count}",
            5 * used * cols + factor_bytes(used, cols, 1, 128, bits) + maps + (24 if count else 0))


def swiglu_forward_and_per_channel_cast_and_transpose(shape, dtypes):
    rows, cols, rest = re.fullmatch(r"rows=(\d+) intermediate=(\d+) block 128x1(.*)", shape).groups()
    rows, cols = int(rows), int(cols)
    flags = {"": "", " no transpose": " without_transpose=1", " clamp 10": " clamp=10"}[rest]
    return f"num_rows={rows} num_cols={cols}{flags}", 5 * rows * cols + factor_bytes(rows, cols, 128, 1, 32)


def swiglu_backward_and_per_token_cast(shape, dtypes):
    match = re.fullmatch(r"tokens=(\d+) topk 8 of 256 EP8 intermediate=(\d+) block 1x(\d+)( clamp 10)?", shape)
    tokens, cols, block = (int(n) for n in match.groups()[:3])
    # in blocks of 128 rows, as per_channel_cast_fused above
    rows, tokens, picks = {128: (4096, 672, 1024), 4096: (34816, 21504, 32768)}[tokens]
    return (f"num_rows={rows} num_cols={cols} num_tokens={tokens} num_topk=8 num_picks={picks}"
            f"{given('num_per_channels', block, 128)}{' clamp=10' if match.group(4) else ''}",
            12 * rows * cols + 2 * factor_bytes(rows, 2 * cols, 1, block, 32) + 4 * rows + 12 * 8 * tokens)


def engram_gate_fwd(shape, dtypes):
    t, h, d = fields(shape, "tokens=* hc=* hidden=*")
    save = dtypes == "bf16, saves for backward"
    return (f"num_tokens={t} hidden={d}{'' if save else ' save=0'}",
            6 * t * h * d + 2 * t * d + 4 * h * d + (16 * t * h if save else 0))


def engram_gate_bwd(shape, dtypes):     # the partial gradients are not in the recorded bytes
    t, h, d = fields(shape, "tokens=* hc=* hidden=*")
    return f"num_tokens={t} hidden={d}", 10 * t * h * d + 4 * t * d + 4 * h * d + 16 * t * h


def streams(moved, extra=""):
    """An mHC op on t tokens of 4 streams of h columns."""
    return plain("tokens=* mult=4 hidden=*", "num_tokens={} hidden={}" + extra, moved)


def mixes(per_token, parameters):
    """An mHC op on the mixes of t tokens with 4 streams; bytes of its parameters, and of their gradients."""
    return plain("tokens=* mult=4", "num_tokens={}", lambda t: per_token * t + parameters)


def multilayer_recompute(shape, dtypes):
    t, h, layers, posts = fields(shape, "tokens=* mult=4 hidden=* layers=* post=*")
    return (f"num_tokens={t} hidden={h}{given('num_layers', layers, 10)}{given('ends_before_post', layers - posts, 0)}",
            t * (8 * h + layers * (2 * h + 16) + posts * (10 * h + 80)))


# The op of a recorded row -> a function of (shape, dtypes) that gives our parameters and the bytes moved.
OPS = {
    "transpose": transpose(["num_rows", "num_cols"]),
    "batched_transpose": transpose(["num_batches", "num_rows", "num_cols"]),
    "engram_hash": plain("tokens=* ngram=3 layers=2 tables=8", "num_tokens={}", lambda t: 4 * t * 3 + 16 * 19 + 8 * t * 16),
    "engram_gate_fwd": engram_gate_fwd,
    "engram_gate_bwd": engram_gate_bwd,
    "fused_weight": plain("hc=4 hidden=*", "hidden={}", lambda d: 8 * 4 * d),
    "grad_w_reduce": plain("partials=* hc=4 hidden=*", "num_partials={} hidden={}", lambda p, d: (4 * p + 20) * 4 * d),
    "expand_to_mhc fwd": streams(lambda t, h: 10 * t * h),
    "expand_to_mhc bwd": streams(lambda t, h: 10 * t * h),
    "mhc_pre_norm_fn fwd": streams(lambda t, h: 8 * t * h + 4 * 24 * 4 * h + 4 * 49 * t),
    "mhc_pre_norm_fn bwd": streams(lambda t, h: 24 * t * h + 8 * 24 * 4 * h + 4 * 49 * t, " accumulate=1"),
    "mhc_pre_split_mixes fwd": mixes(8 * 24, 108),
    "mhc_pre_split_mixes bwd": mixes(12 * 24, 216),
    "mhc_head_compute_mix fwd": mixes(8 * 4, 20),
    "mhc_head_compute_mix bwd": mixes(12 * 4, 40),
    "sinkhorn_normalize fwd": plain("tokens=* 4x4 repeat=*", "num_tokens={} repeat={}", lambda t, r: 8 * 16 * t),
    "sinkhorn_normalize bwd": plain("tokens=* 4x4 repeat=*", "num_tokens={} repeat={}", lambda t, r: 12 * 16 * t),
    "mhc_pre_apply_mix fwd": streams(lambda t, h: 10 * t * h + 16 * t),
    "mhc_pre_apply_mix bwd": streams(lambda t, h: 26 * t * h + 32 * t, " accumulate=1"),
    "mhc_post fwd": streams(lambda t, h: 18 * t * h + 80 * t),
    "mhc_post bwd": streams(lambda t, h: 28 * t * h + 160 * t),
    "mhc_pre_big_fuse": streams(lambda t, h: 10 * t * h + 4 * 24 * 4 * h + 96 * t + 108),
    "mhc_multilayer_recompute": multilayer_recompute,
    "topk_gate": plain("tokens=* experts=* topk=*", "num_tokens={} num_experts={} num_topk={}",
                       lambda t, e, k: 4 * t * e + 8 * t * k),
    "topk_sum_and_topk_group_idx": topk_sum_and_topk_group_idx,
    "mask_indices_by_tp": plain("tokens=* topk=* experts=* EP* TP*", "num_tokens={} num_topk={} num_experts={} "
                                "num_ep_ranks={} num_tp_ranks={}", lambda t, k, e, ep, tp: 16 * t * k),
    "normalize_weight": plain("tokens=* topk=*", "num_tokens={} num_topk={}", lambda t, k: 8 * t * k + 4 * t),
    "inplace_unique_group_indices": plain("tokens=* topk=* groups=*", "num_tokens={} num_topk={} num_groups={}",
                                          lambda t, k, g: 16 * t * k),
    "top2_sum_gate": top2_sum_gate,
    "group_count": plain("tokens=* topk=* groups=*", "num_tokens={} num_topk={} num_groups={}",
                         lambda t, k, g: 8 * t * k + 4 * g),
    "aux_fi": plain("tokens=* topk=* experts=*", "num_tokens={} num_topk={} num_experts={}",
                    lambda t, k, e: 8 * t * k + 4 * e),
    "get_fused_mapping": get_fused_mapping,
    "expand_to_fused": expand_to_fused,
    "expand_to_fused_with_sf": expand_to_fused_with_sf,
    "reduce_fused": reduce_fused,
    "per_token_cast": cast_of(None),
    "per_token_cast_with_sf_only": cast_of(None, " sf_only=1", has_out=False),
    "per_token_cast_with_precomputed_sf": cast_of(None, has_round=False),
    "per_token_cast (from e4m3)": per_token_cast_from_e4m3,
    "per_token_cast_to_e5m6": cast_of(None),
    "per_block_cast": cast_of(128),
    "per_block_cast_with_sf_only": cast_of(128, " sf_only=1", has_out=False),
    "per_block_cast_with_precomputed_sf": cast_of(128, has_round=False),
    "per_block_cast_lossless": per_block_cast_lossless,
    "per_channel_cast": per_channel_cast,
    "per_channel_cast_fused": per_channel_cast_fused,
    "per_channel_cast_and_transpose": per_channel_cast,
    "per_token_cast_back": cast_back,
    "cast_back": cast_back,
    "cast_back_e5m6": cast_back,
    "swiglu_forward_and_per_token_cast": swiglu_forward_and_per_token_cast,
    "swiglu_forward_and_per_channel_cast_and_transpose": swiglu_forward_and_per_channel_cast_and_transpose,
    "swiglu_backward_and_per_token_cast": swiglu_backward_and_per_token_cast,
}
# Our op is the recorded one, but for these, with its domain before it.
OURS = {"per_token_cast_with_sf_only": "per_token_cast", "per_token_cast (from e4m3)": "per_token_cast",
        "per_token_cast_to_e5m6": "per_token_cast", "per_block_cast_with_sf_only": "per_block_cast",
        "per_channel_cast_fused": "per_channel_cast", "per_token_cast_back": "cast_back", "cast_back_e5m6": "cast_back",
        "fused_weight": "engram_fused_weight", "grad_w_reduce": "engram_grad_w_reduce",
        "mhc_pre_big_fuse": "mhc_pre_fwd"}
for direction in "fwd", "bwd":
    OURS[f"expand_to_mhc {direction}"] = f"mhc_expand_{direction}"
    OURS[f"sinkhorn_normalize {direction}"] = f"mhc_sinkhorn_{direction}"
    OURS[f"mhc_pre_norm_fn {direction}"] = f"mhc_norm_fn_{direction}"
    OURS |= {f"mhc_{op} {direction}": f"mhc_{op}_{direction}"
             for op in ("pre_split_mixes", "head_compute_mix", "pre_apply_mix", "post")}
DOMAINS = {"MoE routing and data movement": "moe_", "Quantization": "quant_"}
# Here the recorded bytes are those of one random routing, ours those of the average one; and those of a saved gate more.
TOLERANCES = {"get_fused_mapping": 0.02, "expand_to_fused": 0.02, "expand_to_fused_with_sf": 0.02, "reduce_fused": 0.02,
              "mhc_pre_split_mixes bwd": 0.06}


def mapped(row):
    op = DOMAINS.get(row["domain"], "") + OURS.get(row["op"], row["op"])
    params, moved = OPS[row["op"]](row["shape"], row["dtypes"])
    cold = row["cold_us"]
    recorded_rate, rate = row["gb_per_s"], 1e-3 * moved / cold
    tolerance = TOLERANCES.get(row["op"], 0.01)
    if abs(rate - recorded_rate) > 0.6 + tolerance * recorded_rate:     # a whole number; cold_us has three digits
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
