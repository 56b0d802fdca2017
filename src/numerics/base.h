/* SPDX-License-Identifier: MIT
 * base.h - fixed-width integers, one word for "inline", and the bits of a float. The headers of this
 * folder are compiled as C11, as C++17 (kernels on the emulated device) and as CUDA C++ by NVRTC, which
 * has no standard headers. They define the formats; kernels may use an instruction instead if it gives the
 * same bits. */
#ifndef TEGULA_NUMERICS_BASE_H
#define TEGULA_NUMERICS_BASE_H

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#include <string.h>
#endif

#ifdef __CUDACC__
#define TGL_INLINE static __device__ __forceinline__
#else
#define TGL_INLINE static inline
#endif

/* Bit casts between float and u32. */
TGL_INLINE uint32_t tgl_f32_to_bits(float value)
{
#ifdef __CUDACC__
    return __float_as_uint(value);
#else
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
#endif
}

TGL_INLINE float tgl_f32_from_bits(uint32_t bits)
{
#ifdef __CUDACC__
    return __uint_as_float(bits);
#else
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
#endif
}

/* condition ? yes : no, computing both. On a host, ?: may become a branch around a float operation in
 * `yes` or `no`; gcc keeps that branch, since the operation might trap, and does not vectorise the loop. */
TGL_INLINE uint32_t tgl_select(int condition, uint32_t yes, uint32_t no)
{
#ifdef __CUDACC__
    return condition ? yes : no;
#else
    const uint32_t mask = 0u - (uint32_t)(condition != 0);
    return (yes & mask) | (no & ~mask);
#endif
}

TGL_INLINE float tgl_select_f32(int condition, float yes, float no)
{
    return tgl_f32_from_bits(tgl_select(condition, tgl_f32_to_bits(yes), tgl_f32_to_bits(no)));
}

/* Replaces every NaN by that of GPUs, all bits set but the sign. On CPUs, sign and payload depend on the
 * operands and their order. */
TGL_INLINE float tgl_one_nan(float value)
{
    const uint32_t bits = tgl_f32_to_bits(value);
    return tgl_f32_from_bits(tgl_select((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FFFFFFF, bits));
}

#endif
