# SPDX-License-Identifier: MIT
"""What holds for every function: its signature, recorded results, out=, NumPy, and its operator in torch's hands. The
calls are those of cases.py."""
import importlib.util
import inspect

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import golden
import tegula.torch as reference
from cases import FUNCTIONS, IDS, Call, cases, clone, copies, module_of, tensors_in
from conftest import on_one_device
from tegula import moe, quant
from tegula.testing import assert_equal

each_case = pytest.mark.parametrize("case", IDS)

FLAGS = "use_tma_aligned_col_major_sf=False, round_sf=False, use_packed_ue8m0=False"
GATE = ("logits, bias, num_topk, num_topk_groups, num_groups, use_shared_as_routed, num_shared_experts, "
        "routed_scaling_factor, ep_rank, num_ep_ranks, tp_rank, num_tp_ranks, scoring_func, ")
GATE_TENSORS = "mask=None, fix_routing_mask=None, to_physical_map=None, logical_count=None, unmapped_topk_idx=None, *, "
SIGNATURES = {
    "transpose": "x, *, out=None",
    "batched_transpose": "x, *, out=None",
    "engram_hash": "ngram_token_ids, multipliers, vocab_sizes, offsets, image_token_mask=None, *, out=None",
    "ngram_windows": "input_ids, max_ngram_size, pad_id, cu_seqlens=None, history=None, lookup=None, stop_id=None, *, "
                     "out=None",
    "engram_lookup": "table, indices, table_sf=None, *, row_begin=0, packed=False, dtype=None, num_sms=0, out=None, "
                     "out_sf=None",
    "engram_lookup_bwd": "grad_out, indices, num_rows, *, row_begin=0, grad_table=None, out=None",
    "engram_lookup_staged": "table, indices, table_sf, staging, *, row_begin=0, out=None",
    "engram_rows": "input_ids, ngram, cu_seqlens=None, start_pos=None, history=None, ring=None, slots=None, "
                   "image_token_mask=None, *, layout='ltc', history_newest_first=False, hash_masked=False, "
                   "keep_ring=False, null_slot=None, out=None",
    "fused_weight": "weight_hidden, weight_embed, *, out=None",
    "engram_gate_fwd": "hidden_states, k, v, weight_fused, eps, clamp_value, save_for_backward=True, *, weights=None, "
                       "image_token_mask=None, add_residual=True, zero_centered=False, sign='zero', out=None",
    "engram_gate_scores": "hidden_states, k, weight_fused, eps, clamp_value, *, weights=None, image_token_mask=None, "
        "zero_centered=False, sign='zero', out=None",
    "engram_gate_kv_fwd": "hidden_states, kv, weight_fused, eps, clamp_value, save_for_backward=True, "
                          "image_token_mask=None, inplace=False, *, weights=None, add_residual=True, "
                          "zero_centered=False, sign='bit', out=None",
    "engram_gate_bwd": "grad_out, hidden_states, k, v, weight_fused, dot, gate_score, rstd_x, rstd_k, clamp_value, *, "
                       "weights=None, image_token_mask=None, add_residual=True, zero_centered=False, "
                       "wanted=(True, True, True, True), out=None",
    "engram_gate_kv_bwd": "grad_out, hidden_states, kv, weight_fused, dot, gate_score, rstd_x, rstd_k, clamp_value, "
                          "image_token_mask=None, *, weights=None, add_residual=True, zero_centered=False, "
                          "wanted=(True, True, True), out=None",
    "grad_w_reduce": "grad_w_partial, weight_hidden, weight_embed, grad_weight_hidden, grad_weight_embed, "
                     "zero_centered=False",
    "short_conv": "x, norm_weight, conv_weight, dilation=3, eps=1e-05, activation='silu', bias=None, add_input=False, "
                  "residual=None, cu_seqlens=None, past_state=None, save_for_backward=True, *, ring=None, slots=None, "
                  "start_pos=None, mask=None, zero_centered=False, round_each=False, keep_ring=False, null_slot=None, "
                  "out=None",
    "short_conv_bwd": "grad_out, x, norm_weight, conv_weight, rstd, dilation=3, activation='silu', bias=None, "
                      "add_input=False, cu_seqlens=None, *, mask=None, zero_centered=False, "
                      "wanted=(True, True, True, True), out=None",
    "engram_gate_conv_fwd": "hidden_states, k, v, weight_fused, eps, clamp_value, norm_weight, conv_weight, dilation=3, "
                            "norm_eps=1e-05, activation='silu', bias=None, cu_seqlens=None, *, weights=None, "
                            "add_residual=True, zero_centered=False, sign='zero', norm_zero_centered=False, "
                            "round_each=False, mask=None, ring=None, slots=None, start_pos=None, keep_ring=False, "
                            "null_slot=None, out=None",
    "engram_sinkhorn_momentum_update": "grad, momentum_buffer, beta1, nesterov=True, *, out=None",
    "engram_sinkhorn_step": "matrix, row_scale, col_scale, eps, col_sumsq=None, *, out=None",
    "engram_sinkhorn_step_reduce": "col_sumsq_partial, col_sumsq",
    "engram_sinkhorn_finalize": "matrix, row_scale, col_scale, eps, alpha, *, out=None",
    "mhc_expand_fwd": "x, num_streams, *, out=None",
    "mhc_expand_bwd": "grad_out, *, out=None",
    "mhc_pre_apply_mix_fwd": "x, mix, *, out=None",
    "mhc_pre_apply_mix_bwd": "grad_out, x, mix, grad_x=None, *, out=None",
    "mhc_post_fwd": "x, residual, post_mix, comb_mix=None, *, out=None",
    "mhc_post_bwd": "grad_out, x, residual, post_mix, comb_mix=None, *, out=None",
    "mhc_norm_fn_fwd": "residual, fn, norm_weight=None, eps=1e-06, *, out=None",
    "mhc_norm_fn_bwd": "grad_mixes, residual, fn, out_mul, sqrsum, norm_weight=None, eps=1e-06, grad_residual=None, *, "
                       "out=None",
    "mhc_pre_fwd": "residual, fn, scale, base, norm_weight=None, input_weight=None, norm=False, rms_eps=1e-06, "
                   "pre_eps=1e-06, sinkhorn_eps=1e-06, norm_eps=1e-06, post_mult=2.0, post_eps=0.0, norm_scale=1.0, "
                   "repeat=20, *, out=None",
    "mhc_norm_fn_parts_fwd": "residual, fn, norm_weight=None, num_splits=1, *, out=None",
    "mhc_norm_fn_finish_fwd": "out_mul_parts, sqrsum_parts, num_columns, eps=1e-06, *, out=None",
    "mhc_pre_finish_fwd": "residual, out_mul_parts, sqrsum_parts, scale, base, rms_eps=1e-06, pre_eps=1e-06, "
                          "sinkhorn_eps=1e-06, post_mult=2.0, post_eps=0.0, repeat=20, *, out=None",
    "mhc_split_sinkhorn_bwd": "mixes, scale, base, grad_pre_mix=None, grad_post_mix=None, grad_comb_mix=None, "
                              "post_mult=2.0, repeat=20, eps=1e-06, *, out=None",
    "mhc_split_sinkhorn_fwd": "mixes, scale, base, num_streams, post_mult=2.0, pre_eps=1e-06, post_eps=0.0, repeat=20, "
                              "eps=1e-06, *, out=None",
    "mhc_pre_split_mixes_fwd": "mixes, scale, base, num_streams, post_mult=2.0, pre_eps=1e-06, post_eps=0.0, *, "
                               "out=None",
    "mhc_pre_split_mixes_bwd": "mixes, scale, base, grad_pre_mix=None, grad_post_mix=None, grad_comb=None, "
                               "post_mult=2.0, *, out=None",
    "mhc_head_compute_mix_fwd": "mixes, scale, base, pre_eps=1e-06, *, out=None",
    "mhc_head_compute_mix_bwd": "mixes, scale, base, grad_pre_mix, *, out=None",
    "mhc_sinkhorn_fwd": "x, repeat=20, eps=1e-06, *, out=None",
    "mhc_sinkhorn_bwd": "grad_out, x, repeat=20, eps=1e-06, *, out=None",
    "topk_gate": "scores, num_topk, *, out=None",
    "topk_sum_and_topk_group_idx": "scores, num_topk_sum, num_topk_groups, *, out=None",
    "mask_indices_by_tp": "indices, n, num_ep_ranks, tp_rank, num_tp_ranks, *, out=None",
    "normalize_weight": "topk_weights, *, out=None",
    "inplace_unique_group_indices": "group_indices, num_groups",
    "top2_sum_gate": f"{GATE}{GATE_TENSORS}out=None",
    "hash_gate": "logits, input_ids, tid2eid, routed_scaling_factor, scoring_func='sqrtsoftplus', "
                 "renormalize=True, mask=None, use_shared_as_routed=False, num_shared_experts=0, ep_rank=0, "
                 "num_ep_ranks=1, tp_rank=0, num_tp_ranks=1, to_physical_map=None, logical_count=None, "
                 "unmapped_topk_idx=None, shared_weight=1.0, *, out=None",
    "group_count": "group_idx, num_groups, *, out=None",
    "aux_fi": "topk_idx, num_experts, num_aux_topk, *, out=None",
    "get_fused_mapping": "topk_idx, num_experts, num_expanded_tokens, alignment, force_no_sync=False, *, "
                         "with_psum=False, out=None",
    "route": f"{GATE}num_experts, num_expanded_tokens, alignment, {GATE_TENSORS}with_psum=False, out=None",
    "expand_to_fused": "x, token_topk_to_pos, pos_to_expert, *, out=None",
    "expand_to_fused_with_sf": "x, num_per_channels, token_topk_to_pos, pos_to_expert, "
                               "use_tma_aligned_col_major_sf=False, *, out=None",
    "reduce_fused": "x, topk_weights, token_topk_to_pos, fp8_format='', sf=None, out=None",
    "per_token_cast": f"x, fmt, num_per_channels, x_block_size=None, {FLAGS}, *, out=None",
    "per_token_cast_with_sf_only": f"x, fmt, num_per_channels, x_block_size=None, {FLAGS}, *, out=None",
    "per_token_cast_with_precomputed_sf": f"x, fmt, num_per_channels, sf, x_block_size=None, {FLAGS}, *, out=None",
    "per_token_cast_to_e5m6": f"x, num_per_channels, {FLAGS}, *, out=None",
    "per_block_cast": f"x, fmt, block_size, {FLAGS}, *, out=None",
    "per_block_cast_with_sf_only": f"x, fmt, block_size, {FLAGS}, *, out=None",
    "per_block_cast_with_precomputed_sf": f"x, fmt, block_size, sf, {FLAGS}, *, out=None",
    "per_block_cast_lossless": f"x, fmt, x_block_size, out_block_size, {FLAGS}, *, inexact=None, out=None",
    "per_channel_cast": "x, fmt, num_per_tokens, round_sf=False, *, out=None",
    "per_channel_cast_fused": "x, fmt, num_per_tokens, round_sf=False, num_per_channels=None, pos_to_token=None, *, "
                              "out=None",
    "per_channel_cast_and_transpose": "x, fmt, num_per_tokens, round_sf=False, *, out=None",
    "cast_back": "x, fmt, x_block_size, x_special_fmt=None, *, out=None",
    "cast_back_e5m6": "x, fmt, x_block_size, *, out=None",
    "per_token_cast_back": "x, fmt, num_per_channels, x_special_fmt=None, *, out=None",
    "unpack_from_e2m1fn_x2": "x, out_dtype=torch.float32, *, out=None",
    "swiglu_forward_and_per_token_cast":
        f"x, fmt, num_per_channels, pos_to_token_topk=None, topk_weights=None, pos_to_expert=None, {FLAGS}, "
        "swiglu_clamp_value=None, clamped_count=None, sf_clamp_min=None, *, out=None",
    "swiglu_forward_and_per_channel_cast_and_transpose":
        "x, fmt, num_per_tokens, round_sf=False, without_transpose=False, swiglu_clamp_value=None, *, out=None",
    "swiglu_backward_and_per_token_cast":
        "x, grad_out, weight, pos_to_token_topk, token_topk_to_pos, num_per_channels, round_sf=False, "
        "swiglu_clamp_value=None, *, out=None",
}


