/* SPDX-License-Identifier: MIT
 * transpose_fast.c - transposes on the CPU in tiles, and copies.
 *
 * Tiles are made of squares that are transposed in registers. If rows of out are far apart, a tile goes
 * through a buffer on the stack, so that out is written in whole runs. Tiles go down the rows of x: rows of
 * out continue in the same pages as in the previous tile, but every row of x is in a new page, so x has the
 * longer runs. On one core (Neoverse-N1) 4096x7168 of 4 bytes take 20 ms; with runs of 256 bytes on both
 * sides, 60. */
#include <string.h>

#include "core/math.h"
#include "transpose/square.h"
#include "core/threads.h"
#include "transpose/transpose_cpu.h"

enum {
    CPU_OUT_BYTES = 192,       /* of a row of out in a tile; 2^n would use few sets of the cache */
    CPU_X_BYTES = 1024,        /* of a row of x in a tile, at most, */
    CPU_MAX_COLS = 256,        /* and at most this many elements */
    CPU_NEAR_BYTES = 64 << 10, /* rows of out within this many bytes need no buffer */
    CPU_COPY_BYTES = 64 << 10  /* of a piece of a plain copy */
};
static int64_t cpu_tile_rows(int element_bytes) { return CPU_OUT_BYTES / element_bytes; }
static int64_t cpu_tile_cols(int element_bytes) { return tgl_min(CPU_X_BYTES / element_bytes, CPU_MAX_COLS); }

/* tgl_elements() of at most a tile. */
TGL_ALWAYS_INLINE void tile(const transpose_problem *p, const char *x, char *out, int64_t rows, int64_t cols,
                            char *buffer, int e)
{
    const int64_t row_stride = p->rows.x_stride, out_stride = p->cols.out_stride;
    const int64_t n = 16 / e, square_rows = rows / n * n, square_cols = cols / n * n;
    if (p->cols.x_stride != e || e == 16 || square_rows == 0 || square_cols == 0) {
        tgl_elements(x, row_stride, p->cols.x_stride, out, out_stride, rows, cols, e);
        return;
    }
    const bool is_near = out_stride * cols <= CPU_NEAR_BYTES;
    char *to = is_near ? out : buffer;
    const int64_t stride = is_near ? out_stride : CPU_OUT_BYTES;
    for (int64_t i = 0; i < square_rows; i += n)
        for (int64_t j = 0; j < square_cols; j += n)
            tgl_square(x + i * row_stride + j * e, row_stride, to + j * stride + i * e, stride, e);
    const int64_t more_rows = rows - square_rows, more_cols = cols - square_cols;
    tgl_elements(x + square_cols * e, row_stride, e, to + square_cols * stride, stride, rows, more_cols, e);
    tgl_elements(x + square_rows * row_stride, row_stride, e, to + square_rows * e, stride, more_rows, square_cols, e);
    if (is_near) return;
    for (int64_t j = 0; j < cols; j++) {
        const char *from = buffer + j * CPU_OUT_BYTES;
        if (rows * e == CPU_OUT_BYTES) memcpy(out + j * out_stride, from, CPU_OUT_BYTES); /* inline */
        else memcpy(out + j * out_stride, from, (size_t)(rows * e));
    }
}

static void cpu_tiles(const void *context, int64_t begin, int64_t end) /* tiles, down the rows of x first */
{
    const transpose_problem *p = context;
    const int e = p->element_bytes;
    const int64_t tile_rows = cpu_tile_rows(e), row_tiles = tgl_ceil_div(p->rows.size, tile_rows);
    const int64_t tile_cols = cpu_tile_cols(e), col_tiles = tgl_ceil_div(p->cols.size, tile_cols);
    char buffer[CPU_MAX_COLS * CPU_OUT_BYTES] __attribute__((aligned(64)));
    int64_t row_tile = begin % row_tiles, col_tile = begin / row_tiles % col_tiles;
    int64_t batch = begin / row_tiles / col_tiles;
    for (int64_t t = begin; t < end; t++) {
        const int64_t i = row_tile * tile_rows, rows = tgl_min(tile_rows, p->rows.size - i);
        const int64_t j = col_tile * tile_cols, cols = tgl_min(tile_cols, p->cols.size - j);
        const char *x = p->x + i * p->rows.x_stride + j * p->cols.x_stride + batch * p->batches.x_stride;
        char *out = p->out + i * e + j * p->cols.out_stride + batch * p->batches.out_stride;
        switch (e) {
        case 1: tile(p, x, out, rows, cols, buffer, 1); break;
        case 2: tile(p, x, out, rows, cols, buffer, 2); break;
        case 4: tile(p, x, out, rows, cols, buffer, 4); break;
        case 8: tile(p, x, out, rows, cols, buffer, 8); break;
        default: tile(p, x, out, rows, cols, buffer, 16); break;
        }
        if (++row_tile < row_tiles) continue;
        row_tile = 0;
        if (++col_tile < col_tiles) continue;
        col_tile = 0;
        batch++;
    }
}

static void cpu_copy(const void *context, int64_t begin, int64_t end) /* pieces of the rows of out */
{
    const transpose_problem *p = context;
    const int e = p->element_bytes;
    const int64_t piece = CPU_COPY_BYTES / e, pieces = tgl_ceil_div(p->rows.size, piece);
    const int64_t stride = p->rows.x_stride;
    for (int64_t t = begin; t < end; t++) {
        const int64_t i = t % pieces * piece, count = tgl_min(piece, p->rows.size - i);
        const int64_t j = t / pieces % p->cols.size, batch = t / pieces / p->cols.size;
        const char *x = p->x + i * stride + j * p->cols.x_stride + batch * p->batches.x_stride;
        char *out = p->out + i * e + j * p->cols.out_stride + batch * p->batches.out_stride;
        if (stride == e) {
            memcpy(out, x, (size_t)(count * e));
            continue;
        }
        switch (e) { /* there is only one row, not contiguous in x */
        case 1: tgl_elements(x, stride, 0, out, 0, count, 1, 1); break;
        case 2: tgl_elements(x, stride, 0, out, 0, count, 1, 2); break;
        case 4: tgl_elements(x, stride, 0, out, 0, count, 1, 4); break;
        case 8: tgl_elements(x, stride, 0, out, 0, count, 1, 8); break;
        default: tgl_elements(x, stride, 0, out, 0, count, 1, 16); break;
        }
    }
}

tgl_status TGL_FAST(tgl_transpose_tiles)(const void *context)
{
    const transpose_problem *p = context;
    const int e = p->element_bytes;
    const int64_t rows = p->rows.size, cols = p->cols.size, batches = p->batches.size;
    if (p->is_copy) {
        const int64_t pieces = tgl_ceil_div(rows, CPU_COPY_BYTES / e);
        return tgl_parallel_rows(pieces * cols * batches, 2 * e * (rows / pieces), cpu_copy, p);
    }
    const int64_t tiles = tgl_ceil_div(rows, cpu_tile_rows(e)) * tgl_ceil_div(cols, cpu_tile_cols(e));
    return tgl_parallel_rows(tiles * batches, 2 * e * (rows * cols / tiles), cpu_tiles, p);
}
