/* SPDX-License-Identifier: MIT
 * per_block_cast_lossless.c - tgl_quant_per_block_cast_lossless: e2m1 with fine powers of two as e4m3 with
 * coarser ones. */
#include "quant/per_block_cast_lossless.h"

#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "quant/common/blocks.h"
#include "quant/common/params.h"
#include "quant/per_block_cast_lossless_cpu.h"

typedef lossless_problem problem;

/* ---- CPU ---- */

/* Block (m, k) of out. Returns whether a value changed. */
static bool cast_block(const problem *p, int64_t m, int64_t k)
{
    const int64_t row_end = tgl_min((m + 1) * p->blocks.rows, p->num_rows);
    const int64_t col_end = tgl_min((k + 1) * p->blocks.cols, p->num_cols);
    const int sf = tgl_lossless_block_sf(p, m, k);
    tgl_sf_set(&p->sf, m, k, p->blocks.num_cols, tgl_ue8m0_to_f32((uint8_t)sf));
    bool is_inexact = false;
    for (int64_t i = m * p->blocks.rows; i < row_end; i++)
        for (int64_t j = k * p->blocks.cols; j < col_end; j++) {
            const uint32_t code = p->x[i * p->x_stride + j / 2] >> (j % 2 * 4) & 15;
            const int part = tgl_lossless_x_code(p, i / p->x_blocks.rows, j / p->x_blocks.cols);
            const int shift = tgl_lossless_shift(part, sf);
            p->out[i * p->num_cols + j] = tgl_lossless(code, shift);
            is_inexact |= tgl_lossless_changes(code, shift);
        }
    return is_inexact;
}

static void run_rows(const void *context, int64_t begin, int64_t end) /* of blocks */
{
    const problem *p = context;
    bool is_inexact = false;
    for (int64_t m = begin; m < end; m++)
        for (int64_t k = 0; k < p->blocks.num_cols; k++) is_inexact |= cast_block(p, m, k);
    if (is_inexact && p->has_inexact) __atomic_store_n(p->inexact, 1, __ATOMIC_RELAXED);
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const int64_t rows = tgl_min(p->blocks.rows, p->num_rows);
    return tgl_parallel_rows(p->blocks.num_rows, 2 * rows * p->num_cols, TGL_CHOOSE(run_rows, tgl_lossless_rows), p);
}

TGL_SIZES(sizes, num_rows, num_cols);
tgl_signature tgl_quant_per_block_cast_lossless_signature = TGL_SIGNATURE(
    "quant_per_block_cast_lossless(x: e2m1[num_rows, num_cols] rows,"
    " x_sf: sf[num_rows / x_num_per_tokens, num_cols / x_num_per_channels], num_per_tokens: int = 1,"
    " num_per_channels: int = num_cols, x_num_per_tokens: int = 1, x_num_per_channels: int = num_cols)"
    " -> out: e4m3[num_rows, num_cols], out_sf: sf[num_rows / num_per_tokens, num_cols / num_per_channels],"
    " inexact: i32[1]?!"
    " where num_cols < 2^59, num_per_tokens % x_num_per_tokens,"
    " num_per_channels % x_num_per_channels if num_cols > num_per_channels",
    &TGL_QUANT_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

static bool is_power_of_two(int64_t n) { return (n & (n - 1)) == 0; }

/* Is there a kernel with tiles for these blocks? */
static bool has_tiles(const problem *p)
{
    return LOSSLESS_HAS(p->blocks.rows, p->blocks.cols) && p->x_blocks.cols >= LOSSLESS_VALUES &&
           is_power_of_two(p->x_blocks.cols);
}

enum { TILES, ANY, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    kernels[TILES] = (tgl_kernel){ has_tiles(p) ? "quant/per_block_cast_lossless" : NULL,
                                   { { "BLOCK_ROWS", p->blocks.rows },
                                     { "BLOCK_COLS", p->blocks.cols },
                                     { "X_SF_KIND", p->x_sf.kind },
                                     { "SF_KIND", p->sf.kind } } };
    kernels[ANY] = (tgl_kernel){ .name = "quant/per_block_cast_lossless_any" };
    return NUM_KERNELS;
}

static tgl_lossless_cast cast_of(const problem *p)
{
    const tgl_blocks *xb = &p->x_blocks;
    return (tgl_lossless_cast){ .x = p->x,
                                .x_row_bytes = p->x_stride,
                                .out = p->out,
                                .x_sf = p->x_sf,
                                .sf = p->sf,
                                .num_rows = p->num_rows,
                                .num_cols = p->num_cols,
                                .num_sf = p->blocks.num_cols,
                                .x_block_rows = xb->rows,
                                .x_block_cols = xb->cols,
                                .by_x_block_rows = tgl_divisor_of(xb->rows),
                                .by_x_block_cols = tgl_divisor_of(xb->cols),
                                .inexact = p->has_inexact ? p->inexact : NULL };
}

static int64_t tiles_down(const problem *p) { return tgl_ceil_div(p->num_rows, LOSSLESS_TILE_ROWS(p->blocks.rows)); }

static int64_t tiles_across(const problem *p) { return tgl_ceil_div(p->num_cols, LOSSLESS_TILE_COLS(p->blocks.rows)); }

static bool fits_tiles(const void *context, const tgl_target *target)
{
    const problem *p = context;
    const uintptr_t x_bits = (uintptr_t)p->x | (uintptr_t)p->x_stride;
    return p->num_cols % LOSSLESS_VALUES == 0 && x_bits % 8 == 0 && (uintptr_t)p->out % 16 == 0 &&
           tiles_down(p) <= INT32_MAX / tiles_across(p);
}

static tgl_shape tiles_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const int64_t tiles = tiles_across(p);
    p->args.tiles = (lossless_args){ cast_of(p), (uint32_t)tiles, tgl_divisor_of(tiles) };
    return (tgl_shape){ { tiles_down(p) * tiles }, .block = LOSSLESS_THREADS, TGL_ARGS(p->args.tiles) };
}

