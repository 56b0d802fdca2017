/* SPDX-License-Identifier: MIT
 * strip.h - how kernels that treat each value alone cover a matrix, and what they need to find the factors.
 *
 * Rows are cut into units, what a thread loads and stores at a time. A block of threads has a tile,
 * 2^log_width units wide; a thread has `rows` units of it below each other, STRIP_THREADS >> log_width rows
 * apart: so what depends on columns is found once. */
#ifndef TEGULA_QUANT_STRIP_H
#define TEGULA_QUANT_STRIP_H

#ifndef __CUDACC__
#include <stdbool.h>
#endif

#include "numerics/divide.h"
#include "quant/common/scale.h"

#define STRIP_THREADS 256
#define STRIP_MAX_ROWS 4        /* of a thread; else 2 or 1 */
/* Blocks an SM where threads have STRIP_MAX_ROWS, and two rows; fewer rows where there would be less. Two
 * soon: of a small matrix, what it takes to launch a block is more than another row in a thread (cast_back.c
 * goes further: make_one_wave). */
#define STRIP_SM_BLOCKS 8
#define STRIP_SM_PAIR_BLOCKS 1

/* In the order of their use: a few rows wait for every 64 bytes of arguments. */
typedef struct {
    tgl_divisor by_num_tiles;
    uint32_t num_tiles;         /* side by side */
    int32_t log_width;
    int32_t rows;
    int32_t unit;               /* columns */
    int64_t num_rows, num_cols;
    tgl_divisor by_block_rows, by_block_cols;
    int64_t block_rows, block_cols;
} tgl_strip;

#ifndef __CUDACC__

/* num_cols is a multiple of unit. */
static inline tgl_strip tgl_strip_of(int64_t num_rows, int64_t num_cols, int64_t block_rows,
                                     int64_t block_cols, int unit, int num_sms)
{
    const int64_t units = num_cols / unit;
    int log_width = 8;                      /* 256 */
    while ((-units & ((1 << log_width) - 1)) > units / 8) log_width--;      /* one in 8 threads may be idle */
    const int64_t num_tiles = (units + (1 << log_width) - 1) >> log_width;
    const int64_t step = STRIP_THREADS >> log_width, num_blocks = num_tiles * ((num_rows + step - 1) / step);
    const int64_t sm_blocks = num_blocks / num_sms;
    return (tgl_strip){
        .by_num_tiles = tgl_divisor_of(num_tiles), .num_tiles = (uint32_t)num_tiles, .log_width = log_width,
        .rows = sm_blocks >= STRIP_MAX_ROWS * STRIP_SM_BLOCKS ? STRIP_MAX_ROWS
                : sm_blocks >= 2 * STRIP_SM_PAIR_BLOCKS       ? 2 : 1,
        .unit = unit, .num_rows = num_rows, .num_cols = num_cols,
        .by_block_rows = tgl_divisor_of(block_rows), .by_block_cols = tgl_divisor_of(block_cols),
        .block_rows = block_rows, .block_cols = block_cols
    };
}

/* Are all numbers of rows and columns that a thread meets below 2^31? */
static inline bool tgl_strip_is_short(const tgl_strip *s)
{
    const int64_t most = s->unit > STRIP_MAX_ROWS ? s->unit : STRIP_MAX_ROWS;
    const int64_t limit = TGL_DIVIDE_LIMIT - STRIP_THREADS * most;
    return s->num_rows < limit && s->num_cols < limit;
}

/* Blocks of threads. */
static inline int64_t tgl_strip_grid(const tgl_strip *s)
{
    const int64_t tile_rows = (int64_t)(STRIP_THREADS >> s->log_width) * s->rows;
    return s->num_tiles * ((s->num_rows + tile_rows - 1) / tile_rows);
}

#endif
#endif
