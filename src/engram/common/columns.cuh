/* SPDX-License-Identifier: MIT
 * columns.cuh - windows of ids to rows: what hash.cu and rows.cu share. A block has up to COLUMN_THREADS threads, each
 * with a unit (columns.h) of a chunk of them, and, one after the other, tokens:
 *
 *     const unit_loads loads = load_unit(c, chunk);
 *     ... other loads, on their way together with those of the unit
 *     const unit u = unit_of(c, loads);
 *     for (...) put_rows(c, u, hash, none, row of out);
 *
 *   macros    MAX_NGRAM 1 .. COLUMN_UNROLLED, 0: any; WIDTH columns of a unit, 1, 2, 4; OUT_BYTES, VOCAB_BYTES,
 *             OFFSET_BYTES 4, 8
 *
 * Threads share nothing: to work out a reciprocal takes fewer instructions than to find it in shared memory behind a
 * barrier, and with few tokens instructions are what a call waits for.
 *
 * A division of 64 bits is a product in double precision here, if the modulus m is from 2^13 on and below 2^31, as
 * those of all models are, and the hash h below 2^63. h rounded to a double, 1 / m and their product together are
 * off by less than 3.1 2^-53 of h / m, that is 0.39, since h / m < 2^50. To add 1.5 2^52 rounds to an integer, whose
 * last 32 bits are those of the sum. So the rest that this quotient leaves is within 0.89 m of 0: 32 bits tell whether
 * it is negative. Other moduli and hashes are divided as they are. */
#ifndef TEGULA_ENGRAM_COLUMNS_CUH
#define TEGULA_ENGRAM_COLUMNS_CUH

#include "device/ptx.cuh"
#include "engram/common/columns.h"

static_assert(MAX_NGRAM >= 0 && MAX_NGRAM <= COLUMN_UNROLLED, "MAX_NGRAM is 0 .. COLUMN_UNROLLED");
static_assert(WIDTH == 1 || WIDTH == 2 || WIDTH == 4, "WIDTH is 1, 2 or 4");
static_assert(OUT_BYTES == 4 || OUT_BYTES == 8, "OUT_BYTES is 4 or 8");
static_assert(VOCAB_BYTES == 4 || VOCAB_BYTES == 8, "VOCAB_BYTES is 4 or 8");
static_assert(OFFSET_BYTES == 4 || OFFSET_BYTES == 8, "OFFSET_BYTES is 4 or 8");
static_assert(WIDTH * OUT_BYTES <= 16, "a unit has 16 bytes at most");

template <int BYTES> struct integer_of { typedef u32 type; };
template <> struct integer_of<8> { typedef u64 type; };
typedef integer_of<VOCAB_BYTES>::type modulus_type; /* 0 or with a sign: none */
typedef integer_of<OUT_BYTES>::type row_type;       /* unsigned: sums wrap */
struct __align__(WIDTH * OUT_BYTES) row_vector { row_type e[WIDTH]; };

DEV i32 max_ngram_of(const tgl_columns &c) { return MAX_NGRAM ? MAX_NGRAM : c.max_ngram; }

/* What a thread has of every token of its slot; `first`: its first column, of all layers. */
struct place {
    i32 slot, first, layer, column, order;
    bool is_there;
};
DEV place place_of(const tgl_columns &c, i32 chunk)
{
    place p;
    p.slot = (i32)tgl_divide(threadIdx.x, c.by_chunk_units);
    const i32 n = chunk * c.chunk_units + (i32)threadIdx.x - p.slot * c.chunk_units;
    p.layer = (i32)tgl_divide((u32)n, c.by_layer_units);
    p.first = n * WIDTH;
    p.column = p.first - p.layer * c.num_columns;
    p.order = (i32)tgl_divide((u32)p.column, c.by_heads) + 1;
    p.is_there = n < c.num_units && p.slot < c.slots;
    return p;
}

struct unit_loads {
    place at;
    modulus_type modulus[WIDTH];
    row_type offset[WIDTH];
    i64 multiplier[MAX_NGRAM + 1]; /* past the order of the unit 0, which changes no hash */
};
DEV unit_loads load_unit(const tgl_columns &c, i32 chunk)
{
    unit_loads u = { place_of(c, chunk), {}, {}, {} };
    if (!u.at.is_there) return u;
#pragma unroll
    for (int q = 0; q < WIDTH; q++) {
        u.modulus[q] = ((const modulus_type *)c.vocab_sizes)[u.at.first + q];
        u.offset[q] = (row_type)tgl_integer_at(c.offsets, u.at.first + q, OFFSET_BYTES);
    }
#pragma unroll
    for (int i = 0; i < MAX_NGRAM; i++)
        if (i <= u.at.order) u.multiplier[i] = c.multipliers[(i64)u.at.layer * MAX_NGRAM + i];
    return u;
}

