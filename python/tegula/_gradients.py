# SPDX-License-Identifier: MIT
"""The ops' gradients. docs/python.md lists which op has which."""
import torch
import torch.nn.functional as F

from . import _tegula


class Gradient:
    """How to differentiate an op. save(ctx, given, output): given is a dict of the op's arguments.
    backward(ctx, wanted, *grads) returns a dict of gradients, which has at least those in wanted.
    jvp(ctx, *tangents) is for forward mode; vmap(info, in_dims, *args) is for torch.library.register_vmap."""

    def __init__(self, backward, save=None, jvp=None, vmap=None):
        self.backward, self.save, self.jvp, self.vmap = backward, save, jvp, vmap

    def for_torch(self, names):
        """(save, backward) for torch.library.register_autograd; names are the op's arguments."""
        def save(ctx, inputs, output):
            if self.save:
                self.save(ctx, dict(zip(names, inputs)), output)

        def backward(ctx, *grads):
            wanted = {name for name, is_wanted in zip(names, ctx.needs_input_grad) if is_wanted}
            made = self.backward(ctx, wanted, *grads)
            return tuple(made.get(name) for name in names)

        return save, backward

    def functions(self, names, raw, op):
        """apply() of two autograd.Functions for eager calls. torch.func needs the second kind, which is four times as
        slow."""
        save, backward = self.for_torch(names)

        class Direct(torch.autograd.Function):
            @staticmethod
            def forward(ctx, *inputs):
                output = raw(*inputs)
                save(ctx, [_as_tensor(value) for value in inputs], output)
                return output

        class Transform(torch.autograd.Function):
            generate_vmap_rule = True
            forward, setup_context = staticmethod(op), staticmethod(save)
            if self.jvp:
                jvp = staticmethod(self.jvp)

        Direct.backward = Transform.backward = staticmethod(backward)
        return Direct.apply, Transform.apply


def _as_tensor(value):
    """Another library's array as a tensor that autograd can save: a copy, as it has no version counter."""
    is_array = not isinstance(value, torch.Tensor) and hasattr(value, "__dlpack__")
    return torch.from_dlpack(value).clone() if is_array else value


_HINTS = dict.fromkeys(
    ("swiglu_forward_and_per_token_cast", "swiglu_forward_and_per_channel_cast_and_transpose"),
    "its output is quantised (swiglu_backward_and_per_token_cast computes SwiGLU's). ")


def no_gradient(name):
    """For an op without a gradient: raises if one is wanted, so that it is not taken for zero."""
    def refuse(ctx, *args):
        raise NotImplementedError(
            f"{name}() has no gradient: {_HINTS.get(name, '')}detach() its arguments, or write one yourself")

    return Gradient(refuse, jvp=refuse)


def _check_not_quantised(name, x):
    if x.element_size() == 1:
        raise NotImplementedError(f"{name}(): x in {x.dtype} has no gradient: detach() it")


def _reverse_only(name):
    def refuse(ctx, *args):
        raise NotImplementedError(f"{name}() has no gradient in forward mode: use reverse mode")

    return refuse


def _is_within(index, count):
    return (index >= 0) & (index < count)


# ---- transposes: each is its own inverse ----

def _undone_by(function, vmap):
    return Gradient(lambda ctx, wanted, grad: {"x": function(grad)}, jvp=lambda ctx, tangent: function(tangent),
                    vmap=vmap)


def _transpose_vmap(info, in_dims, x):
    return torch.ops.tegula.batched_transpose(x.movedim(in_dims[0], 0)), 0


def _batched_transpose_vmap(info, in_dims, x):
    x = x.movedim(in_dims[0], 0)
    return torch.ops.tegula.batched_transpose(x.flatten(0, 1)).unflatten(0, x.shape[:2]), 0


# ---- expand_to_fused and reduce_fused: without weights, each is the adjoint of the other ----

def _save_expand(ctx, given, output):
    ctx.save_for_backward(given["token_topk_to_pos"], given["pos_to_expert"])


