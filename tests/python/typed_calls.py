# SPDX-License-Identifier: MIT
"""Calls that type checkers read (test_types.py) and nobody runs. A line is an error if its comment
says what is wrong."""
from typing import Any, Optional

import numpy
import torch
from torch import Tensor
from typing_extensions import assert_type

import tegula
import tegula.jax
import tegula.v2.mhc as v2_mhc
import tegula.v2.torch as v2_torch
from tegula import modeling
from tegula.modeling.mhc import expand_from_embedding, mhc_head, mhc_pre, ops
from tegula.moe import topk_gate
from tegula.quant.types import QuantTensor


def right(x: Tensor, weight: torch.nn.Parameter, array: "numpy.ndarray[Any, numpy.dtype[numpy.float32]]") -> Tensor:
    idx: Tensor = topk_gate(x, 8)
    made: Tensor = tegula.transpose.transpose(weight, out=x)
    data, sf = tegula.quant.per_token_cast(x, "e4m3", 128, round_sf=True)
    pair: QuantTensor = tegula.quant.per_token_cast((data, sf), "e2m1", 32, x_block_size=(1, 128), out=(None, sf))
    back: Tensor = tegula.quant.cast_back(pair, "bf16", (1, 32))
    tegula.moe.inplace_unique_group_indices(idx, 4)
    denominator, weights = tegula.moe.normalize_weight(x)
    *_, lengths = tegula.moe.get_fused_mapping(idx, 256, 0, 128, with_psum=False)
    mixed = tegula.mhc.mhc_pre_apply_mix_fwd(x, weights)
    rows = tegula.engram.engram_hash(idx, idx, idx, idx)
    numbers = tegula.transpose.transpose(array)
    numbers.sum()                                               # of NumPy, unknown to the stubs
    tegula.config.set_num_sms(tegula.get_device_num_sms() - 8)
    with tegula.warmup(device=0):
        tegula.transpose.batched_transpose(x)
    assert tegula.compile_count() >= 0 and tegula.utils.align(5, 4) == 8 and lengths
    return made + back + denominator + mixed + rows


def kinds(x: Tensor, weight: torch.nn.Parameter, array: "numpy.ndarray[Any, numpy.dtype[numpy.float32]]") -> None:
    """Of functions written in Python too, torch's tensors give torch's, others what the stubs do not know."""
    assert_type(topk_gate(x, 8), Tensor)
    assert_type(tegula.moe.reduce_fused(x, None, x), Tensor)
    assert_type(tegula.moe.reduce_fused((weight, None), None, x), Tensor)
    assert_type(tegula.moe.reduce_fused(array, None, array), Any)
    mapping = tegula.moe.get_fused_mapping(x, 256, 0, 128)
    assert_type(mapping[0], Tensor)
    assert_type(mapping[7], list[int])
    assert_type(tegula.moe.get_fused_mapping(array, 256, 0, 128)[0], Any)
    assert_type(tegula.quant.unpack_from_e2m1fn_x2(x), Tensor)
    assert_type(tegula.quant.unpack_from_e2m1fn_x2(array), Any)
    out, (codes, sf), *grads = tegula.quant.swiglu_backward_and_per_token_cast((x, x), x, x, x, x, 64)
    assert_type(codes, Tensor)
    assert_type(tegula.engram.engram_lookup(table=array, indices=x), Tensor)
    assert_type(tegula.engram.engram_lookup(x, weight), Tensor)
    assert_type(tegula.engram.engram_lookup(x, None, table_sf=array), Tensor)
    assert_type(tegula.engram.engram_lookup(x, array), Any)
    assert_type(tegula.engram.engram_lookup_bwd(x, x, 9), tuple[Tensor, Tensor, Tensor])
    assert_type(tegula.engram.short_conv(x, x, x), tuple[Tensor, ...])
    assert_type(tegula.engram.engram_gate_fwd(x, x, x, x, 1e-20, 1e-6)[0], Tensor)
    assert_type(tegula.engram.engram_sinkhorn_step(x, x, x, 1e-8), tuple[Tensor, Tensor])
    assert_type(tegula.mhc.mhc_pre_fwd(x, x, x, x), tuple[Tensor, ...])
    assert_type(tegula.mhc.mhc_post_bwd(array, x, x, x), tuple[Any, ...])
    assert_type(tegula.mhc.mhc_pre_apply_mix_bwd(x, x, x), tuple[Tensor, Tensor])
    assert_type(tegula.mhc.mhc_pre_apply_mix_bwd(x, x, x, x), Tensor)
    assert_type(tegula.mhc.mhc_norm_fn_bwd(x, x, x, x, x, x), tuple[Tensor, ...])
    assert_type(tegula.mhc.mhc_norm_fn_bwd(x, x, x, x, x, None, 1e-6, x), Tensor)
    assert_type(tegula.mhc.mhc_norm_fn_bwd(x, x, x, x, x, x, grad_residual=x), tuple[Tensor, Tensor])
    tegula.jax.topk_gate(array, 8)
    tegula.jax.engram_lookup(indices=array, table=array, fmt="f32")


