/* SPDX-License-Identifier: MIT
 * tegula_scale.h - what would stand in include/tegula: the manual of the op. */
#include "tegula/core.h"

/* out = x * c, in f32, rounded once to out's dtype (e4m3 saturates).
 *     x    bf16, f32, e4m3 [num_rows, num_cols], rows  packed rows, any distance apart
 *     out  as x                                        may be x itself
 * A NaN gives the same NaN everywhere. Exact: CPU and GPU give the same bits. */
tgl_status tgl_scale(const DLTensor *x, float c, DLTensor *out, tgl_stream stream);