def test_every_function_has_a_signature_and_cases():
    assert set(FUNCTIONS) == set(SIGNATURES) == {name for name, *_ in cases("cpu")}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signature(name):
    function = FUNCTIONS[name]
    shown = inspect.signature(function)         # annotations aside, which test_types.py is about
    shown = shown.replace(return_annotation=shown.empty, parameters=[
        p.replace(annotation=p.empty) for p in shown.parameters.values()])
    assert str(shown) == f"({SIGNATURES[name]})"
    assert function.__module__.startswith("tegula.") and function.__name__ == name and function.__doc__
    if module_of(name) == "moe":                # TileKernels' reference of this op names one argument otherwise
        theirs = inspect.signature(getattr(reference, name)).parameters
        theirs = [n.replace("num_group_sum_topk", "num_topk_sum") for n in theirs if n != "out"]
        assert [n for n in inspect.signature(function).parameters if n != "out"] == theirs


# ---- recorded data ----

def arguments(case, device):
    """Of a recorded case, as the function takes them."""
    given = case.inputs(device) | case.args
    given.pop("num_tokens_per_expert_list", None)
    if "x_sf" in given:
        given["x"] = given["x"], given.pop("x_sf")
    if "out_dtype" in given:
        given["out_dtype"] = golden.DTYPES[given["out_dtype"]]
    if case.op == "reduce_fused":
        given.setdefault("topk_weights", None)
    return given


