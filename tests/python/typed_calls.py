# SPDX-License-Identifier: MIT
"""Calls that type checkers read (test_types.py) and nobody runs. A line is an error if its comment
says what is wrong."""
from typing import Any

import numpy
import torch
from torch import Tensor

import tegula
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
    number: int = topk_gate(x, 8)                               # wrong: a tensor
    a, b = topk_gate(x, 8), tegula.quant.per_token_cast(x, "e4m3", 128).shape   # wrong: a pair has no shape
    print(number, a, b)
