/* SPDX-License-Identifier: MIT
 * transpose_cpu.h - what the plain and the fast loop of the transposes share. */
#ifndef TEGULA_TRANSPOSE_CPU_H
#define TEGULA_TRANSPOSE_CPU_H

#include <stdbool.h>

#include "core/cpu.h"
#include "core/status.h"
#include "transpose/tile.h"

/* An array of up to three dimensions, copied to another order of strides (in bytes). out is contiguous along
 * `rows`. `cols` has the smallest stride in x of the other two; `batches` is the third. */
typedef struct { int64_t size, x_stride, out_stride; } dimension;
typedef struct {
    const char *x;
    char *out;
    int element_bytes;
    bool is_copy; /* x is contiguous along `rows` too, or has no other dimension; the others in out's order */
    dimension rows, cols, batches;
    union {
        transpose_tile_args tiles;
        transpose_copy_args copy;
    }; /* of the chosen kernel */
} transpose_problem;

TGL_DECLARE_FAST(tgl_status, tgl_transpose_tiles, const void *problem);

#endif
