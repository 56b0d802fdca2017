# SPDX-License-Identifier: MIT
import torch
import torch.nn.functional as F

from .moe import _fma

_LARGEST = {"e4m3": 448.0, "e2m1": 6.0, "e5m6": 65024.0}
_FLOOR = {"e4m3": 1e-4, "e2m1": 6 * 2.0**-126, "e5m6": 1e-4}
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_E2M1 = 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0


def _ceil(a, b):
    return -(-a // b)


# ---- codes ----

def _encode_e4m3(v):
    nan = torch.tensor(0x7F, dtype=torch.uint8, device=v.device)        # of either sign
    codes = v.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    return torch.where(v.isnan(), nan, codes).view(torch.float8_e4m3fn)


def _encode_e2m1(v):
    """Codes of magnitudes count the midpoints below; a midpoint goes to the even code."""
    a = v.abs()
    codes = sum(step.byte() for step in (a > 0.25, a >= 0.75, a > 1.25, a >= 1.75, a > 2.5, a >= 3.5, a > 5))
    codes = (codes | (v.view(torch.int32) < 0).byte() << 3).masked_fill(v.isnan(), 7)
    return (codes[:, ::2] | codes[:, 1::2] << 4).view(torch.int8)


def _encode_e5m6(v):
    """From 2^-14 on the upper bits of the float, below a multiple of 2^-20, both cut; then a step up by the
    bits that a normal number loses."""
    bits = v.view(torch.int32)
    a = bits & 0x7FFFFFFF
    cut = torch.where(a >= 0x38800000, (a >> 17) - (112 << 6), (v.abs().clamp(max=1) * 2.0**20).int())
    codes = cut + ((cut & 1) + (bits & 0x1FFFF) > 0x10000).int()
    codes = (codes | (bits < 0).int() << 11).masked_fill(v.isnan(), 0x7FF)
    c = codes.long().unflatten(1, (-1, 8)).unbind(2)
    words = torch.stack([c[0] << 20 | c[1] << 8 | c[2] >> 4,
                         (c[2] & 15) << 28 | c[3] << 16 | c[4] << 4 | c[5] >> 8,
                         (c[5] & 255) << 24 | c[6] << 12 | c[7]], dim=2)
    return words.int().view(torch.uint8).flatten(1)


_ENCODE = {"e4m3": _encode_e4m3, "e2m1": _encode_e2m1, "e5m6": _encode_e5m6}


def unpack_from_e2m1fn_x2(x, out_dtype=torch.float32):
    """tegula.quant.unpack_from_e2m1fn_x2: two values of each byte, the low four bits first."""
    if x.ndim == 0:
        raise ValueError("x: has 0 dimensions, want 1 or more")
    table = torch.tensor([*_E2M1, *(-m for m in _E2M1)], device=x.device)
    pairs = x.view(torch.uint8)
    return table[torch.stack([pairs & 15, pairs >> 4], dim=-1).flatten(-2).int()].to(out_dtype)


def _decode(data):
    return unpack_from_e2m1fn_x2(data) if data.dtype == torch.int8 else data.float()


def _decode_e5m6(data):
    w = (data.contiguous().view(torch.int32).long() & 0xFFFFFFFF).unflatten(1, (-1, 3)).unbind(2)
    codes = torch.stack([w[0] >> 20, w[0] >> 8, w[0] << 4 | w[1] >> 28, w[1] >> 16, w[1] >> 4,
                         w[1] << 8 | w[2] >> 24, w[2] >> 12, w[2]], dim=2) & 0xFFF
    return (codes << 4).to(torch.int16).view(torch.float16).float().flatten(1)


# ---- factors ----

def _spread(factors, block_size, shape):
    """A factor for every value."""
    rows = factors.repeat_interleave(block_size[0], dim=0)[:shape[0]]
    return rows.repeat_interleave(block_size[1], dim=1)[:, :shape[1]]


def _factors(x, fmt, block_size, round_sf, floor=None):
    """(sf, inv) of blocks. Tensors divide tensors: by a number, torch would multiply with its inverse."""
    rows, cols = block_size
    num_rows, num_cols = x.shape
    m, k = _ceil(num_rows, rows), _ceil(num_cols, cols)
    magnitude = F.pad(x.abs().masked_fill(x.isnan(), 0), (0, k * cols - num_cols, 0, m * rows - num_rows))
    a = magnitude.view(m, rows, k, cols).amax(dim=(1, 3)).clamp(min=_FLOOR[fmt] if floor is None else floor)
    largest = torch.tensor(_LARGEST[fmt], device=x.device)
    if not round_sf:
        return a / largest, (largest / a).masked_fill(a == 0, 0)
    e = ((a / largest).view(torch.int32) + 0x7FFFFF >> 23).clamp(1, 254)
    return (e << 23).view(torch.float32), (254 - e << 23).view(torch.float32)


def _lay_out(sf, use_tma_aligned_col_major_sf, use_packed_ue8m0):
    if use_packed_ue8m0:
        if not use_tma_aligned_col_major_sf:
            raise ValueError("use_packed_ue8m0: is True, want use_tma_aligned_col_major_sf True, too")
        codes = F.pad(sf.contiguous().view(torch.int32) >> 23, (0, -sf.shape[1] % 4)).to(torch.uint8)
        sf = codes.view(torch.int32) if codes.numel() else codes.new_empty(
            sf.shape[0], codes.shape[1] // 4, dtype=torch.int32)
    if not use_tma_aligned_col_major_sf:
        return sf
    m, k = sf.shape
    laid_out = sf.new_zeros(k, _ceil(m, 4) * 4)
    laid_out[:, :m] = sf.t()
    return laid_out.as_strided((m, k), (1, laid_out.shape[1]))


def _read_factors(sf, num_factors):
    """A matrix of float32, whatever the layout."""
    if sf.dtype != torch.int32:
        return sf
    codes = torch.stack([sf >> 8 * i & 255 for i in range(4)], dim=2).flatten(1)[:, :num_factors]
    return (codes << 23).view(torch.float32)


# ---- casts ----

def _cast(x, fmt, block_size, round_sf, use_tma_aligned_col_major_sf, use_packed_ue8m0, floor=None):
    if use_packed_ue8m0 and not round_sf:
        raise ValueError("use_packed_ue8m0: is True, want round_sf True, too")
    sf, inv = _factors(x, fmt, block_size, round_sf, floor)
    codes = _ENCODE[fmt](x * _spread(inv, block_size, x.shape))
    return codes, _lay_out(sf, use_tma_aligned_col_major_sf, use_packed_ue8m0)


def cast(x, fmt, block_size=(32, 32), sf=None, x_block_size=None, round_sf=False,
         use_tma_aligned_col_major_sf=False, use_packed_ue8m0=False):
    """(out, sf); or out alone for factors that are given. x is a tensor, or a pair with x_block_size."""
    if fmt not in ("e4m3", "e2m1"):
        raise ValueError(f"fmt: is {fmt!r}, want 'e4m3' or 'e2m1' (cast_to_e5m6 is for e5m6)")
    x = cast_back(x, "fp32", x_block_size) if isinstance(x, tuple) else x.float()
    if sf is None:
        return _cast(x, fmt, block_size, round_sf, use_tma_aligned_col_major_sf, use_packed_ue8m0)
    factors = _read_factors(sf, _ceil(x.shape[1], block_size[1]))
    return _ENCODE[fmt](x * _spread(torch.ones_like(factors) / factors, block_size, x.shape))


def cast_to_e5m6(x, num_per_channels, use_tma_aligned_col_major_sf=False, round_sf=False,
                 use_packed_ue8m0=False):
    """tegula.quant.per_token_cast to 'e5m6': (out, sf)."""
    return _cast(x.float(), "e5m6", (1, num_per_channels), round_sf, use_tma_aligned_col_major_sf,
                 use_packed_ue8m0)


def _scale(numbers, sf, fmt, block_size):
    factors = _read_factors(sf, _ceil(numbers.shape[1], block_size[1]))
    return (numbers * _spread(factors, block_size, numbers.shape)).to(_DTYPES[fmt])


def cast_back(x, fmt, block_size=(32, 32)):
    """tegula.quant.cast_back of a pair x in e4m3 or e2m1."""
    return _scale(_decode(x[0]), x[1], fmt, block_size)


def cast_back_from_e5m6(x, fmt, x_block_size):
    """tegula.quant.cast_back of a pair x in e5m6."""
    return _scale(_decode_e5m6(x[0]), x[1], fmt, x_block_size)


# ---- SwiGLU ----

def _weights(weight, pos_to_token_topk):
    """A weight for every row, 0 where it has none."""
    flat, index = weight.flatten(), pos_to_token_topk.long()
    known = (index >= 0) & (index < flat.numel())
    weights = flat.new_zeros(index.shape)
    weights[known] = flat[index[known]]
    return weights[:, None]


def _clamp(l, r, c):
    return torch.where(l > c, c, l), torch.where(r > c, c, torch.where(r < -c, -c, r))


def swiglu_forward(x, pos_to_token_topk=None, topk_weights=None, swiglu_clamp_value=None, clamped_count=None):
    """silu(gate) * up in float32, weighted; clamped values of all rows are counted."""
    l, r = x.float().chunk(2, dim=1)
    if swiglu_clamp_value is not None:
        c = torch.tensor(swiglu_clamp_value, dtype=torch.float32, device=x.device)
        if clamped_count is not None:
            clamped_count += torch.stack([(l > c).sum(), (r > c).sum(), (r < -c).sum()])
        l, r = _clamp(l, r, c)
    v = l / (1 + torch.exp(-l)) * r
    return v if pos_to_token_topk is None else v * _weights(topk_weights, pos_to_token_topk)


def swiglu_backward(x, grad_out, weight, pos_to_token_topk, token_topk_to_pos, num_per_channels,
                    swiglu_clamp_value=None):
    """(out, x_grad, weight_grad) in float32."""
    data, sf = (t.reshape(-1, t.shape[-1]) for t in x)
    num_cols = data.shape[1] // 2
    num_factors = _ceil(num_cols, num_per_channels)
    factors = _read_factors(sf, 2 * num_factors)
    halves = zip(data.float().chunk(2, dim=1), factors.split(num_factors, dim=1))
    l, r = (v * _spread(f, (1, num_per_channels), v.shape) for v, f in halves)
    g, w = grad_out.reshape(-1, num_cols).float(), _weights(weight, pos_to_token_topk)
    c = torch.tensor(float("inf") if swiglu_clamp_value is None else swiglu_clamp_value, dtype=torch.float32,
                     device=data.device)
    is_gate_clamped, is_up_clamped = l > c, (r > c) | (r < -c)
    l, r = _clamp(l, r, c)
    d = 1 + torch.exp(-l)
    act, s = l / d * r, torch.ones_like(d) / d
    ws = g * w * s
    gate = (ws * r * _fma(l, 1 - s, torch.ones_like(l))).masked_fill(is_gate_clamped, 0)
    up = (ws * l).masked_fill(is_up_clamped, 0)
    sums, at = (g * act).sum(dim=1), token_topk_to_pos.long()
    held = (at >= 0) & (at < len(sums))
    weight_grad = torch.zeros(weight.shape, device=data.device)
    weight_grad[held] = sums[at[held]]
    return act * w, torch.cat([gate, up], dim=1), weight_grad
