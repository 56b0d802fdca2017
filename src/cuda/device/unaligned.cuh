/* SPDX-License-Identifier: MIT
 * unaligned.cuh - 16-byte vectors at addresses that are aligned only to an element. A block is 16 bytes at an
 * aligned address. Addresses and byte counts are multiples of PART_BYTES: 1, 2, 4 or 8. */
#ifndef TEGULA_DEVICE_UNALIGNED_CUH
#define TEGULA_DEVICE_UNALIGNED_CUH

#include "device/ptx.cuh"

/* The integer type of an element; 8 bytes for one of 16. */
template <int BYTES> struct part_of { typedef u64 type; };
template <> struct part_of<1> { typedef u8 type; };
template <> struct part_of<2> { typedef u16 type; };
template <> struct part_of<4> { typedef u32 type; };

DEV int misalignment(const void *p) { return (int)((u64)p & 15); }

/* Bytes s .. s + 15 of low followed by high; 0 <= s < 16, a multiple of PART_BYTES. */
template <int PART_BYTES> DEV uint4 vector_shift(uint4 low, uint4 high, int s)
{
    const bool by8 = s & 8, by4 = PART_BYTES < 8 && s & 4;
    const u32 a = by8 ? low.z : low.x, b = by8 ? low.w : low.y, c = by8 ? high.x : low.z;
    const u32 d = by8 ? high.y : low.w, e = by8 ? high.z : high.x, f = by8 ? high.w : high.y;
    const uint4 v = make_uint4(by4 ? b : a, by4 ? c : b, by4 ? d : c, by4 ? e : d);
    if (PART_BYTES >= 4) return v;
    const u32 bits = (u32)(s & 3) * 8;
    return make_uint4(__funnelshift_r(v.x, v.y, bits), __funnelshift_r(v.y, v.z, bits), __funnelshift_r(v.z, v.w, bits),
                      __funnelshift_r(v.w, by4 ? f : e, bits));
}

/* The largest power of two up to 8 that byte b is aligned to and that does not exceed n - b. */
template <int PART_BYTES> DEV int piece_bytes(int b, int n)
{
    int bytes = 8;
    while (bytes > PART_BYTES && (b % bytes != 0 || b + bytes > n)) bytes /= 2;
    return bytes;
}

/* Writes bytes a .. n - 1 of v to a block, 0 <= a, n <= 16: in at most four pieces if they are a prefix or a
 * suffix of the block. */
template <int PART_BYTES> DEV void store_block(u8 *block, uint4 v, int a, int n)
{
#pragma unroll 1
    while (a < n) {
        const int bytes = piece_bytes<PART_BYTES>(a, n);
        const u64 half = a < 8 ? (u64)v.y << 32 | v.x : (u64)v.w << 32 | v.z, piece = half >> 8 * (a % 8);
        if (bytes == 8) *(u64 *)(block + a) = piece;
        else if (bytes == 4) *(u32 *)(block + a) = (u32)piece;
        else if (bytes == 2) *(u16 *)(block + a) = (u16)piece;
        else block[a] = (u8)piece;
        a += bytes;
    }
}

/* Sets part k of a vector, which was 0; k is a constant after unrolling. */
template <class T> DEV void set_part(uint4 &v, int k, T part)
{
    enum { PART_BYTES = sizeof(T) };
    const u64 half = (u64)part << k * PART_BYTES % 8 * 8;
    if (k * PART_BYTES < 8) {
        v.x |= (u32)half;
        v.y |= (u32)(half >> 32);
    } else {
        v.z |= (u32)half;
        v.w |= (u32)(half >> 32);
    }
}

/* 16 bytes at any address, taken from two blocks. These must be readable: `left` bytes before p and
 * `right` bytes from p on are. */
DEV bool can_load_vector(const u8 *p, i64 left, i64 right)
{
    const int s = misalignment(p);
    return s == 0 ? right >= 16 : left >= s && right >= 32 - s;
}
template <int PART_BYTES> DEV uint4 load_vector(const u8 *p)
{
    const int s = misalignment(p);
    if (s == 0) return *(const uint4 *)p;
    return vector_shift<PART_BYTES>(*(const uint4 *)(p - s), *(const uint4 *)(p - s + 16), s);
}

#endif
