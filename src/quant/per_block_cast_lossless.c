/* SPDX-License-Identifier: MIT
 * per_block_cast_lossless.c - tgl_quant_per_block_cast_lossless: e2m1 with fine powers of two as e4m3 with
 * coarser ones. */
#include "quant/per_block_cast_lossless.h"

#include <inttypes.h>

#include "core/clones.h"
#include "core/log.h"
#include "core/threads.h"
#include "cuda/launch.h"
#include "quant/check.h"
#include "quant/group.h"
#include "quant/lanes.h"
#include "quant/lossless.h"

typedef struct {
    int64_t num_rows, num_cols;
    const uint8_t *x;
    int64_t x_stride;               /* bytes from a row to the next */
    tgl_sf x_sf, sf;
    tgl_blocks x_blocks, blocks;    /* a block of `blocks` is made of whole ones of x_blocks */
    uint8_t *out;
    bool has_inexact;
    int32_t *inexact;
} problem;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- CPU ---- */

TGL_CLONES
static void run_exact(const uint8_t *restrict x, int64_t num_pairs, int shift, uint8_t *restrict out)
{
    for (int64_t i = tgl_lanes_lossless(x, num_pairs, shift, out); i < num_pairs; i++) {
        out[2 * i] = tgl_lossless_exact(x[i] & 15, shift);
        out[2 * i + 1] = tgl_lossless_exact(x[i] >> 4, shift);
    }
}

/* Columns j .. end - 1 of a row, all of one block of x. Did a value change? */
static bool run_columns(const uint8_t *row, int64_t j, int64_t end, int shift, uint8_t *out)
{
    if (shift >= TGL_LOSSLESS_MIN_SHIFT && j % 2 == 0 && end % 2 == 0) {
        run_exact(row + j / 2, (end - j) / 2, shift, out + j);
        return false;
    }
    bool is_inexact = false;
    for (; j < end; j++) {
        const uint32_t code = row[j / 2] >> (j % 2 * 4) & 15;
        out[j] = tgl_lossless(code, shift);
        is_inexact |= tgl_lossless_changes(code, shift);
    }
    return is_inexact;
}

static int largest_code(const problem *p, int64_t m, int64_t m_end, int64_t k, int64_t k_end)
{
    uint32_t largest = 0;
    for (int64_t i = m; i < m_end; i++)
        for (int64_t j = k; j < k_end; j++) {
            const uint32_t code = tgl_sf_code_of(tgl_sf_get(&p->x_sf, i, j));
            largest = code > largest ? code : largest;
        }
    return (int)largest;
}

static bool run_block(const problem *p, int64_t m, int64_t k)
{
    const tgl_blocks *in = &p->x_blocks, *of = &p->blocks;
    const int64_t row = m * of->rows, row_end = least(row + of->rows, p->num_rows);
    const int64_t col = k * of->cols, col_end = least(col + of->cols, p->num_cols);
    const int64_t x_k = col / in->cols, x_k_end = (col_end - 1) / in->cols + 1;
    const int64_t x_m = row / in->rows, x_m_end = (row_end - 1) / in->rows + 1;
    const int sf = tgl_lossless_sf(largest_code(p, x_m, x_m_end, x_k, x_k_end));
    tgl_sf_set(&p->sf, m, k, of->num_cols, tgl_ue8m0_to_f32((uint8_t)sf));
    bool is_inexact = false;
    for (int64_t i = row; i < row_end; i++)
        for (int64_t b = x_k; b < x_k_end; b++) {
            const int shift = (int)tgl_sf_code_of(tgl_sf_get(&p->x_sf, i / in->rows, b)) - sf;
            const int64_t j = b * in->cols, end = least(j + in->cols, col_end);
            is_inexact |= run_columns(p->x + i * p->x_stride, j, end, shift, p->out + i * p->num_cols);
        }
    return is_inexact;
}

