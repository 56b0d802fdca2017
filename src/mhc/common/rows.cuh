/* SPDX-License-Identifier: MIT
 * rows.cuh - units of 8 columns, to registers and back, and sums over rows. With HAS_VECTORS every unit is whole and a
 * vector (16 bytes). */
#ifndef TEGULA_MHC_ROWS_CUH
#define TEGULA_MHC_ROWS_CUH

#include "device/reduce.cuh"
#include "device/vector.cuh"
#include "mhc/common/rows.h"

DEV uint4 load_unit(const u16 *row, i64 first, i64 hidden)
{
#if HAS_VECTORS
    return load_stream_u32x4(row + first);
#else
    u32 v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = first + i < hidden ? row[first + i] : 0;
    return make_uint4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16);
#endif
}
/* The same, for kernels that read more than they write: L2 fetches 256 bytes at a time. On an H200 (2026-11) post_bwd
 * and pre_apply_mix_bwd take 4 % less for it, pre_apply_mix_fwd and expand_bwd 5 % in calls back to back; post_fwd and
 * expand_fwd take as long as without. */
DEV uint4 load_unit_ahead(const u16 *row, i64 first, i64 hidden)
{
#if HAS_VECTORS
    return load_ahead_u32x4(row + first);
#else
    return load_unit(row, first, hidden);
#endif
}
/* For memory that the kernel also writes. */
DEV uint4 load_own_unit(const u16 *row, i64 first, i64 hidden)
{
#if HAS_VECTORS
    return *(const uint4 *)(row + first);
#else
    return load_unit(row, first, hidden);
#endif
}
DEV void store_unit(u16 *row, i64 first, i64 hidden, const uint4 &v)
{
#if HAS_VECTORS
    store_u32x4(row + first, v); /* streaming stores were 2 to 3 % slower on an H200 (2026-11), 4096 x 7168 */
#else
    const u32 words[] = { v.x, v.y, v.z, v.w };
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (first + i < hidden) row[first + i] = (u16)(words[i / 2] >> i % 2 * 16);
#endif
}

/* COUNT floats of a token, the same for all threads. */
template <int COUNT> DEV void load_numbers(const float *from, bool has_vectors, float (&to)[COUNT])
{
    if (COUNT % 4 == 0 && has_vectors) {
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
            const float4 v = *(const float4 *)(from + i);
            to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i++) to[i] = from[i];
    }
}

/* Sums over rows: of each value, those of up to 32 warps' trees (ROWS_SPAN units), then of spans. */
enum { ROWS_WARPS = ROWS_SPAN / 32, ROWS_LEVELS = 32 };
template <int COUNT> struct row_sums {
    float of_warp[COUNT][ROWS_WARPS];
    float whole[ROWS_LEVELS][COUNT]; /* of 2^l spans */
};

/* For a group of 32 units that has none. */
template <int COUNT> DEV void clear_group(row_sums<COUNT> &s, int group)
{
#pragma unroll 1
    for (int v = (int)threadIdx.x % 32; v < COUNT; v += 32) s.of_warp[v][group] = 0;
}

/* The trees of a span are there: adds them up. `span` is its number, from 0 on; the last one gives the totals, the
 * first SPLIT of them to `to`, the others to `more`. */
template <int SPLIT, int COUNT>
DEV void add_span(row_sums<COUNT> &s, i64 span, i64 num_spans, float *to, float *more)
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll 1
    for (int v = (int)threadIdx.x / 32; v < COUNT; v += (int)blockDim.x / 32) {
        float sum = lanes_sum<32>(s.of_warp[v][lane]);
        if (lane == 0) {
            int level = 0;
#pragma unroll 1
            for (; span >> level & 1; level++) sum = s.whole[level][v] + sum;
            if (span + 1 < num_spans) s.whole[level][v] = sum;
            else { /* spans before it that are not in it, and +0 for those that are missing */
                const i64 all = num_spans;
                if (all & (all - 1)) {
                    sum = sum + 0.0f;
#pragma unroll 1
                    for (level++; all >> level; level++)
                        if (all >> level & 1) sum = s.whole[level][v] + sum;
                }
                (v < SPLIT ? to : more)[v < SPLIT ? v : v - SPLIT] = tgl_one_nan(sum);
            }
        }
    }
}

#endif
