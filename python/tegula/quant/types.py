# SPDX-License-Identifier: MIT
"""What functions of tegula.quant take and give."""

QuantTensor = tuple["torch.Tensor", "torch.Tensor"]  # data, sf; torch is not imported for it
