/* SPDX-License-Identifier: MIT
 * strip.h - how elementwise kernels cover a matrix, and find the factors.
 *
 * A unit is what a thread loads and stores at a time. A thread block has a tile, 2^log_width units wide; a
 * thread has `rows` units of the same columns, STRIP_THREADS >> log_width rows apart: what depends on columns
 * is computed once. */
#ifndef TEGULA_QUANT_STRIP_H
#define TEGULA_QUANT_STRIP_H

#ifndef __CUDACC__
#include <stdbool.h>

#include "core/math.h"
#endif

#include "numerics/divide.h"
#include "quant/common/scale.h"

#define STRIP_THREADS 256
#define STRIP_MAX_ROWS 4 /* of a thread; else 2 or 1 */
/* From this many blocks per SM on, threads have STRIP_MAX_ROWS, or two rows; with fewer blocks, fewer rows.
 * Two rows come early: in a small matrix, launching a block takes longer than another row of a thread (H200,
 * 2026-11). */
#define STRIP_SM_BLOCKS 8
#define STRIP_SM_PAIR_BLOCKS 1

/* In the order of use: if rows are few, every 64 bytes of arguments are a wait. */
typedef struct {
    tgl_divisor by_num_tiles;
    uint32_t num_tiles; /* across */
    int32_t log_width;
    int32_t rows;
    int32_t unit; /* columns */
    int64_t num_rows, num_cols;
    tgl_divisor by_block_rows, by_block_cols;
    int64_t block_rows, block_cols;
} tgl_strip;

#ifndef __CUDACC__

/* Tiles across, and their width: at most one thread in 8 is idle. num_cols is a multiple of unit. */
static inline int64_t tgl_strip_tiles(int64_t num_cols, int unit, int *log_width)
{
    const int64_t units = num_cols / unit;
    *log_width = 8; /* 256 */
    while ((-units & ((1 << *log_width) - 1)) > units / 8) (*log_width)--;
    return (units + (1 << *log_width) - 1) >> *log_width;
}

/* Thread blocks, if threads have `rows` rows. */
static inline int64_t tgl_strip_blocks(int64_t num_rows, int64_t num_cols, int unit, int rows)
{
    int log_width;
    const int64_t num_tiles = tgl_strip_tiles(num_cols, unit, &log_width);
    return num_tiles * tgl_ceil_div(num_rows, (STRIP_THREADS >> log_width) * rows);
}

/* The rows of a thread. */
static inline int tgl_strip_rows(int64_t num_rows, int64_t num_cols, int unit, int num_sms)
{
    const int64_t sm_blocks = tgl_strip_blocks(num_rows, num_cols, unit, 1) / num_sms;
    return sm_blocks >= STRIP_MAX_ROWS * STRIP_SM_BLOCKS ? STRIP_MAX_ROWS
           : sm_blocks >= 2 * STRIP_SM_PAIR_BLOCKS       ? 2
                                                         : 1;
}

static inline tgl_strip tgl_strip_of(int64_t num_rows, int64_t num_cols, int64_t block_rows, int64_t block_cols,
                                     int unit, int rows)
{
    int log_width;
    const int64_t num_tiles = tgl_strip_tiles(num_cols, unit, &log_width);
    return (tgl_strip){ .by_num_tiles = tgl_divisor_of(num_tiles),
                        .num_tiles = (uint32_t)num_tiles,
                        .log_width = log_width,
                        .rows = rows,
                        .unit = unit,
                        .num_rows = num_rows,
                        .num_cols = num_cols,
                        .by_block_rows = tgl_divisor_of(block_rows),
                        .by_block_cols = tgl_divisor_of(block_cols),
                        .block_rows = block_rows,
                        .block_cols = block_cols };
}

/* Are all rows and columns that threads compute, past the end too, below 2^31? */
static inline bool tgl_strip_is_short(int64_t num_rows, int64_t num_cols, int unit)
{
    const int64_t limit = TGL_DIVIDE_LIMIT - STRIP_THREADS * tgl_max(unit, STRIP_MAX_ROWS);
    return num_rows < limit && num_cols < limit;
}

#endif
#endif
