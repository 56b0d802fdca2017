/* SPDX-License-Identifier: MIT
 * per_block_cast_any.cu - blocks of any size, at any address.
 *   computes  per block a factor from its amax, and the codes of x / factor
 *   launch    group.h's: block 32 * GROUP_WARPS
 *   moves     out and all factors once, x twice: the second time from L1 or L2, unless a block is larger
 *   macros    X       X_BF16, X_F32
 *             FORMAT  TGL_FORMAT_E4M3, _E2M1
 *
 * A group of threads goes through its block value by value (e2m1: pair by pair). It has two adjacent blocks
 * if they share bytes of e2m1. */
#include "quant/common/divide.cuh"
#include "quant/common/group.cuh"
#include "quant/per_block_cast.cuh"

static_assert(X == X_BF16 || X == X_F32, "X is X_BF16 or X_F32");
static_assert(FORMAT == TGL_FORMAT_E4M3 || FORMAT == TGL_FORMAT_E2M1, "FORMAT is e4m3 or e2m1");

enum { UNIT = FORMAT == TGL_FORMAT_E4M3 ? 1 : 2, MAX_SPAN = 2 };

extern "C" __global__ void __launch_bounds__(32 * GROUP_WARPS) per_block_cast_any(const per_block_cast_any_args a)
{
    const tgl_block_cast c = a.cast;
    const tgl_groups &g = a.groups;
    const u32 size = 32 * g.warps, groups = GROUP_WARPS / g.warps, thread = threadIdx.x % size;
    pdl_wait();
#pragma unroll 1
    for (i64 i = (i64)blockIdx.x * groups + threadIdx.x / size; i < g.total; i += (i64)gridDim.x * groups) {
        const i64 m = divide(i, g.num_spans, g.by_num_spans), k = (i - m * g.num_spans) * g.span;
        const i64 row = m * g.block_rows, rows = min(g.block_rows, c.num_rows - row);
        const i64 col = k * g.block_cols, cols = min(g.block_cols * g.span, c.num_cols - col);
        const u8 *from = c.x + row * c.x_row_bytes + col * (X == X_BF16 ? 2 : 4);
        u32 amax[MAX_SPAN] = { 0, 0 };
#pragma unroll 1
        for (walk w = walk_from(thread, size, cols / UNIT); w.row < rows; walk_on(w))
#pragma unroll
            for (int j = 0; j < UNIT; j++) {
                const i64 at = w.col * UNIT + j;
                const u32 found = amax_of(value_at<X>(from + w.row * c.x_row_bytes, at));
                amax[0] = max(amax[0], at < g.block_cols ? found : 0);
                amax[1] = max(amax[1], at < g.block_cols ? 0 : found);
            }
        max_of_group(amax, g.warps);
        tgl_scale scale[MAX_SPAN];
#pragma unroll
        for (int s = 0; s < MAX_SPAN; s++) {
            scale[s] = tgl_scale_of(__uint_as_float(amax[s]), a.rule);
            if (thread == 0 && s < g.span && k + s < c.num_sf)
                store_factor(c.sf, m, k + s, k + s == c.num_sf - 1, scale[s].sf);
        }
        if (!c.out) continue;
        u8 *to = c.out + tgl_code_bytes(FORMAT, row * c.num_cols + col);
#pragma unroll 1
        for (walk w = walk_from(thread, size, cols / UNIT); w.row < rows; walk_on(w)) {
            float v[UNIT];
#pragma unroll
            for (int j = 0; j < UNIT; j++) {
                const i64 at = w.col * UNIT + j;
                const float inv = at < g.block_cols ? scale[0].inv : scale[1].inv;
                v[j] = value_at<X>(from + w.row * c.x_row_bytes, at) * inv;
            }
            store_codes<FORMAT>(to + tgl_code_bytes(FORMAT, w.row * c.num_cols) + w.col, v);
        }
    }
    pdl_trigger();
}
