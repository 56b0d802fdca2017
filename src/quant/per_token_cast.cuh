/* SPDX-License-Identifier: MIT
 * per_token_cast.cuh - a warp's part of a row in per_token_cast and per_token_cast_wide: lane l has vectors
 * l, l + 32, ... of it, or two adjacent ones.
 *   macros  X           X_BF16, X_F32, X_E4M3, X_E2M1: the type of x
 *           X_SF_KIND   TGL_SF_* of codes, else 0
 *           FORMAT      TGL_FORMAT_*
 *           SF_KIND     TGL_SF_*
 *           IS_ROUNDED  factors are powers of two
 *           IS_GIVEN    factors are read; then IS_ROUNDED is 0
 *           HAS_OUT     else only factors are wanted
 *           IS_FEW      a warp holds half as much
 *           IS_JOINED   a lane has two adjacent vectors of codes, with one factor; not with IS_FEW */
#ifndef TEGULA_QUANT_PER_TOKEN_CAST_CUH
#define TEGULA_QUANT_PER_TOKEN_CAST_CUH

#include "quant/common/decode.cuh"
#include "quant/common/encode.cuh"
#include "quant/common/factors.cuh"
#include "quant/per_token_cast.h"

static_assert(X >= X_BF16 && X <= X_E2M1, "X is one of X_*");
static_assert(FORMAT != TGL_FORMAT_E5M6 || !X_IS_CODES(X), "e5m6 is made of numbers only");
static_assert(SF_KIND != TGL_SF_PACKED || IS_ROUNDED || IS_GIVEN, "packed factors are powers of two");
static_assert(!IS_JOINED || (X_IS_CODES(X) && FORMAT == TGL_FORMAT_E2M1 && !IS_FEW), "IS_JOINED is of codes");

enum {
    VALUES = X_VALUES(X),
    VECTORS = TOKEN_VECTORS(X, BLOCK_COLS) / (IS_FEW ? 2 : 1),
    JOINED = IS_JOINED ? 2 : 1,       /* adjacent vectors of a lane */
    STEP_COLS = 32 * VALUES * JOINED, /* columns from a lane's vectors to its next */
    STEPS = VECTORS / JOINED,
    WARP_COLS = STEP_COLS * STEPS,
    CODE_BYTES = FORMAT == TGL_FORMAT_E4M3 ? VALUES : VALUES / 2, /* of a vector, but for e5m6 */
    CODE_WORDS = (CODE_BYTES + 3) / 4,
    STAGED_BYTES = TOKEN_STAGED_BYTES(X, FORMAT, IS_FEW, WARP_COLS) /* a warp's */
};

DEV tgl_sf factors_of(const tgl_token_cast &c) { return factors_of_kind<SF_KIND>(c.sf); }

typedef struct {
    vector_of<X> x[STEPS][JOINED];
    float x_sf[STEPS]; /* of codes */
} warp_tile;

#if IS_JOINED
/* With e4m3 each of the two loads uses half of every sector, so the first must leave them in L1. */
DEV void load_step(const char *from, vector_of<X> (&x)[2])
{
    u32 w[2 * X_VECTOR_BYTES(X) / 4];
#pragma unroll
    for (int i = 0; i < 2 * X_VECTOR_BYTES(X); i += 16)
        spread(X == X_E2M1 ? load_stream_u32x4(from) : *(const uint4 *)(from + i), w + i / 4);
#pragma unroll
    for (int i = 0; i < 2 * X_VECTOR_BYTES(X) / 4; i++)
        x[i / (X_VECTOR_BYTES(X) / 4)].w[i % (X_VECTOR_BYTES(X) / 4)] = w[i];
}
#else
DEV void load_step(const char *from, vector_of<X> (&x)[1]) { load_vector(from, x[0]); }
#endif

/* Columns from `col` on, this lane's first, up to `end`; both are multiples of VALUES * JOINED. Past the end
 * the last ones are loaded again: they change no amax, and are not stored. So no load has a branch or a
 * predicate before it. */
DEV void load_tile(warp_tile &t, const tgl_token_cast &c, u32 row, u32 col, u32 end)
{
    const char *from = c.x + row * c.x_row_bytes;
    u32 at[STEPS];
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        at[j] = min(col + j * STEP_COLS, end - VALUES * JOINED);
        load_step(from + (u64)at[j] * X_VECTOR_BYTES(X) / VALUES, t.x[j]);
    }
    if (X_IS_CODES(X)) {
        const tgl_sf sf = factors_of_kind<X_SF_KIND>(c.x_sf);
        const u32 m = tgl_divide(row, c.by_x_block_rows);
#pragma unroll
        for (int j = 0; j < STEPS; j++) t.x_sf[j] = tgl_sf_get(&sf, m, tgl_divide(at[j], c.by_x_block_cols));
    }
}

