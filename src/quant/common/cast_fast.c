/* SPDX-License-Identifier: MIT
 * cast_fast.c - casts in tiles: values are read for the amax, then again, from the cache, for the codes.
 * Tiles with a NaN, which are rare, take the plain loop. */
#include "quant/common/cast.h"

#include <math.h>
#include <string.h>

#include "core/math.h"
#include "transpose/square.h"
#include "core/threads.h"
#include "quant/common/lanes.h"

enum {
    PIECE = 512,            /* columns scaled, then encoded, at a time; a multiple of 8 */
    KEPT_BYTES = 32 << 10,  /* of computed values in a tile; on the stack, of which a call takes 64 KiB */
    MAX_BLOCKS = PIECE,     /* across a tile */
    MAX_COLS = 4096,        /* of a tile */
    MIN_COLS = 64,          /* of a tile, however many rows it has */
    MIN_DECODED_COLS = 256, /* of a tile of codes: decoding some twice is faster than short runs (128 rows on
                             * a Neoverse-V1: 1.8 ms, with 64 columns 2.4) */
    NARROW = 16,            /* narrower blocks have the amax of each column first */
    WIDE = 64,              /* so have blocks of several rows if narrower than this */
    MAX_TRANSPOSED_COLS = 512,
    TILE_BYTES = 256 << 10 /* of values read twice: a part of a core's L2 */
};

enum { INFINITE = 0x7F800000 };

#define ALONE __attribute__((noinline)) /* for a frame and registers of its own */

static const char *at_value(const void *values, bool is_bf16, int64_t i)
{
    return (const char *)values + i * (is_bf16 ? 2 : 4);
}

/* Goes through runs of columns that share a block. Columns are counted from the start of the first block. */
typedef struct { int64_t block, at, end, stop, block_cols; } walk;
TGL_ALWAYS_INLINE walk walk_from(int64_t col, int64_t count, int64_t block_cols)
{
    const int64_t block = col / block_cols;
    return (walk){ block, col, tgl_min(col + count, (block + 1) * block_cols), col + count, block_cols };
}
TGL_ALWAYS_INLINE void walk_on(walk *w)
{
    w->block++;
    w->at = w->end;
    w->end = tgl_min(w->stop, w->end + w->block_cols);
}

/* ---- amax ----
 * As bits of floats without the sign, compared as integers. NaN is above all numbers. */

/* Raises the amax of the blocks of `count` columns of a row, from `col` on. */
TGL_ALWAYS_INLINE void raise_blocks_of(const void *values, bool is_bf16, int64_t col, int64_t count, int64_t block_cols,
                                       int32_t *amax)
{
    for (walk w = walk_from(col, count, block_cols); w.at < w.stop; walk_on(&w)) {
        const int32_t here = tgl_run_amax(at_value(values, is_bf16, w.at - col), is_bf16, w.end - w.at);
        amax[w.block] = here > amax[w.block] ? here : amax[w.block];
    }
}
ALONE static void raise_blocks(const void *values, bool is_bf16, int64_t col, int64_t count, int64_t block_cols,
                               int32_t *amax)
{
    if (is_bf16) raise_blocks_of(values, true, col, count, block_cols, amax);
    else raise_blocks_of(values, false, col, count, block_cols, amax);
}

/* Blocks of several rows, or narrow ones: first the amax of each column, in the bits of the values. */
typedef union {
    TGL_LINES int16_t of_bf16[PIECE];
    int32_t of_floats[PIECE];
} column_amax;

static void raise_columns(const void *values, bool is_bf16, int64_t count, column_amax *columns)
{
    if (is_bf16) {
        int16_t *restrict amax = columns->of_bf16;
        const uint16_t *x = values;
        for (int64_t i = 0; i < count; i++) {
            const int16_t bits = (int16_t)(x[i] & 0x7FFF);
            amax[i] = bits > amax[i] ? bits : amax[i];
        }
    } else {
        int32_t *restrict amax = columns->of_floats;
        const float *x = values;
        for (int64_t i = 0; i < count; i++) {
            const int32_t bits = (int32_t)(tgl_f32_to_bits(x[i]) & 0x7FFFFFFF);
            amax[i] = bits > amax[i] ? bits : amax[i];
        }
    }
}

