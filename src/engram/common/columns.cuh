/* SPDX-License-Identifier: MIT
 * columns.cuh - windows of ids in shared memory to rows: what hash.cu and rows.cu share. A block has
 * up to COLUMN_THREADS threads, a chunk of units (columns.h) and, one after the other, tiles of tokens:
 *
 *     const tile t = tile_of(c, memory);
 *     pdl_wait();
 *     put_columns(c, t, chunk);
 *     for (i64 first = ...) {
 *         window_at(c, t, i) = ...; the windows of tokens first .. first + tokens - 1
 *         __syncthreads();
 *         put_rows(c, t, chunk, first, tokens);
 *         __syncthreads();
 *     }
 *
 * The last warps do put_columns(), the first make windows: neither waits for the other's loads.
 *
 *   macros    MAX_NGRAM 2 .. COLUMN_UNROLLED, 0: any; WIDTH columns of a unit, 1, 2, 4; OUT_BYTES, VOCAB_BYTES 4, 8
 *
 * A division of 64 bits is a multiplication here. For a modulus m and y <= 2^64 / m < y + 2, both exact, and h
 * below 2^63: floor(h y / 2^64) is the quotient or one less, since h (2^64 / m - y) / 2^64 < 1; so the rest that
 * it leaves is below 2 m. A negative h has the rest m - 1 - (~h mod m).
 *
 * Moduli below 2^30, those of all models, take three multiplications of 32 bits in place of six. h = 2^32 u + v has
 * the rest of r = u (2^32 mod m) + v, which is below 2^31 (m + 1). With 2^k <= m < 2^(k + 1), x = floor(r / 2^k)
 * is below 2^32, and so is z <= 2^(32 + k) / m, which is above 2^(32 + k) / m - 1.25. So floor(x z / 2^32)
 * is above r / m - 1 - 1.25 - 1, and the rest that it leaves is below 3.25 m, which 32 bits hold. */
#ifndef TEGULA_ENGRAM_COLUMNS_CUH
#define TEGULA_ENGRAM_COLUMNS_CUH

#include "device/ptx.cuh"
#include "engram/common/columns.h"

static_assert(MAX_NGRAM >= 0 && MAX_NGRAM <= COLUMN_UNROLLED, "MAX_NGRAM is 0 .. COLUMN_UNROLLED");
static_assert(WIDTH == 1 || WIDTH == 2 || WIDTH == 4, "WIDTH is 1, 2 or 4");
static_assert(OUT_BYTES == 4 || OUT_BYTES == 8, "OUT_BYTES is 4 or 8");
static_assert(VOCAB_BYTES == 4 || VOCAB_BYTES == 8, "VOCAB_BYTES is 4 or 8");
static_assert(WIDTH * OUT_BYTES <= 16, "a unit has 16 bytes at most");

template <int BYTES> struct integer_of { typedef u32 type; };
template <> struct integer_of<8> { typedef u64 type; };
typedef integer_of<VOCAB_BYTES>::type modulus_type;
typedef integer_of<OUT_BYTES>::type row_type; /* unsigned: sums wrap */
struct __align__(WIDTH * OUT_BYTES) row_vector { row_type e[WIDTH]; };

struct __align__(8) column {
    u64 reciprocal;
    modulus_type modulus;
    row_type offset;
};
struct __align__(16) narrow_column { u32 reciprocal, factor, minus_modulus, shift; }; /* z, 2^32 mod m, -m, k */
constexpr u32 NARROW = 1u << 30;
static_assert(sizeof(column) + sizeof(narrow_column) <= COLUMN_BYTES, "COLUMN_BYTES is too small");

DEV i32 max_ngram_of(const tgl_columns &c) { return MAX_NGRAM ? MAX_NGRAM : c.max_ngram; }

/* Shared memory: windows, which threads load 16 bytes at a time; the columns of a chunk, the multipliers of its layers
 * (for MAX_NGRAM, else they are read where they are). */
struct tile {
    narrow_column *narrow;
    i64 *windows;
    column *columns;
    i64 *multipliers;
};
DEV i64 *window_at(const tgl_columns &c, const tile &t, i32 i)
{
    return t.windows + i * tgl_window_words(max_ngram_of(c));
}
DEV u8 *behind(const tgl_columns &c, const tile &t) { return (u8 *)(t.multipliers + c.chunk_layers * MAX_NGRAM); }

DEV tile tile_of(const tgl_columns &c, u8 *memory)
{
    narrow_column *const narrow = (narrow_column *)memory;
    i64 *const windows = (i64 *)(narrow + c.chunk_units * WIDTH);
    column *const columns = (column *)(windows + c.num_windows * tgl_window_words(max_ngram_of(c)));
    return { narrow, windows, columns, (i64 *)(columns + c.chunk_units * WIDTH) };
}