/* Scaled values; x_sf is for codes. */
DEV void scale_values(const vector_of<X> &x, float x_sf, float inv, float (&v)[VALUES])
{
    widen(x, v);
#pragma unroll
    for (int i = 0; i < VALUES; i++) v[i] = (X_IS_CODES(X) ? v[i] * x_sf : v[i]) * inv;
}

DEV void encode_f32(const vector_of<X> &x, float x_sf, float inv, u32 (&codes)[CODE_WORDS])
{
    float v[VALUES];
    scale_values(x, x_sf, inv, v);
    encode_values<FORMAT, VALUES>(v, codes);
}

/* If factors are powers of two, bf16 becomes e2m1 in 16 bits, and codes are scaled by the sum of the
 * exponents: e4m3 in f16, e2m1 by a table. */
#define IS_E2M1_BF16                                                                                       \
    (FORMAT == TGL_FORMAT_E2M1 && X == X_BF16 && (IS_ROUNDED || (IS_GIVEN && SF_KIND == TGL_SF_PACKED)) && \
     __CUDA_ARCH__ >= 900)
#define IS_SCALED                                                            \
    (IS_ROUNDED && X_IS_CODES(X) && X_SF_KIND == TGL_SF_PACKED && HAS_OUT && \
     !(X == X_E4M3 && FORMAT == TGL_FORMAT_E4M3) && __CUDA_ARCH__ >= 900)
#if IS_SCALED
DEV i32 exponent_of(float x_sf, float inv)
{
    return (i32)(__float_as_uint(x_sf) >> 23) + (i32)(__float_as_uint(inv) >> 23) - 254;
}

/* The amax of a step, without factors, as f32 bits; NaN is ignored. */
#if X == X_E4M3
DEV u32 largest_f16x2(const vector_of<X> (&x)[JOINED])
{
    u32 m = 0;
#pragma unroll
    for (int i = 0; i < 2 * JOINED; i++) {
        u32 pairs[4];
        e4m3x8_to_f16x2(x[i / 2].w[i % 2 * 2], x[i / 2].w[i % 2 * 2 + 1], pairs);
#pragma unroll
        for (int k = 0; k < 4; k++) m = max_u16x2(m, pairs[k]);
    }
    return m;
}
DEV bool has_nan(const vector_of<X> (&x)[JOINED])
{
    return (largest_f16x2(x) + 0x20002000) & 0x80008000; /* 448 is 0x5F00, NaN 0x7FFF */
}
DEV u32 step_amax(const vector_of<X> (&x)[JOINED])
{
    u32 amax = max_bits_of_f16x2(largest_f16x2(x));
    if (has_nan(x)) amax = amax_of(x);
    return amax;
}
#else
DEV bool has_nan(const vector_of<X> (&)[JOINED]) { return false; }
DEV u32 step_amax(const vector_of<X> (&x)[JOINED]) { return amax_of(x); }
#endif

/* Can a step be scaled so? Not with a NaN, nor if a factor is not a finite positive number. inv is 0 if a
 * value is infinite: codes that overflow with their factor become NaN. And not if a code of e4m3 would be
 * rounded. */
DEV bool can_scale(const vector_of<X> (&x)[JOINED], float x_sf, float inv)
{
    return x_sf > 0 && x_sf < __uint_as_float(0x7F800000) && inv > 0 && !has_nan(x) &&
           (FORMAT != TGL_FORMAT_E4M3 || exponent_of(x_sf, inv) >= -5);
}

/* Scaled values of e2m1 are at most 6, so the exponent is above 11 only if all codes are zeros; the lowest
 * exponent here makes all codes zeros. */
