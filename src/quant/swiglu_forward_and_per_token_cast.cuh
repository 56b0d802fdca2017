/* SPDX-License-Identifier: MIT
 * swiglu_forward_and_per_token_cast.cuh - what the kernels of swiglu_forward_and_per_token_cast have in
 * common: macros, rows, counts of what is clamped, vectors of activations and of codes. */
#ifndef TEGULA_QUANT_SWIGLU_FORWARD_AND_PER_TOKEN_CAST_CUH
#define TEGULA_QUANT_SWIGLU_FORWARD_AND_PER_TOKEN_CAST_CUH

#include "quant/encode.cuh"
#include "quant/factors.cuh"
#include "quant/swiglu.cuh"
#include "quant/swiglu_forward_and_per_token_cast.h"

#if !defined(X) || !defined(FORMAT) || !defined(IS_ROUNDED) || !defined(CLAMP)
#ifdef __CUDACC_RTC__
#error "X, FORMAT, IS_ROUNDED or CLAMP is not defined"
#endif
#define X X_BF16
#define FORMAT TGL_FORMAT_E4M3
#define IS_ROUNDED 1
#define CLAMP FORWARD_COUNT
#endif
static_assert(X == X_BF16 || X == X_F32, "X is X_BF16 or X_F32");
static_assert(FORMAT == TGL_FORMAT_E4M3 || FORMAT == TGL_FORMAT_E2M1, "FORMAT is e4m3 or e2m1");
static_assert(IS_ROUNDED == 0 || IS_ROUNDED == 1, "IS_ROUNDED is 0 or 1");
static_assert(CLAMP >= FORWARD_NO_CLAMP && CLAMP <= FORWARD_COUNT, "CLAMP is 0, 1 or 2");

enum {
    X_BYTES = X == X_BF16 ? 2 : 4,
    VECTOR = X_VALUES(X)
};

/* ---- rows ---- */

DEV bool row_counts(const forward_args &a, i64 row)
{
    return !a.pos_to_expert || a.pos_to_expert[row] >= 0;
}

/* 1 where there are none: it changes nothing. */
DEV float weight_of_row(const forward_args &a, i64 row)
{
    if (!a.pos_to_token_topk) return 1;
    const i64 at = a.pos_to_token_topk[row];
    return at >= 0 && at < a.num_weights ? a.topk_weights[at] : 0;
}

/* ---- counts ---- Integers may be added in any order. */

typedef struct { u32 gates_above, ups_above, ups_below; } clamp_counts;

DEV void count_clamped(float gate, float up, float clamp, clamp_counts &counts)
{
    counts.gates_above += gate > clamp;
    counts.ups_above += up > clamp;
    counts.ups_below += up < -clamp;
}

/* Adds the counts of a block's threads to the call's; all of them come here. */
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
    if (threadIdx.x < 3 && sums[threadIdx.x])
        atomicAdd((u64 *)clamped_count + threadIdx.x, (u64)sums[threadIdx.x]);
}

/* ---- vectors ---- */

/* The activations of a vector of gates and one of ups. As a rule nothing in them is beyond the clamp value,
 * which a maximum of each tells. */
DEV void activations_of(const vector_of<X> &gate, const vector_of<X> &up, float clamp, float weight,
                        clamp_counts &counts, float (&v)[VECTOR])
{
    float gates[VECTOR], ups[VECTOR];
    widen(gate, gates);
    widen(up, ups);
    const u32 gate_bits = amax_of(gate);
    if (CLAMP && __uint_as_float(max(gate_bits, amax_of(up))) > clamp) {
        if (CLAMP == FORWARD_COUNT)
#pragma unroll
            for (int i = 0; i < VECTOR; i++) count_clamped(gates[i], ups[i], clamp, counts);
        swiglu_clamp(gates, ups, clamp);
    }
    swiglu_activate(gates, ups, gate_bits <= __float_as_uint(SWIGLU_SMALL), v);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) v[i] *= weight;
}

/* The largest magnitude, as bits (decode.cuh). */
DEV u32 amax_of_values(const float (&v)[VECTOR])
{
    float m = 0;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) m = fmaxf(m, fabsf(v[i]));
    return __float_as_uint(m);
}

/* Codes of a vector from column `col` on. */
DEV void store_codes(u8 *row, i64 col, const float (&v)[VECTOR], float inv)
{
    float scaled[VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; i++) scaled[i] = v[i] * inv;
#if FORMAT == TGL_FORMAT_E2M1
    const u32 codes = encode_e2m1s<VECTOR>(scaled);
    if (VECTOR == 8) store_stream_u32(row + col / 2, codes);
    else store_stream_u16(row + col / 2, codes);
#else
    u32 codes[VECTOR / 4];
#pragma unroll
    for (int i = 0; i < VECTOR; i += 4)
        codes[i / 4] = encode_e4m3x4(scaled[i], scaled[i + 1], scaled[i + 2], scaled[i + 3]);
    if (VECTOR == 8) store_stream_u32x2(row + col, make_uint2(codes[0], codes[VECTOR / 4 - 1]));
    else store_stream_u32(row + col, codes[0]);
#endif
}

DEV i64 bytes_of_row(i64 num_cols) { return tgl_code_bytes(FORMAT, num_cols); }

#endif
