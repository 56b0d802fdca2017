/* SPDX-License-Identifier: MIT
 * histogram_kernel.h - what the kernel and the code that launches it agree on. */
#ifndef TEGULA_MOE_HISTOGRAM_KERNEL_H
#define TEGULA_MOE_HISTOGRAM_KERNEL_H

#include "numerics/divide.h"

#define HISTOGRAM_SHARED_BINS 8192      /* are counted in shared memory; more in the workspace */
#define HISTOGRAM_MAX_THREADS 1024

/* Measured on an H200, 2026-11-15. Up to HISTOGRAM_ONE_BLOCK elements one block takes all: no workspace, and no bin
 * goes through memory. Beyond, blocks get HISTOGRAM_BLOCK_ELEMENTS each, but there are at most HISTOGRAM_MAX_BLOCKS:
 * more of them meet at the same bins too often. */
#define HISTOGRAM_ONE_BLOCK 8192
#define HISTOGRAM_BLOCK_ELEMENTS 2048
#define HISTOGRAM_MAX_BLOCKS 64

/* A thread goes over the indices a unit at a time: a vector (16 bytes) where addresses and rows allow it, else an
 * element. Packed indices are a single row, which may end inside a vector. From one unit of a thread to its next it
 * is step_rows rows and step_units units, step_offset elements, and where that passes the end of a row, wrap_offset
 * more; only the first, whose number is below 2^31, is found by a division. */
typedef struct {
    const void *indices;
    void *out;
    uint32_t *workspace;
    int64_t num_rows, num_cols, row_stride;
    int32_t num_bins;
    int64_t tokens_topk;    /* 0: out has counts */
    /* completed for the launch */
    int64_t unit, row_units, whole_units;
    int64_t step_rows, step_units, step_offset, wrap_offset;
    tgl_divisor by_row_units;
} histogram_args;

#endif
