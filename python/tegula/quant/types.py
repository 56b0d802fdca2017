# SPDX-License-Identifier: MIT
"""What functions of tegula.quant take and give."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

QuantTensor = tuple["torch.Tensor", "torch.Tensor"]  # data, sf; torch is imported for type checkers alone
