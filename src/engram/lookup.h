/* SPDX-License-Identifier: MIT
 * lookup.h - what the kernel of lookup and the code that launches it agree on. */
#ifndef TEGULA_ENGRAM_LOOKUP_H
#define TEGULA_ENGRAM_LOOKUP_H

#include "numerics/bf16.h"
#include "numerics/divide.h"
#include "numerics/e4m3.h"
#include "numerics/f16.h"
#include "numerics/integer.h"

/* What becomes of an element of the table. */
#define LOOKUP_COPY 0   /* its bytes */
#define LOOKUP_PACKED 1 /* its byte; behind a row's codes, the bytes of its scale factors */
#define LOOKUP_UE8M0 2  /* code * 2^(E - 127), as bf16 */
#define LOOKUP_SCALED 3 /* code * one factor, or code, as bf16 */
#define LOOKUP_F16 4    /* rounded to bf16 */
#define LOOKUP_F32 5

/* Bytes of a unit that a kernel of this form has code for: not all, so that it compiles fast. (8: for records of 264
 * bytes.) */
#define LOOKUP_HAS_UNIT(form, bytes)                                                 \
    ((form) <= LOOKUP_PACKED || (bytes) == 16 || (bytes) == LOOKUP_MIN_UNIT(form) || \
     (LOOKUP_IS_E4M3(form) && (bytes) == 8))
#define LOOKUP_MIN_UNIT(form) ((form) == LOOKUP_F32 ? 4 : (form) == LOOKUP_F16 ? 2 : 1)
#define LOOKUP_IS_E4M3(form) ((form) == LOOKUP_UE8M0 || (form) == LOOKUP_SCALED) /* and becomes bf16 */

#define LOOKUP_GROUP 32 /* codes that share a scale factor */
#define LOOKUP_THREADS 1024
/* Units of a lane at a time, all in flight: a warp has 4 rows of 256 codes, 8 that are copied, or 7 of the 264 bytes of
 * packed ones. 8192 tokens x 24 of a million rows take 47.4 us as bf16, with 1, 3 or 4 units of 16 codes 51.7, 47.9 and
 * 48.5, with 4 of 8 codes 49.2; packed 42.7, with 4 units 49.2 (H200, 2026-11). On sm_100 and sm_103, 8 units spill. */
#define LOOKUP_UNITS(form, bytes, architecture) \
    ((form) == LOOKUP_PACKED ? ((architecture) / 10 == 10 ? 4 : 8) : LOOKUP_IS_E4M3(form) && (bytes) == 16 ? 2 : 4)
#define LOOKUP_FEW_UNITS(form) ((form) == LOOKUP_PACKED ? 2 : 1) /* where rows are few; 264 bytes are 33 units */
#define LOOKUP_WORDS 4                                           /* of scale factors that a thread has in flight */

/* Strides are in bytes, but for those of indices. A unit is what a lane loads at once: unit_bytes of a row of the
 * table. A tile is tile_rows rows, or one of row_tiles parts of a row. */
typedef struct {
    const uint8_t *table;
    const void *table_sf; /* bytes, one f32, or NULL */
    const void *indices;  /* NULL: 0, 1, 2, ... */
    uint8_t *out;
    uint32_t *out_sf; /* NULL: none */
    int64_t row_begin, num_rows;
    int64_t table_stride, sf_stride;
    int64_t index_token_stride, index_column_stride, out_token_stride, out_column_stride, out_sf_stride;
    int64_t num_tokens, num_columns, num_positions; /* positions: (token, column), t * num_columns + c */
    int64_t dim;
    int32_t index_bytes;
    /* of a launch */
    int32_t unit_bytes, tile_rows, row_units, row_tiles;
    int32_t lane_units;       /* of a tile */
    int32_t is_flat;          /* positions are as far apart as columns: num_tokens is 1 */
    int32_t has_factor_words; /* four scale factors of a row are a word in line */
    int64_t num_tiles;
    tgl_divisor by_row_units, by_columns, by_groups, by_tokens;
} lookup_args;

/* Codes of UE8M0 as the models read them: 0 is 2^-127, 255 is NaN. (ue8m0.h reads 0 and infinity.) */
TGL_INLINE float lookup_factor(uint32_t e)
{
    return tgl_f32_from_bits(e == 0 ? 0x00400000u : e == 255 ? 0x7FFFFFFFu : e << 23);
}

/* The table's row of a position, or -1 if it is not there. No subtraction before the comparison: it might wrap. */
TGL_INLINE int64_t lookup_row(const lookup_args *a, int64_t position, int64_t token, int64_t column)
{
    int64_t index = position;
    if (a->indices) {
        const int64_t at = token * a->index_token_stride + column * a->index_column_stride;
        index = tgl_integer_at(a->indices, at, a->index_bytes);
    }
    return index >= a->row_begin && index - a->row_begin < a->num_rows ? index - a->row_begin : -1;
}

#endif