DEV void encode_scaled(const vector_of<X> (&x)[JOINED], float x_sf, float inv, u32 (&codes)[JOINED][CODE_WORDS])
{
    const i32 exponent = exponent_of(x_sf, inv);
#if X == X_E4M3
    const u32 factor = (u32)(min(max(exponent, -13), 13) + 15) * 0x04000400;
#elif FORMAT == TGL_FORMAT_E2M1
    const e2m1_table table = scaled_e2m1(exponent);
#else
    const e2m1_table table = e2m1_scaled_to_e4m3(exponent);
#endif
#pragma unroll
    for (int i = 0; i < 2 * JOINED; i++) {
        const u32 *w = x[i / 2].w;
        u32 *to = codes[i / 2];
#if X == X_E4M3
        const u32 codes0 = w[i % 2 * 2], codes1 = w[i % 2 * 2 + 1];
        u32 pairs[4];
        e4m3x8_to_f16x2(codes0, codes1, pairs);
        to[i % 2] = encode_e2m1x8_f16(pairs, factor) + signs_of_e4m3x8(codes0, codes1);
#elif FORMAT == TGL_FORMAT_E2M1
        to[i % 2] = map_e2m1x8(w[i % 2], table);
#else
        map_e2m1x8_to_e4m3(w[i % 2], table, to[i % 2 * 2], to[i % 2 * 2 + 1]);
#endif
    }
}
#else
DEV u32 step_amax(const vector_of<X> (&x)[JOINED]) { return amax_of(x); }
#endif

DEV u32 tile_amax(const warp_tile &t, int j)
{
    return X_IS_CODES(X) ? scaled_amax(step_amax(t.x[j]), t.x_sf[j]) : step_amax(t.x[j]);
}

template <bool IS_SCALED_> DEV void encode_step(const warp_tile &t, int j, float inv, u32 (&codes)[JOINED][CODE_WORDS])
{
#if IS_SCALED
    if (IS_SCALED_) {
        encode_scaled(t.x[j], t.x_sf[j], inv, codes);
        return;
    }
#endif
#if IS_E2M1_BF16
    codes[0][0] = encode_e2m1x8_bf16(t.x[j][0].w, inv);
#else
#pragma unroll
    for (int i = 0; i < JOINED; i++) encode_f32(t.x[j][i], t.x_sf[j], inv, codes[i]);
#endif
}

#if FORMAT == TGL_FORMAT_E5M6
/* Pairs of e5m6 codes; IS_NUMBERS: there is no NaN or infinity. */
#define HAS_NUMBERS (!IS_GIVEN && __CUDA_ARCH__ >= 900)
template <bool IS_NUMBERS> DEV void encode_e5m6(const vector_of<X> &x, float inv, u32 (&pairs)[VALUES / 2])
{
    float v[VALUES];
    scale_values(x, 1, inv, v);
#pragma unroll
    for (int i = 0; i < VALUES / 2; i++) {
        const float a = v[2 * i], b = v[2 * i + 1];
#if HAS_NUMBERS
        if (IS_NUMBERS && X == X_BF16 && IS_ROUNDED) pairs[i] = encode_e5m6x2_numbers(a, b, x.w[i], 0);
        else if (IS_NUMBERS) pairs[i] = encode_e5m6x2_numbers(a, b);
        else
#endif
            pairs[i] = encode_e5m6x2(a, b);
    }
}

#if HAS_NUMBERS
/* Are all values of a tile finite? Then products with 0, and their sum, are 0. And bf16 must keep its
 * fraction when scaled by a power of two. */
DEV bool has_numbers(const warp_tile &t, float inv)
{
    if (X == X_F32) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < STEPS * VALUES; i++) sum = fmaf(__uint_as_float(t.x[i / VALUES][0].w[i % VALUES]), 0, sum);
        return sum == 0;
    }
    u32 sum = 0;
#pragma unroll
    for (int i = 0; i < STEPS * 4; i++) sum = fma_bf16x2(t.x[i / 4][0].w[i % 4], 0, sum);
    return !(sum & 0x7FFF7FFF) && (!IS_ROUNDED || inv >= 1);
}
#endif

/* e5m6 of few rows of bf16: a lane stores its 12 bytes itself. Shared memory would take longer than more
 * writes. */
template <bool IS_NUMBERS, int COUNT> DEV void store_direct(const warp_tile &t, const float (&inv)[COUNT],
                                                            char *out_row, u32 col, u32 end)
{
    u32 *to = (u32 *)out_row + col / 8 * 3;
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        if (col + j * STEP_COLS >= end) continue;
        u32 pairs[VALUES / 2], w[3];
        encode_e5m6<IS_NUMBERS>(t.x[j][0], inv[j * COUNT / STEPS], pairs);
        join_e5m6x8(pairs, w);
#pragma unroll
        for (int i = 0; i < 3; i++) to[j * (STEP_COLS / 8 * 3) + i] = w[i];
    }
}

/* Otherwise codes, 12 or 6 bytes of a lane, go through shared memory, so that lanes store 16 contiguous
 * bytes. */