/* y of a modulus from NARROW on: the reciprocal of a float is below 2^64 / m, which is at most 2^34, by less than 2^-20
 * of it, and y + y e, where e = 1 - m y / 2^64, by e^2 of it, less than 2^-6, and the part that is cut off. */
DEV u64 reciprocal_of(u32 m)
{
    const u64 y = (u64)(rcp_fast((float)m) * 0x1.fffffp63f);
    return y + __umul64hi(y, 0 - m * y);
}
DEV u64 reciprocal_of(u64 m) { return ~(u64)0 / m; }

/* Of a modulus below NARROW. y is below 1 / m by 2^-22 .. 2^-20 of it. So z is at first below 2^(32 + k) / m by at most
 * 2^12 + 1, a number that times m is `less`; less * y is below it by less than 0.01, and is cut off: together z is less
 * than 1.01 too small, and below 2^32 if m is 2^k. */
DEV narrow_column narrow_of(u32 m)
{
    const u32 k = 31 - (u32)__clz((int)m);
    const float y = rcp_fast((float)m) * 0x1.fffffp-1f;
    u32 z = (u32)(y * __uint_as_float((127 + 32 + k) << 23));
    const u64 less = ((u64)1 << (32 + k)) - (u64)m * z;
    z += (u32)((float)less * y);
    const u32 rest = 0 - (z >> k) * m; /* 2^32 mod m, or m more */
    return { z, min(rest, rest - m), 0 - m, k };
}

/* What a thread has of every token. */
struct unit {
    i32 number, slot, layer, column, order;
    bool is_there;
}; /* number: in the chunk */
DEV unit unit_of(const tgl_columns &c, i32 chunk)
{
    unit u;
    u.slot = (i32)tgl_divide(threadIdx.x, c.by_chunk_units);
    u.number = (i32)threadIdx.x - u.slot * c.chunk_units;
    const i32 n = chunk * c.chunk_units + u.number;
    u.layer = (i32)tgl_divide((u32)n, c.by_layer_units);
    u.column = n * WIDTH - u.layer * c.num_columns;
    u.order = (i32)tgl_divide((u32)u.column, c.by_heads) + 1;
    u.is_there = n < c.num_units && u.slot < c.slots;
    return u;
}

DEV i32 first_layer(const tgl_columns &c, i32 chunk)
{
    return (i32)tgl_divide((u32)(chunk * c.chunk_units), c.by_layer_units);
}

/* Columns and multipliers of the chunk. A modulus below 1 is 1 with an offset of -1, which is the row then. */
DEV void put_columns(const tgl_columns &c, const tile &t, i32 chunk)
{
    const i32 count = min(c.chunk_units, c.num_units - chunk * c.chunk_units) * WIDTH, layer = first_layer(c, chunk);
    const i32 multipliers = min(c.chunk_layers, c.num_layers - layer) * MAX_NGRAM, threads = (i32)blockDim.x;
#pragma unroll 1
    for (i32 i = threads - 1 - (i32)threadIdx.x; i < count; i += threads) {
        const i64 at = (i64)chunk * c.chunk_units * WIDTH + i;
        const i64 modulus = tgl_integer_at(c.vocab_sizes, at, VOCAB_BYTES);
        const i64 offset = tgl_integer_at(c.offsets, at, c.offset_bytes);
        const modulus_type m = modulus > 0 ? (modulus_type)modulus : 1;
        const i32 to = i % WIDTH * c.chunk_units + i / WIDTH;
        t.columns[to] = { m < NARROW ? 0 : reciprocal_of(m), m, modulus > 0 ? (row_type)offset : ~(row_type)0 };
        t.narrow[to] = m < NARROW ? narrow_of((u32)m) : narrow_column();
    }
    const i32 turned = (i32)threadIdx.x - threads / 2; /* a warp in the middle has the first */
#pragma unroll 1
    for (i32 i = turned < 0 ? turned + threads : turned; i < multipliers; i += threads)
        t.multipliers[i] = c.multipliers[layer * MAX_NGRAM + i];
}

DEV u32 narrow_rest(u64 hash, const narrow_column &c) /* of a hash that is not negative */
{
    const u64 r = (u64)(u32)(hash >> 32) * c.factor + (u32)hash;
    u32 rest = (u32)r + __umulhi((u32)(r >> c.shift), c.reciprocal) * c.minus_modulus; /* below 3.25 m */
    rest = min(rest, rest + 2 * c.minus_modulus);
    return min(rest, rest + c.minus_modulus);
}

