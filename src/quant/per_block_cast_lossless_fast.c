/* SPDX-License-Identifier: MIT
 * per_block_cast_lossless_fast.c - a row of a block of x at a time: its values have one shift, mostly an
 * exact one. */
#include "core/math.h"
#include "quant/common/lanes.h"
#include "quant/per_block_cast_lossless_cpu.h"

/* Columns j .. end - 1 of a row. Returns whether a value changed. */
static __attribute__((noinline)) bool run_inexact(const uint8_t *row, int64_t j, int64_t end, int shift, uint8_t *out)
{
    bool is_inexact = false;
    for (; j < end; j++) {
        const uint32_t code = row[j / 2] >> (j % 2 * 4) & 15;
        out[j] = tgl_lossless(code, shift);
        is_inexact |= tgl_lossless_changes(code, shift);
    }
    return is_inexact;
}

/* The part of row i in block (m, k) of x. Returns whether a value changed. */
TGL_ALWAYS_INLINE bool run_part(const lossless_problem *p, int64_t i, int64_t m, int64_t k, int sf)
{
    const int shift = tgl_lossless_shift(tgl_lossless_x_code(p, m, k), sf);
    const int64_t j = k * p->x_blocks.cols, end = tgl_min(j + p->x_blocks.cols, p->num_cols);
    const uint8_t *row = p->x + i * p->x_stride;
    uint8_t *out = p->out + i * p->num_cols;
    if (shift < TGL_LOSSLESS_MIN_SHIFT || j % 2 || end % 2) return run_inexact(row, j, end, shift, out);
    tgl_run_lossless(row + j / 2, (end - j) / 2, shift, out + j);
    return false;
}

TGL_ALWAYS_INLINE bool run_block(const lossless_problem *p, int64_t m, int64_t k)
{
    const int64_t x_m = m * p->x_rows, x_m_end = tgl_min(x_m + p->x_rows, p->x_blocks.num_rows);
    const int64_t x_k = k * p->x_cols, x_k_end = tgl_min(x_k + p->x_cols, p->x_blocks.num_cols);
    const int sf = tgl_lossless_block_sf(p, m, k);
    tgl_sf_set(&p->sf, m, k, p->blocks.num_cols, tgl_ue8m0_to_f32((uint8_t)sf));
    bool is_inexact = false;
    for (int64_t b = x_m; b < x_m_end; b++) {
        const int64_t row_end = tgl_min((b + 1) * p->x_blocks.rows, p->num_rows);
        for (int64_t i = b * p->x_blocks.rows; i < row_end; i++)
            for (int64_t j = x_k; j < x_k_end; j++) is_inexact |= run_part(p, i, b, j, sf);
    }
    return is_inexact;
}

void TGL_FAST(tgl_lossless_rows)(const void *context, int64_t begin, int64_t end) /* of blocks */
{
    const lossless_problem *p = context;
    bool is_inexact = false;
    for (int64_t m = begin; m < end; m++)
        for (int64_t k = 0; k < p->blocks.num_cols; k++) is_inexact |= run_block(p, m, k);
    if (is_inexact && p->has_inexact) __atomic_store_n(p->inexact, 1, __ATOMIC_RELAXED);
}
