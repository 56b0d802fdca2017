/* SPDX-License-Identifier: MIT
 * reduce_fused.cu - every token's rows, weighted and added.
 *   computes  from 0, for k = 0, 1, ... and p = token_topk_to_pos[t][k] where that is a position:
 *             sum = fma(x[p], topk_weights[t][k] * x_sf[p], sum); out[t] = sum * sf
 *   launch    grid (chunks of a row, tokens / shape.tokens), block up to REDUCE_THREADS
 *   moves     per token hidden * (x's bytes for each row there is + out's), 4 for each slot and weight and
 *             for each row's x_sf
 *   macros    X_TYPE, OUT_TYPE REDUCE_F32, REDUCE_BF16, REDUCE_F16, REDUCE_E4M3
 *
 * Each warp loads the slots of its tokens, a lane each, and goes on with those that have a row: a group of
 * rows is loaded before the first is added, so that empty slots cost nothing and no load waits for
 * another. */
#include "device/ptx.cuh"
#include "moe/reduce_fused.h"
#include "numerics/bf16.h"
#include "numerics/e4m3.h"
#include "numerics/f16.h"

#if !defined(X_TYPE) || !defined(OUT_TYPE)
#ifdef __CUDACC_RTC__
#error "X_TYPE or OUT_TYPE is not defined"
#endif
#define X_TYPE REDUCE_BF16
#define OUT_TYPE REDUCE_BF16
#endif
static_assert(X_TYPE >= REDUCE_F32 && X_TYPE <= REDUCE_E4M3, "X_TYPE is a type of reduce_fused.h");
static_assert(OUT_TYPE >= REDUCE_F32 && OUT_TYPE <= REDUCE_E4M3, "OUT_TYPE is a type of reduce_fused.h");

enum { X_BYTES = REDUCE_BYTES(X_TYPE), OUT_BYTES = REDUCE_BYTES(OUT_TYPE), VECTOR = 16 / X_BYTES };

/* ---- elements and vectors of x, of out ---- */

template <int COLS> struct columns { uint4 raw; };      /* VECTOR columns of x */
template <> struct columns<1> { u32 raw; };             /* a single one */

DEV float widen(u32 element)
{
#if X_TYPE == REDUCE_F32
    return __uint_as_float(element);
#elif X_TYPE == REDUCE_BF16
    return tgl_bf16_to_f32((u16)element);
#elif X_TYPE == REDUCE_F16
    return tgl_f16_to_f32((u16)element);
#else
    return tgl_e4m3_to_f32((u8)element);
#endif
}

DEV void load(const u8 *at, columns<1> &v)
{
    v.raw = X_BYTES == 4 ? load_stream_u32(at) : X_BYTES == 2 ? load_stream_u16(at) : load_stream_u8(at);
}
DEV void load(const u8 *at, columns<VECTOR> &v) { v.raw = load_stream_u32x4(at); }

/* sum = fma(column, s, sum) */
DEV void add(float (&sum)[1], const columns<1> &v, float s) { sum[0] = fmaf(widen(v.raw), s, sum[0]); }
DEV void add(float (&sum)[VECTOR], const columns<VECTOR> &v, float s)
{
    const u32 words[4] = { v.raw.x, v.raw.y, v.raw.z, v.raw.w };
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        sum[i] = fmaf(widen(words[i * X_BYTES / 4] >> 8 * (i * X_BYTES % 4)), s, sum[i]);
}

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