template <bool IS_NUMBERS, int COUNT> DEV void stage_tile(const warp_tile &t, const float (&inv)[COUNT], u32 staged,
                                                          u32 lane)
{
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        const u32 to = staged + j * (STEP_COLS / 8 * 12);
        u32 pairs[VALUES / 2];
        encode_e5m6<IS_NUMBERS>(t.x[j][0], inv[j * COUNT / STEPS], pairs);
        if constexpr (VALUES == 8) {
            u32 w[3];
            join_e5m6x8(pairs, w);
#pragma unroll
            for (int i = 0; i < 3; i++) shared_store_u32(to + 12 * lane + 4 * i, w[i]);
        } else {
            const u32 odd = lane % 2, group = to + 6 * (lane - odd);
            u32 word, half;
            join_e5m6x4(pairs, odd, word, half);
            shared_store_u32(group + 8 * odd, word);
            shared_store_u16(group + 6 - 2 * odd, half);
        }
    }
}

template <bool IS_NUMBERS, int COUNT> DEV void put_tile(const warp_tile &t, const float (&inv)[COUNT], char *out_row,
                                                        u32 col, u32 end, u32 staged, u32 lane)
{
    if constexpr (STAGED_BYTES == 0) store_direct<IS_NUMBERS>(t, inv, out_row, col, end);
    else stage_tile<IS_NUMBERS>(t, inv, staged, lane);
}

/* Stores a tile's words at `to`. */
DEV void store_staged(u32 staged, u32 words, u32 *to, u32 lane)
{
    if ((u64)to % 16) {
#pragma unroll 1
        for (u32 i = lane; i < words; i += 32) to[i] = shared_load_u32(staged + 4 * i);
        return;
    }
#pragma unroll
    for (u32 i = 4 * lane; i < WARP_COLS / 8 * 3; i += 4 * 32)
        if (i + 4 <= words) *(uint4 *)(to + i) = shared_load_u32x4(staged + 4 * i);
    const u32 last = words / 4 * 4 + lane;
    if (last < words) to[last] = shared_load_u32(staged + 4 * last);
}
#endif

/* Stores the codes of a tile, not e5m6; STEPS / COUNT steps share a factor. With few rows all codes are made
 * first, so that no step waits behind the branch of another. */
template <bool IS_SCALED_, int COUNT> DEV void store_steps(const warp_tile &t, const float (&inv)[COUNT], char *out_row,
                                                           u32 col, u32 end)
{
    u32 codes[STEPS][JOINED][CODE_WORDS];
#pragma unroll
    for (int j = 0; j < STEPS && IS_FEW; j++) encode_step<IS_SCALED_>(t, j, inv[j * COUNT / STEPS], codes[j]);
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        const u32 at = col + j * STEP_COLS;
        if (at >= end) continue;
        if (!IS_FEW) encode_step<IS_SCALED_>(t, j, inv[j * COUNT / STEPS], codes[j]);
        store_words<JOINED * CODE_BYTES>(out_row + (i64)at * CODE_BYTES / VALUES, codes[j][0]);
    }
}

/* Stores the codes of a tile in a row of out. The whole warp calls; `staged` is its shared memory. */
template <int COUNT> DEV void store_tile(const warp_tile &t, const float (&inv)[COUNT], char *out_row, u32 col, u32 end,
                                         u32 staged, u32 lane)
{
#if IS_SCALED
    bool is_scaled = true;
#pragma unroll
    for (int j = 0; j < STEPS; j++) is_scaled = is_scaled && can_scale(t.x[j], t.x_sf[j], inv[j * COUNT / STEPS]);
    if (is_scaled) store_steps<true>(t, inv, out_row, col, end);
    else store_steps<false>(t, inv, out_row, col, end);
#elif FORMAT != TGL_FORMAT_E5M6
    store_steps<false>(t, inv, out_row, col, end);
#else
    if (STAGED_BYTES) __syncwarp(); /* the last tile has been read */
#if HAS_NUMBERS
    bool is_plain = true;
#pragma unroll
    for (int i = 0; i < COUNT; i++) is_plain = is_plain && has_numbers(t, inv[i]);
    if (is_plain) put_tile<true>(t, inv, out_row, col, end, staged, lane);
    else
#endif
        put_tile<false>(t, inv, out_row, col, end, staged, lane);
    if constexpr (STAGED_BYTES == 0) return;
    __syncwarp();
    const u32 first = col - lane * VALUES;
    const u32 words = first < end ? min(end - first, (u32)WARP_COLS) / 8 * 3 : 0;
    store_staged(staged, words, (u32 *)(out_row + (i64)first / 8 * 12), lane);
#endif
}

#endif