static void run_rows(const void *context, int64_t begin, int64_t end)       /* of blocks */
{
    const problem *p = context;
    bool is_inexact = false;
    for (int64_t m = begin; m < end; m++)
        for (int64_t k = 0; k < p->blocks.num_cols; k++) is_inexact |= run_block(p, m, k);
    if (is_inexact && p->has_inexact) __atomic_store_n(p->inexact, 1, __ATOMIC_RELAXED);
}

/* ---- checks ---- */

static tgl_status check(const DLTensor *x, const DLTensor *x_sf, const DLTensor *out, const DLTensor *out_sf,
                        const DLTensor *inexact, const tgl_quant_params *params, problem *p)
{
    TGL_TRY(tgl_expect_params(params));
    TGL_TRY(tgl_expect_block("num_per_tokens", params->num_per_tokens));
    TGL_TRY(tgl_expect_block("num_per_channels", params->num_per_channels));
    TGL_TRY(tgl_expect_block("x_num_per_tokens", params->x_num_per_tokens));
    TGL_TRY(tgl_expect_block("x_num_per_channels", params->x_num_per_channels));
    TGL_TRY(tgl_expect_codes("x", x, TGL_FORMAT_E2M1));
    p->num_rows = x->shape[0];
    p->num_cols = tgl_num_cols(x, TGL_FORMAT_E2M1);
    p->x = tgl_data(x);
    p->x_stride = p->num_rows > 1 && p->num_cols > 0 ? tgl_stride(x, 0) : 0;
    p->x_blocks = tgl_blocks_of(p->num_rows, p->num_cols, params->x_num_per_tokens,
                                params->x_num_per_channels);
    p->blocks = tgl_blocks_of(p->num_rows, p->num_cols, params->num_per_tokens, params->num_per_channels);
    if (p->blocks.rows % p->x_blocks.rows)
        return tgl_fail(TGL_ERR_ARGUMENT, "num_per_tokens: is %" PRId64 ", want a multiple of %" PRId64
                        " (x_num_per_tokens)", p->blocks.rows, p->x_blocks.rows);
    if (p->blocks.cols % p->x_blocks.cols && p->blocks.num_cols > 1)    /* all columns are whole blocks */
        return tgl_fail(TGL_ERR_ARGUMENT, "num_per_channels: is %" PRId64 ", want a multiple of %" PRId64
                        " (x_num_per_channels)", p->blocks.cols, p->x_blocks.cols);
    TGL_TRY(tgl_expect_sf("x_sf", x_sf, p->x_blocks.num_rows, p->x_blocks.num_cols, &p->x_sf));
    TGL_TRY(tgl_expect_out_codes("out", out, TGL_FORMAT_E4M3, p->num_rows, p->num_cols));
    TGL_TRY(tgl_expect_out_sf("out_sf", out_sf, p->blocks.num_rows, p->blocks.num_cols, true, &p->sf));
    p->out = tgl_data(out);
    p->has_inexact = inexact;
    if (inexact) {
        TGL_TRY(tgl_expect_list("inexact", inexact, TGL_I32, 1));
        p->inexact = tgl_data(inexact);
    }
    const tgl_named tensors[] = {
        { "x", x }, { "x_sf", x_sf }, { "out", out }, { "out_sf", out_sf }, { "inexact", inexact }
    };
    return tgl_expect_apart(tensors, 2, 5);
}

/* ---- launch ---- */

static bool is_power_of_two(int64_t n) { return (n & (n - 1)) == 0; }

/* Blocks for which there is a kernel with tiles; those of x are whole parts of them, but where all columns
 * are one block. */
static bool has_tiles(const problem *p)
{
    return LOSSLESS_HAS(p->blocks.rows, p->blocks.cols) && p->x_blocks.cols >= LOSSLESS_VALUES &&
           is_power_of_two(p->x_blocks.cols);
}