DEV void store(u8 *at, const float (&sum)[1])
{
    const u32 v = narrow(sum[0]);
    if (OUT_BYTES == 4) *(u32 *)at = v;
    else if (OUT_BYTES == 2) *(u16 *)at = (u16)v;
    else *at = (u8)v;
}
DEV void store(u8 *at, const float (&sum)[VECTOR])
{
    enum { PER_WORD = 4 / OUT_BYTES, WORDS = VECTOR / PER_WORD };
    u32 w[WORDS];
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
#if OUT_TYPE == REDUCE_BF16
        w[i] = pack_bf16(sum[2 * i], sum[2 * i + 1]);
#elif OUT_TYPE == REDUCE_E4M3 && __CUDA_ARCH__ >= 890
        w[i] = pack_e4m3(sum[4 * i], sum[4 * i + 1]) | pack_e4m3(sum[4 * i + 2], sum[4 * i + 3]) << 16;
#else
        w[i] = 0;
#pragma unroll
        for (int j = 0; j < PER_WORD; j++) w[i] |= narrow(sum[i * PER_WORD + j]) << 8 * OUT_BYTES * j;
#endif
    }
    if (WORDS == 1) *(u32 *)at = w[0];
    else if (WORDS == 2) *(uint2 *)at = make_uint2(w[0], w[1 % WORDS]);
    else
#pragma unroll
        for (int i = 0; i + 3 < WORDS; i += 4)
            *(uint4 *)(at + 4 * i) = make_uint4(w[i], w[i + 1], w[i + 2], w[i + 3]);
}

/* ---- slots ---- */

/* A lane's slot: its row and the factor of it. `valid` is of the warp: lanes whose slot has a row. */
typedef struct { i32 position; float factor; u32 valid; } slots;

/* Slots first .. first + count - 1 of token t and, where its slots are fewer, of the tokens after it. */
DEV slots load_slots(const reduce_problem &p, i64 t, i64 first, int count)
{
    const int lane = threadIdx.x % 32;
    slots s = { -1, 1, 0 };
    if (lane < count) {
        s.position = p.token_topk_to_pos[t * p.num_topk + first + lane];
        if (p.topk_weights) {
            const int row = p.num_topk < 32 ? lane / (int)p.num_topk : 0;
            const i64 slot = first + lane - row * p.num_topk;
            s.factor = p.topk_weights[(t + row) * p.weights_stride + slot];
        }
    }
    const bool is_valid = s.position >= 0 && s.position < p.num_positions;
    if (p.x_sf && is_valid) s.factor *= p.x_sf[s.position];
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

/* Adds the rows of the slots in `lanes`, in order: to UNITS times COLS columns, of which `is_mine` says which
 * the row has. x is at the first column, others are `step` bytes apart. */
template <int COLS, int ROWS, int UNITS>
DEV void add_rows(float (&sum)[UNITS][COLS], const reduce_problem &p, const slots &s, u32 lanes, const u8 *x,
                  int step, const bool (&is_mine)[UNITS])
{
#pragma unroll 1
    while (lanes) {
        const int rows = __popc(lanes);         /* those past ROWS are for the next turn */
        columns<COLS> v[ROWS][UNITS];
        int lane[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= rows) continue;
            lane[r] = take_lane(lanes);
            const u8 *row = x + __shfl_sync(FULL, s.position, lane[r]) * (p.x_stride * X_BYTES);
#pragma unroll
            for (int i = 0; i < UNITS; i++)
                if (is_mine[i]) load(row + i * step, v[r][i]);
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

template <int COLS, int ROWS, int UNITS>
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
            add_rows<COLS, ROWS, UNITS>(sum, p, s, lanes, x, step * X_BYTES, is_mine);
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

extern "C" __global__ void __launch_bounds__(REDUCE_THREADS) reduce_fused(
    const reduce_problem problem, const reduce_shape shape)
{
    const i64 step = (i64)gridDim.y * shape.tokens;
    pdl_wait();
#pragma unroll 1
    for (i64 t = (i64)blockIdx.y * shape.tokens; t < problem.num_tokens; t += step) {
        const int tokens = (int)min((i64)shape.tokens, problem.num_tokens - t);
        if (!shape.has_vectors) reduce<1, REDUCE_ROWS_OF_ONE, 1>(problem, t, tokens);
        else if (shape.units == 1) reduce<VECTOR, REDUCE_ROWS_OF_ONE, 1>(problem, t, tokens);
        else reduce<VECTOR, REDUCE_ROWS_OF_TWO, 2>(problem, t, tokens);
    }
    pdl_trigger();
}
