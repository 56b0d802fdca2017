/* SPDX-License-Identifier: MIT
 * unaligned.cuh - vectors (16 bytes) at addresses that are aligned to an element only: for transpose_any.cu, transpose_copy.cu. */
#ifndef TEGULA_TRANSPOSE_UNALIGNED_CUH
#define TEGULA_TRANSPOSE_UNALIGNED_CUH

#include "device/ptx.cuh"

/* What is moved at a time where vectors do not fit: an element, or half of one of 16 bytes, which may be aligned to 8 only. */
#if ELEMENT_BYTES == 1
typedef u8 part_type;
#elif ELEMENT_BYTES == 2
typedef u16 part_type;
#elif ELEMENT_BYTES == 4
typedef u32 part_type;
#else
typedef u64 part_type;
#endif
enum { PART_BYTES = sizeof(part_type) };

DEV void copy_part(void *to, const void *from) { *(part_type *)to = *(const part_type *)from; }

DEV int misalignment(const void *p) { return (int)((u64)p & 15); }

/* Bytes s .. s + 15 of low and high, one after the other; 0 <= s < 16, a multiple of PART_BYTES. */
DEV uint4 vector_shift(uint4 low, uint4 high, int s)
{
    uint4 a = low;
    u32 next = high.x;                              /* the word after a */
    if (PART_BYTES < 8 && s & 4) {
        a = make_uint4(low.y, low.z, low.w, high.x);
        next = high.y;
    }
    if (s & 8) {
        const bool odd = PART_BYTES < 8 && s & 4;
        a = make_uint4(a.z, a.w, next, odd ? high.z : high.y);
        next = odd ? high.w : high.z;
    }
    if (PART_BYTES < 4) {
        const u32 bits = (u32)(s & 3) * 8;
        a = make_uint4(__funnelshift_r(a.x, a.y, bits), __funnelshift_r(a.y, a.z, bits), __funnelshift_r(a.z, a.w, bits),
                       __funnelshift_r(a.w, next, bits));
    }
    return a;
}

/* 16 bytes at any address, by one or two aligned loads. Reads no byte before `first`, none from `end` on: where that would be
 * needed, can_load_vector is false and the caller goes part by part. */
DEV bool can_load_vector(const u8 *p, const u8 *first, const u8 *end)
{
    const int s = misalignment(p);
    return s == 0 ? p >= first && end - p >= 16 : p - s >= first && end - p >= 32 - s;
}
DEV uint4 load_vector(const u8 *p)
{
    const int s = misalignment(p);
    const uint4 *from = (const uint4 *)(p - s);
    return s == 0 ? from[0] : vector_shift(from[0], from[1], s);
}

#endif
