/* SPDX-License-Identifier: MIT
 * decode.cuh - from memory to values, for the kernels of all casts. A vector is what a lane loads at once.
 * Its amax is found in its own format, or in f16, which has all numbers of FP8 and FP4.
 *
 *   X_BF16   8 values, 16 bytes        X_F32    4 values, 16 bytes
 *   X_E4M3   16 codes, 16 bytes        X_E2M1   16 codes, 8 bytes
 *
 * Everything is exact, with the bits of src/numerics, also where an instruction does it. */
#ifndef TEGULA_QUANT_DECODE_CUH
#define TEGULA_QUANT_DECODE_CUH

#include "device/ptx.cuh"
#include "quant/common/scale.h"
#include "quant/common/vector.h"

/* ---- pairs and groups ---- */

DEV float low_bf16(u32 pair) { return __uint_as_float(pair << 16); }
DEV float high_bf16(u32 pair) { return __uint_as_float(pair & 0xFFFF0000u); }

/* Value i of pairs side by side; i is a constant after unrolling. */
DEV float bf16_at(const u32 *pairs, int i) { return i % 2 ? high_bf16(pairs[i / 2]) : low_bf16(pairs[i / 2]); }

/* Two codes of e4m3, the first in the lowest byte, as two f16. */
DEV u32 e4m3x2_to_f16x2(u32 pair)
{
#if __CUDA_ARCH__ >= 890
    return widen_e4m3(pair);
#else
    /* As f16 the bits of a code are 2^-8 times its value; NaN is patched in. */
    const u32 spread = (pair & 0x7F) << 7 | (pair & 0x7F00) << 15;
    const u32 sign = (pair & 0x80) << 8 | (pair & 0x8000) << 16;
    const u32 low = (pair & 0x7F) == 0x7F ? 0x7FFF : 0, high = (pair & 0x7F00) == 0x7F00 ? 0x7FFF0000u : 0;
    return fma_f16x2(spread, 0x5C005C00u /* 256 */, 0) | sign | low | high;
#endif
}

/* The last two of four codes. */
DEV u32 e4m3x2_high_to_f16x2(u32 codes)
{
#if __CUDA_ARCH__ >= 890
    return widen_e4m3_high(codes);
#else
    return e4m3x2_to_f16x2(codes >> 16);
#endif
}

/* Eight codes of e2m1, the first in the lowest bits. Code j of 0 .. 3 becomes the low half of pair j, code j
 * + 4 the high half. As f16 the bits of a code are 2^-14 times its value. */
DEV void e2m1x8_to_f16x2(u32 codes, u32 (&pairs)[4])
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const u32 at_12 = codes << (12 - 4 * j);
        const u32 half = (at_12 & 0x80008000u) | (at_12 >> 3 & 0x0E000E00u);
        pairs[j] = fma_f16x2(half, 0x74007400u /* 2^14 */, 0x80008000u /* -0: keeps the sign of zeros */);
    }
}

DEV void decode_e4m3x4(u32 codes, float (&v)[4])
{
    const u32 low = e4m3x2_to_f16x2(codes), high = e4m3x2_high_to_f16x2(codes);
    v[0] = low_f16(low);
    v[1] = high_f16(low);
    v[2] = low_f16(high);
    v[3] = high_f16(high);
}

DEV void decode_e2m1x8(u32 codes, float (&v)[8])
{
    u32 pairs[4];
    e2m1x8_to_f16x2(codes, pairs);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        v[j] = low_f16(pairs[j]);
        v[j + 4] = high_f16(pairs[j]);
    }
}

/* Eight codes of e5m6 in three words; a code is the upper 12 bits of an f16. */
DEV void decode_e5m6x8(const u32 (&w)[3], float (&v)[8])
{
    v[0] = high_f16(w[0] & 0xFFF00000u);
    v[1] = high_f16(w[0] << 12 & 0xFFF00000u);
    v[2] = high_f16(__funnelshift_l(w[1], w[0], 24) & 0xFFF00000u);
    v[3] = high_f16(w[1] << 4 & 0xFFF00000u);
    v[4] = high_f16(w[1] << 16 & 0xFFF00000u);
    v[5] = high_f16(__funnelshift_l(w[2], w[1], 28) & 0xFFF00000u);
    v[6] = high_f16(w[2] << 8 & 0xFFF00000u);
    v[7] = high_f16(w[2] << 20);
}

/* ---- one at a time ---- */

/* A value of a row, at any address; codes without their factor. */
template <int X_> DEV float value_at(const void *row, i64 col)
{
    if (X_ == X_BF16) return low_bf16(((const u16 *)row)[col]);
    if (X_ == X_F32) return ((const float *)row)[col];
    if (X_ == X_E4M3) return tgl_e4m3_to_f32(((const u8 *)row)[col]);
    return tgl_e2m1_to_f32((u8)(((const u8 *)row)[col / 2] >> col % 2 * 4));
}

/* ---- vectors ---- */

template <int X_> struct vector_of { u32 w[X_VECTOR_BYTES(X_) / 4]; };

/* Four words, or two, to an array. */
DEV void spread(uint4 v, u32 *w)
{
    w[0] = v.x;
    w[1] = v.y;
    w[2] = v.z;
    w[3] = v.w;
}
DEV void spread(uint2 v, u32 *w)
{
    w[0] = v.x;
    w[1] = v.y;
}

