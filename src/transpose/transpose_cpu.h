/* SPDX-License-Identifier: MIT
 * transpose_cpu.h - what the plain and the fast loop of the transposes share. */
#ifndef TEGULA_TRANSPOSE_CPU_H
#define TEGULA_TRANSPOSE_CPU_H

#include <stdbool.h>

#include "core/cpu.h"
#include "core/status.h"
#include "transpose/tile.h"

/* An array of up to three dimensions, copied to another order of strides (in bytes). `rows` is the dimension
 * along which out is contiguous, the rows of x. `cols` is the one along which x is contiguous, or as close to
 * it as it gets; `batches` is the rest. */
typedef struct { int64_t size, x_stride, out_stride; } dimension;
typedef struct {
    const char *x;
    char *out;
    int element_bytes;
    bool is_copy; /* x is contiguous along `rows` too, or has no other dimension; cols, batches: as in out */
    dimension rows, cols, batches;
    union { transpose_tile_args tiles; transpose_copy_args copy; };         /* of the kernel that is chosen */
} transpose_problem;

TGL_DECLARE_FAST(tgl_status, tgl_transpose_tiles, const void *problem);

#endif
