/* SPDX-License-Identifier: MIT
 * quant.h - what the cases of the casts share: formats and layouts written from their definitions,
 * scale factors, inputs. Nothing here may use src/numerics.
 *
 * Layouts of rows, parameters `layout`:
 *   packed
 *   half       the left half of a matrix twice as wide
 *   gap        3 elements between rows, so that alignment changes from row to row; gap4: 4 elements
 *   repeated   row stride 0: one row for all (inputs only)
 *   far        row stride 2^20, so that few rows reach past 2^31 elements
 * Layouts of scale factors, parameters `sf` and `x_sf`:
 *   row        f32 [M, K] packed             row_gap      rows K + 3 apart
 *   col        f32, columns align(M, 4)      col_gap      columns align(M, 4) + 4 apart; col_tight: M apart
 *   packed     i32, columns align(M, 4)      packed_gap   columns align(M, 4) + 4 apart
 *   row_same   one row for all, col_same: one column for all (inputs only)
 * Values of x, parameter `values`:
 *   normal     mean 0, deviation 1
 *   mixed      a kind per block: scales of 2^-30 .. 2^30, zeros of both signs, below the floor, near the
 *              largest number, subnormal, exact ties, largest numbers that make factors a power of two or
 *              just not
 *   bits       any bits: NaN, infinities
 * Factors that are inputs are then of 2^-8 .. 2^8; of 2^-30 .. 2^100; any code, or any float that is not
 * negative and no NaN. With `powers` x is as mixed and factors of f32 are powers of two. */
#ifndef TEGULA_CASES_QUANT_H
#define TEGULA_CASES_QUANT_H

#include "cases/case.h"
#include "tegula/quant.h"

/* The hidden sizes of models, in lists of cases. */
#define QUANT_HIDDEN_SIZES "num_cols=576,2048,2560,3072,4096,6144,7168 "

static inline int64_t quant_ceil_div(int64_t a, int64_t b) { return b ? a / b + (a % b != 0) : 0; }

/* Of a size that is 0 where a block is all there is. */
static inline int64_t quant_or_all(int64_t block, int64_t all) { return block ? block : all; }

/* ---- formats ---- */

tgl_status quant_format_named(const char *name, tgl_quant_format *format);
float quant_largest(tgl_quant_format format);
float quant_floor(tgl_quant_format format);

/* Any float to a code, a code to its value. Every NaN becomes the largest code. */
unsigned quant_encode(tgl_quant_format format, float value);
float quant_decode(tgl_quant_format format, unsigned code);

/* The dtype of data of a format, with `pairs` for e2m1, and the elements of a row of num_cols values. */
tgl_dtype quant_data_dtype(tgl_quant_format format, tgl_dtype pairs);
int64_t quant_data_cols(tgl_quant_format format, int64_t num_cols);

unsigned quant_code_at(const case_tensor *t, tgl_quant_format format, int64_t row, int64_t col);
void quant_put_code(const case_tensor *t, tgl_quant_format format, int64_t row, int64_t col, unsigned code);

/* An element of a tensor of f32 or bf16. */
float quant_float_at(const case_tensor *t, int64_t row, int64_t col);

/* ---- scale factors ---- */

/* Adds the tensor of an M x K grid of factors in a layout of the list above; an input is filled as parameter
 * `values` says. */
tgl_status quant_add_sf(case_problem *c, int index, const char *name, case_role role, const char *layout,
                        int64_t m, int64_t k, case_tensor **sf);
float quant_sf_at(const case_tensor *sf, int64_t m, int64_t k);
void quant_put_sf(const case_tensor *sf, int64_t m, int64_t k, float value);

/* From the largest magnitude of a block. */
typedef struct { float sf, inv; } quant_scale;
quant_scale quant_scale_of(float amax, float largest, float floor, bool round);
float quant_round_up_to_power(float value);     /* held to 2^-126 .. 2^127 */

/* ---- setup ---- */

tgl_status quant_lay_out(const char *layout, int64_t num_cols, int64_t strides[2]);

/* Chooses how parameter `values` fills data. A kind of data lasts for a block. */
tgl_status quant_choose_fill(const case_problem *c, case_tensor *t, int64_t block_rows, int64_t block_cols);

/* Parameters travel from setup to run and oracle in the problem's scalars. */
static inline tgl_quant_params *quant_params_of(case_problem *c) { return (tgl_quant_params *)c->scalars; }
static inline const tgl_quant_params *quant_params_in(const case_problem *c)
{
    return (const tgl_quant_params *)c->scalars;
}

/* ---- oracles ---- */

/* Values in blocks: where they come from, and how one block follows from another op's parameters. */
typedef struct {
    const case_problem *c;
    float (*value)(const case_problem *c, int64_t row, int64_t col);
    bool (*exists)(const case_problem *c, int64_t row);         /* NULL: every row does; others become +0 */
    int64_t num_rows, num_cols, block_rows, block_cols;
    tgl_quant_format format;
    bool round, is_transposed;
    const case_tensor *given;               /* factors that are given, or */
    const case_tensor *sf, *out;            /* factors and codes to write; each may be NULL */
} quant_blocks;
void quant_cast(const quant_blocks *b);

#endif