/* Raises the amax of the blocks of `count` columns from `col` on. */
static void join_columns(const column_amax *columns, bool is_bf16, int64_t col, int64_t count, int64_t block_cols,
                         int32_t *amax)
{
    if (block_cols == 1)
        for (int64_t i = 0; i < count; i++) amax[col + i] = is_bf16 ? columns->of_bf16[i] << 16 : columns->of_floats[i];
    else
        for (walk w = walk_from(col, count, block_cols); w.at < w.stop; walk_on(&w))
            for (int64_t i = w.at - col; i < w.end - col; i++) {
                const int32_t here = is_bf16 ? columns->of_bf16[i] << 16 : columns->of_floats[i];
                amax[w.block] = here > amax[w.block] ? here : amax[w.block];
            }
}

/* ---- factors ---- */

TGL_ALWAYS_INLINE void scale_blocks(const int32_t *restrict amax, int64_t count, tgl_scale_rule rule, bool is_rounded,
                                    float *restrict sf, float *restrict inv)
{
    rule.is_rounded = is_rounded; /* a constant */
    for (int64_t k = 0; k < count; k++) {
        const tgl_scale scale = tgl_scale_of(tgl_f32_from_bits((uint32_t)amax[k]), rule);
        sf[k] = scale.sf;
        inv[k] = scale.inv;
    }
}

ALONE static void write_factors(const tgl_cast *c, int64_t m, int64_t k, const int32_t *amax, int64_t count, float *inv)
{
    float sf[MAX_BLOCKS];
    if (c->rule.is_rounded) scale_blocks(amax, count, c->rule, true, sf, inv);
    else scale_blocks(amax, count, c->rule, false, sf, inv);
    if (c->sf.kind == TGL_SF_ROWS)
        memcpy((float *)c->sf.data + tgl_sf_offset(&c->sf, m, k), sf, (size_t)count * sizeof *sf);
    else
        for (int64_t i = 0; i < count; i++) tgl_sf_set(&c->sf, m, k + i, c->num_sf, sf[i]);
}

/* ---- codes ---- */

TGL_ALWAYS_INLINE void times(const void *values, bool is_bf16, int64_t count, const float *restrict factors,
                             bool has_each, float *restrict to)
{
    for (int64_t i = 0; i < count; i++) to[i] = tgl_value_at(values, is_bf16, i) * factors[has_each ? i : 0];
}

/* to = values * the factor of their block; `col` as in raise_blocks(). */
TGL_ALWAYS_INLINE void times_blocks(const void *values, bool is_bf16, int64_t col, int64_t count, int64_t block_cols,
                                    const float *factors, float *to)
{
    if (block_cols == 1) times(values, is_bf16, count, factors + col, true, to);
    else
        for (walk w = walk_from(col, count, block_cols); w.at < w.stop; walk_on(&w))
            times(at_value(values, is_bf16, w.at - col), is_bf16, w.end - w.at, factors + w.block, false,
                  to + (w.at - col));
}
static void multiply(const void *values, bool is_bf16, int64_t col, int64_t count, int64_t block_cols,
                     const float *factors, float *to)
{
    if (is_bf16) times_blocks(values, true, col, count, block_cols, factors, to);
    else times_blocks(values, false, col, count, block_cols, factors, to);
}

/* Codes of any products, in whole pairs or groups of eight. `is_small`: none is NaN, or above the largest
 * value by more than rounding, which holds if the factors were made of finite values. */
static void encode(int format, const float *restrict values, int64_t count, bool is_small, uint8_t *restrict to)
{
    TGL_LINES uint16_t codes[PIECE];
    if (format == TGL_FORMAT_E4M3) {
        for (int64_t i = 0; i < count; i++) to[i] = tgl_e4m3_from_f32(values[i]);
        return;
    }
    if (format == TGL_FORMAT_E2M1) {
        for (int64_t i = 0; i < count / 2; i++) to[i] = tgl_e2m1x2_from_f32(values[2 * i], values[2 * i + 1]);
        return;
    }
    if (is_small)
        for (int64_t i = 0; i < count; i++) codes[i] = tgl_e5m6_from_small_f32(values[i]);
    else
        for (int64_t i = 0; i < count; i++) codes[i] = tgl_e5m6_from_f32(values[i]);
    for (int64_t i = 0; i < count; i += 8) {
        uint32_t words[3];
        tgl_e5m6x8_pack(codes + i, words);
        memcpy(to + i / 8 * 12, words, 12);
    }
}

