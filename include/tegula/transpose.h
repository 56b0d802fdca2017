/* SPDX-License-Identifier: MIT
 * transpose.h - transposes of matrices and of batches of matrices. docs/transpose.md has examples and
 * speed. */
#ifndef TEGULA_TRANSPOSE_H
#define TEGULA_TRANSPOSE_H

#include "tegula/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* tgl_transpose() - out[j][i] = x[i][j]
 *   x    in   [num_rows, num_cols]   elements of 1, 2, 4, 8 or 16 bytes; any strides
 *   out  out  [num_cols, num_rows]   x's dtype; packed
 * Copies bits: NaN payloads and the sign of zero are kept. Any size, 0 included; strides may be 0 or
 * negative. x and out must not overlap. Data is aligned to its element size (complex128: to 8 bytes).
 * Exact: CPU and CUDA agree bit for bit. Since 0.1. */
TGL_API tgl_status tgl_transpose(const DLTensor *x, DLTensor *out, tgl_stream stream);

/* tgl_batched_transpose() - out[b][j][i] = x[b][i][j], in one launch
 *   x    in   [num_batches, num_rows, num_cols]   elements of 1, 2, 4, 8 or 16 bytes; any strides
 *   out  out  [num_batches, num_cols, num_rows]   x's dtype; packed
 * As tgl_transpose(). Since 0.1. */
TGL_API tgl_status tgl_batched_transpose(const DLTensor *x, DLTensor *out, tgl_stream stream);

#ifdef __cplusplus
}
#endif
#endif