def check_recorded(case, made, given):
    if case.op == "get_fused_mapping":
        assert made[7] == case.args.get("num_tokens_per_expert_list", made[7])
    made = tensors_in(made)
    for name, row in case.rows.items():
        if row["role"] == "out" and name != "dequantized":
            case.check(name, given[row["updates"]] if "updates" in row else made.pop(0))
    assert not made


RECORDED = [case for domain in ("transpose", "engram", "moe", "quant") for case in golden.cases(domain)
            if case.op in FUNCTIONS and case.op not in ("engram_gate_bwd", "grad_w_reduce")]     # test_engram_gate.py


def test_recorded_data_is_here():
    assert len(RECORDED) >= 185
    without = {"hash_gate", "route", "per_token_cast_back", "ngram_windows", "engram_lookup", "engram_lookup_bwd",
               "engram_lookup_staged", "engram_rows", "engram_gate_kv_fwd", "engram_gate_kv_bwd", "engram_gate_bwd",
               "engram_gate_scores", "grad_w_reduce", "short_conv", "short_conv_bwd", "engram_gate_conv_fwd"}
    without |= {name for name in FUNCTIONS if name.startswith(("engram_sinkhorn", "mhc_"))}      # test_mhc.py
    assert {case.op for case in RECORDED} == set(FUNCTIONS) - without


