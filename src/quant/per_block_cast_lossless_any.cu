/* SPDX-License-Identifier: MIT
 * per_block_cast_lossless_any.cu - per_block_cast_lossless for blocks of any size, at any address.
 *   computes  as per_block_cast_lossless.cu
 *   launch    group.h's: block 32 * GROUP_WARPS
 *   moves     x and out once; the factors of x once, then once for each value, from L1
 *   macros    none */
#include "quant/common/divide.cuh"
#include "quant/common/group.cuh"
#include "quant/lossless.h"
#include "quant/per_block_cast.cuh"
#include "quant/per_block_cast_lossless.h"

extern "C" __global__ void __launch_bounds__(32 * GROUP_WARPS) per_block_cast_lossless_any(const lossless_any_args a)
{
    const tgl_lossless_cast &c = a.cast;
    const tgl_groups &g = a.groups;
    const u32 size = 32 * g.warps, groups = GROUP_WARPS / g.warps, thread = threadIdx.x % size;
    bool is_inexact = false;
    pdl_wait();
#pragma unroll 1
    for (i64 i = (i64)blockIdx.x * groups + threadIdx.x / size; i < g.total; i += (i64)gridDim.x * groups) {
        const i64 m = divide(i, g.num_spans, g.by_num_spans), k = i - m * g.num_spans;
        const i64 row = m * g.block_rows, rows = min(g.block_rows, c.num_rows - row);
        const i64 col = k * g.block_cols, cols = min(g.block_cols, c.num_cols - col);
        /* the first block of x in it, and their number */
        const i64 x_m = divide(row, c.x_block_rows, c.by_x_block_rows);
        const i64 x_k = divide(col, c.x_block_cols, c.by_x_block_cols);
        const i64 x_rows = divide(rows - 1, c.x_block_rows, c.by_x_block_rows) + 1;
        const i64 x_cols = divide(cols - 1, c.x_block_cols, c.by_x_block_cols) + 1;
        u32 largest[1] = { 0 };
#pragma unroll 1
        for (walk w = walk_from(thread, size, x_cols); w.row < x_rows; walk_on(w))
            largest[0] = max(largest[0], tgl_sf_code_of(tgl_sf_get(&c.x_sf, x_m + w.row, x_k + w.col)));
        max_of_group(largest, g.warps);
        const int factor = tgl_lossless_sf((int)largest[0]);
        if (thread == 0) store_factor(c.sf, m, k, k == c.num_sf - 1, tgl_ue8m0_to_f32((u8)factor));
#pragma unroll 1
        for (walk w = walk_from(thread, size, cols); w.row < rows; walk_on(w)) {
            const i64 at_row = row + w.row, at_col = col + w.col;
            const i64 at_m = x_m + divide(w.row, c.x_block_rows, c.by_x_block_rows);
            const i64 at_k = x_k + divide(w.col, c.x_block_cols, c.by_x_block_cols);
            const int shift = tgl_lossless_shift((int)tgl_sf_code_of(tgl_sf_get(&c.x_sf, at_m, at_k)), factor);
            const u32 pair = c.x[at_row * c.x_row_bytes + at_col / 2];
            const u32 code = at_col % 2 ? pair >> 4 : pair & 15;
            c.out[at_row * c.num_cols + at_col] = tgl_lossless(code, shift);
            is_inexact |= tgl_lossless_changes(code, shift);
        }
    }
    if (is_inexact && c.inexact) store_relaxed_u32(c.inexact, 1);
    pdl_trigger();
}
