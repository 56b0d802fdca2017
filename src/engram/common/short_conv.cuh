/* SPDX-License-Identifier: MIT
 * short_conv.cuh - what kernels of the short convolution share: vectors of 8 and of 4 columns (device/vector.cuh), and
 * sums of a row. */
#ifndef TEGULA_ENGRAM_SHORT_CONV_CUH
#define TEGULA_ENGRAM_SHORT_CONV_CUH

#include "device/vector.cuh"
#include "engram/common/short_conv.h"

/* 8 columns of a row, and two that are elsewhere in it (gate_conv_fwd). */
struct vector_and_pair {
    uint4 vector;
    u32 pair;
};
DEV float column(const vector_and_pair &v, int i)
{
    if (i < CONV_VECTOR) return column(v.vector, i);
    return __uint_as_float(i % 2 ? v.pair & 0xffff0000u : v.pair << 16);
}
DEV vector_and_pair pack(const float (&c)[CONV_VECTOR + 2])
{
    const float vector[] = { c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7] };
    return { pack(vector), pack_bf16(c[8], c[9]) };
}

/* 1 / d, rounded to nearest: what nvcc makes of 1.0f / d, without its branch for the smallest and the largest d. This one is
 * between 1 and 2^116. */
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

/* The squares of a row in shared memory, by a warp, in all lanes. Ten groups at a time, so many as 2560 columns have,
 * share the steps of their trees; groups past the last one add 0. */
DEV float squares_of_row(u32 row, int vectors)
{
    enum { GROUPS = 10 };
    const int lane = threadIdx.x % 32;
    float total = 0;
#pragma unroll 1
    for (int first = 0; first < vectors; first += GROUPS * CONV_GROUP) {
        float v[GROUPS] = {};
        if (first + GROUPS * CONV_GROUP <= vectors) {
#pragma unroll
            for (int g = 0; g < GROUPS; g++)
                v[g] = squares_of(shared_load_u32x4(row + 16 * (first + g * CONV_GROUP + lane)));
        } else {
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                const int at = first + g * CONV_GROUP + lane;
                if (first + g * CONV_GROUP >= vectors) break;
                const uint4 x = shared_load_u32x4(row + 16 * min(at, vectors - 1));
                v[g] = at < vectors ? squares_of(x) : 0.0f;
            }
        }
        /* in lanes whose bits, the highest first, are the bits of g, the lowest first */
#pragma unroll
        for (int i = 0; i < 5; i++) v[i] = add_halves(v[2 * i], v[2 * i + 1], 16);
        v[0] = add_halves(v[0], v[1], 8), v[1] = add_halves(v[2], v[3], 8), v[2] = add_halves(v[4], 0, 8);
        float sum = add_halves(add_halves(v[0], v[1], 4), add_halves(v[2], 0, 4), 2);
        sum += __shfl_xor_sync(FULL, sum, 1);
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            total += __shfl_sync(FULL, sum, (g & 1) * 16 + (g >> 1 & 1) * 8 + (g >> 2 & 1) * 4 + (g >> 3 & 1) * 2);
    }
    return total;
}

/* What is convolved, as a row of bf16, and as numbers, which takes fewer instructions. */
template <class T, int COUNT> DEV T normed(const T &x, float rstd, const float (&norm)[COUNT])
{
    float v[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) v[i] = conv_normed(column(x, i), rstd, norm[i]);
    return pack(v);
}
template <class T, int COUNT>
DEV void find_normed(const T &x, float rstd, const float (&norm)[COUNT], float (&to)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) to[i] = rounded_to_bf16(conv_normed(column(x, i), rstd, norm[i]));
}
template <class T, int COUNT> DEV void unpack(const T &x, float (&to)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) to[i] = column(x, i);
}

/* conv_result() of z. What is added is chosen for whole vectors. */
template <class T, int COUNT>
DEV T result_of(const conv_numbers &n, const float (&z)[COUNT], const T &x, bool has_residual, const T &residual,
                bool rounds_each)
{
    float out[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) out[i] = -0.0f;
    const T first = n.adds_input ? x : has_residual ? residual : pack(out);
    const bool has_second = n.adds_input && has_residual;
    float a[COUNT], b[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) a[i] = rounds_each ? conv_rounded(z[i]) : z[i], b[i] = 1;
    if (n.has_activation)
#pragma unroll
        for (int i = 0; i < COUNT; i++) b[i] = reciprocal(conv_sigmoid_divisor(a[i])), a[i] = conv_bounded(a[i]);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        out[i] = conv_added(a[i], b[i], column(first, i), has_second, column(residual, i), rounds_each);
    return pack(out);
}

#endif
