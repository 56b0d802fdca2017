/* SPDX-License-Identifier: MIT
 * histogram_kernel.h - what the kernel and the code that launches it agree on. */
#ifndef TEGULA_MOE_HISTOGRAM_KERNEL_H
#define TEGULA_MOE_HISTOGRAM_KERNEL_H

#include "numerics/divide.h"

#define HISTOGRAM_SHARED_BINS 8192      /* counted in shared memory; more of them in the workspace */
#define HISTOGRAM_MAX_THREADS 1024

/* How a thread goes over the indices, a unit at a time: a vector (16 bytes) where addresses and rows allow
 * it, else an element. Packed indices come as a single row, which may end inside of a vector. From one unit
 * of a thread to the next it is step_rows rows and step_units units, step_offset elements, and where that
 * passes the end of a row, wrap_offset more; only the first, which has a number below 2^31, is found by a
 * division. */
typedef struct {
    int64_t num_rows, num_cols, row_stride;
    int64_t unit, row_units, whole_units;
    int64_t step_rows, step_units, step_offset, wrap_offset;
    tgl_divisor by_row_units;
} histogram_walk;

#endif
