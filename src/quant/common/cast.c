/* SPDX-License-Identifier: MIT
 * cast.c - the plain loops of the casts, one value at a time. */
#include "quant/common/cast.h"

#include <math.h>
#include <string.h>

#include "core/math.h"
#include "core/threads.h"

/* ---- codes ---- */

/* The group of eight codes with column `col`. */
static void get_e5m6x8(const uint8_t *row, int64_t col, uint16_t codes[8])
{
    uint32_t words[3];
    memcpy(words, row + col / 8 * 12, sizeof words);
    tgl_e5m6x8_unpack(words, codes);
}

static float get_code(int format, const uint8_t *row, int64_t col)
{
    uint16_t codes[8];
    switch (format) {
    case TGL_FORMAT_E4M3: return tgl_e4m3_to_f32(row[col]);
    case TGL_FORMAT_E2M1: return tgl_e2m1_to_f32((uint8_t)(row[col / 2] >> col % 2 * 4));
    default: get_e5m6x8(row, col, codes); return tgl_e5m6_to_f32(codes[col % 8]);
    }
}

static void put_code(int format, uint8_t *row, int64_t col, float value)
{
    if (format == TGL_FORMAT_E4M3) {
        row[col] = tgl_e4m3_from_f32(value);
    } else if (format == TGL_FORMAT_E2M1) {
        const int shift = (int)(col % 2) * 4;
        row[col / 2] = (uint8_t)((row[col / 2] & (0xF0 >> shift)) | tgl_e2m1_from_f32(value) << shift);
    } else {
        uint32_t words[3];
        uint16_t codes[8];
        get_e5m6x8(row, col, codes);
        codes[col % 8] = tgl_e5m6_from_f32(value);
        tgl_e5m6x8_pack(codes, words);
        memcpy(row + col / 8 * 12, words, sizeof words);
    }
}

/* ---- values ---- */

tgl_values tgl_values_of(const DLTensor *t)
{
    const bool is_bf16 = tgl_dtype_is(t->dtype, TGL_BF16);
    return (tgl_values){ tgl_data(t), tgl_step_of(t, 0) * (is_bf16 ? 2 : 4), is_bf16 };
}

tgl_codes tgl_codes_of(const DLTensor *t, int format, tgl_sf sf, tgl_blocks blocks)
{
    return (tgl_codes){ tgl_data(t), tgl_step_of(t, 0), format, sf, blocks.rows, blocks.cols, 0 };
}

static float value_of_values(const void *values, int64_t row, int64_t col) { return tgl_value_of(values, row, col); }

tgl_reader tgl_read_values(const tgl_values *values)
{
    return (tgl_reader){ value_of_values,  TGL_CHOOSE(NULL, tgl_read_values), values, values->is_bf16, false,
                         values->row_bytes };
}

float tgl_decoded(const tgl_codes *c, int64_t row, int64_t col)
{
    const float factor = tgl_sf_get(&c->sf, row / c->block_rows, c->first_sf + col / c->block_cols);
    return get_code(c->format, c->data + row * c->row_bytes, col) * factor;
}

static float value_of_codes(const void *codes, int64_t row, int64_t col) { return tgl_decoded(codes, row, col); }

tgl_reader tgl_read_codes(const tgl_codes *codes)
{
    return (tgl_reader){ value_of_codes, TGL_CHOOSE(NULL, tgl_read_codes), codes, false, true, 0 };
}

static void decode_row(const tgl_codes *c, int64_t row, int64_t count, bool is_bf16, void *to)
{
    for (int64_t col = 0; col < count; col++) {
        const float value = tgl_decoded(c, row, col);
        if (is_bf16) ((uint16_t *)to)[col] = tgl_bf16_from_f32(value);
        else ((float *)to)[col] = value;
    }
}

void tgl_decode_row(const tgl_codes *c, int64_t row, int64_t count, bool is_bf16, void *to)
{
    TGL_CHOOSE(decode_row, tgl_decode_row)(c, row, count, is_bf16, to);
}

/* ---- casting ---- */

static float factor_of(const tgl_cast *c, int64_t m, int64_t k)
{
    if (c->is_given) return 1 / tgl_sf_get(&c->sf, m, c->first_sf + k);
    const int64_t row_end = tgl_min((m + 1) * c->block_rows, c->num_rows);
    const int64_t col_end = tgl_min((k + 1) * c->block_cols, c->num_cols);
    float amax = 0;
    for (int64_t i = m * c->block_rows; i < row_end; i++)
        for (int64_t j = k * c->block_cols; j < col_end; j++) {
            const float magnitude = fabsf(c->from.value(c->from.context, i, j));
            if (magnitude > amax) amax = magnitude; /* not a NaN */
        }
    const tgl_scale scale = tgl_scale_of(amax, c->rule);
    tgl_sf_set(&c->sf, m, c->first_sf + k, c->num_sf, scale.sf);
    return scale.inv;
}

void tgl_cast_block(const tgl_cast *c, int64_t m, int64_t k)
{
    const int64_t row_end = tgl_min((m + 1) * c->block_rows, c->num_rows);
    const int64_t col_end = tgl_min((k + 1) * c->block_cols, c->num_cols);
    const float factor = factor_of(c, m, k);
    for (int64_t i = m * c->block_rows; c->out && i < row_end; i++)
        for (int64_t j = k * c->block_cols; j < col_end; j++) {
            const float product = c->from.value(c->from.context, i, j) * factor;
            if (c->is_transposed) c->out[j * c->out_stride + i] = tgl_e4m3_from_f32(product);
            else put_code(c->format, c->out + i * c->out_stride, j, product);
        }
}

static void cast_rows(const void *context, int64_t begin, int64_t end) /* of blocks */
{
    const tgl_cast *c = context;
    for (int64_t m = begin; m < end; m++)
        for (int64_t k = 0; k < tgl_ceil_div(c->num_cols, c->block_cols); k++) tgl_cast_block(c, m, k);
}

static void cast_row(const tgl_cast *c, int64_t row, tgl_kept kept) { cast_rows(c, row, row + 1); }
void tgl_cast_row(const tgl_cast *c, int64_t row, tgl_kept kept) { TGL_CHOOSE(cast_row, tgl_cast_row)(c, row, kept); }

static tgl_status run_cast(const tgl_cast *c)
{
    const int64_t rows = tgl_ceil_div(c->num_rows, c->block_rows);
    return tgl_parallel_rows(rows, 8 * (c->num_rows * c->num_cols / rows), cast_rows, c);
}
tgl_status tgl_run_cast(const tgl_cast *c)
{
    if (c->num_rows == 0 || c->num_cols == 0) return TGL_OK;
    return TGL_CHOOSE(run_cast, tgl_run_cast)(c);
}
