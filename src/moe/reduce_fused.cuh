/* SPDX-License-Identifier: MIT
 * reduce_fused.cuh - what the kernels of reduce_fused share: units of x, units of sums, slots.
 *   macros    X_TYPE, OUT_TYPE REDUCE_F32, REDUCE_BF16, REDUCE_F16, REDUCE_E4M3; UNITS 1.. per thread;
 *             HAS_VECTORS 0, 1: a unit is a vector (16 bytes) of x rather than a column */
#ifndef TEGULA_MOE_REDUCE_FUSED_CUH
#define TEGULA_MOE_REDUCE_FUSED_CUH

#include "device/warp.cuh"
#include "moe/reduce_fused.h"
#include "numerics/bf16.h"
#include "numerics/e4m3.h"
#include "numerics/f16.h"

static_assert(X_TYPE >= REDUCE_F32 && X_TYPE <= REDUCE_E4M3, "X_TYPE is a type of reduce_fused.h");
static_assert(OUT_TYPE >= REDUCE_F32 && OUT_TYPE <= REDUCE_E4M3, "OUT_TYPE is a type of reduce_fused.h");
static_assert(UNITS >= 1 && (HAS_VECTORS == 0 || HAS_VECTORS == 1), "a macro is out of range");

enum { X_BYTES = REDUCE_BYTES(X_TYPE), OUT_BYTES = REDUCE_BYTES(OUT_TYPE) };

/* ---- a unit of x, a unit of sums ---- */

#if HAS_VECTORS
enum { COLS = 16 / X_BYTES };
typedef uint4 x_unit;
DEV x_unit load(const u8 *at) { return load_stream_u32x4(at); }
#else
enum { COLS = 1 };
typedef u32 x_unit;
DEV x_unit load(const u8 *at)
{
    return X_BYTES == 4 ? load_stream_u32(at) : X_BYTES == 2 ? load_stream_u16(at) : load_stream_u8(at);
}
#endif

/* The columns of a word, lowest first. A column loaded alone is the lowest. */
typedef struct { float x[4 / X_BYTES]; } word_columns;
DEV word_columns widen(u32 word)
{
#if X_TYPE == REDUCE_F32
    return { __uint_as_float(word) };
#elif X_TYPE == REDUCE_BF16
    return { tgl_bf16_to_f32((u16)word), tgl_bf16_to_f32((u16)(word >> 16)) };
#elif X_TYPE == REDUCE_F16
    const float2 v = unpack_f16(word);
    return { v.x, v.y };
#elif __CUDA_ARCH__ >= 890
    const float2 v = unpack_e4m3(word), w = unpack_e4m3(word >> 16);
    return { v.x, v.y, w.x, w.y };
#else
    return { tgl_e4m3_to_f32((u8)word), tgl_e4m3_to_f32((u8)(word >> 8)), tgl_e4m3_to_f32((u8)(word >> 16)),
             tgl_e4m3_to_f32((u8)(word >> 24)) };
#endif
}

DEV void add_word(float *sum, int columns, u32 word, float factor)
{
    const word_columns v = widen(word);
#pragma unroll
    for (int i = 0; i < columns; i++) sum[i] = fmaf(v.x[i], factor, sum[i]);
}
#if HAS_VECTORS
DEV void add(float (&sum)[COLS], const x_unit &v, float factor)
{
    add_word(sum, COLS / 4, v.x, factor);
    add_word(sum + COLS / 4, COLS / 4, v.y, factor);
    add_word(sum + COLS / 2, COLS / 4, v.z, factor);
    add_word(sum + COLS * 3 / 4, COLS / 4, v.w, factor);
}
#else
DEV void add(float (&sum)[1], x_unit v, float factor) { add_word(sum, 1, v, factor); }
#endif

DEV u32 narrow(float sum)
{
#if OUT_TYPE == REDUCE_F32
    return __float_as_uint(tgl_one_nan(sum));
#elif OUT_TYPE == REDUCE_BF16
    return tgl_bf16_from_f32(sum);
#elif OUT_TYPE == REDUCE_F16
    return tgl_f16_from_f32(sum);
#else
    return tgl_e4m3_from_f32(sum);
#endif
}