static tgl_shape any_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const tgl_blocks *b = &p->blocks;
    p->args.any =
        (lossless_any_args){ cast_of(p), tgl_groups_of(p->num_rows, b->rows, b->cols, b->num_rows, b->num_cols, 1) };
    return (tgl_shape){ { tgl_strided_grid(tgl_groups_grid(&p->args.any.groups), INT32_MAX) },
                        .block = 32 * GROUP_WARPS,
                        TGL_ARGS(p->args.any) };
}

static const tgl_op OP = { cpu,
                           plan,
                           { [TILES] = { fits_tiles, NULL, tiles_shape }, [ANY] = { NULL, NULL, any_shape } } };

tgl_status tgl_quant_per_block_cast_lossless(const DLTensor *x, const DLTensor *x_sf, DLTensor *out, DLTensor *out_sf,
                                             DLTensor *inexact, const tgl_quant_params *params, tgl_stream stream)
{
    const DLTensor *tensors[] = { x, x_sf, out, out_sf, inexact };
    sizes n;
    TGL_TRY(tgl_take(&tgl_quant_per_block_cast_lossless_signature, tensors, params, &n.num_rows));
    if (n.num_cols == 0 || (n.num_rows == 0 && !tgl_preparing())) return TGL_OK; /* inexact stays as it is */
    const tgl_blocks x_blocks =
        tgl_blocks_of(n.num_rows, n.num_cols, params->x_num_per_tokens, params->x_num_per_channels);
    const tgl_blocks b = tgl_blocks_of(n.num_rows, n.num_cols, params->num_per_tokens, params->num_per_channels);
    problem p = { .num_rows = n.num_rows,
                  .num_cols = n.num_cols,
                  .x = tgl_data(x),
                  .x_stride = tgl_step_of(x, 0),
                  .x_sf = tgl_sf_of(x_sf),
                  .sf = tgl_sf_of(out_sf),
                  .x_blocks = x_blocks,
                  .blocks = b,
                  .x_rows = b.rows / x_blocks.rows,
                  .x_cols = b.num_cols > 1 ? b.cols / x_blocks.cols : x_blocks.num_cols,
                  .out = tgl_data(out),
                  .has_inexact = inexact,
                  .inexact = tgl_data_or_null(inexact) };
    return tgl_run(&tgl_quant_per_block_cast_lossless_signature, &OP, tensors, &p, stream);
}
