/* SPDX-License-Identifier: MIT
 * reduce_fused.cu - every token's rows, weighted and added.
 *   computes  from 0, for k = 0, 1, ... and p = token_topk_to_pos[t][k] where that is a position:
 *             sum = fma(x[p], topk_weights[t][k] * x_sf[p], sum); out[t] = sum * sf
 *   launch    grid (chunks of a row, ceil(num_tokens / tokens)), block up to THREADS
 *   moves     per token hidden * (x's bytes for each row there is + out's), 4 for each slot and weight and
 *             for each row's x_sf
 *   macros    X_TYPE, OUT_TYPE REDUCE_F32, REDUCE_BF16, REDUCE_F16, REDUCE_E4M3; UNITS 1.., of a thread;
 *             ROWS 1.., whose units are loaded at once; HAS_VECTORS 0, 1: a unit is a vector (16 bytes) of x
 *             rather than a column; THREADS 32..1024
 *
 * Each warp loads the slots of its tokens, a lane each, and goes on with those that have a row: ROWS of them
 * are loaded before the first is added, so that empty slots cost nothing and no load waits for another. */
#include "device/ptx.cuh"
#include "moe/reduce_fused.h"
#include "numerics/bf16.h"
#include "numerics/e4m3.h"
#include "numerics/f16.h"

#if !defined(X_TYPE) || !defined(OUT_TYPE) || !defined(UNITS) || !defined(ROWS) || !defined(HAS_VECTORS) || \
    !defined(THREADS)
#ifdef __CUDACC_RTC__
#error "X_TYPE, OUT_TYPE, UNITS, ROWS, HAS_VECTORS or THREADS is not defined"
#endif
#define X_TYPE REDUCE_BF16
#define OUT_TYPE REDUCE_BF16
#define UNITS 2
#define ROWS 4
#define HAS_VECTORS 1
#define THREADS 256
#endif
static_assert(X_TYPE >= REDUCE_F32 && X_TYPE <= REDUCE_E4M3, "X_TYPE is a type of reduce_fused.h");
static_assert(OUT_TYPE >= REDUCE_F32 && OUT_TYPE <= REDUCE_E4M3, "OUT_TYPE is a type of reduce_fused.h");
static_assert(UNITS >= 1 && ROWS >= 1 && (HAS_VECTORS == 0 || HAS_VECTORS == 1), "a macro is out of range");

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

/* The columns in a word, the lowest first. A column that was loaded alone is the lowest. */
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
    return __float_as_uint(tgl_reduce_nan(sum));
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

DEV u32 word_of(const float *sum)               /* of WORD_COLS sums */
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
        for (int i = 0; i < WORDS; i += 4)
            *(uint4 *)(at + 4 * i) = make_uint4(w[i], w[i + 1], w[i + 2], w[i + 3]);
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

/* A lane's slot: its row and the factor of it. `valid` is the warp's: lanes whose slot has a row. */
typedef struct { i32 position; float factor; u32 valid; } slots;

/* The `count` slots that begin with slot k of token t; the slots of token t + 1 follow. */
DEV slots load_slots(const reduce_problem &p, i64 t, i64 k, int count)
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
    const bool is_valid = s.position >= 0 && s.position < p.num_positions;
    if (p.x_sf && is_valid) s.factor = s.factor * p.x_sf[s.position];
    s.valid = __ballot_sync(FULL, is_valid);
    return s;
}

DEV int take_lane(u32 &lanes)                   /* the lowest of a mask, which loses it */
{
    const int lane = __ffs(lanes) - 1;
    lanes &= lanes - 1;
    return lane;
}

/* ---- rows ---- */

/* Adds the rows of the slots in `lanes`, in their order. x is at the thread's first unit, the others are
 * `step` bytes apart; is_mine: those that the row has. */
DEV void add_rows(float (&sum)[UNITS][COLS], const reduce_problem &p, const slots &s, u32 lanes, const u8 *x,
                  int step, const bool (&is_mine)[UNITS])
{
    const i64 row_bytes = p.x_stride * X_BYTES;
#pragma unroll 1
    while (lanes) {
        const int rows = __popc(lanes);         /* those past ROWS are for the next turn */
        x_unit v[ROWS][UNITS];
        int lane[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= rows) continue;
            lane[r] = take_lane(lanes);
            const u8 *row = x + __shfl_sync(FULL, s.position, lane[r]) * row_bytes;
#pragma unroll
            for (int i = 0; i < UNITS; i++)
                if (is_mine[i]) v[r][i] = load(row + i * step);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= rows) continue;
            const float factor = __shfl_sync(FULL, s.factor, lane[r]);
#pragma unroll
            for (int i = 0; i < UNITS; i++) add(sum[i], v[r][i], factor);
        }
    }
}

/* The block's chunk of `tokens` rows of out; the slots of all are loaded at once. */
DEV void reduce(const reduce_problem &p, i64 first_token, int tokens)
{
    const int step = COLS * (int)blockDim.x;
    const i64 first = (i64)blockIdx.x * UNITS * step + COLS * (int)threadIdx.x;
    bool is_mine[UNITS];
#pragma unroll
    for (int i = 0; i < UNITS; i++) is_mine[i] = first + i * step < p.hidden;
    const u8 *x = (const u8 *)p.x + first * X_BYTES;
    const float sf = p.sf ? *p.sf : 1;
    slots s;
#pragma unroll 1
    for (int token = 0; token < tokens; token++) {
        const i64 t = first_token + token;
        float sum[UNITS][COLS] = {};
#pragma unroll 1
        for (i64 k = 0; k < p.num_topk; k += 32) {
            const int count = (int)min(p.num_topk - k, (i64)32);
            if (token == 0) s = load_slots(p, t, k, tokens * count);
            const u32 lanes = s.valid & FULL >> (32 - count) << token * count;
            add_rows(sum, p, s, lanes, x, step * X_BYTES, is_mine);
        }
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
}

extern "C" __global__ void __launch_bounds__(THREADS) reduce_fused(const reduce_problem problem, i32 tokens)
{
    pdl_wait();
#pragma unroll 1
    for (i64 t = (i64)blockIdx.y * tokens; t < problem.num_tokens; t += (i64)gridDim.y * tokens)
        reduce(problem, t, (int)min((i64)tokens, problem.num_tokens - t));
    pdl_trigger();
}
