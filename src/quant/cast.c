/* SPDX-License-Identifier: MIT */
#include "quant/cast.h"

#include <math.h>
#include <string.h>

#include "core/clones.h"
#include "core/math.h"
#include "core/square.h"
#include "core/threads.h"
#include "quant/lanes.h"

enum {
    PIECE = 512,                /* columns that are scaled, then encoded, at a time; a multiple of 8 */
    KEPT_BYTES = 32 << 10,      /* that a tile keeps of a reader that works for values; on the stack, of which
                                 * a call takes 64 KiB at most */
    MAX_BLOCKS = PIECE,         /* side by side in a tile */
    MAX_COLS = 4096,            /* of a tile */
    MIN_COLS = 64,              /* of a tile, however many rows it has */
    MIN_DECODED_COLS = 256,     /* of one that is read from codes: to decode some twice takes less than to read
                                 * short runs (128 rows on a Neoverse-V1: 1.8 ms, 2.4 with 64 columns) */
    WIDE = 64,                  /* blocks of several rows, if not narrower, are looked at row by row */
    MAX_TRANSPOSED_COLS = 512,
    TILE_BYTES = 256 << 10      /* of what is read twice: a part of a core's L2 */
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* The loops below are one step on contiguous memory each, in a form that compilers vectorise. */
#define INLINE static inline __attribute__((always_inline))     /* so that flags are constants */
#define ALONE __attribute__((noinline))                         /* its frame is there only while it runs */

/* ---- the largest magnitude ----
 * Of floats' bits without the sign, as integers, which have the same order. NaN are the largest of all: as
 * long as there are none, `skip_nan` is not needed. */

enum { INFINITE = 0x7F800000 };

INLINE int32_t raise_by_float(int32_t amax, float value, bool skip_nan)
{
    const int32_t magnitude = (int32_t)(tgl_f32_to_bits(value) & 0x7FFFFFFF);
    const int32_t number = skip_nan && magnitude > INFINITE ? 0 : magnitude;
    return number > amax ? number : amax;
}

INLINE int16_t raise_by_bf16(int16_t amax, uint16_t value, bool skip_nan)
{
    const int16_t magnitude = (int16_t)(value & 0x7FFF);
    const int16_t number = skip_nan && magnitude > INFINITE >> 16 ? 0 : magnitude;
    return number > amax ? number : amax;
}

INLINE int32_t amax_of_floats(const float *values, int64_t count, bool skip_nan)
{
    int32_t amax = 0;
    for (int64_t i = skip_nan ? 0 : tgl_lanes_amax(values, count, &amax); i < count; i++)
        amax = raise_by_float(amax, values[i], skip_nan);
    return amax;
}

INLINE int32_t amax_of_bf16(const uint16_t *values, int64_t count, bool skip_nan)     /* in 16 bits */
{
    int16_t amax = 0;
    for (int64_t i = skip_nan ? 0 : tgl_lanes_amax_of_bf16(values, count, &amax); i < count; i++)
        amax = raise_by_bf16(amax, values[i], skip_nan);
    return amax << 16;
}

TGL_CLONES
static void amax_of_both(const float *a, const float *b, int64_t count, float amax[2])
{
    amax[0] = tgl_f32_from_bits((uint32_t)amax_of_floats(a, count, false));
    amax[1] = tgl_f32_from_bits((uint32_t)amax_of_floats(b, count, false));
}

void tgl_amax_of_both(const float *a, const float *b, int64_t count, float amax[2])
{
    amax_of_both(a, b, count, amax);
}

static int32_t amax_of_ints(const int32_t *values, int64_t count)
{
    int32_t amax = 0;
    for (int64_t i = 0; i < count; i++) amax = values[i] > amax ? values[i] : amax;
    return amax;
}

/* Runs of columns that share a block: `at` and `end` are counted from where the first block begins, like the
 * column that a walk starts from. */
typedef struct { int64_t block, at, end, stop, block_cols; } walk;
INLINE walk walk_from(int64_t col, int64_t count, int64_t block_cols)
{
    const int64_t block = col / block_cols;
    return (walk){ block, col, least(col + count, (block + 1) * block_cols), col + count, block_cols };
}
INLINE void walk_on(walk *w)
{
    w->block++;
    w->at = w->end;
    w->end = least(w->stop, w->end + w->block_cols);
}

/* Raises the amax of the blocks that `count` columns of one row, from `col` on, are in. */
INLINE void raise_blocks(const void *values, bool is_bf16, int64_t col, int64_t count, int64_t block_cols,
                         bool skip_nan, int32_t *amax)
{
    for (walk w = walk_from(col, count, block_cols); w.at < w.stop; walk_on(&w)) {
        const int64_t at = w.at - col, n = w.end - w.at;
        const int32_t here = is_bf16 ? amax_of_bf16((const uint16_t *)values + at, n, skip_nan)
                                     : amax_of_floats((const float *)values + at, n, skip_nan);
        amax[w.block] = here > amax[w.block] ? here : amax[w.block];
    }
}

TGL_CLONES
static void raise_row_amax(const void *values, bool is_bf16, int64_t col, int64_t count, int64_t block_cols,
                           bool skip_nan, int32_t *amax)
{
    if (skip_nan) raise_blocks(values, is_bf16, col, count, block_cols, true, amax);    /* seldom */
    else if (is_bf16) raise_blocks(values, true, col, count, block_cols, false, amax);
    else raise_blocks(values, false, col, count, block_cols, false, amax);
}

/* Blocks of several rows, or narrow ones: first the largest of each column, in the bits that values have. */
typedef union { TGL_LINES int16_t of_bf16[PIECE]; int32_t of_floats[PIECE]; } column_amax;

INLINE void raise_columns(const void *values, bool is_bf16, int64_t count, bool skip_nan,
                          column_amax *columns)
{
    if (is_bf16) {
        int16_t *restrict amax = columns->of_bf16;
        const uint16_t *x = values;
        for (int64_t i = 0; i < count; i++) amax[i] = raise_by_bf16(amax[i], x[i], skip_nan);
    } else {
        int32_t *restrict amax = columns->of_floats;
        const float *x = values;
        for (int64_t i = 0; i < count; i++) amax[i] = raise_by_float(amax[i], x[i], skip_nan);
    }
}

TGL_CLONES
static void find_column_amax(const void *values, bool is_bf16, int64_t count, bool skip_nan,
                             column_amax *columns)
{
    if (skip_nan) raise_columns(values, is_bf16, count, true, columns);                 /* seldom */
    else raise_columns(values, is_bf16, count, false, columns);
}

/* Raises the amax of the blocks that `count` columns from `col` on are in. */
TGL_CLONES
static void join_columns(const column_amax *columns, bool is_bf16, int64_t col, int64_t count,
                         int64_t block_cols, int32_t *amax)
{
    if (block_cols == 1)
        for (int64_t i = 0; i < count; i++)
            amax[col + i] = is_bf16 ? columns->of_bf16[i] << 16 : columns->of_floats[i];
    else
        for (walk w = walk_from(col, count, block_cols); w.at < w.stop; walk_on(&w)) {
            int32_t largest = amax[w.block];
            for (int64_t i = w.at - col; i < w.end - col; i++) {
                const int32_t here = is_bf16 ? columns->of_bf16[i] << 16 : columns->of_floats[i];
                largest = here > largest ? here : largest;
            }
            amax[w.block] = largest;
        }
}

/* ---- factors ---- */

INLINE void scale_blocks(const int32_t *restrict amax, int64_t count, tgl_scale_rule rule, bool is_rounded,
                         float *restrict sf, float *restrict inv)
{
    rule.is_rounded = is_rounded;               /* a constant */
    for (int64_t k = 0; k < count; k++) {
        const tgl_scale scale = tgl_scale_of(tgl_f32_from_bits((uint32_t)amax[k]), rule);
        sf[k] = scale.sf;
        inv[k] = scale.inv;
    }
}

TGL_CLONES ALONE
static void write_factors(const tgl_cast *c, int64_t m, int64_t k, const int32_t *amax, int64_t count,
                          float *inv)
{
    float sf[MAX_BLOCKS];
    if (c->rule.is_rounded) scale_blocks(amax, count, c->rule, true, sf, inv);
    else scale_blocks(amax, count, c->rule, false, sf, inv);
    if (c->sf.kind == TGL_SF_ROWS)
        memcpy((float *)c->sf.data + tgl_sf_offset(&c->sf, m, k), sf, (size_t)count * sizeof *sf);
    else
        for (int64_t i = 0; i < count; i++) tgl_sf_set(&c->sf, m, k + i, c->num_sf, sf[i]);
}

static void read_factors(const tgl_cast *c, int64_t m, int64_t k, int64_t count, float *inv)
{
    for (int64_t i = 0; i < count; i++) inv[i] = 1 / tgl_sf_get(&c->sf, m, k + i);
}

/* ---- products ---- */

INLINE void times_one(const void *values, bool is_bf16, int64_t count, float factor, float *restrict to)
{
    for (int64_t i = 0; i < count; i++) to[i] = tgl_value_at(values, is_bf16, i) * factor;
}

INLINE void times_each(const void *values, bool is_bf16, int64_t count, const float *restrict factors,
                       float *restrict to)
{
    for (int64_t i = 0; i < count; i++) to[i] = tgl_value_at(values, is_bf16, i) * factors[i];
}

/* to = values * the factor of their block; `col` as in find_amax. */
INLINE void times_blocks(const void *values, bool is_bf16, int64_t col, int64_t count, int64_t block_cols,
                         const float *factors, float *to)
{
    const int64_t bytes = is_bf16 ? 2 : 4;
    if (block_cols == 1) {
        times_each(values, is_bf16, count, factors + col, to);
        return;
    }
    for (walk w = walk_from(col, count, block_cols); w.at < w.stop; walk_on(&w))
        times_one((const char *)values + (w.at - col) * bytes, is_bf16, w.end - w.at, factors[w.block],
                  to + (w.at - col));
}

TGL_CLONES
static void multiply(const void *values, bool is_bf16, int64_t col, int64_t count, int64_t block_cols,
                     const float *factors, float *to)
{
    if (is_bf16) times_blocks(values, true, col, count, block_cols, factors, to);
    else times_blocks(values, false, col, count, block_cols, factors, to);
}

/* ---- codes ---- */

/* `is_small`: no product is NaN or past the format's largest value by more than rounding, as is so where the
 * factors were made of finite values. */

TGL_CLONES
static void to_e4m3(const float *restrict values, int64_t count, uint8_t *restrict to)
{
    for (int64_t i = 0; i < count; i++) to[i] = tgl_e4m3_from_f32(values[i]);
}

TGL_CLONES
static void to_e2m1(const float *restrict values, int64_t num_pairs, uint8_t *restrict to)
{
    for (int64_t i = 0; i < num_pairs; i++) to[i] = tgl_e2m1x2_from_f32(values[2 * i], values[2 * i + 1]);
}

TGL_CLONES
static void to_e5m6(const float *values, int64_t count, bool is_small, uint8_t *to)
{
    TGL_LINES uint16_t codes[PIECE];
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

/* Products and codes at once, where they are small and pairs have one factor, or each value its own. */
INLINE void small_run(int format, const void *values, bool is_bf16, int64_t count, int64_t ahead,
                      const float *factors, bool has_each, uint8_t *restrict to)
{
    if (format == TGL_FORMAT_E4M3) {
        int64_t i = tgl_lanes_to_e4m3(values, is_bf16, count, ahead, factors, has_each, to);
        for (; i < count; i++)
            to[i] = tgl_e4m3_from_small_f32(tgl_value_at(values, is_bf16, i) * factors[has_each ? i : 0]);
    } else {
        int64_t i = tgl_lanes_to_e2m1(values, is_bf16, count, ahead, factors, has_each, to);
        for (; i < count; i += 2) {
            const float even = tgl_value_at(values, is_bf16, i) * factors[has_each ? i : 0];
            const float odd = tgl_value_at(values, is_bf16, i + 1) * factors[has_each ? i + 1 : 0];
            to[i / 2] = (uint8_t)(tgl_e2m1_from_small_f32(even) | tgl_e2m1_from_small_f32(odd) << 4);
        }
    }
}

INLINE void small_blocks(int format, const void *values, bool is_bf16, int64_t col, int64_t count,
                         int64_t ahead, int64_t block_cols, const float *factors, uint8_t *to)
{
    const int64_t bytes = is_bf16 ? 2 : 4;
    if (block_cols == 1) {
        small_run(format, values, is_bf16, count, ahead, factors + col, true, to);
        return;
    }
    for (walk w = walk_from(col, count, block_cols); w.at < w.stop; walk_on(&w))
        small_run(format, (const char *)values + (w.at - col) * bytes, is_bf16, w.end - w.at, ahead,
                  factors + w.block, false, to + tgl_code_bytes(format, w.at - col));
}

TGL_CLONES
static void encode_small(int format, const void *values, bool is_bf16, int64_t col, int64_t count,
                         int64_t ahead, int64_t block_cols, const float *factors, uint8_t *to)
{
    if (format == TGL_FORMAT_E4M3) {
        if (is_bf16) small_blocks(TGL_FORMAT_E4M3, values, true, col, count, ahead, block_cols, factors, to);
        else small_blocks(TGL_FORMAT_E4M3, values, false, col, count, ahead, block_cols, factors, to);
    } else {
        if (is_bf16) small_blocks(TGL_FORMAT_E2M1, values, true, col, count, ahead, block_cols, factors, to);
        else small_blocks(TGL_FORMAT_E2M1, values, false, col, count, ahead, block_cols, factors, to);
    }
}

void tgl_small_to_e4m3(const float *values, int64_t count, float inv, uint8_t *to)
{
    encode_small(TGL_FORMAT_E4M3, values, false, 0, count, 0, count, &inv, to);
}

static bool can_encode_small(int format, int64_t block_cols)
{
    return format == TGL_FORMAT_E4M3 ||
           (format == TGL_FORMAT_E2M1 && (block_cols % 2 == 0 || block_cols == 1));
}

/* A run of columns. Neither pairs nor groups of eight are cut. */
static void encode(int format, const float *values, int64_t count, bool is_small, uint8_t *to)
{
    switch (format) {
    case TGL_FORMAT_E4M3: to_e4m3(values, count, to); break;
    case TGL_FORMAT_E2M1: to_e2m1(values, count / 2, to); break;
    default: to_e5m6(values, count, is_small, to); break;
    }
}

/* ---- reading ---- */

tgl_values tgl_values_of(const DLTensor *t)
{
    const bool is_bf16 = tgl_dtype_is(t->dtype, TGL_BF16);
    const int64_t stride = t->shape[0] > 1 && !tgl_is_empty(t) ? tgl_stride(t, 0) : 0;
    return (tgl_values){ tgl_data(t), stride * (is_bf16 ? 2 : 4), is_bf16 };
}

tgl_codes tgl_codes_of(const DLTensor *t, int format, tgl_sf sf, tgl_blocks blocks)
{
    const int64_t stride = t->shape[0] > 1 && !tgl_is_empty(t) ? tgl_stride(t, 0) : 0;
    return (tgl_codes){ tgl_data(t), stride, format, sf, blocks.rows, blocks.cols, 0 };
}

static const void *read_values(const void *context, int64_t row, int64_t col, int64_t count, float *buffer)
{
    const tgl_values *v = context;
    (void)count, (void)buffer;
    return v->data + row * v->row_bytes + col * (v->is_bf16 ? 2 : 4);
}

tgl_reader tgl_read_values(const tgl_values *values)
{
    return (tgl_reader){ read_values, values, values->is_bf16, false, values->row_bytes };
}

TGL_CLONES
static void from_e4m3(const uint8_t *restrict codes, int64_t count, float factor, float *restrict to)
{
    const int64_t done = tgl_lanes_from_e4m3(codes, count, factor, false, to);
    if (done == count) return;                  /* a branch: no address has to wait for the search for NaN */
    codes += done, to += done, count -= done;
    uint8_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint8_t magnitude = codes[i] & 0x7F;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (largest < 0x7F)
        for (int64_t i = 0; i < count; i++) to[i] = tgl_e4m3_number_to_f32(codes[i]) * factor;
    else
        for (int64_t i = 0; i < count; i++) to[i] = tgl_e4m3_to_f32(codes[i]) * factor;
}

TGL_CLONES
static void from_e2m1x2(const uint8_t *restrict codes, int64_t num_pairs, float factor, float *restrict to)
{
    for (int64_t i = 0; i < num_pairs; i++) {
        to[2 * i] = tgl_e2m1x2_even_to_f32(codes[i]) * factor;
        to[2 * i + 1] = tgl_e2m1x2_odd_to_f32(codes[i]) * factor;
    }
}

/* A block of factors may begin and end inside a pair. */
static void from_e2m1(const uint8_t *row, int64_t col, int64_t count, float factor, float *to)
{
    const int64_t before = least(col % 2, count), pairs = (count - before) / 2;
    if (before) to[0] = tgl_e2m1x2_odd_to_f32(row[col / 2]) * factor;
    from_e2m1x2(row + (col + before) / 2, pairs, factor, to + before);
    if (before + 2 * pairs < count) to[count - 1] = tgl_e2m1x2_even_to_f32(row[(col + count) / 2]) * factor;
}

/* The same for groups of eight. */
TGL_CLONES
static void from_e5m6(const uint8_t *row, int64_t col, int64_t count, float factor, float *to)
{
    uint16_t codes[PIECE + 8];
    if (col % 8 == 0) {
        const int64_t done = tgl_lanes_from_e5m6(row + col / 8 * 12, count, factor, false, to);
        col += done, to += done, count -= done;
    }
    const int64_t first = col / 8 * 8;
    for (int64_t j = first; j < col + count; j += 8) {
        uint32_t words[3];
        memcpy(words, row + j / 8 * 12, 12);
        tgl_e5m6x8_unpack(words, codes + (j - first));
    }
    for (int64_t i = 0; i < count; i++) to[i] = tgl_e5m6_to_f32(codes[col - first + i]) * factor;
}

/* Columns of one block, at most PIECE; `row` is where a row of codes begins. */
static void decode_run(int format, const uint8_t *row, int64_t col, int64_t count, float factor, float *to)
{
    switch (format) {
    case TGL_FORMAT_E4M3: from_e4m3(row + col, count, factor, to); break;
    case TGL_FORMAT_E2M1: from_e2m1(row, col, count, factor, to); break;
    default: from_e5m6(row, col, count, factor, to); break;
    }
}

/* Blocks narrower than this are no runs: they are decoded together, then multiplied column by column. */
enum { NARROW = 16 };

TGL_CLONES
static void times_factors(float *restrict values, const float *restrict factors, int64_t count)
{
    for (int64_t i = 0; i < count; i++) values[i] *= factors[i];
}

static void decode_narrow(const tgl_codes *c, int64_t m, const uint8_t *row, int64_t col, int64_t count,
                          float *to)
{
    float factors[PIECE];
    decode_run(c->format, row, col, count, 1, to);
    if (c->block_cols == 1 && c->sf.kind == TGL_SF_ROWS) {
        times_factors(to, (const float *)c->sf.data + tgl_sf_offset(&c->sf, m, c->first_sf + col), count);
        return;
    }
    for (walk w = walk_from(col, count, c->block_cols); w.at < w.stop; walk_on(&w)) {
        const float factor = tgl_sf_get(&c->sf, m, c->first_sf + w.block);
        for (int64_t j = w.at; j < w.end; j++) factors[j - col] = factor;
    }
    times_factors(to, factors, count);
}

void tgl_decode(const tgl_codes *c, int64_t row, int64_t col, int64_t count, float *to)
{
    const uint8_t *codes = c->data + row * c->row_bytes;
    const int64_t m = row / c->block_rows;
    for (int64_t done = 0; done < count; done += PIECE) {
        const int64_t from = col + done, n = least(PIECE, count - done);
        if (c->block_cols < NARROW) {
            decode_narrow(c, m, codes, from, n, to + done);
            continue;
        }
        for (walk w = walk_from(from, n, c->block_cols); w.at < w.stop; walk_on(&w))
            decode_run(c->format, codes, w.at, w.end - w.at, tgl_sf_get(&c->sf, m, c->first_sf + w.block),
                       to + (w.at - col));
    }
}

static const void *read_codes(const void *context, int64_t row, int64_t col, int64_t count, float *buffer)
{
    tgl_decode(context, row, col, count, buffer);
    return buffer;
}

tgl_reader tgl_read_codes(const tgl_codes *codes)
{
    return (tgl_reader){ read_codes, codes, false, true, 0 };
}

TGL_CLONES
static void to_bf16(const float *restrict values, int64_t count, uint16_t *restrict to)
{
    int64_t i = tgl_lanes_to_bf16(values, count, to);
    for (; i < count; i++) to[i] = tgl_bf16_from_f32(values[i]);
}

void tgl_round_to_bf16(const float *values, int64_t count, uint16_t *to) { to_bf16(values, count, to); }

/* The front of a run at once, where there is a way. */
static int64_t decode_front(const tgl_codes *c, const uint8_t *row, int64_t col, int64_t count, float factor,
                            uint16_t *to)
{
    if (c->format == TGL_FORMAT_E4M3) return tgl_lanes_from_e4m3(row + col, count, factor, true, to);
    if (c->format != TGL_FORMAT_E5M6 || col % 8) return 0;
    return tgl_lanes_from_e5m6(row + col / 8 * 12, count, factor, true, to);
}

void tgl_decode_to_bf16(const tgl_codes *c, int64_t row, int64_t col, int64_t count, uint16_t *to)
{
    const uint8_t *codes = c->data + row * c->row_bytes;
    const int64_t m = row / c->block_rows;
    TGL_LINES float buffer[PIECE];
    for (walk w = walk_from(col, count, c->block_cols < NARROW ? PIECE : c->block_cols); w.at < w.stop;
         walk_on(&w)) {
        int64_t at = w.at;
        if (c->block_cols >= NARROW) {
            const float factor = tgl_sf_get(&c->sf, m, c->first_sf + w.block);
            at += decode_front(c, codes, at, w.end - at, factor, to + (at - col));
        }
        for (int64_t n; at < w.end; at += n) {
            n = least(PIECE, w.end - at);
            tgl_decode(c, row, at, n, buffer);
            to_bf16(buffer, n, to + (at - col));
        }
    }
}

/* ---- tiles ---- */

static int64_t bytes_of(const tgl_cast *c) { return c->from.is_bf16 ? 2 : 4; }     /* of a value */

/* Do tables encode it: bf16 in memory, in long blocks? They need not know whether products are small, so that
 * with given factors values are read once. */
static bool has_tables(const tgl_cast *c)
{
    return TGL_HAS_LANES && c->format == TGL_FORMAT_E4M3 && c->from.is_bf16 && !c->from.is_buffered &&
           (c->num_cols | c->block_cols) % TGL_TABLE_STEP == 0;
}

static bool is_read_once(const tgl_cast *c) { return c->is_given && has_tables(c); }

/* A tile lies in one row of blocks and begins with a block. Its columns are as many whole blocks, in fours (a
 * word of packed factors), as stay in the cache between finding the factors and using them. */
static int64_t tile_cols_of(const tgl_cast *c)
{
    if (c->block_cols > c->num_cols / 4) return c->num_cols;    /* a word has all factors of a row */
    const int64_t rows = is_read_once(c) ? 1 : least(c->block_rows, c->num_rows);
    const int64_t fits = (c->from.is_buffered ? KEPT_BYTES / bytes_of(c) : TILE_BYTES / 4) / rows;
    const int64_t at_most = c->is_transposed ? MAX_TRANSPOSED_COLS : least(MAX_COLS, PIECE * c->block_cols);
    const int64_t at_least = c->from.is_buffered && !c->from.is_bf16 ? MIN_DECODED_COLS : MIN_COLS;
    const int64_t wanted = least(most(fits, at_least), at_most), unit = 4 * c->block_cols;
    const int64_t tiles = tgl_ceil_div(c->num_cols, most(wanted / unit, 1) * unit);
    return least(tgl_ceil_div(c->num_cols, tiles * unit) * unit, c->num_cols);     /* all of about one size */
}

/* What tiles have one after the other. Values that a reader worked for have no tables. */
typedef union {
    tgl_tables tables;              /* for factors of all tiles */
    TGL_LINES float kept[KEPT_BYTES / sizeof(float)];
} tile_scratch;

typedef struct {
    const tgl_cast *cast;
    tgl_tables *tables;
    tgl_kept kept;
    int64_t row, num_rows, col, num_cols, num_blocks;
    int64_t ahead;                  /* bytes from values to those that are needed later, or 0 */
    int32_t amax[MAX_BLOCKS];
    float inv[MAX_BLOCKS];
} tile;

/* Is what a reader made of (i, j) still there when it is needed again? As much is kept as there is room for,
 * in whole pieces of rows. */
static bool is_kept(const tile *t, int64_t i, int64_t j)
{
    const int64_t end = least(j / PIECE * PIECE + PIECE, t->num_cols);
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

/* Tiles follow each other as in run_tiles(). Where there are several rows, an N1 gains more if asked for one
 * of this tile, though it comes from L2 as a rule: casts in blocks of 128x128 are 5 % faster. */
static int64_t way_to_next(const tile *t)
{
    const tgl_cast *c = t->cast;
    if (TGL_HAS_LANES && !c->is_transposed && t->num_rows > 1) return 2 * c->from.row_bytes;
    if (!c->is_transposed && t->col + t->num_cols < c->num_cols) return t->num_cols * bytes_of(c);
    if (c->num_rows - t->row <= c->block_rows) return 0;
    const int64_t down = c->block_rows * c->from.row_bytes;
    return c->is_transposed ? down : down - t->col * bytes_of(c);
}

/* Returns the largest amax, which is a NaN's if there is one and they are not skipped. */
ALONE static int32_t find_tile_amax(tile *t, bool skip_nan)
{
    const tgl_cast *c = t->cast;
    const bool is_bf16 = c->from.is_bf16;
    memset(t->amax, 0, (size_t)t->num_blocks * sizeof *t->amax);
    const bool has_runs = c->block_cols >= (t->num_rows == 1 ? NARROW : WIDE) &&
                          (t->num_rows == 1 || TGL_HAS_LANES);
    TGL_LINES float buffer[PIECE];
    if (has_runs) {
        const bool is_whole = !c->from.is_buffered || is_kept(t, t->num_rows - 1, t->num_cols - 1);
        const int64_t step = is_whole ? t->num_cols : PIECE;
        for (int64_t i = 0; i < t->num_rows; i++)
            for (int64_t j = 0; j < t->num_cols; j += step) {
                const int64_t count = least(step, t->num_cols - j);
                const void *values = read_part(t, i, j, count, is_kept(t, i, j) ? kept_at(t, i, j) : buffer);
                if (t->num_rows > 1) tgl_ask_for(values, t->ahead, count * bytes_of(c));
                raise_row_amax(values, is_bf16, j, count, c->block_cols, skip_nan, t->amax);
            }
        return amax_of_ints(t->amax, t->num_blocks);
    }
    for (int64_t j = 0; j < t->num_cols; j += PIECE) {
        const int64_t count = least(PIECE, t->num_cols - j);
        column_amax columns;
        memset(&columns, 0, (size_t)count * (is_bf16 ? 2 : 4));
        for (int64_t i = 0; i < t->num_rows; i++) {
            float *to = is_kept(t, i, j) ? kept_at(t, i, j) : buffer;
            find_column_amax(read_part(t, i, j, count, to), is_bf16, count, skip_nan, &columns);
        }
        join_columns(&columns, is_bf16, j, count, c->block_cols, t->amax);
    }
    return amax_of_ints(t->amax, t->num_blocks);
}

/* With factors that are given; not where a value or a factor is NaN. */
static bool are_products_small(const tile *t)
{
    const int format = t->cast->format;
    const float limit = format == TGL_FORMAT_E4M3 ? 464.0f : format == TGL_FORMAT_E2M1 ? 7.0f : 65536.0f;
    bool is_small = true;
    for (int64_t k = 0; k < t->num_blocks; k++)
        is_small &= tgl_f32_from_bits((uint32_t)t->amax[k]) * fabsf(t->inv[k]) < limit;
    return is_small;
}

/* Columns from `begin`, a multiple of PIECE or in the piece that `end` is in, to before `end` of row i. */
ALONE static void encode_part(tile *t, int64_t i, int64_t begin, int64_t end, bool is_small, uint8_t *to)
{
    const tgl_cast *c = t->cast;
    const bool is_at_once = is_small && can_encode_small(c->format, c->block_cols);
    if (has_tables(c)) {
        (is_small ? tgl_small_blocks_to_e4m3 : tgl_any_blocks_to_e4m3)(
            read_part(t, i, begin, end - begin, NULL), begin, end - begin, t->ahead, c->block_cols, t->inv,
            t->tables, to);
        return;
    }
    TGL_LINES float buffer[PIECE];
    TGL_LINES float scaled[PIECE];
    for (int64_t j = begin; j < end; j += PIECE) {
        const int64_t count = least(PIECE, end - j);
        const void *values = is_kept(t, i, j) ? kept_at(t, i, j) : read_part(t, i, j, count, buffer);
        uint8_t *codes = to + tgl_code_bytes(c->format, j - begin);
        if (is_at_once) {
            encode_small(c->format, values, c->from.is_bf16, j, count, t->ahead, c->block_cols, t->inv, codes);
            continue;
        }
        multiply(values, c->from.is_bf16, j, count, c->block_cols, t->inv, scaled);
        encode(c->format, scaled, count, is_small, codes);
    }
}

/* to[j][i] = from[i][j], bytes */
TGL_CLONES
static void transpose(const uint8_t *from, int64_t from_stride, int64_t rows, int64_t cols, uint8_t *to,
                      int64_t to_stride)
{
    const char *x = (const char *)from;
    char *out = (char *)to;
    const int64_t square_rows = rows / 16 * 16, square_cols = cols / 16 * 16;
    for (int64_t j = 0; j < square_cols; j += 16)           /* lines of `to` are filled one after the other */
        for (int64_t i = 0; i < square_rows; i += 16)
            tgl_square(x + i * from_stride + j, from_stride, out + j * to_stride + i, to_stride, 1);
    const int64_t more_rows = rows - square_rows, more_cols = cols - square_cols;
    tgl_elements(x + square_cols, from_stride, 1, out + square_cols * to_stride, to_stride, rows, more_cols,
                 1);
    tgl_elements(x + square_rows * from_stride, from_stride, 1, out + square_rows, to_stride, more_rows,
                 square_cols, 1);
}

ALONE static void encode_transposed(tile *t, bool is_small)
{
    enum { ROWS = 64, COLS = 128 };                         /* at a time: in L1; PIECE is a multiple of COLS */
    enum { STRIDE = COLS + 64 };                            /* a power of two uses few sets of the cache */
    const tgl_cast *c = t->cast;
    TGL_LINES uint8_t codes[ROWS * STRIDE];
    for (int64_t j = 0; j < t->num_cols; j += COLS)
        for (int64_t i = 0; i < t->num_rows; i += ROWS) {
            const int64_t rows = least(ROWS, t->num_rows - i), end = least(j + COLS, t->num_cols);
            for (int64_t r = 0; r < rows; r++)
                encode_part(t, i + r, j, end, is_small, codes + r * STRIDE);
            uint8_t *out = c->out + (t->col + j) * c->out_stride + t->row + i;
            transpose(codes, STRIDE, rows, end - j, out, c->out_stride);
        }
}

ALONE static void run_tile(const tgl_cast *c, int64_t row, int64_t num_rows, int64_t col, int64_t num_cols,
                     tgl_tables *tables, tgl_kept kept)
{
    tile t;
    t.cast = c;
    t.tables = tables;
    t.kept = kept;
    t.row = row, t.num_rows = num_rows, t.col = col, t.num_cols = num_cols;
    t.num_blocks = tgl_ceil_div(num_cols, c->block_cols);
    t.ahead = c->from.row_bytes ? way_to_next(&t) : 0;
    const int64_t m = row / c->block_rows, k = c->first_sf + col / c->block_cols;
    const int32_t amax = is_read_once(c) ? 0 : find_tile_amax(&t, false);
    bool is_small = false;
    if (c->is_given) {
        read_factors(c, m, k, t.num_blocks, t.inv);
        if (!is_read_once(c)) is_small = are_products_small(&t);
    } else {
        if (amax > INFINITE) find_tile_amax(&t, true);
        write_factors(c, m, k, t.amax, t.num_blocks, t.inv);
        is_small = amax < INFINITE && amax_of_floats(t.inv, t.num_blocks, false) < INFINITE;
    }
    if (c->out && c->is_transposed) {
        encode_transposed(&t, is_small);
    } else if (c->out) {
        uint8_t *out = c->out + row * c->out_stride + tgl_code_bytes(c->format, col);
        for (int64_t i = 0; i < num_rows; i++)
            encode_part(&t, i, 0, num_cols, is_small, out + i * c->out_stride);
    }
}

/* Tiles side by side first, or down the rows where these are what is contiguous in out. */
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
        run_tile(c, i, least(c->block_rows, c->num_rows - i), j, least(tile_cols, c->num_cols - j),
                 &scratch.tables, (tgl_kept){ scratch.kept, sizeof scratch.kept });
    }
}

tgl_status tgl_run_cast(const tgl_cast *c)
{
    if (c->num_rows == 0 || c->num_cols == 0) return TGL_OK;
    const int64_t tiles = tgl_ceil_div(c->num_rows, c->block_rows) * tgl_ceil_div(c->num_cols, tile_cols_of(c));
    return tgl_parallel_rows(tiles, 4 * (c->num_rows * c->num_cols / tiles), run_tiles, c);
}

void tgl_cast_columns(const tgl_cast *c, int64_t row, int64_t col, int64_t count, tgl_kept kept)
{
    const int64_t step = tile_cols_of(c), end = col + count;
    for (int64_t j = col; j < end; j += step) run_tile(c, row, 1, j, least(step, end - j), NULL, kept);
}
