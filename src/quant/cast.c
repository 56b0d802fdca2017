/* SPDX-License-Identifier: MIT */
#include "quant/cast.h"

#include <string.h>

#include "numerics/bf16.h"

enum {
    PIECE = 1024,               /* columns that are scaled, then encoded, at a time; a multiple of 8 */
    KEPT = 8192,                /* values that a tile keeps of a reader that works for them */
    MAX_BLOCKS = PIECE,         /* side by side in a tile */
    MIN_COLS = 64,              /* of a tile, however many rows it has */
    TILE_BYTES = 256 << 10      /* of what is read twice: a part of a core's L2 */
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/* Loops below are one operation on contiguous memory each, in a form that gcc and clang vectorise. */
#define INLINE static inline __attribute__((always_inline))

/* ---- the largest magnitude ----
 * Of floats' bits without the sign, as integers, which have the same order. NaN are the largest: where one
 * turns up, the run is searched again without them. */

enum { INFINITE = 0x7F800000 };

static int32_t amax_of_floats(const float *values, int64_t count)
{
    int32_t amax = 0;
    for (int64_t i = 0; i < count; i++) {
        const int32_t magnitude = (int32_t)(tgl_f32_to_bits(values[i]) & 0x7FFFFFFF);
        amax = magnitude > amax ? magnitude : amax;
    }
    if (amax <= INFINITE) return amax;
    amax = 0;
    for (int64_t i = 0; i < count; i++) {
        const int32_t magnitude = (int32_t)(tgl_f32_to_bits(values[i]) & 0x7FFFFFFF);
        amax = magnitude > amax && magnitude <= INFINITE ? magnitude : amax;
    }
    return amax;
}

static int32_t amax_of_bf16(const uint16_t *values, int64_t count)
{
    int16_t amax = 0;
    for (int64_t i = 0; i < count; i++) {
        const int16_t magnitude = (int16_t)(values[i] & 0x7FFF);
        amax = magnitude > amax ? magnitude : amax;
    }
    if (amax <= INFINITE >> 16) return amax << 16;
    amax = 0;
    for (int64_t i = 0; i < count; i++) {
        const int16_t magnitude = (int16_t)(values[i] & 0x7FFF);
        amax = magnitude > amax && magnitude <= INFINITE >> 16 ? magnitude : amax;
    }
    return amax << 16;
}

/* One column a block. */
INLINE void amax_of_columns(const void *values, bool is_bf16, int64_t count, int32_t *restrict amax)
{
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = is_bf16 ? (uint32_t)((const uint16_t *)values)[i] << 16
                                      : tgl_f32_to_bits(((const float *)values)[i]);
        const int32_t magnitude = (int32_t)(bits & 0x7FFFFFFF);
        const int32_t number = magnitude > INFINITE ? 0 : magnitude;
        amax[i] = number > amax[i] ? number : amax[i];
    }
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

/* Raises the amax of the blocks that `count` columns from `col` on are in. */
static void find_amax(const void *values, bool is_bf16, int64_t col, int64_t count, int64_t block_cols,
                      int32_t *amax)
{
    if (block_cols == 1) {
        if (is_bf16) amax_of_columns(values, true, count, amax + col);
        else amax_of_columns(values, false, count, amax + col);
        return;
    }
    for (walk w = walk_from(col, count, block_cols); w.at < w.stop; walk_on(&w)) {
        const int32_t found = is_bf16 ? amax_of_bf16((const uint16_t *)values + (w.at - col), w.end - w.at)
                                      : amax_of_floats((const float *)values + (w.at - col), w.end - w.at);
        amax[w.block] = found > amax[w.block] ? found : amax[w.block];
    }
}

/* ---- factors ---- */

/* From amax to sf and inv, where is_rounded is a constant. */
INLINE void scale_blocks(const int32_t *restrict amax, int64_t count, tgl_scale_rule rule, float *restrict sf,
                         float *restrict inv)
{
    for (int64_t k = 0; k < count; k++) {
        const tgl_scale scale = tgl_scale_of(tgl_f32_from_bits((uint32_t)amax[k]), rule);
        sf[k] = scale.sf;
        inv[k] = scale.inv;
    }
}

static void write_factors(const tgl_cast *c, int64_t m, int64_t k, const int32_t *amax, int64_t count, float *inv)
{
    float sf[MAX_BLOCKS];
    tgl_scale_rule rule = c->rule;
    if (rule.is_rounded) {
        rule.is_rounded = 1;
        scale_blocks(amax, count, rule, sf, inv);
    } else {
        scale_blocks(amax, count, rule, sf, inv);
    }
    if (c->sf.kind == TGL_SF_ROWS)
        memcpy((float *)c->sf.data + tgl_sf_offset(&c->sf, m, k), sf, (size_t)count * sizeof *sf);
    else
        for (int64_t i = 0; i < count; i++) tgl_sf_set(&c->sf, m, k + i, sf[i]);
}

static void read_factors(const tgl_cast *c, int64_t m, int64_t k, int64_t count, float *inv)
{
    for (int64_t i = 0; i < count; i++) inv[i] = 1 / tgl_sf_get(&c->sf, m, k + i);
}

/* ---- products ---- */

INLINE float value_at(const void *values, bool is_bf16, int64_t i)
{
    return is_bf16 ? tgl_bf16_to_f32(((const uint16_t *)values)[i]) : ((const float *)values)[i];
}

INLINE void times_one(const void *values, bool is_bf16, int64_t count, float factor, float *restrict to)
{
    for (int64_t i = 0; i < count; i++) to[i] = value_at(values, is_bf16, i) * factor;
}

INLINE void times_each(const void *values, bool is_bf16, int64_t count, const float *restrict factors,
                       float *restrict to)
{
    for (int64_t i = 0; i < count; i++) to[i] = value_at(values, is_bf16, i) * factors[i];
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

static void multiply(const void *values, bool is_bf16, int64_t col, int64_t count, int64_t block_cols,
                     const float *factors, float *to)
{
    if (is_bf16) times_blocks(values, true, col, count, block_cols, factors, to);
    else times_blocks(values, false, col, count, block_cols, factors, to);
}

/* ---- codes ---- */

static void to_e4m3(const float *restrict values, int64_t count, uint8_t *restrict to)
{
    for (int64_t i = 0; i < count; i++) to[i] = tgl_e4m3_from_f32(values[i]);
}

static void to_e2m1x2(const float *restrict values, int64_t num_pairs, uint8_t *restrict to)
{
    for (int64_t i = 0; i < num_pairs; i++) to[i] = tgl_e2m1x2_from_f32(values[2 * i], values[2 * i + 1]);
}

static void to_e5m6(const float *values, int64_t count, uint8_t *to)
{
    uint16_t codes[PIECE];
    for (int64_t i = 0; i < count; i++) codes[i] = tgl_e5m6_from_f32(values[i]);
    for (int64_t i = 0; i < count; i += 8) {
        uint32_t words[3];
        tgl_e5m6x8_pack(codes + i, words);
        memcpy(to + i / 8 * 12, words, 12);
    }
}

/* Columns from `col` on of a row of codes. Neither pairs nor groups of eight are cut. */
static void encode(int format, const float *values, int64_t col, int64_t count, uint8_t *row)
{
    switch (format) {
    case TGL_FORMAT_E4M3: to_e4m3(values, count, row + col); break;
    case TGL_FORMAT_E2M1: to_e2m1x2(values, count / 2, row + col / 2); break;
    default: to_e5m6(values, count, row + col / 8 * 12); break;
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
    return (tgl_codes){ tgl_data(t), stride, format, sf, blocks.rows, blocks.cols };
}

static const void *read_values(const void *context, int64_t row, int64_t col, int64_t count, float *buffer)
{
    const tgl_values *v = context;
    (void)count, (void)buffer;
    return v->data + row * v->row_bytes + col * (v->is_bf16 ? 2 : 4);
}

tgl_reader tgl_read_values(const tgl_values *values)
{
    return (tgl_reader){ read_values, values, values->is_bf16, false };
}

static void from_e4m3(const uint8_t *restrict codes, int64_t count, float factor, float *restrict to)
{
    for (int64_t i = 0; i < count; i++) to[i] = tgl_e4m3_to_f32(codes[i]) * factor;
}

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
static void from_e5m6(const uint8_t *row, int64_t col, int64_t count, float factor, float *to)
{
    uint16_t codes[PIECE + 8];
    const int64_t first = col / 8 * 8;
    for (int64_t j = first; j < col + count; j += 8) {
        uint32_t words[3];
        memcpy(words, row + j / 8 * 12, 12);
        tgl_e5m6x8_unpack(words, codes + (j - first));
    }
    for (int64_t i = 0; i < count; i++) to[i] = tgl_e5m6_to_f32(codes[col - first + i]) * factor;
}

/* At most PIECE columns with one factor. */
static void decode(int format, const uint8_t *row, int64_t col, int64_t count, float factor, float *to)
{
    switch (format) {
    case TGL_FORMAT_E4M3: from_e4m3(row + col, count, factor, to); break;
    case TGL_FORMAT_E2M1: from_e2m1(row, col, count, factor, to); break;
    default: from_e5m6(row, col, count, factor, to); break;
    }
}

/* Blocks narrower than this are decoded as one run, then multiplied column by column. */
enum { NARROW = 16 };

static void times_factors(float *restrict values, const float *restrict factors, int64_t count)
{
    for (int64_t i = 0; i < count; i++) values[i] *= factors[i];
}

static void decode_narrow(const tgl_codes *c, int64_t m, const uint8_t *row, int64_t col, int64_t count, float *to)
{
    float factors[PIECE];
    decode(c->format, row, col, count, 1, to);
    if (c->block_cols == 1 && c->sf.kind == TGL_SF_ROWS) {
        times_factors(to, (const float *)c->sf.data + tgl_sf_offset(&c->sf, m, col), count);
        return;
    }
    for (walk w = walk_from(col, count, c->block_cols); w.at < w.stop; walk_on(&w))
        for (int64_t j = w.at; j < w.end; j++) factors[j - col] = tgl_sf_get(&c->sf, m, w.block);
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
            decode(c->format, codes, w.at, w.end - w.at, tgl_sf_get(&c->sf, m, w.block), to + (w.at - col));
    }
}

static const void *read_codes(const void *context, int64_t row, int64_t col, int64_t count, float *buffer)
{
    tgl_decode(context, row, col, count, buffer);
    return buffer;
}

tgl_reader tgl_read_codes(const tgl_codes *codes) { return (tgl_reader){ read_codes, codes, false, true }; }

/* ---- tiles ---- */

int64_t tgl_cast_tile_cols(const tgl_cast *c, int64_t num_rows, int64_t num_cols)
{
    if (c->block_cols > num_cols / 4) return num_cols;      /* a word has all factors of a row */
    const int64_t fits = c->from.is_buffered ? KEPT / num_rows : TILE_BYTES / 4 / num_rows;
    const int64_t wanted = least(most(fits, MIN_COLS), PIECE), unit = 4 * c->block_cols;
    return least(most(wanted / unit, 1) * unit, num_cols);
}

/* The part of a tile's row that begins `at` columns into it. */
static const void *read_part(const tgl_cast *c, int64_t row, int64_t col, int64_t at, int64_t count, float *buffer)
{
    return c->from.read(c->from.context, row, col + at, count, buffer);
}

void tgl_cast_tile(const tgl_cast *c, int64_t row, int64_t num_rows, int64_t col, int64_t num_cols, uint8_t *out,
                   int64_t out_stride)
{
    float kept[KEPT], scaled[PIECE], inv[MAX_BLOCKS];
    const bool is_bf16 = c->from.is_bf16;
    const bool is_kept = c->from.is_buffered && num_rows * num_cols <= KEPT;
    const int64_t num_blocks = divide_up(num_cols, c->block_cols);
    const int64_t m = row / c->block_rows, k = c->first_sf + col / c->block_cols;
    if (c->is_given) {
        read_factors(c, m, k, num_blocks, inv);
    } else {
        int32_t amax[MAX_BLOCKS] = { 0 };
        const int64_t step = is_kept || !c->from.is_buffered ? num_cols : PIECE;
        for (int64_t i = 0; i < num_rows; i++)
            for (int64_t j = 0; j < num_cols; j += step) {
                const int64_t count = least(step, num_cols - j);
                const void *values = read_part(c, row + i, col, j, count, kept + (is_kept ? i * num_cols : 0));
                find_amax(values, is_bf16, j, count, c->block_cols, amax);
            }
        write_factors(c, m, k, amax, num_blocks, inv);
    }
    for (int64_t i = 0; out && i < num_rows; i++, out += out_stride)
        for (int64_t j = 0; j < num_cols; j += PIECE) {
            const int64_t count = least(PIECE, num_cols - j);
            const void *values = is_kept && !c->is_given ? kept + i * num_cols + j
                                                         : read_part(c, row + i, col, j, count, kept);
            multiply(values, is_bf16, j, count, c->block_cols, inv, scaled);
            encode(c->format, scaled, j, count, out);
        }
}