/* Multiplies and encodes in one loop: if products are small, and pairs share a factor or each value has its
 * own. */
static bool can_encode_small(int format, int64_t block_cols)
{
    return format == TGL_FORMAT_E4M3 || (format == TGL_FORMAT_E2M1 && (block_cols % 2 == 0 || block_cols == 1));
}

TGL_ALWAYS_INLINE void small_run(int format, const void *values, bool is_bf16, int64_t count, int64_t ahead,
                                 const float *factors, bool has_each, uint8_t *restrict to)
{
    if (format == TGL_FORMAT_E4M3) tgl_run_to_e4m3(values, is_bf16, count, ahead, factors, has_each, to);
    else tgl_run_to_e2m1(values, is_bf16, count, ahead, factors, has_each, to);
}

TGL_ALWAYS_INLINE void small_blocks(int format, const void *values, bool is_bf16, int64_t col, int64_t count,
                                    int64_t ahead, int64_t block_cols, const float *factors, uint8_t *to)
{
    if (block_cols == 1) small_run(format, values, is_bf16, count, ahead, factors + col, true, to);
    else
        for (walk w = walk_from(col, count, block_cols); w.at < w.stop; walk_on(&w))
            small_run(format, at_value(values, is_bf16, w.at - col), is_bf16, w.end - w.at, ahead, factors + w.block,
                      false, to + tgl_code_bytes(format, w.at - col));
}

ALONE static void encode_small(int format, const void *values, bool is_bf16, int64_t col, int64_t count, int64_t ahead,
                               int64_t block_cols, const float *factors, uint8_t *to)
{
    enum { E4M3 = TGL_FORMAT_E4M3, E2M1 = TGL_FORMAT_E2M1 };
    const bool is_e4m3 = format == E4M3;
    if (is_e4m3 && is_bf16) small_blocks(E4M3, values, true, col, count, ahead, block_cols, factors, to);
    else if (is_e4m3) small_blocks(E4M3, values, false, col, count, ahead, block_cols, factors, to);
    else if (is_bf16) small_blocks(E2M1, values, true, col, count, ahead, block_cols, factors, to);
    else small_blocks(E2M1, values, false, col, count, ahead, block_cols, factors, to);
}

/* ---- decoding ---- */

/* A block may begin and end inside a pair or a group of eight. */
TGL_ALWAYS_INLINE void from_e2m1(const uint8_t *restrict row, int64_t col, int64_t count, float factor, bool is_bf16,
                                 void *restrict to)
{
    const int64_t before = tgl_min(col % 2, count), num_pairs = (count - before) / 2;
    const uint8_t *pairs = row + (col + before) / 2;
    if (before) tgl_store_as(to, is_bf16, 0, tgl_e2m1x2_odd_to_f32(row[col / 2]) * factor);
    for (int64_t i = 0; i < num_pairs; i++) {
        tgl_store_as(to, is_bf16, before + 2 * i, tgl_e2m1x2_even_to_f32(pairs[i]) * factor);
        tgl_store_as(to, is_bf16, before + 2 * i + 1, tgl_e2m1x2_odd_to_f32(pairs[i]) * factor);
    }
    if (before + 2 * num_pairs < count)
        tgl_store_as(to, is_bf16, count - 1, tgl_e2m1x2_even_to_f32(row[(col + count) / 2]) * factor);
}

TGL_ALWAYS_INLINE void from_e5m6(const uint8_t *row, int64_t col, int64_t count, float factor, bool is_bf16, void *to)
{
    const int64_t before = tgl_min((8 - col % 8) % 8, count);
    if (before) {
        uint32_t words[3];
        uint16_t codes[8];
        memcpy(words, row + col / 8 * 12, 12);
        tgl_e5m6x8_unpack(words, codes);
        for (int64_t i = 0; i < before; i++) tgl_store_as(to, is_bf16, i, tgl_e5m6_to_f32(codes[col % 8 + i]) * factor);
    }
    if (before < count)
        tgl_run_from_e5m6(row + (col + before) / 8 * 12, count - before, factor, is_bf16,
                          (char *)to + before * (is_bf16 ? 2 : 4));
}