DEV row_type row_of(u64 hash, const column &c, const narrow_column &narrow) /* of any hash and modulus */
{
    const u64 sign = (u64)((i64)hash >> 63), h = hash ^ sign;
    const modulus_type quotient = (modulus_type)__umul64hi(h, c.reciprocal), m = c.modulus;
    modulus_type rest = (modulus_type)h - quotient * m; /* below 2 m, which modulus_type holds */
    rest = m < NARROW ? (modulus_type)narrow_rest(h, narrow) : min(rest, (modulus_type)(rest - m));
    return (row_type)((rest ^ (modulus_type)sign) + (m & (modulus_type)sign)) + c.offset;
}

/* A token that is not as those of models are: without rows, or with a negative hash, a wide modulus, rows out of
 * line. */
DEV void put_special(const tgl_columns &c, const tile &t, const unit &u, u32 none, u64 hash, row_type *to)
{
    if (none == COLUMN_SKIPPED) return;
    if (none && c.has_vectors) {
        row_vector v;
#pragma unroll
        for (int q = 0; q < WIDTH; q++) v.e[q] = ~(row_type)0;
        *(row_vector *)to = v;
        return;
    }
#pragma unroll 1
    for (i32 q = 0, k = u.number; q < WIDTH; q++, k += c.chunk_units)
        to[q] = none ? ~(row_type)0 : row_of(hash, t.columns[k], t.narrow[k]);
}

/* The hash of a unit, and what is behind the window. */
struct hashed {
    u64 hash;
    u32 none;
};

#if MAX_NGRAM
/* Past the order of a unit its multipliers are 0, which changes no hash. */
DEV hashed hash_of(u32 window, const i64 (&multiplier)[MAX_NGRAM])
{
    u64 hash = 0;
#pragma unroll
    for (int k = 0; k + 1 < MAX_NGRAM; k += 2) {
        const uint4 ids = shared_load_u32x4(window + 8 * k);
        hash ^= ((u64)ids.y << 32 | ids.x) * (u64)multiplier[k];
        hash ^= ((u64)ids.w << 32 | ids.z) * (u64)multiplier[k + 1];
    }
    if (MAX_NGRAM % 2 == 0) return { hash, shared_load_u32(window + 8 * MAX_NGRAM) };
    const uint4 last = shared_load_u32x4(window + 8 * (MAX_NGRAM - 1));
    return { hash ^ ((u64)last.y << 32 | last.x) * (u64)multiplier[MAX_NGRAM - 1], last.z };
}
#endif

/* The windows of tokens first .. first + tokens - 1 to rows. All that a loop over tokens needs is in registers: with
 * few tokens a thread waits for every step of it. */
DEV void put_rows(const tgl_columns &c, const tile &t, i32 chunk, i64 first, i32 tokens)
{
    const unit u = unit_of(c, chunk);
    if (!u.is_there) return;
    narrow_column narrow[WIDTH];
    row_type offset[WIDTH];
    bool is_special = !c.has_vectors; /* no unit of the models is */
#pragma unroll
    for (int q = 0; q < WIDTH; q++) {
        narrow[q] = t.narrow[q * c.chunk_units + u.number];
        offset[q] = t.columns[q * c.chunk_units + u.number].offset;
        is_special = is_special || !narrow[q].minus_modulus;
    }
    const u32 special = kept_u32(is_special ? 1u << 31 : 0);
#if MAX_NGRAM
    const i64 *const multipliers = t.multipliers + (u.layer - first_layer(c, chunk)) * MAX_NGRAM;
    i64 multiplier[MAX_NGRAM];
#pragma unroll
    for (int i = 0; i < MAX_NGRAM; i++) multiplier[i] = i <= u.order ? multipliers[i] : 0;
    const u32 window_bytes = 8 * tgl_window_words(MAX_NGRAM), window_step = kept_u32((u32)c.slots * window_bytes);
    u32 window = kept_u32(shared_address(t.windows)) + (u32)u.slot * window_bytes;
#endif
    row_type *to = (row_type *)c.out + u.layer * c.layer_stride + (first + u.slot) * c.token_stride + u.column;
#pragma unroll 1
    for (i32 i = u.slot; i < tokens; i += c.slots, to += c.slots_stride) {
#if MAX_NGRAM
        const hashed h = hash_of(window, multiplier);
        window += window_step;
#else
        const i64 *const window = window_at(c, t, i);
        hashed h = { 0, (u32)window[c.max_ngram] };
#pragma unroll 1
        for (i32 k = 0; k <= u.order && !h.none; k++)
            h.hash ^= (u64)window[k] * (u64)c.multipliers[(i64)u.layer * c.max_ngram + k];
#endif
        if ((i32)((u32)(h.hash >> 32) | h.none | special) >= 0) {
            row_vector v;
#pragma unroll
            for (int q = 0; q < WIDTH; q++) v.e[q] = (row_type)narrow_rest(h.hash, narrow[q]) + offset[q];
            *(row_vector *)to = v;
        } else {
            put_special(c, t, u, h.none, h.hash, to);
        }
    }
}

#endif