/* The blocks choose, and for those that have a kernel of their own, addresses. */
enum { ANY, TILES, NUM_KERNELS };
static tgl_status launch(const problem *p, int which, const DLTensor *on, const tgl_shape *shape,
                         tgl_stream stream, void **args)
{
    const tgl_kernel plan[NUM_KERNELS] = {
        [ANY] = { .name = "quant/per_block_cast_lossless_any" },
        [TILES] = { "quant/per_block_cast_lossless",
                    { { "BLOCK_ROWS", p->blocks.rows }, { "BLOCK_COLS", p->blocks.cols },
                      { "X_SF_KIND", p->x_sf.kind }, { "SF_KIND", p->sf.kind } } },
    };
    return tgl_launch(plan, has_tiles(p) ? NUM_KERNELS : TILES, which, on, shape, stream, args);
}

static tgl_status run_on_cuda(const problem *p, const DLTensor *on, tgl_stream stream)
{
    const tgl_blocks *b = &p->blocks, *xb = &p->x_blocks;
    tgl_lossless_cast c = {
        .x = p->x, .x_row_bytes = p->x_stride, .out = p->out, .x_sf = p->x_sf, .sf = p->sf,
        .num_rows = p->num_rows, .num_cols = p->num_cols, .num_sf = b->num_cols,
        .x_block_rows = xb->rows, .x_block_cols = xb->cols, .by_x_block_rows = tgl_divisor_of(xb->rows),
        .by_x_block_cols = tgl_divisor_of(xb->cols), .inexact = p->has_inexact ? p->inexact : NULL
    };
    const int64_t tile_rows = LOSSLESS_TILE_ROWS(b->rows), tile_cols = LOSSLESS_TILE_COLS(b->rows);
    const int64_t tiles = (p->num_cols + tile_cols - 1) / tile_cols;
    const int64_t rows_of_tiles = (p->num_rows + tile_rows - 1) / tile_rows;
    const uintptr_t x_bits = (uintptr_t)p->x | (uintptr_t)p->x_stride;
    if (has_tiles(p) && p->num_cols % LOSSLESS_VALUES == 0 && x_bits % 8 == 0 &&
        (uintptr_t)p->out % 16 == 0 && rows_of_tiles <= INT32_MAX / tiles) {
        uint32_t num_tiles = (uint32_t)tiles;
        tgl_divisor by_num_tiles = tgl_divisor_of(tiles);
        void *args[] = { &c, &num_tiles, &by_num_tiles };
        const tgl_shape shape = { { rows_of_tiles * tiles }, .block = LOSSLESS_THREADS };
        return launch(p, TILES, on, &shape, stream, args);
    }
    tgl_groups groups = tgl_groups_of(p->num_rows, b->rows, b->cols, b->num_rows, b->num_cols, 1);
    void *args[] = { &c, &groups };
    const tgl_shape shape = { { tgl_groups_grid(&groups) }, .block = 32 * GROUP_WARPS };
    return launch(p, ANY, on, &shape, stream, args);
}

tgl_status tgl_quant_per_block_cast_lossless(const DLTensor *x, const DLTensor *x_sf, DLTensor *out,
                                             DLTensor *out_sf, DLTensor *inexact,
                                             const tgl_quant_params *params, tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_quant_per_block_cast_lossless", "x", x, "x_sf", x_sf, "out", out, "out_sf", out_sf,
                     "inexact", inexact, NULL);
    problem p = { 0 };
    TGL_TRY(check(x, x_sf, out, out_sf, inexact, params, &p));
    if (p.num_cols == 0) return TGL_OK;                             /* no kernel has no columns */
    if (p.num_rows == 0 && !tgl_preparing()) return TGL_OK;         /* data may be NULL */
    if (!tgl_on_cpu(x)) return run_on_cuda(&p, x, stream);
    const int64_t rows = least(p.blocks.rows, p.num_rows);
    return tgl_parallel_rows(p.blocks.num_rows, 2 * rows * p.num_cols, run_rows, &p);
}
