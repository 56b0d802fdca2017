/* SPDX-License-Identifier: MIT
 * short_conv.cuh - what kernels of the short convolution share: vectors of 8 and of 4 columns (common/vector.cuh), and
 * sums of a row. */
#ifndef TEGULA_ENGRAM_SHORT_CONV_CUH
#define TEGULA_ENGRAM_SHORT_CONV_CUH

#include "device/vector.cuh"
#include "engram/common/short_conv.h"

/* 1 / d, rounded to nearest: d is between 1 and 2^116 (quant/common/swiglu.cuh says why that is so). */
DEV float reciprocal(float d)
{
    const float r = rcp_fast(d);
    return fmaf(r, fmaf(-d, r, 1), r);
}

DEV void load_vector(const conv_weights &w, i64 at, float (&to)[CONV_VECTOR])
{
    if (w.is_bf16) {
        const uint4 v = *(const uint4 *)((const u16 *)w.data + at);
#pragma unroll
        for (int i = 0; i < CONV_VECTOR; i++) to[i] = column(v, i);
    } else {
        const float4 a = *(const float4 *)((const float *)w.data + at);
        const float4 b = *(const float4 *)((const float *)w.data + at + 4);
        to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
    }
}

DEV void load_vector(const conv_weights &w, i64 at, float (&to)[4])
{
    if (w.is_bf16) {
        const uint2 v = *(const uint2 *)((const u16 *)w.data + at);
#pragma unroll
        for (int i = 0; i < 4; i++) to[i] = column(v, i);
    } else {
        const float4 v = *(const float4 *)((const float *)w.data + at);
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    }
}

/* norm_weight as it counts, of stream h. */
template <int COUNT>
DEV void load_norm(const conv_weights &w, const conv_numbers &n, i64 h, i64 first, float (&norm)[COUNT])
{
    load_vector(w, h * w.stride + first, norm);
#pragma unroll
    for (int i = 0; i < COUNT; i++) norm[i] = conv_norm_weight(&n, norm[i]);
}

DEV float squares_of(const uint4 &x)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < CONV_VECTOR; i++) sum = fmaf(column(x, i), column(x, i), sum);
    return sum;
}

/* Adds two groups at once: afterwards lanes without bit `half` have sums of the first, the others of the second. */
DEV float add_halves(float first, float second, int half)
{
    const bool is_first = !(threadIdx.x & half);
    return (is_first ? first : second) + __shfl_xor_sync(FULL, is_first ? second : first, half);
}

/* The squares of a row in shared memory, by a warp, in all lanes. Four groups at a time: they end up in lanes 0, 16, 8
 * and 24. Groups past the last one add 0. */
DEV float squares_of_row(u32 row, int vectors)
{
    const int lane = threadIdx.x % 32;
    float total = 0;
#pragma unroll 1
    for (int first = 0; first < vectors; first += 4 * CONV_GROUP) {
        uint4 x[4];
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            x[j] = shared_load_u32x4(row + 16 * min(first + j * CONV_GROUP + lane, vectors - 1));
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = first + j * CONV_GROUP + lane < vectors ? squares_of(x[j]) : 0.0f;
        float sum = add_halves(add_halves(v[0], v[1], 16), add_halves(v[2], v[3], 16), 8);
#pragma unroll
        for (int half = 4; half > 0; half /= 2) sum += __shfl_xor_sync(FULL, sum, half);
        total += __shfl_sync(FULL, sum, 0);
        total += __shfl_sync(FULL, sum, 16);
        total += __shfl_sync(FULL, sum, 8);
        total += __shfl_sync(FULL, sum, 24);
    }
    return total;
}

template <class T, int COUNT> DEV T normed(const T &x, float rstd, const float (&norm)[COUNT])
{
    float v[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) v[i] = conv_normed(column(x, i), rstd, norm[i]);
    return pack(v);
}

template <class T, int COUNT>
DEV T result_of(const conv_numbers &n, const float (&z)[COUNT], const T &x, bool has_residual, const T &residual,
                bool rounds_each)
{
    float out[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const float of = rounds_each ? conv_rounded(z[i]) : z[i];
        out[i] = conv_result(&n, of, reciprocal(conv_sigmoid_divisor(of)), column(x, i), has_residual,
                             column(residual, i), rounds_each);
    }
    return pack(out);
}

#endif
