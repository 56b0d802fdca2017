/* SPDX-License-Identifier: MIT
 * swiglu_forward_and_per_token_cast.cuh - for the kernels of swiglu_forward_and_per_token_cast: rows, counts
 * of clamped values, vectors of activations and of codes. */
#ifndef TEGULA_QUANT_SWIGLU_FORWARD_AND_PER_TOKEN_CAST_CUH
#define TEGULA_QUANT_SWIGLU_FORWARD_AND_PER_TOKEN_CAST_CUH

#include "quant/common/encode.cuh"
#include "quant/common/factors.cuh"
#include "quant/common/swiglu.cuh"
#include "quant/swiglu_forward_and_per_token_cast.h"

static_assert(X == X_BF16 || X == X_F32, "X is X_BF16 or X_F32");
static_assert(FORMAT == TGL_FORMAT_E4M3 || FORMAT == TGL_FORMAT_E2M1, "FORMAT is e4m3 or e2m1");
static_assert(IS_ROUNDED == 0 || IS_ROUNDED == 1, "IS_ROUNDED is 0 or 1");
static_assert(CLAMP >= FORWARD_NO_CLAMP && CLAMP <= FORWARD_COUNT, "CLAMP is 0, 1 or 2");

enum { X_BYTES = X == X_BF16 ? 2 : 4, VECTOR = X_VALUES(X) };

/* ---- rows ---- */

DEV bool row_counts(const forward_args &a, i64 row)
{
    const i32 expert = a.pos_to_expert ? a.pos_to_expert[row] : 0;
    return expert >= 0;
}

/* The slot of a row's weight. Not checked here, so that nothing waits for it before its use. */
DEV i32 slot_of_row(const forward_args &a, i64 row) { return a.pos_to_token_topk ? a.pos_to_token_topk[row] : -1; }

/* 1 if there are no weights. */
DEV float weight_at(const forward_args &a, i32 slot)
{
    if (!a.pos_to_token_topk) return 1;
    return slot >= 0 && slot < a.num_weights ? a.topk_weights[slot] : 0;
}

/* ---- counts ---- */

typedef struct { u32 gates_above, ups_above, ups_below; } clamp_counts;

DEV void count_clamped(float gate, float up, float clamp, clamp_counts &counts)
{
    counts.gates_above += gate > clamp;
    counts.ups_above += up > clamp;
    counts.ups_below += up < -clamp;
}
template <int N>
DEV void count_clamped(const float (&gates)[N], const float (&ups)[N], float clamp, clamp_counts &counts)
{
#pragma unroll
    for (int i = 0; i < N; i++) count_clamped(gates[i], ups[i], clamp, counts);
}

/* Adds the counts of a block to the call's, in any order; all its threads call. */
DEV void add_counts(const clamp_counts &counts, int64_t *clamped_count)
{
    SHARED(u32[3], sums);
    if (threadIdx.x < 3) sums[threadIdx.x] = 0;
    __syncthreads();
    const u32 of_warp[3] = { warp_add_u32(counts.gates_above), warp_add_u32(counts.ups_above),
                             warp_add_u32(counts.ups_below) };
#pragma unroll
    for (int i = 0; i < 3; i++)
        if (threadIdx.x % 32 == 0 && of_warp[i]) atomicAdd(&sums[i], of_warp[i]);
    __syncthreads();
    if (threadIdx.x < 3 && sums[threadIdx.x]) atomicAdd((u64 *)clamped_count + threadIdx.x, (u64)sums[threadIdx.x]);
}

/* ---- vectors ---- */

/* The activations of N vectors of gates and ups; counts vectors that exist. */
template <int N>
DEV void activations_of(const vector_of<X> (&gate)[N], const vector_of<X> (&up)[N], float clamp,
                        const bool (&exists)[N], clamp_counts &counts, float (&v)[N][VECTOR])
{
    float gates[N][VECTOR], ups[N][VECTOR];
#pragma unroll
    for (int n = 0; n < N; n++) {
        widen(gate[n], gates[n]);
        widen(up[n], ups[n]);
    }
    if (swiglu_is_usual<CLAMP != FORWARD_NO_CLAMP>(gate, up, clamp)) {
#pragma unroll
        for (int n = 0; n < N; n++) silu_of_small<X == X_BF16>(gates[n], v[n]);
    } else {
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (CLAMP == FORWARD_COUNT && exists[n]) count_clamped(gates[n], ups[n], clamp, counts);
            if (CLAMP) swiglu_clamp(gates[n], ups[n], clamp);
            silu_of_any(gates[n], v[n]);
        }
    }
#pragma unroll
    for (int i = 0; i < N * VECTOR; i++) v[i / VECTOR][i % VECTOR] *= ups[i / VECTOR][i % VECTOR];
}

template <int N> DEV void weigh(float (&v)[N][VECTOR], float weight)
{
#pragma unroll
    for (int i = 0; i < N * VECTOR; i++) v[i / VECTOR][i % VECTOR] *= weight;
}

DEV i64 bytes_of_codes(i64 num_cols) { return tgl_code_bytes(FORMAT, num_cols); }

/* Codes of a vector. */
enum { CODE_BYTES = FORMAT == TGL_FORMAT_E4M3 ? VECTOR : VECTOR / 2 };
typedef struct { u32 w[(CODE_BYTES + 3) / 4]; } codes_of_vector;

DEV codes_of_vector encode(const float (&v)[VECTOR], float inv)
{
    float scaled[VECTOR];
    codes_of_vector codes;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) scaled[i] = v[i] * inv;
    encode_values<FORMAT, VECTOR>(scaled, codes.w);
    return codes;
}

#endif
