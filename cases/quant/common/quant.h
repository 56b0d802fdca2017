/* SPDX-License-Identifier: MIT
 * quant.h - for the cases of all casts: formats and layouts from their definitions, scale factors, inputs.
 * Nothing here may use src/numerics.
 *
 * Layouts of rows, parameters `layout`:
 *   packed
 *   half       the left half of a matrix twice as wide
 *   gap        3 elements between rows: alignment changes from row to row; gap4: 4 elements
 *   repeated   row stride 0: one row for all (inputs only)
 *   far        row stride 2^20: few rows reach past 2^31 elements
 * Layouts of scale factors, parameters `sf` and `x_sf`:
 *   row        f32 [M, K] packed             row_gap      rows K + 3 apart
 *   col        f32, columns align(M, 4)      col_gap      columns align(M, 4) + 4 apart; col_tight: M apart
 *   packed     i32, columns align(M, 4)      packed_gap   columns align(M, 4) + 4 apart
 *   row_same   one row for all, col_same: one column for all (inputs only)
 * Values of x, parameter `values`:
 *   normal     mean 0, deviation 1
 *   mixed      a kind per block: scales of 2^-30 .. 2^30, zeros of both signs, below the floor, near the
 *              largest number, subnormal, exact ties, an amax that makes the factor a power of two, or nearly
 *   bits       any bits: NaN, infinities
 * Input factors are then 2^-8 .. 2^8; 2^-30 .. 2^100; any code, or any float >= 0. With `powers` x is as with
 * mixed, and f32 factors are powers of two. */
#ifndef TEGULA_CASES_QUANT_H
#define TEGULA_CASES_QUANT_H

#include "cases/case.h"
#include "tegula/quant.h"

/* The hidden sizes of models, in lists of cases. */
#define QUANT_HIDDEN_SIZES "num_cols=576,2048,2560,3072,4096,6144,7168 "

static inline int64_t quant_ceil_div(int64_t a, int64_t b) { return b ? a / b + (a % b != 0) : 0; }

/* A block size; 0 means all. */
static inline int64_t quant_or_all(int64_t block, int64_t all) { return block ? block : all; }

/* ---- formats ---- */

tgl_status quant_format_named(const char *name, tgl_quant_format *format);
float quant_largest(tgl_quant_format format);
float quant_floor(tgl_quant_format format);

/* Any float to a code, a code to its value. NaN becomes the largest code. */
unsigned quant_encode(tgl_quant_format format, float value);
float quant_decode(tgl_quant_format format, unsigned code);

/* The dtype of codes, `pairs` for e2m1, and the elements of a row of num_cols codes. */
tgl_dtype quant_data_dtype(tgl_quant_format format, tgl_dtype pairs);
int64_t quant_data_cols(tgl_quant_format format, int64_t num_cols);

unsigned quant_code_at(const case_tensor *t, tgl_quant_format format, int64_t row, int64_t col);
void quant_put_code(const case_tensor *t, tgl_quant_format format, int64_t row, int64_t col, unsigned code);

/* An element of a tensor of f32 or bf16. */
float quant_float_at(const case_tensor *t, int64_t row, int64_t col);

/* ---- scale factors ---- */

/* Adds a tensor of m x k factors, in a layout of the list above; parameter `values` fills an input. */
tgl_status quant_add_sf(case_problem *c, int index, const char *name, case_role role, const char *layout, int64_t m,
                        int64_t k, case_tensor **sf);
float quant_sf_at(const case_tensor *sf, int64_t m, int64_t k);
void quant_put_sf(const case_tensor *sf, int64_t m, int64_t k, float value);

typedef struct { float sf, inv; } quant_scale;
quant_scale quant_scale_of(float amax, float largest, float floor, bool round);
float quant_round_up_to_power(float value); /* held to 2^-126 .. 2^127 */

/* ---- setup ---- */

tgl_status quant_lay_out(const char *layout, int64_t num_cols, int64_t strides[2]);

/* Parameter `values` fills t; a block has one kind of data. */
tgl_status quant_choose_fill(const case_problem *c, case_tensor *t, int64_t block_rows, int64_t block_cols);

/* Parameters travel from setup to run and oracle in the problem's scalars. */
static inline tgl_quant_params *quant_params_of(case_problem *c) { return (tgl_quant_params *)c->scalars; }
static inline const tgl_quant_params *quant_params_in(const case_problem *c)
{
    return (const tgl_quant_params *)c->scalars;
}

/* ---- oracles ---- */

typedef struct {
    const case_problem *c;
    float (*value)(const case_problem *c, int64_t row, int64_t col);
    bool (*exists)(const case_problem *c, int64_t row); /* NULL: every row does. Other rows become +0 */
    int64_t num_rows, num_cols, block_rows, block_cols;
    tgl_quant_format format;
    bool round, is_transposed;
    const case_tensor *given;    /* factors to read, or NULL */
    const case_tensor *sf, *out; /* factors and codes to write, or NULL */
} quant_blocks;
void quant_cast(const quant_blocks *b);

#endif
