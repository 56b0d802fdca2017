/* SPDX-License-Identifier: MIT
 * blocks.h - blocks of a matrix, and the layout of their scale factors, on the host. */
#ifndef TEGULA_QUANT_BLOCKS_H
#define TEGULA_QUANT_BLOCKS_H

#include "core/tensor.h"
#include "quant/common/scale.h"

/* num_rows x num_cols blocks of rows x cols elements; the last ones may be partial. */
typedef struct { int64_t rows, cols, num_rows, num_cols; } tgl_blocks;

/* rows, cols: of a block. rows = 0: one row. cols = 0 or > num_cols: all columns. */
tgl_blocks tgl_blocks_of(int64_t num_rows, int64_t num_cols, int64_t rows, int64_t cols);

/* The layout follows from the dtype and strides. */
tgl_sf tgl_sf_of(const DLTensor *t);

#endif