@pytest.mark.parametrize("case", RECORDED, ids=str)
def test_recorded(case, device):
    given = arguments(case, device)
    made = FUNCTIONS[case.op](**given)
    check_recorded(case, made, given)
    if "dequantized" in case.rows:
        for pair, block_size in ((given["x"], given["x_block_size"]), (made, given["out_block_size"])):
            case.check("dequantized", quant.cast_back(pair, "fp32", block_size))


def by_reference(op, x=None, fmt=None, num_per_channels=None, num_per_tokens=None, block_size=None, sf=None,
                 x_block_size=None, pos_to_token=None, out_dtype=None, **flags):
    """What a cast gives, composed of the references."""
    if op == "per_token_cast_to_e5m6":
        return reference.cast_to_e5m6(x, num_per_channels, **flags)
    if op.startswith(("per_token_cast", "per_block_cast")):
        made = reference.cast(x, fmt, block_size or (1, num_per_channels), sf, x_block_size, **flags)
        return made[1] if op.endswith("sf_only") else made
    if op.startswith("per_channel_cast"):
        out, out_sf = reference.per_channel_cast_fused(x, num_per_tokens, num_per_channels, flags["round_sf"],
                                                       pos_to_token)
        return (reference.transpose(out), out_sf) if op.endswith("transpose") else (out, out_sf)
    if op == "unpack_from_e2m1fn_x2":
        return reference.unpack_from_e2m1fn_x2(x, out_dtype)
    back = reference.cast_back_from_e5m6 if op == "cast_back_e5m6" else reference.cast_back
    return back(x, fmt, x_block_size)


