/* SPDX-License-Identifier: MIT
 * lookup.cu - rows of a table by index. A warp has a tile of rows, a lane a few units of them, which it loads before
 * it converts the first: what counts is how many bytes are in flight, from host memory most of all.
 *   computes  as tegula/engram.h says
 *   launch    grid at most num_sms blocks, which stride over tiles; block up to LOOKUP_THREADS: an SM is full with one
 *   moves     rows and their scale factors, indices, out, each once
 *   macros    FORM LOOKUP_COPY .. LOOKUP_F32 */
#include "device/integer.cuh"
#include "engram/lookup.h"
#include "quant/common/decode.cuh"
static_assert(FORM >= LOOKUP_COPY && FORM <= LOOKUP_F32, "FORM is one of lookup.h's");

/* ---- units ---- */

template <int BYTES> struct unit { u32 w[(BYTES + 3) / 4]; };

template <int BYTES> DEV unit<BYTES> load_unit(const u8 *from)
{
    unit<BYTES> v;
    if constexpr (BYTES == 16) spread(load_stream_u32x4(from), v.w);
    else if constexpr (BYTES == 8) spread(load_stream_u32x2(from), v.w);
    else if constexpr (BYTES == 4) v.w[0] = load_stream_u32(from);
    else if constexpr (BYTES == 2) v.w[0] = load_stream_u16(from);
    else v.w[0] = load_stream_u8(from);
    return v;
}

template <int BYTES> DEV void store_unit(u8 *to, const unit<BYTES> &v)
{
    if constexpr (BYTES == 16) store_u32x4(to, make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]));
    else if constexpr (BYTES == 8) *(uint2 *)to = make_uint2(v.w[0], v.w[1]);
    else if constexpr (BYTES == 4) *(u32 *)to = v.w[0];
    else if constexpr (BYTES == 2) *(u16 *)to = (u16)v.w[0];
    else *to = (u8)v.w[0];
}

/* 32 bytes in line of each of two neighbouring lanes, in instructions that store whole sectors; NULL: none. */
DEV void store_pair(u8 *to, const unit<32> &v)
{
    const bool is_odd = threadIdx.x % 2;
    u32 first[4], second[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 kept = is_odd ? v.w[4 + i] : v.w[i];
        const u32 got = __shfl_xor_sync(FULL, is_odd ? v.w[i] : v.w[4 + i], 1);
        first[i] = is_odd ? got : kept;
        second[i] = is_odd ? kept : got;
    }
    if (!to) return;
    to -= is_odd ? 16 : 0;
    store_u32x4(to, make_uint4(first[0], first[1], first[2], first[3]));
    store_u32x4(to + 32, make_uint4(second[0], second[1], second[2], second[3]));
}

/* ---- elements ---- */

constexpr int TABLE_BYTES = FORM == LOOKUP_F32 ? 4 : FORM == LOOKUP_F16 ? 2 : 1;
constexpr int OUT_BYTES = FORM == LOOKUP_COPY || FORM == LOOKUP_PACKED ? 1 : 2;

DEV float value_in(u32 word, int i) /* element i of a word */
{
    if (FORM == LOOKUP_F32) return __uint_as_float(word);
    if (FORM == LOOKUP_F16) return i ? high_f16(word) : low_f16(word);
    return tgl_e4m3_to_f32((u8)(word >> 8 * i));
}

/* bf16 of a unit's elements, each times its factor. */
template <int BYTES> DEV unit<BYTES / TABLE_BYTES * OUT_BYTES> convert(const unit<BYTES> &v, float factor)
{
    constexpr int N = BYTES / TABLE_BYTES;
    unit<N * OUT_BYTES> to;
    if constexpr (OUT_BYTES == 1) {
        to = v;
    } else if constexpr (N == 1) {
        const float x = value_in(v.w[0], 0);
        to.w[0] = pack_bf16(FORM == LOOKUP_UE8M0 || FORM == LOOKUP_SCALED ? x * factor : x, 0);
    } else if constexpr (TABLE_BYTES == 1) {
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            float x[4];
            decode_e4m3x4(v.w[i], x);
            to.w[2 * i] = pack_bf16(x[0] * factor, x[1] * factor);
            to.w[2 * i + 1] = pack_bf16(x[2] * factor, x[3] * factor);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const int step = TABLE_BYTES / 2; /* words of two elements */
            to.w[i] = pack_bf16(value_in(v.w[step * i], 0), value_in(v.w[step * (i + 1) - 1], 1));
        }
    }
    return to;
}

