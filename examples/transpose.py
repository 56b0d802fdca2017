# SPDX-License-Identifier: MIT
"""Transposes with torch tensors, on the GPU where there is one."""
# doc: call
import torch
from tegula.transpose import batched_transpose, transpose

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(8, 4032, 576, device=device, dtype=torch.bfloat16)
out = batched_transpose(x)          # [8, 576, 4032], packed, in one launch
first = transpose(x[0])             # any strides: views need no copy first
# end

assert torch.equal(out, x.transpose(1, 2)) and out.is_contiguous()
assert torch.equal(first, out[0])
print(tuple(x.shape), "->", tuple(out.shape), "on", device)
