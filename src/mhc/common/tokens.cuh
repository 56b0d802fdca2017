/* SPDX-License-Identifier: MIT
 * tokens.cuh - a token's n x n numbers, to registers and back. */
#ifndef TEGULA_MHC_TOKENS_CUH
#define TEGULA_MHC_TOKENS_CUH

#include "device/ptx.cuh"
#include "mhc/common/mhc.h"

template <int N> DEV void load_token(const float *from, bool has_vectors, float (&m)[MHC_MAX_STREAMS][MHC_MAX_STREAMS])
{
    if (N % 2 == 0 && has_vectors) {
#pragma unroll
        for (int i = 0; i < N * N; i += 4) {
            const float4 v = *(const float4 *)(from + i);
            m[i / N][i % N] = v.x, m[(i + 1) / N][(i + 1) % N] = v.y;
            m[(i + 2) / N][(i + 2) % N] = v.z, m[(i + 3) / N][(i + 3) % N] = v.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < N * N; i++) m[i / N][i % N] = from[i];
    }
}

template <int N> DEV void store_token(float *to, bool has_vectors, const float (&m)[MHC_MAX_STREAMS][MHC_MAX_STREAMS])
{
    if (N % 2 == 0 && has_vectors) {
#pragma unroll
        for (int i = 0; i < N * N; i += 4)
            *(float4 *)(to + i) = make_float4(m[i / N][i % N], m[(i + 1) / N][(i + 1) % N], m[(i + 2) / N][(i + 2) % N],
                                              m[(i + 3) / N][(i + 3) % N]);
    } else {
#pragma unroll
        for (int i = 0; i < N * N; i++) to[i] = m[i / N][i % N];
    }
}

#endif