/* ---- rows ---- */

/* A warp's part of the work: where its first unit is. */
typedef struct {
    i64 position, token, column;
    u32 unit;
} tile_place;

DEV tile_place tile_at(const lookup_args &a, i64 tile, u32 units)
{
    tile_place t = { tile * a.tile_rows, 0, 0, 0 };
    if (a.row_tiles > 1) {
        t.position = tile / a.row_tiles;
        t.unit = (u32)(tile - t.position * a.row_tiles) * units;
    }
    if (!a.is_flat)
        t.token = a.num_positions < TGL_DIVIDE_LIMIT ? (i64)tgl_divide((u32)t.position, a.by_columns)
                                                     : t.position / a.num_columns;
    t.column = t.position - t.token * a.num_columns;
    return t;
}

/* One of a lane's units. */
typedef struct {
    u8 *to;   /* NULL: it is past the end */
    i64 row;  /* of the table; -1: zeros */
    u32 unit; /* in its row */
} place;

template <int BYTES> DEV place place_of(const lookup_args &a, const tile_place &t, u32 i)
{
    const u32 row = a.row_tiles > 1 ? 0 : tgl_divide(i, a.by_row_units);
    const i64 position = t.position + row;
    place p = { nullptr, -1, t.unit + i - row * (u32)a.row_units };
    if (row >= (u32)a.tile_rows || p.unit >= (u32)a.row_units || position >= a.num_positions) return p;
    i64 token = t.token, column = t.column + row;
    if (!a.is_flat && column >= a.num_columns) { /* at most a tile behind the tile's first row */
        const u32 past = (u32)(column - a.num_columns), more = tgl_divide(past, a.by_columns);
        token += 1 + more;
        column = past - (i64)more * a.num_columns;
    }
    p.to = a.out + token * a.out_token_stride + column * a.out_column_stride +
           (i64)p.unit * (BYTES / TABLE_BYTES * OUT_BYTES);
    p.row = lookup_row(&a, position, token, column);
    return p;
}

/* Where a unit is; of PACKED, the units behind the codes are scale factors. */
template <int BYTES> DEV const u8 *address_of(const lookup_args &a, const place &p)
{
    const i64 at = (i64)p.unit * BYTES;
    if (FORM == LOOKUP_PACKED && at >= a.dim) return (const u8 *)a.table_sf + p.row * a.sf_stride + (at - a.dim);
    return a.table + p.row * a.table_stride + at;
}

constexpr u32 ONE_FACTOR = 256; /* in place of an exponent: the table's factor */

