/* SPDX-License-Identifier: MIT
 * mask_indices_by_tp.h - what host and kernel of mask_indices_by_tp agree on. */
#ifndef TEGULA_MOE_MASK_INDICES_BY_TP_H
#define TEGULA_MOE_MASK_INDICES_BY_TP_H

#include "moe/common/tp_mask.h"

#define MASK_THREADS 128
#define MASK_BLOCKS 2112 /* max: as many as an H200 holds, 16 on each of 132 SMs */

/* A unit is what a thread loads at a time: a vector (16 bytes) if addresses and row lengths allow, else an
 * element. A step advances step_rows rows and step_units units. */
typedef struct {
    const void *indices;
    void *out;
    int64_t num_rows, num_cols, row_stride;
    tgl_tp_mask mask;
    int64_t row_units, step_rows, step_units;
    tgl_divisor by_row_units;
    int32_t unit;        /* elements */
    int32_t index_bytes; /* a macro in the kernel */
} mask_args;

#endif