def _expand_backward(ctx, wanted, grad):
    _check_not_quantised("expand_to_fused", grad)
    pos, owner = ctx.saved_tensors
    num_positions = grad.shape[0]
    at = pos.long().masked_fill(~_is_within(pos, num_positions), num_positions)
    pos = pos.masked_fill(F.pad(owner, (0, 1), value=-1)[at] < 0, -1)       # rows of padding are 0
    if grad.dtype in (torch.float32, torch.bfloat16, torch.float16):
        return {"x": _tegula.reduce_fused(grad.contiguous(), None, None, pos)}
    padded = F.pad(grad, (0, 0, 0, 1))          # one more row, of zeros, for slots without a position
    return {"x": padded[at.masked_fill(pos < 0, num_positions)].sum(1)}


def _save_reduce(ctx, given, output):
    ctx.save_for_backward(given["x"], given["x_sf"], given["topk_weights"], given["token_topk_to_pos"])


def _reduce_backward(ctx, wanted, grad):
    x, x_sf, weights, pos = ctx.saved_tensors
    if "x_sf" in wanted:
        raise NotImplementedError("reduce_fused(): the scale factors of x have no gradient: detach() them")
    if "x" in wanted:
        _check_not_quantised("reduce_fused", x)
    num_positions = x.shape[0]
    grad, is_held = grad.float(), _is_within(pos, num_positions)
    at = pos.long().masked_fill(~is_held, num_positions)        # one more row, for slots without a position
    scale = torch.ones_like(pos, dtype=torch.float32) if weights is None else weights
    if x_sf is not None:
        sf = F.pad(x_sf, (0, 1))[at]
        scale = scale * sf
    # One slot at a time: all at once would take num_topk times the memory. Sums are in float32.
    made = {}
    if "x" in wanted:
        x_grad = grad.new_zeros(num_positions + 1, x.shape[1])
        for k in range(pos.shape[1]):
            # In place, except the first: under vmap it turns x_grad into a batch.
            add = x_grad.index_add_ if k > 0 else x_grad.index_add
            x_grad = add(0, at[:, k], grad * scale[:, k, None])
        made["x"] = x_grad[:num_positions].to(x.dtype)
    if "topk_weights" in wanted:
        made["topk_weights"] = weight_grad = torch.zeros_like(weights)
        if num_positions > 0:
            rows = at.clamp(max=num_positions - 1)
            dots = [(x[rows[:, k]].float() * grad).sum(1) for k in range(pos.shape[1])]
            weight_grad = torch.stack(dots, 1) if dots else weight_grad
            weight_grad = weight_grad if x_sf is None else weight_grad * sf
            made["topk_weights"] = weight_grad.masked_fill(~is_held, 0)
    return made


# ---- weights ----

def _save_normalize(ctx, given, output):
    ctx.save_for_backward(*output)


def _normalize_backward(ctx, wanted, denominator_grad, grad):
    denominator, normalized = ctx.saved_tensors
    through_sum = denominator_grad - (grad * normalized).sum(1) / denominator
    return {"topk_weights": grad / denominator[:, None] + through_sum[:, None]}


def _scores(logits, expert, scoring_func):
    """(scores of the chosen experts, their derivatives by their own logits)."""
    x = logits.gather(1, expert)
    if scoring_func == "identity":
        return x, torch.ones_like(x)
    if scoring_func == "sigmoid":
        score = x.sigmoid()
        return score, score * (1 - score)
    score = F.softplus(x).sqrt()
    return score, x.sigmoid() / (2 * score.masked_fill(score == 0, 1))


def _gate_gradient(logits, chosen, mask, grad, scoring_func, scale, renormalize):
    """The gradient of logits, given that of the chosen experts' weights. The choice itself has none; empty slots,
    masked tokens and NaN logits get 0."""
    if logits.shape[1] == 0:
        return torch.zeros_like(logits)
    is_held = _is_within(chosen, logits.shape[1])
    if mask is not None:
        is_held = is_held & mask[:, None]
    expert, is_nan = chosen.long().masked_fill(~is_held, 0), logits.isnan()
    numbers = logits.masked_fill(is_nan, float("-inf"))
    if scoring_func == "softmax":
        shares = numbers.softmax(1)
        shares = shares.masked_fill(shares.isnan(), 0)
        score, slope = shares.gather(1, expert), torch.ones_like(grad)
    else:
        score, slope = _scores(numbers, expert, scoring_func)
    score = score.masked_fill(~is_held | is_nan.gather(1, expert), 0)
    grad = (grad * scale).masked_fill(~is_held, 0)
    if renormalize:
        total = 1e-20 + score.sum(1, keepdim=True)
        grad = (grad - (grad * score).sum(1, keepdim=True) / total) / total
    grad = (grad * slope).masked_fill(~is_held, 0)
    made = torch.zeros_like(logits).scatter_add(1, expert, grad)        # a table may name an expert twice
    if scoring_func == "softmax":
        made = shares * (made - (made * shares).sum(1, keepdim=True))
    return made.masked_fill(is_nan, 0)


