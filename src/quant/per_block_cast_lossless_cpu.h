/* SPDX-License-Identifier: MIT
 * per_block_cast_lossless_cpu.h - what the plain and the fast loop of per_block_cast_lossless share. */
#ifndef TEGULA_QUANT_PER_BLOCK_CAST_LOSSLESS_CPU_H
#define TEGULA_QUANT_PER_BLOCK_CAST_LOSSLESS_CPU_H

#include "core/cpu.h"
#include "core/math.h"
#include "quant/common/blocks.h"
#include "quant/lossless.h"
#include "quant/per_block_cast_lossless.h"

typedef struct {
    int64_t num_rows, num_cols;
    const uint8_t *x;
    int64_t x_stride; /* row stride in bytes */
    tgl_sf x_sf, sf;
    tgl_blocks x_blocks, blocks; /* a block of out is x_rows by x_cols whole blocks of x */
    int64_t x_rows, x_cols;
    uint8_t *out;
    bool has_inexact;
    int32_t *inexact;
    union {
        lossless_args tiles;
        lossless_any_args any;
    } args;
} lossless_problem;

/* Rows begin .. end - 1 of blocks. */
TGL_DECLARE_FAST(void, tgl_lossless_rows, const void *context, int64_t begin, int64_t end);

/* The code of the factor of x's block (m, k). */
TGL_ALWAYS_INLINE int tgl_lossless_x_code(const lossless_problem *p, int64_t m, int64_t k)
{
    return (int)tgl_sf_code_of(tgl_sf_get(&p->x_sf, m, k));
}

/* The code of the factor of block (m, k) of out. */
TGL_ALWAYS_INLINE int tgl_lossless_block_sf(const lossless_problem *p, int64_t m, int64_t k)
{
    const int64_t x_m = m * p->x_rows, x_m_end = tgl_min(x_m + p->x_rows, p->x_blocks.num_rows);
    const int64_t x_k = k * p->x_cols, x_k_end = tgl_min(x_k + p->x_cols, p->x_blocks.num_cols);
    int largest = 0;
    for (int64_t i = x_m; i < x_m_end; i++)
        for (int64_t j = x_k; j < x_k_end; j++) {
            const int code = tgl_lossless_x_code(p, i, j);
            largest = code > largest ? code : largest;
        }
    return tgl_lossless_sf(largest);
}

#endif