/* Columns with one factor; `row` is the start of a row of codes. */
TGL_ALWAYS_INLINE void decode_run(int format, const uint8_t *row, int64_t col, int64_t count, float factor,
                                  bool is_bf16, void *to)
{
    switch (format) {
    case TGL_FORMAT_E4M3: tgl_run_from_e4m3(row + col, count, factor, is_bf16, to); break;
    case TGL_FORMAT_E2M1: from_e2m1(row, col, count, factor, is_bf16, to); break;
    default: from_e5m6(row, col, count, factor, is_bf16, to); break;
    }
}

/* Decodes narrow blocks together, then multiplies column by column; at most PIECE columns. */
static void decode_narrow(const tgl_codes *c, int64_t m, const uint8_t *row, int64_t col, int64_t count,
                          float *restrict to)
{
    float factors[PIECE];
    const float *each = factors;
    decode_run(c->format, row, col, count, 1, false, to);
    if (c->block_cols == 1 && c->sf.kind == TGL_SF_ROWS)
        each = (const float *)c->sf.data + tgl_sf_offset(&c->sf, m, c->first_sf + col);
    else
        for (walk w = walk_from(col, count, c->block_cols); w.at < w.stop; walk_on(&w)) {
            const float factor = tgl_sf_get(&c->sf, m, c->first_sf + w.block);
            for (int64_t j = w.at; j < w.end; j++) factors[j - col] = factor;
        }
    for (int64_t i = 0; i < count; i++) to[i] *= each[i];
}

TGL_ALWAYS_INLINE void decode(const tgl_codes *c, int64_t row, int64_t col, int64_t count, bool is_bf16, void *to)
{
    const uint8_t *codes = c->data + row * c->row_bytes;
    const int64_t m = row / c->block_rows, bytes = is_bf16 ? 2 : 4;
    if (c->block_cols >= NARROW) {
        for (walk w = walk_from(col, count, c->block_cols); w.at < w.stop; walk_on(&w))
            decode_run(c->format, codes, w.at, w.end - w.at, tgl_sf_get(&c->sf, m, c->first_sf + w.block), is_bf16,
                       (char *)to + (w.at - col) * bytes);
        return;
    }
    TGL_LINES float buffer[PIECE];
    for (int64_t done = 0; done < count; done += PIECE) {
        const int64_t n = tgl_min(PIECE, count - done);
        decode_narrow(c, m, codes, col + done, n, is_bf16 ? buffer : (float *)to + done);
        if (is_bf16) tgl_run_to_bf16(buffer, n, (uint16_t *)to + done);
    }
}

void TGL_FAST(tgl_decode)(const tgl_codes *c, int64_t row, int64_t col, int64_t count, float *to)
{
    decode(c, row, col, count, false, to);
}

void TGL_FAST(tgl_decode_row)(const tgl_codes *c, int64_t row, int64_t count, bool is_bf16, void *to)
{
    if (is_bf16) decode(c, row, 0, count, true, to);
    else decode(c, row, 0, count, false, to);
}

void TGL_FAST(tgl_round_to_bf16)(const float *values, int64_t count, uint16_t *to)
{
    tgl_run_to_bf16(values, count, to);
}

const void *TGL_FAST(tgl_read_values)(const void *values, int64_t row, int64_t col, int64_t count, float *buffer)
{
    const tgl_values *v = values;
    return at_value(v->data + row * v->row_bytes, v->is_bf16, col);
}

const void *TGL_FAST(tgl_read_codes)(const void *codes, int64_t row, int64_t col, int64_t count, float *buffer)
{
    decode(codes, row, col, count, false, buffer);
    return buffer;
}

/* ---- tiles ---- */

static int64_t bytes_of(const tgl_cast *c) { return c->from.is_bf16 ? 2 : 4; } /* of a value */

/* Is it encoded by tables: bf16 in memory, in long blocks? Tables need not know whether products are small,
 * so with given factors values are read once. */
static bool has_tables(const tgl_cast *c)
{
    return TGL_HAS_NEON && c->format == TGL_FORMAT_E4M3 && c->from.is_bf16 && !c->from.is_buffered &&
           (c->num_cols | c->block_cols) % TGL_TABLE_STEP == 0;
}