@pytest.mark.parametrize("case", [c for c in RECORDED if "swiglu" not in c.op and "lossless" not in c.op
                                  and c.op != "engram_gate_fwd"], ids=str)
def test_recorded_by_reference(case, device):
    """test_quant_swiglu.py has those of SwiGLU; the reference of Engram's gate takes both weights."""
    given = arguments(case, device)
    if "num_topk_sum" in given:
        made = reference.topk_sum_and_topk_group_idx(*given.values())
    elif module_of(case.op) == "quant":
        made = by_reference(case.op, **given)
    else:
        made = getattr(reference, case.op + "_ref" * (module_of(case.op) == "engram"))(**given)
    check_recorded(case, made, given)


# ---- out= ----

def same(seen, want):
    for a, b in zip(tensors_in(seen), tensors_in(want), strict=True):
        assert_equal(a, b)


@each_case
def test_out(case, device):
    """All outputs given, or one of several: None stands for one that is to be made."""
    call = Call(case, device)
    want = [t for t in tensors_in(call()) if all(t is not a for a in tensors_in(call.args))]      # not in place
    ways = [[i] for i in range(len(want))] + [range(len(want))] * (len(want) > 1)
    for chosen in ways:
        outs = [clone(t).zero_() if i in chosen else None for i, t in enumerate(want)]
        versions = [t is None or t._version for t in outs]
        seen = tensors_in(Call(case, device)(out=tuple(outs) if len(outs) > 1 else outs[0]))
        same(seen, want)
        for i in chosen:
            assert seen[i] is outs[i] and outs[i]._version > versions[i]


def is_column_major(t):
    return t.ndim == 2 and t.shape[1] > 1 and t.stride(0) == 1 and t.stride(1) % 4 == 0


def placements(t):
    """(an output in place of t, the message with which it is refused or None)."""
    def columns(more, offset=0):
        distance = t.stride(1) + more
        memory = torch.zeros(offset + distance * t.shape[1], dtype=t.dtype, device=t.device)
        return memory.as_strided(t.shape, (1, distance), offset)

    want = rf"want \[1, {t.stride(1)}\], or columns a larger multiple of 16 bytes apart$"
    yield columns(4), None
    yield columns(0, 4), None
    yield columns(1), rf"strides are \[1, {t.stride(1) + 1}\], {want}"
    yield torch.zeros_like(t.contiguous()), rf"strides are \[{t.shape[1]}, 1\], {want}"
    yield columns(0, 1), r"address is 4 bytes past a multiple of 16, want a multiple of 16 \(for TMA\)$"


@each_case
def test_given_columns_are_as_tma_wants_them(case, device):
    """Column-major factors are taken only as the flag promises them."""
    want = tensors_in(Call(case, device)())
    for i, t in enumerate(want):
        for out, message in placements(t) if is_column_major(t) else ():
            outs = tuple(out if j == i else None for j in range(len(want)))
            if message is None:
                Call(case, device)(out=outs if len(outs) > 1 else out)
                assert torch.equal(out, t)
                continue
            with pytest.raises(ValueError, match=rf"^out{rf'.{i}.' if len(outs) > 1 else ''}: {message}"):
                Call(case, device)(out=outs if len(outs) > 1 else out)
            assert not out.any()


# ---- NumPy ----

def has_numpy_dtypes(*trees):
    return all(t.dtype not in (torch.bfloat16, torch.float8_e4m3fn) for t in tensors_in(*trees))