_GATE = ("num_topk", "num_topk_groups", "num_groups", "scoring_func", "routed_scaling_factor")


def _save_gate(ctx, given, output):
    """The choice is saved as a copy: the user may write to these tensors."""
    chosen = given["unmapped_topk_idx"]
    if chosen is None and given["to_physical_map"] is None and given["num_tp_ranks"] == 1:
        chosen = output[0][:, :given["num_topk"]]       # neither mapped nor masked by rank
    ctx.save_for_backward(given["logits"], given["bias"], given["mask"],
                          None if chosen is None else chosen.detach().clone())
    ctx.settings = {name: given[name] for name in _GATE}


def _gate_backward(ctx, wanted, _, grad, *others):
    logits, bias, mask, chosen = ctx.saved_tensors
    s = ctx.settings
    if chosen is None:      # chosen again, without the map and the ranks
        again = bias if bias is None else bias.detach()
        chosen = torch.ops.tegula.top2_sum_gate(
            logits.detach(), again, num_topk=s["num_topk"], num_topk_groups=s["num_topk_groups"],
            num_groups=s["num_groups"], use_shared_as_routed=False, num_shared_experts=0, routed_scaling_factor=1.0,
            ep_rank=0, num_ep_ranks=1, tp_rank=0, num_tp_ranks=1, scoring_func=s["scoring_func"], mask=mask)[0]
    made = {"logits": _gate_gradient(logits, chosen, mask, grad[:, :s["num_topk"]], s["scoring_func"].lower(),
                                     s["routed_scaling_factor"], True)}
    if bias is not None:
        made["bias"] = torch.zeros_like(bias)       # it only affects the choice
    return made


def _save_hash_gate(ctx, given, output):
    ctx.save_for_backward(given["logits"], given["input_ids"], given["tid2eid"], given["mask"])
    ctx.settings = given["scoring_func"], given["routed_scaling_factor"], given["renormalize"]


def _hash_gate_backward(ctx, wanted, _, grad):
    logits, input_ids, tid2eid, mask = ctx.saved_tensors
    scoring_func, scale, renormalize = ctx.settings
    table = F.pad(tid2eid, (0, 0, 0, 1), value=-1)      # one more row, for ids that are not in it
    chosen = table[input_ids.long().masked_fill(~_is_within(input_ids, tid2eid.shape[0]), tid2eid.shape[0])]
    return {"logits": _gate_gradient(logits, chosen, mask, grad[:, :tid2eid.shape[1]], scoring_func.lower(), scale,
                                     renormalize)}


# ---- mHC ----

def _rows(t):
    """With packed rows."""
    return t if t.stride(-1) == 1 or t.shape[-1] <= 1 else t.contiguous()


def _save_mhc(*names, numbers=()):
    """Saves these tensors and these numbers. An output that is not used has no gradient."""
    def save(ctx, given, output):
        ctx.save_for_backward(*(given[name] for name in names))
        ctx.settings = tuple(given[name] for name in numbers)
        ctx.set_materialize_grads(False)

    return save


def _expand_mhc_backward(ctx, wanted, grad):
    return {"x": _tegula.mhc_expand_bwd(_rows(grad))}


def _pre_apply_mix_backward(ctx, wanted, grad):
    x, mix = ctx.saved_tensors
    grad_x, grad_mix = _tegula.mhc_pre_apply_mix_bwd(_rows(grad), x, mix)
    return {"x": grad_x, "mix": grad_mix}


