/* SPDX-License-Identifier: MIT
 * swiglu.cuh - the activation in kernels: the steps of swiglu.h, with divisions of a few instructions.
 *
 * A gate of at most SWIGLU_SMALL in magnitude has a divisor d = 1 + exp(-gate) between 1 and 2^126, whose
 * reciprocal is a normal number. With r0 the device's approximation of 1 / d,
 *     r = fma(r0, fma(-d, r0, 1), r0)                      is 1 / d rounded to nearest,
 *     q0 = gate * r,  q = fma(fma(q0, d, -gate), -r, q0)   is gate / d rounded to nearest,
 * unless the true value is within a relative 2^-46 of the middle between two floats: r0 has an error of 2^-23,
 * and before it is rounded r has its square. There the last bit may be another, as that of exp may be. This
 * order of operands also keeps a gate of -0 (and the inner fma is not what is negated: gcc, for the emulated
 * device, would lose the sign of its zero).
 * A NaN passes. Other gates are rare; a thread that has one takes longer. */
#ifndef TEGULA_QUANT_SWIGLU_CUH
#define TEGULA_QUANT_SWIGLU_CUH

#include "quant/decode.cuh"
#include "quant/swiglu.h"

#define SWIGLU_SMALL 87.0f

/* Of a small gate. */
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

/* gate / divisor of any gate. Below -80, where d may exceed 2^126, a quarter of d is used: nothing overflows
 * there, the quotient is far from subnormal, and powers of two change no rounding. Infinite ones come last:
 * then 1 / d is 0 or 1. */
DEV float swiglu_quotient(float gate, float divisor)
{
    const float infinite = __uint_as_float(0x7F800000), scale = gate < -80.0f ? 0.25f : 1.0f;
    const float d = divisor * scale, q = swiglu_small_quotient(gate, d, swiglu_small_reciprocal(d)) * scale;
    if (divisor == infinite) return gate * 0.0f;
    return gate == infinite ? gate : q;
}

/* Are the gates of a vector small? (Clamping moves them towards 0, so it may come later.) */
template <int X_> DEV bool swiglu_is_small(const vector_of<X_> &gates)
{
    return amax_of(gates) <= __float_as_uint(SWIGLU_SMALL);
}

/* Activations of gates and ups, which are clamped if they have to be. */
template <int N>
DEV void swiglu_activate(const float (&gates)[N], const float (&ups)[N], bool is_small, float (&v)[N])
{
    float divisors[N];
#pragma unroll
    for (int i = 0; i < N; i++) divisors[i] = tgl_swiglu_divisor(gates[i]);
    if (is_small) {
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] = swiglu_small_quotient(gates[i], divisors[i], swiglu_small_reciprocal(divisors[i]));
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = swiglu_quotient(gates[i], divisors[i]);
    }
#pragma unroll
    for (int i = 0; i < N; i++) v[i] *= ups[i];
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
