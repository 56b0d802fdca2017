/* SPDX-License-Identifier: MIT
 * vector.cuh - 8 columns of a row, bf16 in 16 bytes, and 4 in 8. */
#ifndef TEGULA_VECTOR_CUH
#define TEGULA_VECTOR_CUH

#include "device/ptx.cuh"

/* Column i of a vector; i is a constant after unrolling. */
DEV float column(const uint4 &v, int i)
{
    const u32 word = i / 2 == 0 ? v.x : i / 2 == 1 ? v.y : i / 2 == 2 ? v.z : v.w;
    return __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
}
DEV float column(const uint2 &v, int i)
{
    const u32 word = i / 2 == 0 ? v.x : v.y;
    return __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
}
DEV uint4 pack(const float (&c)[8])
{
    return make_uint4(pack_bf16(c[0], c[1]), pack_bf16(c[2], c[3]), pack_bf16(c[4], c[5]), pack_bf16(c[6], c[7]));
}
DEV uint2 pack(const float (&c)[4]) { return make_uint2(pack_bf16(c[0], c[1]), pack_bf16(c[2], c[3])); }

/* As packed and unpacked, in one instruction: the upper half of a pair is the number itself. */
DEV float rounded_to_bf16(float v) { return __uint_as_float(pack_bf16(0, v)); }

#endif