def bits_of(value):
    """Dtypes that NumPy lacks are those of ml_dtypes, without it FP8 is bytes: compared as integers."""
    if isinstance(value, torch.Tensor):
        known = {torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.uint8}
        return value.view(known.get(value.dtype, value.dtype))
    known = {"bfloat16": "int16", "float8_e4m3fn": "uint8"}
    return torch.from_numpy(value.view(known.get(value.dtype.name, value.dtype)))


@pytest.mark.parametrize("case", [case for case, args in zip(IDS, cases("cpu")) if has_numpy_dtypes(args)])
def test_numpy(case):
    """As of torch's tensors, where outputs are packed and there is a dtype for them; else out= is asked for."""
    numpy = pytest.importorskip("numpy")
    call = Call(case, "cpu")
    want, written = call(), call.args
    call = Call(case, "cpu")
    call.args = tree_map_only(torch.Tensor, torch.Tensor.numpy, call.args)
    is_lacking = importlib.util.find_spec("ml_dtypes") is None and torch.bfloat16 in [t.dtype for t in tensors_in(want)]
    if is_lacking or any(map(is_column_major, tensors_in(want))):
        with pytest.raises(TypeError, match="give out=$"):
            call()
        return
    seen = tree_map_only(numpy.ndarray, bits_of, (call(), call.args))
    assert len(tensors_in(seen)) == len(tensors_in(want, written))
    same(seen, tree_map_only(torch.Tensor, bits_of, (want, written)))


# ---- as torch operators ----

class Recorder(TorchDispatchMode):
    """The calls of our operators."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "tegula":
            self.calls.append((function, copies(args), copies(kwargs or {})))
        return function(*args, **(kwargs or {}))


def operator_of(case, device):
    """(operator, its arguments by position, its outputs by their names for out=) of the one that a case calls."""
    with Recorder() as recorder:
        Call(case, device)()
    (op, args, kwargs), = recorder.calls
    args = [kwargs.get(a.name, a.default_value) if i >= len(args) else args[i]
            for i, a in enumerate(op._schema.arguments)]
    outs = tensors_in(op(*copies(args)))
    names = ["out"] if len(outs) == 1 else [f"out{i}" for i in range(len(outs))]
    return getattr(torch.ops.tegula, op.__name__.split(".")[0]), args, dict(zip(names, outs))


def checks_of(*compared):
    """All of opcheck's, but torch cannot compare tensors of e4m3, to see whether they were written to."""
    is_fp8 = any(t.dtype == torch.float8_e4m3fn for t in tensors_in(compared))
    return ["test_schema"][is_fp8:] + ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]


@on_one_device
@each_case
def test_opcheck(case, device):
    op, args, _ = operator_of(case, device)
    torch.library.opcheck(op.default, args, test_utils=checks_of(args))


OPERATORS = {operator_of(case, "cpu")[0].__name__: case for case in reversed(IDS)}      # its name: the first case of it


@on_one_device
@pytest.mark.parametrize("case", OPERATORS.values())
def test_opcheck_of_out(case, device):
    """Once per operator: with outputs that are given, no argument decides what is traced."""
    op, args, outs = operator_of(case, device)
    if outs:
        torch.library.opcheck(op.out, args, outs, test_utils=checks_of(args, outs))


@on_one_device
@each_case
def test_one_tensor_on_meta(case, device):
    """An operator that has one of its tensors on torch's meta device, and the others not, says which it is."""
    op, args, outs = operator_of(case, device)
    names = [a.name for a in op.default._schema.arguments]
    places = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
    device = args[places[0]].device
    for i in places[1:]:
        mixed = [a.to("meta") if k == i else a for k, a in enumerate(args)]
        for call in (lambda: op(*mixed), lambda: op.out(*mixed, **outs))[:2 if outs else 1]:
            with pytest.raises(ValueError, match=f"^{names[i]}: is on meta, want {device}$"):
                call()
    on_host = "table", "table_sf", "staging", "num_tokens_per_expert_host"     # may be there, wherever the others are
    others = [i for i in places[1:] if names[i] not in on_host or args[i].device.type != "cpu"]
    if others:
        with pytest.raises(ValueError, match=f"^{names[others[0]]}: is on {device}, want meta$"):
            op(args[0].to("meta"), *args[1:])
    elif len(places) > 1:
        assert op(args[0].to("meta"), *args[1:]).is_meta
    for name, out in outs.items():
        with pytest.raises(ValueError, match=f"^{name}: is on meta, want {device}$"):
            op.out(*args, **outs | {name: out.to("meta")})


