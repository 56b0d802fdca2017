/* SPDX-License-Identifier: MIT
 * tokens.cuh - matrices of a block's 32 tokens, n x n numbers each. A thread has a row, neighbours those of a token:
 * what is done row by row, exp above all, takes all warps. The steps of Sinkhorn, each of which needs the one before,
 * take the first warp, a lane a token. */
#ifndef TEGULA_MHC_TOKENS_CUH
#define TEGULA_MHC_TOKENS_CUH

#include "device/ptx.cuh"
#include "mhc/common/mhc.h"

template <int N> DEV void load_row(const float *from, bool has_vectors, float (&row)[N])
{
    if (N % 4 == 0 && has_vectors) {
#pragma unroll
        for (int o = 0; o < N; o += 4) {
            const float4 v = *(const float4 *)(from + o);
            row[o] = v.x, row[o + 1] = v.y, row[o + 2] = v.z, row[o + 3] = v.w;
        }
    } else {
#pragma unroll
        for (int o = 0; o < N; o++) row[o] = from[o];
    }
}

template <int N> DEV void store_row(float *to, bool has_vectors, const float (&row)[N])
{
    if (N % 4 == 0 && has_vectors) {
#pragma unroll
        for (int o = 0; o < N; o += 4) *(float4 *)(to + o) = make_float4(row[o], row[o + 1], row[o + 2], row[o + 3]);
    } else {
#pragma unroll
        for (int o = 0; o < N; o++) to[o] = row[o];
    }
}

/* In shared memory: of each token COUNT numbers, such as a matrix or its factors. Rows are padded, as threads write
 * those of a few tokens at a time. */
template <int COUNT> struct token_numbers {
    float v[COUNT][33];
    template <int N> __device__ __forceinline__ void put(int token, int first, const float (&from)[N])
    {
#pragma unroll
        for (int i = 0; i < N; i++) v[first + i][token] = from[i];
    }
    template <int N> __device__ __forceinline__ void get(int token, int first, float (&to)[N]) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) to[i] = v[first + i][token];
    }
};
template <int N>
DEV void get_matrix(const token_numbers<N * N> &from, float (&m)[MHC_MAX_STREAMS][MHC_MAX_STREAMS])
{
#pragma unroll
    for (int i = 0; i < N * N; i++) m[i / N][i % N] = from.v[i][threadIdx.x];
}

#endif
