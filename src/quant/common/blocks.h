/* SPDX-License-Identifier: MIT
 * blocks.h - the host's side of scale factors: how many there are, and the checks of their tensors. */
#ifndef TEGULA_QUANT_BLOCKS_H
#define TEGULA_QUANT_BLOCKS_H

#include "core/tensor.h"
#include "quant/common/scale.h"

/* Blocks of a matrix: num_rows x num_cols of them, the last ones perhaps partial. */
typedef struct { int64_t rows, cols, num_rows, num_cols; } tgl_blocks;

/* rows, cols: of a block. 0 rows: one row. 0 cols, or more than there are: all columns. */
tgl_blocks tgl_blocks_of(int64_t num_rows, int64_t num_cols, int64_t rows, int64_t cols);

/* Checks a tensor of factors, num_rows x num_cols of them, and tells its layout by dtype and strides. */
tgl_status tgl_expect_sf(const char *name, const DLTensor *t, int64_t num_rows, int64_t num_cols, tgl_sf *sf);

/* The same for one that is written: no two factors in one place, and packed ones need round_sf. */
tgl_status tgl_expect_out_sf(const char *name, const DLTensor *t, int64_t num_rows, int64_t num_cols,
                             bool round_sf, tgl_sf *sf);

#endif
