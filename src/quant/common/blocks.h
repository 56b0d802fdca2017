/* SPDX-License-Identifier: MIT
 * blocks.h - the host's side of scale factors: how many there are, and where they lie. */
#ifndef TEGULA_QUANT_BLOCKS_H
#define TEGULA_QUANT_BLOCKS_H

#include "core/tensor.h"
#include "quant/common/scale.h"

/* Blocks of a matrix: num_rows x num_cols of them, the last ones perhaps partial. */
typedef struct { int64_t rows, cols, num_rows, num_cols; } tgl_blocks;

/* rows, cols: of a block. 0 rows: one row. 0 cols, or more than there are: all columns. */
tgl_blocks tgl_blocks_of(int64_t num_rows, int64_t num_cols, int64_t rows, int64_t cols);

/* A tensor of factors; its dtype and strides tell the layout. */
tgl_sf tgl_sf_of(const DLTensor *t);

#endif
