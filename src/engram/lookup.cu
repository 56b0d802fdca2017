/* SPDX-License-Identifier: MIT
 * lookup.cu - rows of a table by index. A warp has a tile of rows, a lane LOOKUP_UNITS units of them, which it loads
 * before it converts the first: what counts is how many bytes are in flight, from host memory most of all.
 *   computes  as tegula/engram.h says
 *   launch    grid at most num_sms blocks, which stride over tiles; block up to LOOKUP_THREADS: an SM is full with one
 *   moves     rows and their scale factors, indices, out, each once
 *   macros    FORM LOOKUP_COPY .. LOOKUP_F32 */
#include "device/ptx.cuh"
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

DEV tile_place tile_at(const lookup_args &a, i64 tile)
{
    tile_place t = { tile * a.tile_rows, 0, 0, 0 };
    if (a.row_tiles > 1) {
        t.position = tile / a.row_tiles;
        t.unit = (u32)(tile - t.position * a.row_tiles) * LOOKUP_TILE;
    }
    if (!a.is_flat)
        t.token = a.num_positions < TGL_DIVIDE_LIMIT ? (i64)tgl_divide((u32)t.position, a.by_columns)
                                                     : t.position / a.num_columns;
    t.column = t.position - t.token * a.num_columns;
    return t;
}

/* One of a lane's units. */
typedef struct {
    u8 *out;  /* of its row; NULL: it is past the end */
    i64 row;  /* of the table; -1: zeros */
    u32 unit; /* in its row */
} place;

DEV place place_of(const lookup_args &a, const tile_place &t, u32 i)
{
    const u32 row = a.row_tiles > 1 ? 0 : tgl_divide(i, a.by_row_units);
    const i64 position = t.position + row;
    place p = { nullptr, -1, t.unit + i - row * (u32)a.row_units };
    if (row >= (u32)a.tile_rows || p.unit >= (u32)a.row_units || position >= a.num_positions) return p;
    i64 token = t.token, column = t.column + row;
    if (!a.is_flat && column >= a.num_columns) { /* at most LOOKUP_TILE behind the tile's first row */
        const u32 past = (u32)(column - a.num_columns), more = tgl_divide(past, a.by_columns);
        token += 1 + more;
        column = past - (i64)more * a.num_columns;
    }
    p.out = a.out + token * a.out_token_stride + column * a.out_column_stride;
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

template <int BYTES> DEV void put_rows(const lookup_args &a)
{
    constexpr int N = BYTES / TABLE_BYTES;
    const u32 lane = threadIdx.x % 32;
    const i64 step = (i64)gridDim.x * (blockDim.x / 32);
    const float one_factor = FORM == LOOKUP_SCALED && a.table_sf ? *(const float *)a.table_sf : 1;
#pragma unroll 1
    for (i64 tile = (i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; tile < a.num_tiles; tile += step) {
        const tile_place first = tile_at(a, tile);
        place at[LOOKUP_UNITS];
        unit<BYTES> v[LOOKUP_UNITS];
        u32 exponent[LOOKUP_UNITS];
#pragma unroll
        for (int k = 0; k < LOOKUP_UNITS; k++) at[k] = place_of(a, first, k * 32 + lane);
#pragma unroll
        for (int k = 0; k < LOOKUP_UNITS; k++) {
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
        for (int k = 0; k < LOOKUP_UNITS; k++) {
            const float factor = exponent[k] == ONE_FACTOR ? one_factor : lookup_factor(exponent[k]);
            if (at[k].out) store_unit(at[k].out + (i64)at[k].unit * (N * OUT_BYTES), convert(v[k], factor));
        }
    }
}

/* ---- scale factors, as an FP8 GEMM takes them ---- */

/* A word has four factors of a token, which may be of several rows; consecutive threads have consecutive tokens. */
DEV void put_factors(const lookup_args &a)
{
    const i64 groups = a.dim / LOOKUP_GROUP, count = a.num_columns * groups;
    const i64 num_words = (count + 3) / 4, total = a.num_tokens * num_words;
    const i64 step = (i64)gridDim.x * blockDim.x;
#pragma unroll 1
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += step) {
        const i64 word = total < TGL_DIVIDE_LIMIT ? (i64)tgl_divide((u32)i, a.by_tokens) : i / a.num_tokens;
        const i64 token = i - word * a.num_tokens;
        u32 packed = 0;
#pragma unroll 1
        for (i32 j = 0; j < 4 && 4 * word + j < count; j++) {
            const i64 at = 4 * word + j;
            const i64 column = count < TGL_DIVIDE_LIMIT ? (i64)tgl_divide((u32)at, a.by_groups) : at / groups;
            const i64 row = lookup_row(&a, token * a.num_columns + column, token, column);
            if (row < 0) continue;
            packed |= load_stream_u8((const u8 *)a.table_sf + row * a.sf_stride + (at - column * groups)) << 8 * j;
        }
        a.out_sf[token + word * a.out_sf_stride] = packed;
    }
}

extern "C" __global__ void __launch_bounds__(LOOKUP_THREADS) lookup(const __grid_constant__ lookup_args a)
{
    pdl_wait();
    if constexpr (LOOKUP_HAS_UNIT(FORM, 16))
        if (a.unit_bytes == 16) put_rows<16>(a);
    if constexpr (LOOKUP_HAS_UNIT(FORM, 8))
        if (a.unit_bytes == 8) put_rows<8>(a);
    if constexpr (LOOKUP_HAS_UNIT(FORM, 4))
        if (a.unit_bytes == 4) put_rows<4>(a);
    if constexpr (LOOKUP_HAS_UNIT(FORM, 2))
        if (a.unit_bytes == 2) put_rows<2>(a);
    if constexpr (LOOKUP_HAS_UNIT(FORM, 1))
        if (a.unit_bytes == 1) put_rows<1>(a);
    if (FORM == LOOKUP_COPY && a.out_sf) put_factors(a);
    pdl_trigger();
}
