/* SPDX-License-Identifier: MIT
 * cast.h - casts on the CPU, for all ops: values in, codes and factors out. Values come from a reader:
 * memory, codes, SwiGLU (activations.h), or a function of the op. */
#ifndef TEGULA_QUANT_CAST_H
#define TEGULA_QUANT_CAST_H

#include "core/cpu.h"
#include "numerics/bf16.h"
#include "quant/common/blocks.h"

/* ---- values ---- */

/* One value. */
typedef float (*tgl_value_function)(const void *context, int64_t row, int64_t col);

/* Returns `count` values from (row, col) on, bf16 or f32: their address in memory, or `buffer`. */
typedef const void *(*tgl_read_function)(const void *context, int64_t row, int64_t col, int64_t count, float *buffer);
typedef struct {
    tgl_value_function value;
    tgl_read_function read; /* for fast loops; may be NULL if plain ones run */
    const void *context;
    bool is_bf16;      /* the type that `read` returns, else f32 */
    bool is_buffered;  /* `read` computes values, into the buffer */
    int64_t row_bytes; /* row stride of values in memory, else 0 */
} tgl_reader;

/* bf16 or f32 in memory. */
typedef struct {
    const char *data;
    int64_t row_bytes; /* row stride */
    bool is_bf16;
} tgl_values;

/* Codes in memory with factors. */
typedef struct {
    const uint8_t *data;
    int64_t row_bytes;
    int format;
    tgl_sf sf;
    int64_t block_rows, block_cols;
    int64_t first_sf; /* column of sf for column 0 */
} tgl_codes;

tgl_values tgl_values_of(const DLTensor *t);
tgl_codes tgl_codes_of(const DLTensor *t, int format, tgl_sf sf, tgl_blocks blocks);
tgl_reader tgl_read_values(const tgl_values *values);
tgl_reader tgl_read_codes(const tgl_codes *codes); /* code * sf, rounded to f32 */

static inline float tgl_value_at(const void *values, bool is_bf16, int64_t i)
{
    return is_bf16 ? tgl_bf16_to_f32(((const uint16_t *)values)[i]) : ((const float *)values)[i];
}
static inline float tgl_value_of(const tgl_values *v, int64_t row, int64_t col)
{
    return tgl_value_at(v->data + row * v->row_bytes, v->is_bf16, col);
}
float tgl_decoded(const tgl_codes *codes, int64_t row, int64_t col); /* code * sf */

/* A row of code * sf, rounded to f32, then to bf16 if is_bf16. */
void tgl_decode_row(const tgl_codes *codes, int64_t row, int64_t count, bool is_bf16, void *to);

/* ---- casting ---- */

typedef struct {
    tgl_reader from;
    int64_t num_rows, num_cols;
    int format;
    tgl_scale_rule rule;
    int64_t block_rows, block_cols;
    tgl_sf sf;
    int64_t first_sf;   /* column of sf for column 0 */
    int64_t num_sf;     /* columns of sf */
    bool is_given;      /* sf is read, and inv = 1 / sf; else it is written */
    uint8_t *out;       /* NULL: only factors are wanted */
    int64_t out_stride; /* row stride of out, in bytes */
    bool is_transposed; /* e4m3 only: out is [num_cols, num_rows] */
} tgl_cast;

/* The whole matrix, on all threads. */
tgl_status tgl_run_cast(const tgl_cast *cast);

/* One row, if block_rows is 1. `kept` is a buffer for values, so that fast loops need not compute them twice:
 * as large as the stack allows, of which a call takes 64 KiB at most. */
typedef struct {
    float *values;
    int64_t bytes;
} tgl_kept;
void tgl_cast_row(const tgl_cast *cast, int64_t row, tgl_kept kept);

/* The reference: block (m, k) of factors and its codes. */
void tgl_cast_block(const tgl_cast *cast, int64_t m, int64_t k);

/* ---- fast loops (cast_fast.c) ---- */

/* Aligns arrays so that no vector, of up to 64 bytes, is in two cache lines. */
#define TGL_LINES _Alignas(64)

TGL_DECLARE_FAST(const void *, tgl_read_values, const void *values, int64_t row, int64_t col, int64_t count,
                 float *buffer);
TGL_DECLARE_FAST(const void *, tgl_read_codes, const void *codes, int64_t row, int64_t col, int64_t count,
                 float *buffer);
TGL_DECLARE_FAST(void, tgl_decode_row, const tgl_codes *codes, int64_t row, int64_t count, bool is_bf16, void *to);
TGL_DECLARE_FAST(tgl_status, tgl_run_cast, const tgl_cast *cast);
TGL_DECLARE_FAST(void, tgl_cast_row, const tgl_cast *cast, int64_t row, tgl_kept kept);

/* code * sf, rounded to f32, for `count` columns of a row. */
TGL_DECLARE_FAST(void, tgl_decode, const tgl_codes *codes, int64_t row, int64_t col, int64_t count, float *to);
TGL_DECLARE_FAST(void, tgl_round_to_bf16, const float *values, int64_t count, uint16_t *to);
/* Pairs of e2m1 as f32, bf16, f16 or e4m3. */
TGL_DECLARE_FAST(void, tgl_unpack, const uint8_t *x, int64_t num_pairs, tgl_dtype dtype, void *out);

#endif