#if HAS_VECTORS
enum { WORD_COLS = 4 / OUT_BYTES, WORDS = COLS / WORD_COLS };

DEV u32 word_of(const float *sum) /* of WORD_COLS sums */
{
#if OUT_TYPE == REDUCE_BF16
    return pack_bf16(sum[0], sum[1]);
#elif OUT_TYPE == REDUCE_F16
    return pack_f16(sum[0], sum[1]);
#elif OUT_TYPE == REDUCE_E4M3 && __CUDA_ARCH__ >= 890
    return pack_e4m3(sum[0], sum[1]) | pack_e4m3(sum[2], sum[3]) << 16;
#else
    u32 word = 0;
#pragma unroll
    for (int i = 0; i < WORD_COLS; i++) word |= narrow(sum[i]) << 8 * OUT_BYTES * i;
    return word;
#endif
}

DEV void store(u8 *at, const float (&sum)[COLS])
{
    u32 w[WORDS];
#pragma unroll
    for (int i = 0; i < WORDS; i++) w[i] = word_of(sum + i * WORD_COLS);
    if constexpr (WORDS == 1) *(u32 *)at = w[0];
    else if constexpr (WORDS == 2) *(uint2 *)at = make_uint2(w[0], w[1]);
    else
#pragma unroll
        for (int i = 0; i < WORDS; i += 4) *(uint4 *)(at + 4 * i) = make_uint4(w[i], w[i + 1], w[i + 2], w[i + 3]);
}
#else
DEV void store(u8 *at, const float (&sum)[1])
{
    const u32 v = narrow(sum[0]);
    if (OUT_BYTES == 4) *(u32 *)at = v;
    else if (OUT_BYTES == 2) *(u16 *)at = (u16)v;
    else *at = (u8)v;
}
#endif

/* ---- slots ---- */

/* A lane's slot: its row and that row's factor. `valid`: the lanes of the warp whose slot has a row. */
typedef struct {
    i32 position;
    float factor;
    u32 valid;
} slots;

/* `count` slots from slot k of token t on, continuing with token t + 1. Factors are plain weights until
 * scale_slots(). */
DEV slots load_slots(const reduce_args &p, i64 t, i64 k, int count)
{
    const int lane = threadIdx.x % 32;
    slots s = { -1, 1, 0 };
    if (lane < count) {
        s.position = p.token_topk_to_pos[t * p.num_topk + k + lane];
        if (p.topk_weights) {
            const int row = p.num_topk < 32 ? lane / (int)p.num_topk : 0;
            s.factor = p.topk_weights[(t + row) * p.weights_stride + k + lane - row * p.num_topk];
        }
    }
    s.valid = __ballot_sync(FULL, s.position >= 0 && s.position < p.num_positions);
    return s;
}

/* Apart, so that loads of rows wait neither for weights nor for scale factors. */
DEV void scale_slots(const reduce_args &p, slots &s)
{
    if (p.x_sf && s.valid >> threadIdx.x % 32 & 1) s.factor = s.factor * p.x_sf[s.position];
}

/* ---- sums ---- */

/* Stores the sums of token t. `first` is the column of the thread's first unit, the others are `step` columns
 * apart; is_mine: within the row. */
DEV void store_sums(float (&sum)[UNITS][COLS], const reduce_args &p, float sf, i64 t, i64 first, int step,
                    const bool (&is_mine)[UNITS])
{
    u8 *out = (u8 *)p.out + (t * p.out_stride + first) * OUT_BYTES;
#pragma unroll
    for (int i = 0; i < UNITS; i++) {
        if (p.sf) {
#pragma unroll
            for (int j = 0; j < COLS; j++) sum[i][j] = sum[i][j] * sf;
        }
        if (is_mine[i]) store(out + i * step * OUT_BYTES, sum[i]);
    }
}

#endif