def layers(x: Tensor, fn: torch.nn.Parameter, mask: Optional[Tensor]) -> Tensor:
    streams: Tensor = expand_from_embedding(x, mhc_mult=4)
    layer_input, (post_mix, comb_mix) = mhc_pre(streams, fn, x, x, norm_weight=None, post_mult_value=2.0)
    streams = ops.mhc_post(layer_input, streams, post_mix, comb_mix)
    pre_mix, _, logits = ops.mhc_pre_split_mixes(ops.mhc_pre_norm_fn(streams, fn, None, 1e-6), x, x, 4, 2.0, 1e-6)
    streams = ops.mhc_post_fwd(ops.mhc_pre_apply_mix(streams, pre_mix), streams, post_mix, ops.sinkhorn_normalize(logits))
    ops.mhc_multilayer_recompute(streams, [pre_mix], [], [], [], [x], [])
    grads: Tensor = ops.mhc_post_bwd(x, streams, post_mix, comb_mix, streams)[1]
    v2_mhc.mhc_sinkhorn_fwd(logits, logits, 20, 1e-6)
    parts, squares = v2_torch.mhc_pre_norm_fn_partials_ref(streams, fn, 16)
    gated: Tensor = modeling.engram.engram_gate_kv(streams, x, fn, fn, 1e-6, 1e-20, mask, sign="zero")
    gated = modeling.engram.short_conv(gated, fn, fn, activation="none") + modeling.engram.lookup(fn, x)
    output, dot, score, rstd_x, rstd_k = tegula.engram.engram_gate_fwd(streams, streams, x, None, 1e-20, 1e-6,
                                                                       weights=(fn, fn))
    grad_x, *_ = tegula.engram.engram_gate_bwd(output, streams, streams, x, fn, dot, score, rstd_x, rstd_k, 1e-6)
    ngram = tegula.engram.NGram(x, x, x, 0)
    looked_up: Tensor = tegula.engram.engram_lookup(fn, tegula.engram.engram_rows(x, ngram, layout="tlc"))
    gated = gated + tegula.engram.engram_gate_conv_fwd(streams, x, x, fn, 1e-20, 1e-6, fn, fn, mask=mask)
    return mhc_head(gated + grads + grad_x + looked_up + parts + squares, fn, x, x)


def wrong_layers(x: Tensor) -> None:
    mhc_pre(x, x, x)                                            # wrong: base is missing
    mhc_pre(x, x, x, x, x)                                      # wrong: a keyword
    ops.mhc_post(x, x, x, 1.0)                                  # wrong: a number
    ops.sinkhorn_normalize(x, "20")                             # wrong: a string
    tegula.engram.engram_rows(x, (x, x, x, 0))                  # wrong: an NGram is needed
    tegula.engram.engram_rows(x, tegula.engram.NGram(x, x, x, 0), layout="lct")     # wrong: no such layout
    tegula.engram.short_conv(x, x, x, activation="relu")        # wrong: no such activation
    modeling.engram.engram_gate(x, x, x, x, x)                  # wrong: two numbers are missing
    v2_mhc.mhc_post_bwd(x, x, x, x, x, False)                   # wrong: one too many


def wrong(x: Tensor) -> None:
    topk_gate(x)                                                # wrong: num_topk is missing
    topk_gate(x, "8")                                           # wrong: a string
    topk_gate([1.0, 2.0], 1)                                    # wrong: a list
    topk_gate(x, 1, k=2)                                        # wrong: no such argument
    tegula.quant.per_token_cast(x, "e4m4", 128)                 # wrong: no such format
    tegula.quant.per_token_cast(x, "e4m3", 128, (1, 128, 1))    # wrong: not a pair
    tegula.quant.cast_back(x, "bf16", (1, 32))                  # wrong: a pair is needed
    tegula.moe.get_fused_mapping(x, 256, 0)                     # wrong: alignment is missing
    tegula.moe.normalize_weight(x, out=x)                       # wrong: two outputs
    tegula.transpose.transpose(x, x)                            # wrong: out is a keyword
    tegula.moe.topk_gates(x, 8)                                 # wrong: no such function
    tegula.config.set_num_threads("4")                          # wrong: a string
    tegula.moe.reduce_fused(x, None)                            # wrong: the positions are missing
    tegula.engram.engram_lookup_bwd(x, x, 9, grad_table=x)[0]   # wrong: the result is None
    tegula.jax.nosuch(x)                                        # wrong: no such function
    tegula.jax.engram_lookup(x, x)                              # wrong: by name only
    number: int = topk_gate(x, 8)                               # wrong: a tensor
    a, b = topk_gate(x, 8), tegula.quant.per_token_cast(x, "e4m3", 128).shape   # wrong: a pair has no shape
    print(number, a, b)
