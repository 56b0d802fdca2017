/* SPDX-License-Identifier: MIT
 * per_block_cast_lossless.c - tgl_quant_per_block_cast_lossless: e2m1 with fine powers of two as e4m3 with
 * coarser ones. */
#include "quant/per_block_cast_lossless.h"

#include "core/clones.h"
#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "quant/common/blocks.h"
#include "quant/common/params.h"
#include "quant/lanes.h"
#include "quant/lossless.h"

typedef struct {
    int64_t num_rows, num_cols;
    const uint8_t *x;
    int64_t x_stride;               /* bytes from a row to the next */
    tgl_sf x_sf, sf;
    tgl_blocks x_blocks, blocks;    /* a block of `blocks` is made of whole ones of x_blocks ... */
    int64_t x_rows, x_cols;         /* ... of so many */
    uint8_t *out;
    bool has_inexact;
    int32_t *inexact;
    union { lossless_args tiles; lossless_any_args any; } args;
} problem;

/* ---- CPU ---- */

/* What is frequent is inlined into the function with clones; what is not leaves it its registers. */
#define INLINE static inline __attribute__((always_inline))
#define SELDOM static __attribute__((noinline))

SELDOM void run_rest(const uint8_t *x, int64_t num_pairs, int shift, uint8_t *out)
{
    for (int64_t i = 0; i < num_pairs; i++) {
        out[2 * i] = tgl_lossless_exact(x[i] & 15, shift);
        out[2 * i + 1] = tgl_lossless_exact(x[i] >> 4, shift);
    }
}

INLINE void run_exact(const uint8_t *x, int64_t num_pairs, int shift, uint8_t *out)
{
    const int64_t done = tgl_lanes_lossless(x, num_pairs, shift, out);
    if (done < num_pairs) run_rest(x + done, num_pairs - done, shift, out + 2 * done);
}

/* Columns j .. end - 1 of a row. Did a value change? */
SELDOM bool run_inexact(const uint8_t *row, int64_t j, int64_t end, int shift, uint8_t *out)
{
    bool is_inexact = false;
    for (; j < end; j++) {
        const uint32_t code = row[j / 2] >> (j % 2 * 4) & 15;
        out[j] = tgl_lossless(code, shift);
        is_inexact |= tgl_lossless_changes(code, shift);
    }
    return is_inexact;
}

INLINE int x_code(const problem *p, int64_t m, int64_t k)
{
    return (int)tgl_sf_code_of(tgl_sf_get(&p->x_sf, m, k));
}

/* The part of row i in block (m, k) of x. Did a value change? */
INLINE bool run_part(const problem *p, int64_t i, int64_t m, int64_t k, int sf)
{
    const int shift = tgl_lossless_shift(x_code(p, m, k), sf);
    const int64_t j = k * p->x_blocks.cols, end = tgl_min(j + p->x_blocks.cols, p->num_cols);
    const uint8_t *row = p->x + i * p->x_stride;
    uint8_t *out = p->out + i * p->num_cols;
    if (shift < TGL_LOSSLESS_MIN_SHIFT || j % 2 || end % 2) return run_inexact(row, j, end, shift, out);
    run_exact(row + j / 2, (end - j) / 2, shift, out + j);
    return false;
}

INLINE bool run_block(const problem *p, int64_t m, int64_t k)
{
    const int64_t x_m = m * p->x_rows, x_m_end = tgl_min(x_m + p->x_rows, p->x_blocks.num_rows);
    const int64_t x_k = k * p->x_cols, x_k_end = tgl_min(x_k + p->x_cols, p->x_blocks.num_cols);
    int largest = 0;
    for (int64_t i = x_m; i < x_m_end; i++)
        for (int64_t j = x_k; j < x_k_end; j++) {
            const int code = x_code(p, i, j);
            largest = code > largest ? code : largest;
        }
    const int sf = tgl_lossless_sf(largest);
    tgl_sf_set(&p->sf, m, k, p->blocks.num_cols, tgl_ue8m0_to_f32((uint8_t)sf));
    bool is_inexact = false;
    for (int64_t b = x_m; b < x_m_end; b++) {
        const int64_t row_end = tgl_min((b + 1) * p->x_blocks.rows, p->num_rows);
        for (int64_t i = b * p->x_blocks.rows; i < row_end; i++)
            for (int64_t j = x_k; j < x_k_end; j++) is_inexact |= run_part(p, i, b, j, sf);
    }
    return is_inexact;
}

TGL_CLONES
static void run_rows(const void *context, int64_t begin, int64_t end)       /* of blocks */
{
    const problem *p = context;
    bool is_inexact = false;
    for (int64_t m = begin; m < end; m++)
        for (int64_t k = 0; k < p->blocks.num_cols; k++) is_inexact |= run_block(p, m, k);
    if (is_inexact && p->has_inexact) __atomic_store_n(p->inexact, 1, __ATOMIC_RELAXED);
}

static tgl_status run_on_cpu(const void *context)
{
    const problem *p = context;
    return tgl_parallel_rows(p->blocks.num_rows, 2 * tgl_min(p->blocks.rows, p->num_rows) * p->num_cols, run_rows, p);
}