template <int BYTES, int UNITS> DEV void put_rows(const lookup_args &a)
{
    constexpr int N = BYTES / TABLE_BYTES;
    const u32 lane = threadIdx.x % 32;
    const i64 step = (i64)gridDim.x * (blockDim.x / 32);
    const float one_factor = FORM == LOOKUP_SCALED && a.table_sf ? *(const float *)a.table_sf : 1;
#pragma unroll 1
    for (i64 tile = (i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; tile < a.num_tiles; tile += step) {
        const tile_place first = tile_at(a, tile, 32 * UNITS);
        place at[UNITS];
        unit<BYTES> v[UNITS];
        u32 exponent[UNITS];
#pragma unroll
        for (int k = 0; k < UNITS; k++) at[k] = place_of<BYTES>(a, first, k * 32 + lane);
#pragma unroll
        for (int k = 0; k < UNITS; k++) {
            v[k] = unit<BYTES>();
            exponent[k] = 127; /* 1: zeros stay zeros */
            if (at[k].row < 0) continue;
            v[k] = load_unit<BYTES>(address_of<BYTES>(a, at[k]));
            if (FORM == LOOKUP_SCALED) exponent[k] = ONE_FACTOR;
            if (FORM == LOOKUP_UE8M0)
                exponent[k] =
                    load_stream_u8((const u8 *)a.table_sf + at[k].row * a.sf_stride + at[k].unit * N / LOOKUP_GROUP);
        }
#pragma unroll
        for (int k = 0; k < UNITS; k++) {
            const float factor = exponent[k] == ONE_FACTOR ? one_factor : lookup_factor(exponent[k]);
            const auto out = convert(v[k], factor);
            if constexpr (N * OUT_BYTES == 32) store_pair(at[k].to, out);
            else if (at[k].to) store_unit(at[k].to, out);
        }
    }
}

/* With few rows a warp has less than it has room for, and less code is faster. */
template <int BYTES> DEV void put_tiles(const lookup_args &a)
{
    if (a.lane_units <= LOOKUP_FEW_UNITS(FORM)) put_rows<BYTES, LOOKUP_FEW_UNITS(FORM)>(a);
    else put_rows<BYTES, LOOKUP_UNITS(FORM, BYTES, __CUDA_ARCH__ / 10)>(a);
}

/* ---- scale factors, as an FP8 GEMM takes them ---- */

/* Where factor `at` of a token is in the table; NULL: its row is not there. */
DEV const u8 *factor_at(const lookup_args &a, i64 token, i64 at)
{
    const i64 groups = a.dim / LOOKUP_GROUP, count = a.num_columns * groups;
    const i64 column = count < TGL_DIVIDE_LIMIT ? (i64)tgl_divide((u32)at, a.by_groups) : at / groups;
    const i64 row = lookup_row(&a, token * a.num_columns + column, token, column);
    return row < 0 ? nullptr : (const u8 *)a.table_sf + row * a.sf_stride + (at - column * groups);
}

/* The first four bytes from there on that belong to the token. */
DEV u32 gathered(const lookup_args &a, i64 token, i64 at)
{
    const i64 count = a.num_columns * (a.dim / LOOKUP_GROUP);
    u32 word = 0;
#pragma unroll 1
    for (i32 j = 0; j < 4 && at + j < count; j++) {
        const u8 *const from = factor_at(a, token, at + j);
        if (from) word |= load_stream_u8(from) << 8 * j;
    }
    return word;
}

/* A word has four factors of a token: of one row, in line (has_factor_words), as in all models, or of several.
 * Consecutive threads have consecutive tokens. */
DEV void put_factors(const lookup_args &a)
{
    const i64 count = a.num_columns * (a.dim / LOOKUP_GROUP), total = a.num_tokens * ceil_div(count, 4);
    const i64 step = (i64)gridDim.x * blockDim.x;
#pragma unroll 1
    for (i64 first = (i64)blockIdx.x * blockDim.x + threadIdx.x; first < total; first += LOOKUP_WORDS * step) {
        const u8 *from[LOOKUP_WORDS];
        u32 words[LOOKUP_WORDS];
        i64 at[LOOKUP_WORDS], token[LOOKUP_WORDS];
#pragma unroll
        for (int k = 0; k < LOOKUP_WORDS; k++) {
            const i64 i = first + k * step;
            at[k] = total < TGL_DIVIDE_LIMIT ? (i64)tgl_divide((u32)i, a.by_tokens) : i / a.num_tokens;
            token[k] = i - at[k] * a.num_tokens;
            from[k] = a.has_factor_words && i < total ? factor_at(a, token[k], 4 * at[k]) : nullptr;
        }
#pragma unroll
        for (int k = 0; k < LOOKUP_WORDS; k++) words[k] = load_u32_if(from[k], from[k]);
#pragma unroll
        for (int k = 0; k < LOOKUP_WORDS; k++) {
            if (first + k * step >= total) break;
            if (!a.has_factor_words) words[k] = gathered(a, token[k], 4 * at[k]);
            a.out_sf[token[k] + at[k] * a.out_sf_stride] = words[k];
        }
    }
}

extern "C" __global__ void __launch_bounds__(LOOKUP_THREADS) lookup(const __grid_constant__ lookup_args a)
{
    pdl_wait();
    if constexpr (LOOKUP_HAS_UNIT(FORM, 16))
        if (a.unit_bytes == 16) put_tiles<16>(a);
    if constexpr (LOOKUP_HAS_UNIT(FORM, 8))
        if (a.unit_bytes == 8) put_tiles<8>(a);
    if constexpr (LOOKUP_HAS_UNIT(FORM, 4))
        if (a.unit_bytes == 4) put_tiles<4>(a);
    if constexpr (LOOKUP_HAS_UNIT(FORM, 2))
        if (a.unit_bytes == 2) put_tiles<2>(a);
    if constexpr (LOOKUP_HAS_UNIT(FORM, 1))
        if (a.unit_bytes == 1) put_tiles<1>(a);
    if (FORM == LOOKUP_COPY && a.out_sf) put_factors(a);
    pdl_trigger();
}
