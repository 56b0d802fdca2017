# SPDX-License-Identifier: MIT
import torch
from torch import Tensor

from ... import mhc
from ._outputs import check_outputs


def in_row_0(partial, total):
    """Partial sums of blocks, which the caller adds up: here one row has it all, whatever their number."""
    partial.zero_()
    partial[0] = total


@torch.no_grad()
def mhc_head_compute_mix_fwd(input_mix: Tensor, mhc_scale: Tensor, mhc_base: Tensor, output_mix: Tensor,
                             mhc_pre_eps: float, token_block_size: int = 0) -> None:
    """sigmoid(input_mix [T, N] * mhc_scale + mhc_base) + mhc_pre_eps to output_mix.

    Args:
        input_mix: float32 [num_tokens, num_streams]
        mhc_scale: float32 [1]
        mhc_base: float32 [num_streams]
        output_mix: float32 [num_tokens, num_streams]; is written
        mhc_pre_eps: float
        token_block_size: int, ignored

    Returns:
        None
    """
    mhc.mhc_head_compute_mix_fwd(input_mix, mhc_scale, mhc_base, mhc_pre_eps, out=output_mix)


@torch.no_grad()
def mhc_head_compute_mix_bwd(output_mix_grad: Tensor, input_mix: Tensor, mhc_scale: Tensor, mhc_base: Tensor,
                             input_mix_grad: Tensor, mhc_scale_grad_partial: Tensor, mhc_base_grad_partial: Tensor,
                             num_sms: int, token_block_size: int = 0) -> None:
    """Writes input_mix_grad, and rows [num_sms, 1] and [num_sms, N], whose sums are the gradients of mhc_scale and
    mhc_base.

    Args:
        output_mix_grad: float32 [num_tokens, num_streams]
        input_mix: float32 [num_tokens, num_streams]
        mhc_scale: float32 [1]
        mhc_base: float32 [num_streams]
        input_mix_grad: float32 [num_tokens, num_streams]; is written
        mhc_scale_grad_partial: float32 [num_sms, 1]; is written
        mhc_base_grad_partial: float32 [num_sms, num_streams]; is written
        num_sms: int
        token_block_size: int, ignored

    Returns:
        None
    """
    check_outputs(output_mix_grad, input_mix, mhc_scale, mhc_base, input_mix_grad,
                  mhc_scale_grad_partial=(mhc_scale_grad_partial, (num_sms, 1)),
                  mhc_base_grad_partial=(mhc_base_grad_partial, (num_sms, *mhc_base.shape)))
    _, scale, base = mhc.mhc_head_compute_mix_bwd(input_mix, mhc_scale, mhc_base, output_mix_grad,
                                                  out=(input_mix_grad, None, None))
    in_row_0(mhc_scale_grad_partial, scale)
    in_row_0(mhc_base_grad_partial, base)