@on_one_device
@each_case
def test_compile(case, device):
    mine, theirs = Call(case, device), Call(case, device)
    seen = torch.compile(mine.function, fullgraph=True, backend="aot_eager")(*mine.args, **mine.kwargs)
    same((seen, mine.args), (theirs(), theirs.args))


@on_one_device
@each_case
def test_fake_tensors(case, device):
    """Shapes, strides and dtypes of tensors without data, through the public function."""
    def described(tree):
        return [(t.dtype, t.shape, t.stride(), t.device.type) for t in tensors_in(tree)]

    want, call = described(Call(case, device)()), Call(case, device)
    with FakeTensorMode() as mode:
        call.args, call.kwargs = tree_map_only(torch.Tensor, mode.from_tensor, (call.args, call.kwargs))
        assert described(call()) == want


@on_one_device
def test_some_of_out_compiled(device):
    x = torch.randn(6, 64, device=device)
    for function, args in ((quant.per_token_cast, (x, "e2m1", 16, None, True, True, True)),
                           (quant.per_channel_cast_fused, (x, "e4m3", 4))):
        call = torch.compile(lambda out: function(*args, out=out), fullgraph=True, backend="aot_eager")
        want = function(*args)
        for i in (0, 1):
            outs = [torch.zeros_like(t) if j == i else None for j, t in enumerate(want)]
            seen = call(tuple(outs))
            assert seen[i] is outs[i]
            same(seen, want)


# ---- compiled pipelines, as models write them, with a token count that changes ----

def limited_routing(scores):
    """Routing that is limited to groups."""
    groups = moe.topk_sum_and_topk_group_idx(scores.view(-1, 8, 8), 2, 4)
    keep = torch.zeros_like(scores[:, :8], dtype=torch.bool).scatter_(1, groups, True)
    idx = moe.topk_gate(scores.masked_fill(~keep.repeat_interleave(8, dim=1), -float("inf")), 6)
    nodes = idx // 8
    moe.inplace_unique_group_indices(nodes, 8)
    return moe.mask_indices_by_tp(idx, 64, 8, 1, 2), moe.normalize_weight(scores.gather(1, idx))[1], nodes


def block(x):
    """From logits to the tokens' sums and back."""
    logits = x[:, :16].contiguous()
    idx, weights, *mapping = moe.route(logits, None, 2, 0, 0, False, 0, 1.0, 0, 1, 0, 1, "softmax", 16,
                                       logits.shape[0] * 2 + 16 * 7, 8)
    expanded = moe.expand_to_fused(x, mapping[3], mapping[0])
    return moe.reduce_fused(expanded * 2, weights, mapping[3]), moe.group_count(idx, 16)


def expert(x):
    """Its two products."""
    pair = quant.per_token_cast(x, "e4m3", 32, None, True, True, True)
    hidden = quant.per_token_cast_back(pair, "bf16", 32).float() @ torch.ones(64, 64, device=x.device)
    pair = quant.swiglu_forward_and_per_token_cast(hidden, "e4m3", 16, swiglu_clamp_value=10.0)
    return quant.cast_back(pair, "fp32", (1, 16)), quant.per_channel_cast_fused(x, "e4m3", 8)[1]


@pytest.mark.parametrize("pipeline", [limited_routing, block, expert])
def test_compiled_pipeline(pipeline, device):
    compiled = torch.compile(pipeline, fullgraph=True, dynamic=True, backend="aot_eager")
    for num_tokens in (3, 17, 64):
        x = torch.rand(num_tokens, 64, device=device)
        same(compiled(x), pipeline(x))