static bool is_read_once(const tgl_cast *c) { return c->is_given && has_tables(c); }

/* A tile is in one row of blocks. Its columns are whole blocks, in fours (a word of packed factors), as many
 * as stay in the cache between finding the factors and using them. */
static int64_t tile_cols_of(const tgl_cast *c)
{
    if (c->block_cols > c->num_cols / 4) return c->num_cols; /* a word holds all factors of a row */
    const int64_t rows = is_read_once(c) ? 1 : tgl_min(c->block_rows, c->num_rows);
    const int64_t fits = (c->from.is_buffered ? KEPT_BYTES / bytes_of(c) : TILE_BYTES / 4) / rows;
    const int64_t at_most = c->is_transposed ? MAX_TRANSPOSED_COLS : tgl_min(MAX_COLS, PIECE * c->block_cols);
    const int64_t at_least = c->from.is_buffered && !c->from.is_bf16 ? MIN_DECODED_COLS : MIN_COLS;
    const int64_t wanted = tgl_min(tgl_max(fits, at_least), at_most), unit = 4 * c->block_cols;
    const int64_t tiles = tgl_ceil_div(c->num_cols, tgl_max(wanted / unit, 1) * unit);
    return tgl_min(tgl_ceil_div(c->num_cols, tiles * unit) * unit, c->num_cols); /* of about one size */
}

/* Tiles share this, one after another. Computed values use no tables. */
typedef union {
    tgl_tables tables; /* for factors of all tiles */
    TGL_LINES float kept[KEPT_BYTES / sizeof(float)];
} tile_scratch;

typedef struct {
    const tgl_cast *cast;
    tgl_tables *tables;
    tgl_kept kept;
    int64_t row, num_rows, col, num_cols, num_blocks;
    int64_t ahead; /* bytes from values to what is prefetched, or 0 */
    int32_t amax[MAX_BLOCKS];
    float inv[MAX_BLOCKS];
} tile;

/* Is the computed value (i, j) kept for the second pass? As many as fit are, in whole pieces of rows. */
static bool is_kept(const tile *t, int64_t i, int64_t j)
{
    const int64_t end = tgl_min(j / PIECE * PIECE + PIECE, t->num_cols);
    return t->cast->from.is_buffered && i * t->num_cols + end <= t->kept.bytes / bytes_of(t->cast);
}
static float *kept_at(const tile *t, int64_t i, int64_t j)
{
    return (float *)((char *)t->kept.values + (i * t->num_cols + j) * bytes_of(t->cast));
}

static const void *read_part(const tile *t, int64_t i, int64_t j, int64_t count, float *buffer)
{
    return t->cast->from.read(t->cast->from.context, t->row + i, t->col + j, count, buffer);
}

/* How far ahead to prefetch: the next tile, in the order of run_tiles(). If there are several rows, an N1
 * gains more from a later row of this tile, though that is mostly in L2: casts in blocks of 128x128 are 5 %
 * faster. */
static int64_t way_to_next(const tile *t)
{
    const tgl_cast *c = t->cast;
    if (TGL_HAS_NEON && !c->is_transposed && t->num_rows > 1) return 2 * c->from.row_bytes;
    if (!c->is_transposed && t->col + t->num_cols < c->num_cols) return t->num_cols * bytes_of(c);
    if (c->num_rows - t->row <= c->block_rows) return 0;
    const int64_t down = c->block_rows * c->from.row_bytes;
    return c->is_transposed ? down : down - t->col * bytes_of(c);
}

