/* SPDX-License-Identifier: MIT
 * check.h - checks that the casts share: parameters, codes, who may overlap whom. They say "name: ... is ...,
 * want ...", like those of core/tensor.h. */
#ifndef TEGULA_QUANT_CHECK_H
#define TEGULA_QUANT_CHECK_H

#include "quant/common/blocks.h"
#include "tegula/quant.h"

/* Columns of anything are fewer, so that sizes made of them do not overflow, not even an empty tensor's. */
#define TGL_MAX_COLS (INT64_MAX / 16)

/* ---- parameters ---- */

tgl_status tgl_expect_params(const tgl_quant_params *params);   /* not NULL, reserved words zero */
tgl_status tgl_expect_format(tgl_quant_format format, bool has_e5m6);
tgl_status tgl_expect_block(const char *name, int64_t value);   /* >= 0 */
tgl_status tgl_expect_swiglu_clamp(const tgl_quant_params *params);

/* ---- tensors ---- */

/* bf16 or f32 [num_rows, num_cols], rows may be strided. */
tgl_status tgl_expect_values(const char *name, const DLTensor *t);

/* Rows of gates, then as many ups. */
tgl_status tgl_expect_even(const char *name, const DLTensor *t);

/* Codes of a format, rows may be strided; num_cols is then tgl_num_cols(). */
tgl_status tgl_expect_codes(const char *name, const DLTensor *t, int format);

/* Columns of x that the format can hold: pairs for e2m1, eight at a time for e5m6. */
tgl_status tgl_expect_whole_codes(int64_t num_cols, int format);

/* Codes of num_rows x num_cols such values, packed. */
tgl_status tgl_expect_out_codes(const char *name, const DLTensor *t, int format, int64_t num_rows,
                                int64_t num_cols);

/* [size], packed, of one dtype. */
tgl_status tgl_expect_list(const char *name, const DLTensor *t, tgl_dtype dtype, int64_t size);

/* [num_rows, num_cols], packed, of one dtype. */
tgl_status tgl_expect_matrix(const char *name, const DLTensor *t, tgl_dtype dtype, int64_t num_rows,
                             int64_t num_cols);

int64_t tgl_num_cols(const DLTensor *codes, int format);

#endif