/* Data that is read once; `from` is aligned to the vector. */
template <int X_> DEV void load_vector(const void *from, vector_of<X_> &x)
{
    if constexpr (X_VECTOR_BYTES(X_) == 16) spread(load_stream_u32x4(from), x.w);
    else spread(load_stream_u32x2(from), x.w);
}

/* Zeros change no amax. */
template <int X_> DEV void clear_vector(vector_of<X_> &x)
{
#pragma unroll
    for (int i = 0; i < X_VECTOR_BYTES(X_) / 4; i++) x.w[i] = 0;
}

/* All as f32. */
DEV void widen(const vector_of<X_BF16> &x, float (&v)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = bf16_at(x.w, i);
}
DEV void widen(const vector_of<X_F32> &x, float (&v)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = __uint_as_float(x.w[i]);
}
DEV void widen(const vector_of<X_E4M3> &x, float (&v)[16])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float part[4];
        decode_e4m3x4(x.w[i], part);
#pragma unroll
        for (int j = 0; j < 4; j++) v[4 * i + j] = part[j];
    }
}
DEV void widen(const vector_of<X_E2M1> &x, float (&v)[16])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float part[8];
        decode_e2m1x8(x.w[i], part);
#pragma unroll
        for (int j = 0; j < 8; j++) v[8 * i + j] = part[j];
    }
}

/* ---- amax ----
 * As the bits of a non-negative f32, whose order as integers is that of the values. NaN is ignored. */

DEV u32 max_bits_of_bf16x2(u32 m) { return max(m << 16, m & 0xFFFF0000u); }
DEV u32 max_bits_of_f16x2(u32 m) { return __float_as_uint(max(low_f16(m), high_f16(m))); }

DEV u32 amax_of(float v)
{
    const u32 magnitude = __float_as_uint(v) & 0x7FFFFFFF;
    return magnitude <= 0x7F800000 ? magnitude : 0;
}

template <int COUNT> DEV u32 amax_of(const float *v)
{
    float m = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++) m = fmaxf(m, fabsf(v[i]));
    return __float_as_uint(m);
}

DEV u32 amax_of(const vector_of<X_BF16> &x)
{
    u32 m = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) m = max_abs_bf16x2(m, x.w[i]);
    return max_bits_of_bf16x2(m);
}
DEV u32 amax_of(const vector_of<X_F32> &x)
{
    float m = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) m = fmaxf(m, fabsf(__uint_as_float(x.w[i])));
    return __float_as_uint(m);
}
DEV u32 amax_of(const vector_of<X_E4M3> &x)
{
    u32 m = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        m = max_abs_f16x2(m, e4m3x2_to_f16x2(x.w[i]));
        m = max_abs_f16x2(m, e4m3x2_high_to_f16x2(x.w[i]));
    }
    return max_bits_of_f16x2(m);
}
/* Of several vectors. */
template <int X_, int N> DEV u32 amax_of(const vector_of<X_> (&x)[N])
{
    u32 m = 0;
#pragma unroll
    for (int n = 0; n < N; n++) m = max(m, amax_of(x[n]));
    return m;
}
template <int N> DEV u32 amax_of(const vector_of<X_BF16> (&x)[N])
{
    u32 m = 0;
#pragma unroll
    for (int i = 0; i < 4 * N; i++) m = max_abs_bf16x2(m, x[i / 4].w[i % 4]);
    return max_bits_of_bf16x2(m);
}
template <int N> DEV u32 amax_of(const vector_of<X_E2M1> (&x)[N])
{
    u32 seen = 0; /* bit c of every byte: is there code c? */
#pragma unroll
    for (int i = 0; i < 2 * N; i++) {
        const u32 codes = x[i / 2].w[i % 2] & 0x77777777;
        seen |= __byte_perm(0x08040201, 0x80402010, codes) | __byte_perm(0x08040201, 0x80402010, codes >> 16);
    }
    seen |= seen >> 16;
    const u32 largest = 31 - __clz((seen | seen >> 8) & 0xFF);
    return largest < 2 ? largest * 0x3F000000u /* 1/2 */ : 0x3F800000 + (largest - 2) * 0x400000;
}

/* Of codes with a factor: rounding keeps the order, so the largest code gives the largest product. An
 * infinite factor makes only zeros NaN. */
DEV u32 scaled_amax(u32 amax, float factor) { return __float_as_uint(fmaxf(0, __uint_as_float(amax) * fabsf(factor))); }

/* The max over LANES adjacent lanes, a power of two, in all of them; the whole warp calls.
 * max_of_lanes_bf16() does two at once, whose lower halves are 0. */
template <int LANES> DEV u32 max_of_lanes(u32 v)
{
    if (LANES == 32) return warp_max_u32(v);
#pragma unroll
    for (int offset = LANES / 2; offset; offset /= 2) v = max(v, __shfl_xor_sync(FULL, v, offset));
    return v;
}

/* The same for 16 lanes: lower latency, but more instructions if there are several. */
DEV u32 max_of_half(u32 v)
{
    const bool is_upper = threadIdx.x & 16;
    const u32 low = warp_max_u32(is_upper ? 0 : v), high = warp_max_u32(is_upper ? v : 0);
    return is_upper ? high : low;
}

template <int LANES> DEV void max_of_lanes_bf16(u32 &a, u32 &b)
{
    u32 pair = __byte_perm(a, b, 0x7632);
#pragma unroll
    for (int offset = LANES / 2; offset; offset /= 2) pair = max_abs_bf16x2(pair, __shfl_xor_sync(FULL, pair, offset));
    a = pair << 16;
    b = pair & 0xFFFF0000u;
}

#endif