def _post_backward(ctx, wanted, grad):
    x, residual, post_mix, comb_mix = ctx.saved_tensors
    if comb_mix is None:
        grad_x, grad_post_mix = _tegula.mhc_post_bwd_gates(_rows(grad), x, post_mix)
        return {"x": grad_x, "residual": grad, "post_mix": grad_post_mix}
    made = _tegula.mhc_post_bwd(_rows(grad), x, residual, post_mix, comb_mix)
    return dict(zip(("x", "residual", "post_mix", "comb_mix"), made))


def _packed(t):
    return t if t is None else t.contiguous()


def _save_norm_fn(ctx, given, output):
    ctx.save_for_backward(given["residual"], given["fn"], given["norm_weight"], *output[1:])
    ctx.eps = given["eps"]
    ctx.set_materialize_grads(False)


def _norm_fn_backward(ctx, wanted, grad, *others):
    """Of the mixes: what is saved for this has none."""
    if any(g is not None for g in others):
        raise NotImplementedError("mhc_norm_fn_fwd(): out_mul and sqrsum have no gradient: detach() them")
    residual, fn, norm_weight, out_mul, sqrsum = ctx.saved_tensors
    args = _packed(grad), residual, fn, out_mul, sqrsum
    if norm_weight is None:
        return dict(zip(("residual", "fn"), _tegula.mhc_norm_fn_bwd(*args, ctx.eps)))
    made = _tegula.mhc_norm_fn_bwd_weighted(*args, norm_weight, ctx.eps)
    return dict(zip(("residual", "fn", "norm_weight"), made))


def _split_backward(ctx, wanted, pre, post, comb=None):
    grads = map(_packed, (pre, post, comb))
    made = _tegula.mhc_pre_split_mixes_bwd(*ctx.saved_tensors, *grads, *ctx.settings)
    return dict(zip(("mixes", "scale", "base"), made))


def _split_sinkhorn_backward(ctx, wanted, *grads):
    made = _tegula.mhc_split_sinkhorn_bwd(*ctx.saved_tensors, *map(_packed, grads), *ctx.settings)
    return dict(zip(("mixes", "scale", "base"), made))


def _head_backward(ctx, wanted, grad):
    return dict(zip(("mixes", "scale", "base"), _tegula.mhc_head_compute_mix_bwd(*ctx.saved_tensors, _packed(grad))))


def _sinkhorn_backward(ctx, wanted, grad):
    return {"x": _tegula.mhc_sinkhorn_bwd(_packed(grad), *ctx.saved_tensors, *ctx.settings)}


GRADIENTS = {
    "transpose": _undone_by(_tegula.transpose, _transpose_vmap),
    "batched_transpose": _undone_by(_tegula.batched_transpose, _batched_transpose_vmap),
    **{name: Gradient(backward, save, jvp=_reverse_only(name)) for name, backward, save in (
        ("expand_to_fused", _expand_backward, _save_expand),
        ("reduce_fused", _reduce_backward, _save_reduce),
        ("normalize_weight", _normalize_backward, _save_normalize),
        ("top2_sum_gate", _gate_backward, _save_gate),
        ("route", _gate_backward, _save_gate),
        ("route_with_psum", _gate_backward, _save_gate),
        ("hash_gate", _hash_gate_backward, _save_hash_gate),
        ("mhc_expand_fwd", _expand_mhc_backward, _save_mhc()),
        ("mhc_pre_apply_mix_fwd", _pre_apply_mix_backward, _save_mhc("x", "mix")),
        ("mhc_post_fwd", _post_backward, _save_mhc("x", "residual", "post_mix", "comb_mix")),
        ("mhc_pre_split_mixes_fwd", _split_backward, _save_mhc("mixes", "scale", "base", numbers=("post_mult",))),
        ("mhc_pre_split_mixes_fwd_gates", _split_backward, _save_mhc("mixes", "scale", "base", numbers=("post_mult",))),
        ("mhc_split_sinkhorn_fwd", _split_sinkhorn_backward,
         _save_mhc("mixes", "scale", "base", numbers=("post_mult", "repeat", "eps"))),
        ("mhc_norm_fn_fwd", _norm_fn_backward, _save_norm_fn),
        ("mhc_head_compute_mix_fwd", _head_backward, _save_mhc("mixes", "scale", "base")),
        ("mhc_sinkhorn_fwd", _sinkhorn_backward, _save_mhc("x", numbers=("repeat", "eps"))))},
}
