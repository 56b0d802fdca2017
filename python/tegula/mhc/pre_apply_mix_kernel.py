# SPDX-License-Identifier: MIT
from ..v2.mhc.pre_apply_mix_kernel import mhc_pre_apply_mix_bwd, mhc_pre_apply_mix_fwd
from ._factory import ignored


def _mhc_pre_apply_mix_fwd(mhc_mult, hidden, **tuning):
    ignored(**tuning)
    return mhc_pre_apply_mix_fwd    # (x, mix [T, N], o)


def _mhc_pre_apply_mix_bwd(mhc_mult, hidden, **tuning):
    ignored(**tuning)
    return mhc_pre_apply_mix_bwd    # (o_grad, x, mix, x_grad, which is added to) -> mix_grad


__all__ = []