/* Returns the largest amax; a NaN if there is one. */
ALONE static int32_t find_tile_amax(tile *t)
{
    const tgl_cast *c = t->cast;
    const bool is_bf16 = c->from.is_bf16;
    memset(t->amax, 0, (size_t)t->num_blocks * sizeof *t->amax);
    const bool has_runs = c->block_cols >= (t->num_rows == 1 ? NARROW : WIDE) && (t->num_rows == 1 || TGL_HAS_NEON);
    const bool is_whole = !c->from.is_buffered || is_kept(t, t->num_rows - 1, t->num_cols - 1);
    const int64_t step = has_runs && is_whole ? t->num_cols : PIECE;
    TGL_LINES float buffer[PIECE];
    column_amax columns;
    for (int64_t j = 0; j < t->num_cols; j += step) {
        const int64_t count = tgl_min(step, t->num_cols - j);
        if (!has_runs) memset(&columns, 0, (size_t)count * (is_bf16 ? 2 : 4));
        for (int64_t i = 0; i < t->num_rows; i++) {
            const void *values = read_part(t, i, j, count, is_kept(t, i, j) ? kept_at(t, i, j) : buffer);
            if (has_runs && t->num_rows > 1) tgl_prefetch(values, t->ahead, count * bytes_of(c));
            if (has_runs) raise_blocks(values, is_bf16, j, count, c->block_cols, t->amax);
            else raise_columns(values, is_bf16, count, &columns);
        }
        if (!has_runs) join_columns(&columns, is_bf16, j, count, c->block_cols, t->amax);
    }
    int32_t amax = 0;
    for (int64_t k = 0; k < t->num_blocks; k++) amax = t->amax[k] > amax ? t->amax[k] : amax;
    return amax;
}

/* With given factors. False if a value or a factor is NaN. */
static bool are_products_small(const tile *t)
{
    const int format = t->cast->format;
    const float limit = format == TGL_FORMAT_E4M3 ? 464.0f : format == TGL_FORMAT_E2M1 ? 7.0f : 65536.0f;
    bool is_small = true;
    for (int64_t k = 0; k < t->num_blocks; k++)
        is_small &= tgl_f32_from_bits((uint32_t)t->amax[k]) * fabsf(t->inv[k]) < limit;
    return is_small;
}

/* Columns begin .. end - 1 of row i; `begin` is a multiple of PIECE, or in the same piece as `end`. */
ALONE static void encode_part(tile *t, int64_t i, int64_t begin, int64_t end, bool is_small, uint8_t *to)
{
    const tgl_cast *c = t->cast;
    if (has_tables(c)) {
        tgl_table_blocks_to_e4m3(read_part(t, i, begin, end - begin, NULL), begin, end - begin, t->ahead, c->block_cols,
                                 t->inv, is_small, t->tables, to);
        return;
    }
    TGL_LINES float buffer[PIECE];
    TGL_LINES float scaled[PIECE];
    for (int64_t j = begin; j < end; j += PIECE) {
        const int64_t count = tgl_min(PIECE, end - j);
        const void *values = is_kept(t, i, j) ? kept_at(t, i, j) : read_part(t, i, j, count, buffer);
        uint8_t *codes = to + tgl_code_bytes(c->format, j - begin);
        if (is_small && can_encode_small(c->format, c->block_cols)) {
            encode_small(c->format, values, c->from.is_bf16, j, count, t->ahead, c->block_cols, t->inv, codes);
            continue;
        }
        multiply(values, c->from.is_bf16, j, count, c->block_cols, t->inv, scaled);
        encode(c->format, scaled, count, is_small, codes);
    }
}

/* to[j][i] = from[i][j], bytes */
static void transpose(const uint8_t *from, int64_t from_stride, int64_t rows, int64_t cols, uint8_t *to,
                      int64_t to_stride)
{
    const char *x = (const char *)from;
    char *out = (char *)to;
    const int64_t square_rows = rows / 16 * 16, square_cols = cols / 16 * 16;
    for (int64_t j = 0; j < square_cols; j += 16) /* fills lines of `to` one after another */
        for (int64_t i = 0; i < square_rows; i += 16)
            tgl_square(x + i * from_stride + j, from_stride, out + j * to_stride + i, to_stride, 1);
    const int64_t more_rows = rows - square_rows, more_cols = cols - square_cols;
    tgl_elements(x + square_cols, from_stride, 1, out + square_cols * to_stride, to_stride, rows, more_cols, 1);
    tgl_elements(x + square_rows * from_stride, from_stride, 1, out + square_rows, to_stride, more_rows, square_cols,
                 1);
}