/* Numbers below 2^32, and below 2^63 (rounded once), by additions: an SM does few conversions at a time. */
DEV double double_of(u32 v) { return __longlong_as_double((i64)0x4330 << 48 | v) - 0x1p52; }
DEV double double_of(u64 v)
{
    return __longlong_as_double((i64)0x4530 << 48 | (i64)(v >> 32)) - 0x1.00000001p84 +
           __longlong_as_double((i64)0x4330 << 48 | (u32)v);
}

/* 1 / m of a modulus in range, off by less than 1.1 2^-53 of it. y has 21 bits, so that e = 1 - m y, below 2^-19, is
 * exact. 1 / m = y / (1 - e) = y (1 + e + e^2 + ...); the parts from e^3 on are below 2^-56.9. */
DEV double reciprocal_of(u32 m)
{
    const u32 bits = __float_as_uint(rcp_fast((float)m));
    const double y = __longlong_as_double((i64)((bits >> 3) + (896 << 20)) << 32), e = 1.0 - double_of(m) * y;
    return y + y * (e + e * e);
}

struct unit {
    place at;
    double reciprocal[WIDTH];
    u32 modulus[WIDTH];
    row_type offset[WIDTH];
    i64 multiplier[MAX_NGRAM + 1];
    u32 special; /* 1 << 31: a modulus is out of range, or rows are not in line; no unit of the models is */
};
DEV unit unit_of(const tgl_columns &c, const unit_loads &l)
{
    unit u;
    bool is_special = !c.has_vectors;
#pragma unroll
    for (int q = 0; q < WIDTH; q++) {
        u.modulus[q] = kept_u32((u32)l.modulus[q]); /* not before other loads */
        u.reciprocal[q] = reciprocal_of(u.modulus[q]);
        u.offset[q] = l.offset[q];
        is_special = is_special || l.modulus[q] < 1 << 13 || l.modulus[q] >> 31;
    }
#pragma unroll
    for (int i = 0; i < MAX_NGRAM; i++) u.multiplier[i] = l.multiplier[i];
    u.at = l.at;
    u.special = kept_u32(is_special ? 1u << 31 : 0);
    return u;
}

DEV row_type *row_of(const tgl_columns &c, const place &p, i64 token)
{
    return (row_type *)c.out + p.layer * c.layer_stride + token * c.token_stride + p.column;
}

DEV void store(row_type *to, const row_vector &v) /* in one instruction, which an assignment is not always */
{
    if constexpr (sizeof v == 16) store_u32x4(to, *(const uint4 *)&v);
    else *(row_vector *)to = v;
}

/* A token that is not as those of models are: without rows, or with a negative hash, a modulus out of range, rows out
 * of line. */
DEV void put_special(const tgl_columns &c, const place &p, u32 none, u64 hash, row_type *to)
{
    if (none == COLUMN_SKIPPED) return;
    if (none && c.has_vectors) {
        row_vector v;
#pragma unroll
        for (int q = 0; q < WIDTH; q++) v.e[q] = ~(row_type)0;
        store(to, v);
        return;
    }
#pragma unroll 1
    for (i32 q = 0; q < WIDTH; q++) {
        const i64 modulus = tgl_integer_at(c.vocab_sizes, p.first + q, VOCAB_BYTES);
        row_type row = ~(row_type)0;
        if (!none && modulus > 0) {
            const i64 rest = (i64)hash % modulus;
            row = (row_type)(rest < 0 ? rest + modulus : rest) +
                  (row_type)tgl_integer_at(c.offsets, p.first + q, OFFSET_BYTES);
        }
        to[q] = row;
    }
}

DEV u32 rest_of(double hash, u32 low, double reciprocal, u32 modulus) /* low: the last 32 bits of the hash */
{
    const double sum = hash * reciprocal + 0x1.8p52;
    const u32 rest = low - (u32)__double_as_longlong(sum) * modulus;
    return min(rest, rest + modulus); /* a negative one is a large one here */
}

/* The hash of a window in shared memory, and what is behind the window. */
struct hashed {
    u64 hash;
    u32 none;
};
#if MAX_NGRAM
DEV hashed hash_of(u32 window, const i64 (&multiplier)[MAX_NGRAM + 1])
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

/* The rows of a token; none: 0, or what is there in their place. */
DEV void put_rows(const tgl_columns &c, const unit &u, u64 hash, u32 none, row_type *to)
{
    if ((i32)((u32)(hash >> 32) | none | u.special) >= 0) {
        const double rounded = double_of(hash);
        row_vector v;
#pragma unroll
        for (int q = 0; q < WIDTH; q++)
            v.e[q] = (row_type)rest_of(rounded, (u32)hash, u.reciprocal[q], u.modulus[q]) + u.offset[q];
        store(to, v);
    } else {
        put_special(c, u.at, none, hash, to);
    }
}

#endif
