/* SPDX-License-Identifier: MIT
 * unaligned.cuh - vectors (16 bytes) at addresses that are aligned to an element only: for transpose_any.cu, transpose_copy.cu.
 * A block is 16 bytes at an aligned address. */
#ifndef TEGULA_TRANSPOSE_UNALIGNED_CUH
#define TEGULA_TRANSPOSE_UNALIGNED_CUH

#include "device/ptx.cuh"

/* What memory is at least aligned to: an element, or half of one of 16 bytes. */
#if ELEMENT_BYTES == 1
typedef u8 part_type;
#elif ELEMENT_BYTES == 2
typedef u16 part_type;
#elif ELEMENT_BYTES == 4
typedef u32 part_type;
#else
typedef u64 part_type;
#endif
enum { PART_BYTES = sizeof(part_type), PARTS = 16 / PART_BYTES };

DEV int misalignment(const void *p) { return (int)((u64)p & 15); }

/* Bytes s .. s + 15 of low and high, one after the other; 0 <= s < 16, a multiple of PART_BYTES. */
DEV uint4 vector_shift(uint4 low, uint4 high, int s)
{
    const bool by8 = s & 8, by4 = PART_BYTES < 8 && s & 4;
    const uint4 a = by8 ? make_uint4(low.z, low.w, high.x, high.y) : low;
    const u32 next = by8 ? high.z : high.x, after = by8 ? high.w : high.y;
    uint4 v = by4 ? make_uint4(a.y, a.z, a.w, next) : a;
    if (PART_BYTES < 4) {
        const u32 bits = (u32)(s & 3) * 8, last = by4 ? after : next;
        v = make_uint4(__funnelshift_r(v.x, v.y, bits), __funnelshift_r(v.y, v.z, bits), __funnelshift_r(v.z, v.w, bits),
                       __funnelshift_r(v.w, last, bits));
    }
    return v;
}

/* The largest power of two, 8 at most, that byte b is aligned to and that does not reach past byte n. */
DEV int piece_bytes(int b, int n)
{
    int bytes = 8;
    while (bytes > PART_BYTES && (b % bytes != 0 || b + bytes > n)) bytes /= 2;
    return bytes;
}

/* Bytes a .. n - 1 of a block, a or n being possibly outside of it; the others are 0. Reads only what is asked for: at most four
 * pieces if the range begins or ends with the block. */
DEV uint4 load_block(const u8 *block, int a, int n)
{
    if (a <= 0 && n >= 16) return *(const uint4 *)block;
    u64 half[2] = { 0, 0 };
    a = max(a, 0);
    n = min(n, 16);
    while (a < n) {
        const int bytes = piece_bytes(a, n);
        const u64 v = bytes == 8 ? *(const u64 *)(block + a) : bytes == 4 ? *(const u32 *)(block + a)
                    : bytes == 2 ? *(const u16 *)(block + a) : block[a];
        if (a < 8) half[0] |= v << 8 * a;
        else half[1] |= v << 8 * (a - 8);
        a += bytes;
    }
    return make_uint4((u32)half[0], (u32)(half[0] >> 32), (u32)half[1], (u32)(half[1] >> 32));
}

/* Writes bytes a .. n - 1 of v to theirs in a block. */
DEV void store_block(u8 *block, uint4 v, int a, int n)
{
    if (a <= 0 && n >= 16) {
        *(uint4 *)block = v;
        return;
    }
    a = max(a, 0);
    n = min(n, 16);
    while (a < n) {
        const int bytes = piece_bytes(a, n);
        const u64 half = a < 8 ? (u64)v.y << 32 | v.x : (u64)v.w << 32 | v.z, piece = half >> 8 * (a % 8);
        if (bytes == 8) *(u64 *)(block + a) = piece;
        else if (bytes == 4) *(u32 *)(block + a) = (u32)piece;
        else if (bytes == 2) *(u16 *)(block + a) = (u16)piece;
        else block[a] = (u8)piece;
        a += bytes;
    }
}

/* 16 bytes at any address, by one or two loads of blocks: `left` bytes before p and `right` from p on may be read, and what lies
 * beyond `right` is undefined. */
DEV uint4 load_vector(const u8 *p, i64 left, i64 right)
{
    const int s = misalignment(p), a = s - (int)min(left, (i64)s), n = s + (int)min(right, (i64)32);
    const uint4 low = load_block(p - s, a, n);
    return s == 0 ? low : vector_shift(low, load_block(p - s + 16, 0, n - 16), s);
}

/* Part k of a vector; k is a constant after unrolling. */
DEV part_type vector_part(const uint4 &v, int k)
{
    const u64 half = k * PART_BYTES < 8 ? (u64)v.y << 32 | v.x : (u64)v.w << 32 | v.z;
    return (part_type)(half >> 8 * (k * PART_BYTES % 8));
}

#endif