TGL_SIZES(sizes, num_rows, num_cols);
tgl_signature tgl_quant_per_block_cast_lossless_signature = TGL_SIGNATURE(
    "quant_per_block_cast_lossless(x: e2m1[num_rows, num_cols] rows,"
    " x_sf: sf[num_rows / x_num_per_tokens, num_cols / x_num_per_channels], num_per_tokens: int = 1,"
    " num_per_channels: int = num_cols, x_num_per_tokens: int = 1, x_num_per_channels: int = num_cols)"
    " -> out: e4m3[num_rows, num_cols], out_sf: sf[num_rows / num_per_tokens, num_cols / num_per_channels],"
    " inexact: i32[1]?!"
    " where num_cols < 2^59, num_per_tokens % x_num_per_tokens,"
    " num_per_channels % x_num_per_channels if num_cols > num_per_channels", &TGL_QUANT_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

static bool is_power_of_two(int64_t n) { return (n & (n - 1)) == 0; }

/* Blocks for which there is a kernel with tiles; those of x are whole parts of them, but where all columns
 * are one block. */
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
                                   { { "BLOCK_ROWS", p->blocks.rows }, { "BLOCK_COLS", p->blocks.cols },
                                     { "X_SF_KIND", p->x_sf.kind }, { "SF_KIND", p->sf.kind } } };
    kernels[ANY] = (tgl_kernel){ .name = "quant/per_block_cast_lossless_any" };
    return NUM_KERNELS;
}

static tgl_lossless_cast cast_of(const problem *p)
{
    const tgl_blocks *xb = &p->x_blocks;
    return (tgl_lossless_cast){
        .x = p->x, .x_row_bytes = p->x_stride, .out = p->out, .x_sf = p->x_sf, .sf = p->sf,
        .num_rows = p->num_rows, .num_cols = p->num_cols, .num_sf = p->blocks.num_cols,
        .x_block_rows = xb->rows, .x_block_cols = xb->cols, .by_x_block_rows = tgl_divisor_of(xb->rows),
        .by_x_block_cols = tgl_divisor_of(xb->cols), .inexact = p->has_inexact ? p->inexact : NULL
    };
}

static int64_t tiles_down(const problem *p) { return tgl_ceil_div(p->num_rows, LOSSLESS_TILE_ROWS(p->blocks.rows)); }
static int64_t tiles_across(const problem *p) { return tgl_ceil_div(p->num_cols, LOSSLESS_TILE_COLS(p->blocks.rows)); }

static bool fits_tiles(const void *context, const tgl_target *target)
{
    (void)target;
    const problem *p = context;
    const uintptr_t x_bits = (uintptr_t)p->x | (uintptr_t)p->x_stride;
    return p->num_cols % LOSSLESS_VALUES == 0 && x_bits % 8 == 0 && (uintptr_t)p->out % 16 == 0 &&
           tiles_down(p) <= INT32_MAX / tiles_across(p);
}

static tgl_shape shape_tiles(void *context, const tgl_target *target)
{
    (void)target;
    problem *p = context;
    const int64_t tiles = tiles_across(p);
    p->args.tiles = (lossless_args){ cast_of(p), (uint32_t)tiles, tgl_divisor_of(tiles) };
    return (tgl_shape){ { tiles_down(p) * tiles }, .block = LOSSLESS_THREADS, TGL_ARGS(p->args.tiles) };
}

static tgl_shape shape_any(void *context, const tgl_target *target)
{
    (void)target;
    problem *p = context;
    const tgl_blocks *b = &p->blocks;
    p->args.any = (lossless_any_args){ cast_of(p),
                                       tgl_groups_of(p->num_rows, b->rows, b->cols, b->num_rows, b->num_cols, 1) };
    return (tgl_shape){ { tgl_strided_grid(tgl_groups_grid(&p->args.any.groups), INT32_MAX) },
                        .block = 32 * GROUP_WARPS, TGL_ARGS(p->args.any) };
}

static const tgl_op OP = { run_on_cpu, plan, { [TILES] = { fits_tiles, NULL, shape_tiles }, [ANY] = { .shape = shape_any } } };

tgl_status tgl_quant_per_block_cast_lossless(const DLTensor *x, const DLTensor *x_sf, DLTensor *out,
                                             DLTensor *out_sf, DLTensor *inexact,
                                             const tgl_quant_params *params, tgl_stream stream)
{
    const DLTensor *tensors[] = { x, x_sf, out, out_sf, inexact };
    sizes n;
    TGL_TRY(tgl_take(&tgl_quant_per_block_cast_lossless_signature, tensors, params, &n.num_rows));
    if (n.num_cols == 0 || (n.num_rows == 0 && !tgl_preparing())) return TGL_OK;    /* inexact is left as it is */
    const tgl_blocks x_blocks = tgl_blocks_of(n.num_rows, n.num_cols, params->x_num_per_tokens,
                                              params->x_num_per_channels);
    const tgl_blocks b = tgl_blocks_of(n.num_rows, n.num_cols, params->num_per_tokens, params->num_per_channels);
    problem p = {
        .num_rows = n.num_rows, .num_cols = n.num_cols, .x = tgl_data(x),
        .x_stride = n.num_rows > 1 ? tgl_stride(x, 0) : 0, .x_sf = tgl_sf_of(x_sf), .sf = tgl_sf_of(out_sf),
        .x_blocks = x_blocks, .blocks = b, .x_rows = b.rows / x_blocks.rows,
        .x_cols = b.num_cols > 1 ? b.cols / x_blocks.cols : x_blocks.num_cols, .out = tgl_data(out),
        .has_inexact = inexact, .inexact = inexact ? tgl_data(inexact) : NULL
    };
    return tgl_run(&tgl_quant_per_block_cast_lossless_signature, &OP, tensors, &p, stream);
}
