# SPDX-License-Identifier: MIT
"""What the examples in docstrings begin with (row_help.py), by function: its arguments, for the call that follows. Tests
run them. Six tokens, 4 streams of 64 columns, 24 mixes; functions without an entry show the call alone."""

_STREAMS = "torch.randn(6, 4, 64).bfloat16()"
_COLUMNS = "torch.randn(6, 64).bfloat16()"
_PARTS = """
out_mul_parts, sqrsum_parts = torch.randn(2, 6, 24), torch.rand(2, 6)"""
_MIXES = """
mixes, scale, base = torch.randn(6, 24), torch.ones(3), torch.zeros(24)"""
_HEAD = """
mixes, scale, base = torch.randn(6, 4), torch.ones(1), torch.zeros(4)"""
_POST = f"""
x, residual = {_COLUMNS}, {_STREAMS}
post_mix, comb_mix = torch.rand(6, 4), torch.rand(6, 4, 4)"""

EXAMPLES = {
    "mhc_expand_fwd": f"x, num_streams = {_COLUMNS}, 4",
    "mhc_expand_bwd": f"grad_out = {_STREAMS}",
    "mhc_pre_apply_mix_fwd": f"x, mix = {_STREAMS}, torch.rand(6, 4)",
    "mhc_post_fwd": _POST,
    "mhc_post_bwd": f"grad_out = {_STREAMS}{_POST}",
    "mhc_norm_fn_fwd": f"residual, fn = {_STREAMS}, torch.randn(24, 256)",
    "mhc_norm_fn_finish_fwd": f"{_PARTS}\nnum_columns = 256",
    "mhc_norm_fn_parts_fwd": f"residual, fn = {_STREAMS}, torch.randn(24, 256)",
    "mhc_pre_split_mixes_bwd": _MIXES,
    "mhc_split_sinkhorn_bwd": _MIXES,
    "mhc_split_sinkhorn_fwd": f"{_MIXES}\nnum_streams = 4",
    "mhc_head_compute_mix_fwd": _HEAD,
    "mhc_head_compute_mix_bwd": f"{_HEAD}\ngrad_pre_mix = torch.randn(6, 4)",
    "mhc_sinkhorn_fwd": "x = torch.randn(6, 4, 4)",
    "mhc_sinkhorn_bwd": "grad_out, x = torch.randn(6, 4, 4), torch.randn(6, 4, 4)",
    "engram_hash": """
ngram_token_ids = torch.tensor([[7, 3, 5], [9, 7, 3]])
multipliers = torch.tensor([[3, 5, 7]])
vocab_sizes, offsets = torch.full((1, 2, 4), 97), torch.arange(8).view(1, 8) * 97""",
    "ngram_windows": "input_ids, max_ngram_size, pad_id = torch.arange(6), 3, 0",
    "fused_weight": "weight_hidden, weight_embed = torch.rand(4, 64), torch.rand(4, 64)",
    "grad_w_reduce": """
grad_w_partial = torch.randn(8, 4, 64)
weight_hidden, weight_embed = torch.rand(4, 64), torch.rand(4, 64)
grad_weight_hidden, grad_weight_embed = torch.zeros(4, 64), torch.zeros(4, 64)""",
    "engram_sinkhorn_step_reduce": "col_sumsq_partial, col_sumsq = torch.rand(8, 64), torch.empty(64)",
    "engram_sinkhorn_finalize": """
matrix, row_scale, col_scale = torch.randn(6, 64), torch.ones(6), torch.ones(64)
eps, alpha = 1e-8, 0.1""",
}
