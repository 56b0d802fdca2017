/* SPDX-License-Identifier: MIT
 * projection.h - products of a token's streams with the rows of fn, and the sum of its squares: the order that all ops
 * with a projection keep. It depends on n and h alone, so no result depends on the number of tokens or on the kernel.
 *
 * fn, times the gain, is rounded to TF32 and split exactly into two bf16, hi and lo. Columns of a stream are padded
 * with zeros to a multiple of 64 and cut into S segments, S the largest power of two up to 16 for which segments are
 * multiples of 64. Chunk 2 n s + 2 i + u is half u of segment s in stream i. In a chunk, pieces of 32 columns are two
 * steps of 16 each, columns 8q .. 8q + 3 (q = 0 .. 3) and the rest, which a tensor core multiplies and adds to an
 * accumulator, of hi and of lo; then hi + lo. Squares: of each q the sums of even and of odd columns, by fma in order,
 * added up; then (q 0 + q 1) + (q 2 + q 3). Chunks are added as a tree.
 *
 * A tensor core does not say how it adds 16 products and the accumulator; the CPU does it in double and rounds. */
#ifndef TEGULA_MHC_PROJECTION_H
#define TEGULA_MHC_PROJECTION_H

#include "mhc/common/mhc_limits.h"
#include "mhc/common/rows.h"
#include "numerics/rsqrt.h"
#include "numerics/tf32.h"

#define PROJECTION_MAX_ROWS 80
#define PROJECTION_PIECE 32

TGL_INLINE int projection_segments(int64_t hidden)
{
    const int64_t units = hidden / 64 + (hidden % 64 != 0);
    int segments = PROJECTION_MAX_SEGMENTS;
    while (units % segments) segments /= 2;
    return segments;
}
/* Pieces of a chunk. */
TGL_INLINE int64_t projection_pieces(int64_t hidden)
{
    return (hidden / 64 + (hidden % 64 != 0)) / projection_segments(hidden);
}

/* The high halves of hi and lo. Infinity and NaN are in hi; lo is then 0. */
typedef struct { uint32_t hi, lo; } projection_parts;
TGL_INLINE projection_parts projection_split_tf32(float rounded)
{
    const uint32_t hi = tgl_f32_to_bits(rounded) & 0xFFFF0000u;
    const uint32_t lo = tgl_f32_to_bits(rounded - tgl_f32_from_bits(hi)) & 0xFFFF0000u;
    const projection_parts parts = { hi, (hi & 0x7F800000u) == 0x7F800000u ? 0 : lo };
    return parts;
}
TGL_INLINE projection_parts projection_split(float fn) { return projection_split_tf32(tgl_tf32_from_f32(fn)); }

TGL_INLINE float projection_rms(float sqrsum, float columns, float eps) { return tgl_rsqrt(sqrsum / columns + eps); }

#endif
