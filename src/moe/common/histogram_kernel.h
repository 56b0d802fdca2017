/* SPDX-License-Identifier: MIT
 * histogram_kernel.h - what the kernel and the code that launches it agree on. */
#ifndef TEGULA_MOE_HISTOGRAM_KERNEL_H
#define TEGULA_MOE_HISTOGRAM_KERNEL_H

#include "numerics/divide.h"

#define HISTOGRAM_SHARED_BINS 8192 /* max bins counted in shared memory; more: in the workspace */
#define HISTOGRAM_MAX_THREADS 1024

/* Measured on an H200, 2026-11-15. Up to HISTOGRAM_ONE_BLOCK elements one block counts all: no workspace, no
 * bin in global memory. Beyond that, HISTOGRAM_BLOCK_ELEMENTS per block, with at most HISTOGRAM_MAX_BLOCKS
 * blocks: more collide at the same bins too often. */
#define HISTOGRAM_ONE_BLOCK 8192
#define HISTOGRAM_BLOCK_ELEMENTS 2048
#define HISTOGRAM_MAX_BLOCKS 64

/* A thread strides over units of the indices: vectors (16 bytes) if addresses and row lengths allow, else
 * elements. Packed indices are a single row, which may end inside a vector. A step advances step_rows rows
 * and step_units units, that is step_offset elements; past the end of a row it adds wrap_offset. Only the
 * first unit, below 2^31, takes a division. */
typedef struct {
    const void *indices;
    void *out;
    uint32_t *workspace;
    int64_t num_rows, num_cols, row_stride;
    int32_t num_bins;
    int64_t tokens_topk; /* 0: out has counts */
    /* set for the launch */
    int64_t unit, row_units, whole_units;
    int64_t step_rows, step_units, step_offset, wrap_offset;
    tgl_divisor by_row_units;
} histogram_args;

#endif
