/* SPDX-License-Identifier: MIT
 * swiglu.cuh - SwiGLU in kernels: the steps of swiglu.h in fewer instructions.
 *
 * If |gate| <= SWIGLU_SMALL, the divisor d = 1 + exp(-gate) is between 1 and 2^126, and its reciprocal a
 * normal number. With r0 the device's approximation of 1 / d,
 *     r = fma(r0, fma(-d, r0, 1), r0)                      is 1 / d rounded to nearest,
 *     q0 = gate * r,  q = fma(fma(q0, d, -gate), -r, q0)   is gate / d rounded to nearest,
 * unless the true value is within a relative 2^-46 of the midpoint of two floats: r0 has an error of 2^-23,
 * and r, before rounding, its square. There the last bit may differ, as that of exp may. This order of
 * operands also keeps a gate of -0. (The inner fma is not the negated operand: gcc, for the emulated device,
 * would lose the sign of its zero.) For a bf16 gate of at least 2^-20 in magnitude r0 is enough in place of
 * r: q is the quotient rounded to nearest for all of them, with any r0 within two units and any d of an exp
 * with a few units' error. (Below, a power of two over a d just under 2 needs an r0 that is rounded to
 * nearest.) A NaN passes. Other gates are rare; a thread with one takes longer. */
#ifndef TEGULA_QUANT_SWIGLU_CUH
#define TEGULA_QUANT_SWIGLU_CUH

#include "quant/common/decode.cuh"
#include "quant/common/swiglu.h"

#define SWIGLU_SMALL 87.0f

/* ---- small gates ---- */

/* tgl_swiglu_divisor(), by the steps of CUDA's expf: exp(x) = 2^n * 2^(x * log2(e) - n), n = floor(x *
 * log2(e)), which is in the lower bits of a float of at least 2^23. The product with 2^n is exact, so adding
 * 1 may be fused. */
DEV float swiglu_small_divisor(float gate)
{
    const float log2_e = 0x1.715476p+0f, log2_e_rest = 0x1.4ae0cp-26f;
    const float scaled = fmaf(gate, -0x1.77313ap-8f /* log2(e) / 252 */, 0.5f);
    const float shifted = __fmaf_rd(scaled, 252, 0x1.800002p+23f);
    const float whole = shifted - 0x1.8000fep+23f;
    const float rest = fmaf(-gate, log2_e_rest, fmaf(-gate, log2_e, -whole));
    return fmaf(__uint_as_float(__float_as_uint(shifted) << 23), ex2_fast(rest), 1);
}

DEV float swiglu_small_reciprocal(float divisor)
{
    const float r = rcp_fast(divisor);
    return fmaf(r, fmaf(-divisor, r, 1), r);
}
DEV float swiglu_small_quotient(float gate, float divisor, float reciprocal)
{
    const float q = gate * reciprocal;
    return fmaf(fmaf(q, divisor, -gate), -reciprocal, q);
}

/* ---- gate / divisor ---- */

/* Small gates; IS_BF16: they are bf16. */
template <bool IS_BF16, int N> DEV void silu_of_small(const float (&gates)[N], float (&v)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float d = swiglu_small_divisor(gates[i]);
        v[i] = swiglu_small_quotient(gates[i], d, IS_BF16 ? rcp_fast(d) : swiglu_small_reciprocal(d));
    }
}

/* Any gates. Below -80, where d may exceed 2^126, d / 4 is used: nothing overflows, the quotient is far from
 * subnormal, and powers of two change no rounding. Infinite gates and divisors come last. */
template <int N> DEV void silu_of_any(const float (&gates)[N], float (&v)[N])
{
    const float infinite = __uint_as_float(0x7F800000);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float divisor = tgl_swiglu_divisor(gates[i]), scale = gates[i] < -80.0f ? 0.25f : 1.0f;
        const float d = divisor * scale;
        v[i] = swiglu_small_quotient(gates[i], d, swiglu_small_reciprocal(d)) * scale;
        if (gates[i] == infinite) v[i] = gates[i];
        if (divisor == infinite) v[i] = gates[i] * 0.0f;
    }
}

/* ---- vectors ---- */

/* Is every gate small, and nothing clamped? Nearly always. */
template <bool HAS_CLAMP_, int X_, int N>
DEV bool swiglu_is_usual(const vector_of<X_> (&gates)[N], const vector_of<X_> (&ups)[N], float clamp)
{
    if (!HAS_CLAMP_) return amax_of(gates) <= __float_as_uint(SWIGLU_SMALL);
    return max(amax_of(gates), amax_of(ups)) <= __float_as_uint(fminf(clamp, SWIGLU_SMALL));
}

template <int N> DEV void swiglu_clamp(float (&gates)[N], float (&ups)[N], float clamp)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        gates[i] = tgl_swiglu_gate(gates[i], clamp);
        ups[i] = tgl_swiglu_up(ups[i], clamp);
    }
}

#endif