ALONE static void encode_transposed(tile *t, bool is_small)
{
    enum { ROWS = 64, COLS = 128 }; /* of codes in L1; PIECE is a multiple of COLS */
    enum { STRIDE = COLS + 64 };    /* a power of two would use few sets of the cache */
    const tgl_cast *c = t->cast;
    TGL_LINES uint8_t codes[ROWS * STRIDE];
    for (int64_t j = 0; j < t->num_cols; j += COLS)
        for (int64_t i = 0; i < t->num_rows; i += ROWS) {
            const int64_t rows = tgl_min(ROWS, t->num_rows - i), end = tgl_min(j + COLS, t->num_cols);
            for (int64_t r = 0; r < rows; r++) encode_part(t, i + r, j, end, is_small, codes + r * STRIDE);
            uint8_t *out = c->out + (t->col + j) * c->out_stride + t->row + i;
            transpose(codes, STRIDE, rows, end - j, out, c->out_stride);
        }
}

ALONE static void run_tile(const tgl_cast *c, int64_t row, int64_t num_rows, int64_t col, int64_t num_cols,
                           tgl_tables *tables, tgl_kept kept)
{
    tile t; /* amax and inv are set when needed */
    t.cast = c, t.tables = tables, t.kept = kept;
    t.row = row, t.num_rows = num_rows, t.col = col, t.num_cols = num_cols;
    t.num_blocks = tgl_ceil_div(num_cols, c->block_cols);
    t.ahead = c->from.row_bytes ? way_to_next(&t) : 0;
    const int64_t m = row / c->block_rows, k = col / c->block_cols;
    const int32_t amax = is_read_once(c) ? 0 : find_tile_amax(&t);
    bool is_small = false;
    if (c->is_given) {
        for (int64_t i = 0; i < t.num_blocks; i++) t.inv[i] = 1 / tgl_sf_get(&c->sf, m, c->first_sf + k + i);
        if (!is_read_once(c)) is_small = are_products_small(&t);
    } else if (amax > INFINITE) {
        for (int64_t i = 0; i < t.num_blocks; i++) tgl_cast_block(c, m, k + i);
        return;
    } else {
        write_factors(c, m, c->first_sf + k, t.amax, t.num_blocks, t.inv);
        is_small = amax < INFINITE && tgl_run_amax(t.inv, false, t.num_blocks) < INFINITE;
    }
    if (c->out && c->is_transposed) {
        encode_transposed(&t, is_small);
    } else if (c->out) {
        uint8_t *out = c->out + row * c->out_stride + tgl_code_bytes(c->format, col);
        for (int64_t i = 0; i < num_rows; i++) encode_part(&t, i, 0, num_cols, is_small, out + i * c->out_stride);
    }
}

/* Along the rows first; if out is transposed, down the columns, which are contiguous there. */
static void run_tiles(const void *context, int64_t begin, int64_t end)
{
    const tgl_cast *c = context;
    const int64_t tile_cols = tile_cols_of(c), col_tiles = tgl_ceil_div(c->num_cols, tile_cols);
    const int64_t row_tiles = tgl_ceil_div(c->num_rows, c->block_rows);
    tile_scratch scratch;
    if (has_tables(c)) tgl_clear_tables(&scratch.tables);
    for (int64_t t = begin; t < end; t++) {
        const int64_t i = (c->is_transposed ? t % row_tiles : t / col_tiles) * c->block_rows;
        const int64_t j = (c->is_transposed ? t / row_tiles : t % col_tiles) * tile_cols;
        run_tile(c, i, tgl_min(c->block_rows, c->num_rows - i), j, tgl_min(tile_cols, c->num_cols - j), &scratch.tables,
                 (tgl_kept){ scratch.kept, sizeof scratch.kept });
    }
}

tgl_status TGL_FAST(tgl_run_cast)(const tgl_cast *c)
{
    const int64_t tiles = tgl_ceil_div(c->num_rows, c->block_rows) * tgl_ceil_div(c->num_cols, tile_cols_of(c));
    return tgl_parallel_rows(tiles, 4 * (c->num_rows * c->num_cols / tiles), run_tiles, c);
}

void TGL_FAST(tgl_cast_row)(const tgl_cast *c, int64_t row, tgl_kept kept)
{
    const int64_t step = tile_cols_of(c);
    for (int64_t j = 0; j < c->num_cols; j += step) run_tile(c, row, 1, j, tgl_min(step, c->num_cols - j), NULL, kept);
}
