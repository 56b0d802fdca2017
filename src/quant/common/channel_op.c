/* SPDX-License-Identifier: MIT */
#include "quant/common/channel_op.h"

#include "core/math.h"

typedef tgl_channel_problem problem;

/* The candidates, in order. */
enum { CHANNEL_STAGED, CHANNEL_MANY, CHANNEL_WIDE, CHANNEL_MIDDLE, CHANNEL_NARROW, CHANNEL_NUM_KERNELS };

/* ---- tiles ---- */

int tgl_channel_x(const problem *p) { return p->has_codes ? X_E4M3 : p->values.is_bf16 ? X_BF16 : X_F32; }

int64_t tgl_channel_block_rows(const problem *p)
{
    const int64_t rows = p->blocks.rows;
    return rows == 32 || rows == 64 || rows == 128 ? rows : 0;
}

/* A tile: threads across it, its rows, and the rows of a thread. */
typedef struct { int lanes, rows, patch_rows; } tile;

/* bf16 that is not transposed has tall threads. */
static bool is_tall(const problem *p)
{
    return tgl_channel_x(p) == X_BF16 && !p->is_transposed && !p->is_swiglu && tgl_channel_block_rows(p) != 0;
}

static bool has_many(const problem *p)
{
    return is_tall(p) || (tgl_channel_x(p) == X_BF16 && p->is_transposed && tgl_channel_block_rows(p) != 0);
}

static tile tile_of(const problem *p, int which)
{
    const int x = tgl_channel_x(p), few_rows = CHANNEL_FEW_ROWS(x, p->is_swiglu);
    if (which == CHANNEL_NARROW) return (tile){ CHANNEL_NARROW_LANES, CHANNEL_TILE_ROWS, few_rows };
    if (which == CHANNEL_MIDDLE) return (tile){ CHANNEL_MIDDLE_LANES, CHANNEL_TILE_ROWS, few_rows };
    if (which != CHANNEL_MANY)
        return (tile){ CHANNEL_LANES(x), CHANNEL_TILE_ROWS, is_tall(p) ? CHANNEL_TALL_ROWS : CHANNEL_ROWS(x) };
    if (is_tall(p)) return (tile){ CHANNEL_WIDE_LANES, CHANNEL_TILE_ROWS, CHANNEL_TALL_ROWS };
    return (tile){ CHANNEL_LANES(x), CHANNEL_LONG_ROWS, CHANNEL_TALL_ROWS };
}

static int64_t tiles_across(const problem *p, int which)
{
    return tgl_ceil_div(p->num_cols, tile_of(p, which).lanes * CHANNEL_VALUES(tgl_channel_x(p)));
}

static int64_t tiles_down(const problem *p, int which)
{
    return tgl_ceil_div(p->num_rows, tgl_channel_block_rows(p) ? tile_of(p, which).rows : p->blocks.rows);
}

static int64_t num_tiles(const problem *p, int which) { return tiles_down(p, which) * tiles_across(p, which); }

/* ---- plan ---- */

int tgl_channel_plan(const problem *p, tgl_kernel kernel, bool may_stage, tgl_kernel *kernels)
{
    /* narrower tiles are for few tiles; if one row of tiles is enough for all SMs, they never pay */
    const bool has_middle =
        CHANNEL_LANES(tgl_channel_x(p)) != CHANNEL_MIDDLE_LANES && tiles_across(p, CHANNEL_WIDE) < CHANNEL_FEW_TILES;
    const bool has_narrow = tiles_across(p, CHANNEL_MIDDLE) < CHANNEL_FEW_TILES;
    const bool has[] = { [CHANNEL_STAGED] = may_stage,
                         [CHANNEL_MANY] = has_many(p),
                         [CHANNEL_WIDE] = true,
                         [CHANNEL_MIDDLE] = has_middle,
                         [CHANNEL_NARROW] = has_narrow };
    for (int i = 0; i < CHANNEL_NUM_KERNELS; i++) {
        const tile t = tile_of(p, i);
        const char *name = i == CHANNEL_STAGED ? "quant/per_channel_cast_staged" : kernel.name;
        kernels[i] =
            (tgl_kernel){ has[i] ? name : NULL,
                          { { "STRIP_LANES", t.lanes }, { "STRIP_ROWS", t.rows }, { "PATCH_ROWS", t.patch_rows } } };
        for (int m = 3; m < TGL_MAX_MACROS; m++) kernels[i].macros[m] = kernel.macros[m - 3];
    }
    return CHANNEL_NUM_KERNELS;
}

/* ---- arguments ---- */

static const char *x_of(const problem *p) { return p->has_codes ? (const char *)p->codes.data : p->values.data; }
static int64_t x_row_bytes(const problem *p) { return p->has_codes ? p->codes.row_bytes : p->values.row_bytes; }

static bool is_x_aligned(const problem *p)
{
    const int x = tgl_channel_x(p);
    const int64_t half_bytes = p->is_swiglu ? p->num_cols * CHANNEL_VECTOR_BYTES(x) / CHANNEL_VALUES(x) : 0;
    return ((int64_t)(uintptr_t)x_of(p) | x_row_bytes(p) | half_bytes) % CHANNEL_VECTOR_BYTES(x) == 0;
}

static bool is_out_aligned(const problem *p)
{
    const int64_t out = (int64_t)(uintptr_t)p->out;
    if (p->is_transposed) return (out | p->num_rows | p->blocks.rows % CHANNEL_TILE_ROWS) % 16 == 0;
    return (out | p->num_cols) % CHANNEL_VALUES(tgl_channel_x(p)) == 0;
}

/* May tiles be treated as whole? Then the map is loaded as vectors, rows and strides are multiplied in 32
 * bits, and columns of factors are found by a shift. Long tiles are for unaligned rows of out. */
static bool has_whole_tiles(const problem *p, bool is_long)
{
    const int64_t x_cols = p->codes.block_cols;
    const bool is_aligned = is_x_aligned(p) && (is_out_aligned(p) || is_long) && (uintptr_t)p->pos_to_token % 16 == 0;
    const bool is_small = p->num_rows < TGL_DIVIDE_LIMIT && p->num_cols < TGL_DIVIDE_LIMIT &&
                          (uint64_t)x_row_bytes(p) <= UINT32_MAX && (uint64_t)p->codes.sf.stride < 1 << 30;
    return is_aligned && is_small && ((x_cols & (x_cols - 1)) == 0 || x_cols >= p->num_cols);
}

/* Tiles across a band. Transposed tiles go down the rows, so that the tiles in flight write whole rows of
 * out. With a map, a band's part of x stays in L2, so that a row that the map names several times is fetched
 * once. */
static int64_t band_of(const problem *p, int which)
{
    enum { BAND_BYTES = 6 << 20, AHEAD_BYTES = 256 }; /* of x, much of which L2 has twice; fetched at a time */
    const int64_t strips = tiles_across(p, which);
    if (p->is_transposed && tgl_channel_block_rows(p)) return 1;
    if (!p->pos_to_token) return strips;
    const int64_t strip_bytes = tile_of(p, which).lanes * CHANNEL_VECTOR_BYTES(tgl_channel_x(p));
    const int64_t low = AHEAD_BYTES / strip_bytes, fit = BAND_BYTES / strip_bytes / tgl_max(p->num_tokens, 1);
    const int64_t bands = tgl_ceil_div(strips, tgl_max(fit, low));
    return tgl_min(tgl_ceil_div(tgl_ceil_div(strips, bands), low) * low, strips); /* of about the same width */
}

static tgl_channel_cast cast_of(const problem *p, int which)
{
    const tile t = tile_of(p, which);
    const int64_t x_cols = p->codes.block_cols;
    const bool is_whole = has_whole_tiles(p, t.rows == CHANNEL_LONG_ROWS);
    uint32_t shift = 0;
    while (shift < 31 && (int64_t)1 << shift < x_cols) shift++;
    return (tgl_channel_cast){
        .x = x_of(p),
        .pos_to_token = p->pos_to_token,
        .num_tokens = (uint32_t)tgl_min(p->num_tokens, (int64_t)1 << 31),
        .whole_rows = is_whole ? (uint32_t)(p->num_rows / t.rows) : 0,
        .whole_cols = is_whole ? (uint32_t)(p->num_cols / (t.lanes * CHANNEL_VALUES(tgl_channel_x(p)))) : 0,
        .x_step = (uint32_t)x_row_bytes(p),
        .x_sf_step = (uint32_t)((p->codes.sf.kind == TGL_SF_ROWS ? p->codes.sf.stride : 1) * 4),
        .x_sf_shift = shift,
        .x_sf_data = p->codes.sf.data,
        .num_rows = p->num_rows,
        .num_cols = p->num_cols,
        .out = (char *)p->out,
        .sf = p->sf.data,
        .x_sf = p->codes.sf,
        .out_step = (uint32_t)p->num_cols,
        .x_row_bytes = x_row_bytes(p),
        .block_rows = p->blocks.rows,
        .x_block_cols = x_cols,
        .by_x_block_cols = p->has_codes ? tgl_divisor_of(x_cols) : (tgl_divisor){ 0, 0 },
        .clamp = p->clamp,
        .is_x_aligned = is_x_aligned(p),
        .is_out_aligned = is_out_aligned(p)
    };
}

/* ---- a block for each tile ---- */

static tgl_shape shape(problem *p, int which)
{
    enum { MAX_GRID = 65535 }; /* of y and z */
    tgl_channel_cast *c = &p->args.cast;
    *c = cast_of(p, which);
    const tile t = tile_of(p, which);
    const int64_t down = tiles_down(p, which), across = tiles_across(p, which), band = band_of(p, which);
    tgl_shape s = { { band, down, tgl_ceil_div(across, band) },
                    .block = CHANNEL_THREADS(t.rows, t.patch_rows, t.lanes),
                    TGL_ARGS(*c) };
    if (s.grid[1] <= MAX_GRID && s.grid[2] <= MAX_GRID) return s;
    c->whole_rows = 0;
    c->slice_rows = (uint32_t)tgl_min(down, MAX_GRID);
    s.grid[0] = across;
    s.grid[1] = c->slice_rows;
    s.grid[2] = tgl_ceil_div(down, c->slice_rows);
    return s;
}

static bool fits_many(const void *context, const tgl_target *target)
{
    return is_tall(context) || !is_out_aligned(context);
}

static bool pays_many(const void *context, const tgl_target *target)
{
    const problem *p = context;
    const int wide_cols = CHANNEL_WIDE_LANES * CHANNEL_VALUES(X_BF16);
    const bool fills_wide = p->num_cols % wide_cols == 0 || p->num_cols >= 16 * wide_cols;
    return num_tiles(p, CHANNEL_WIDE) >= CHANNEL_MANY_TILES && (!is_tall(p) || fills_wide);
}

static bool are_enough(const problem *p, int which) { return num_tiles(p, which) >= CHANNEL_FEW_TILES; }
static bool pays_wide(const void *p, const tgl_target *t) { return are_enough(p, CHANNEL_WIDE); }
static bool pays_middle(const void *p, const tgl_target *t) { return are_enough(p, CHANNEL_MIDDLE); }

static tgl_shape many_shape(void *p, const tgl_target *t) { return shape(p, CHANNEL_MANY); }
static tgl_shape wide_shape(void *p, const tgl_target *t) { return shape(p, CHANNEL_WIDE); }
static tgl_shape middle_shape(void *p, const tgl_target *t) { return shape(p, CHANNEL_MIDDLE); }
static tgl_shape narrow_shape(void *p, const tgl_target *t) { return shape(p, CHANNEL_NARROW); }

/* ---- blocks that loop over tiles ---- */

static bool fits_staged(const void *context, const tgl_target *target)
{
    const problem *p = context;
    const bool is_aligned = ((uintptr_t)x_of(p) | (uint64_t)x_row_bytes(p)) % 16 == 0;
    return target->architecture >= 90 && is_aligned && has_whole_tiles(p, false) &&
           p->num_cols % (CHANNEL_LANES(X_E4M3) * CHANNEL_VALUES(X_E4M3)) == 0 &&
           num_tiles(p, CHANNEL_STAGED) < TGL_DIVIDE_LIMIT;
}

static bool pays_staged(const void *context, const tgl_target *target)
{
    const int64_t tiles = num_tiles(context, CHANNEL_STAGED);
    const int64_t blocks = tgl_strided_grid(tiles, (int64_t)target->num_sms * CHANNEL_STAGED_BLOCKS);
    return tiles >= CHANNEL_STAGED_TILES * blocks && tiles >= CHANNEL_FEW_TILES;
}

/* Bands of the same width. */
static tgl_shape staged_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const int64_t down = tiles_down(p, CHANNEL_STAGED), across = tiles_across(p, CHANNEL_STAGED);
    const int64_t tiles = down * across;
    int64_t band = band_of(p, CHANNEL_STAGED);
    while (across % band != 0) band--;
    p->args.cast = cast_of(p, CHANNEL_STAGED);
    p->args.tiles = (tgl_channel_tiles){ (uint32_t)(tiles - 1), (uint32_t)down, (uint32_t)band, tgl_divisor_of(down),
                                         tgl_divisor_of(band) };
    const tile t = tile_of(p, CHANNEL_STAGED);
    return (tgl_shape){ { tgl_strided_grid(tiles, (int64_t)target->num_sms * CHANNEL_STAGED_BLOCKS) },
                        .block = CHANNEL_THREADS(t.rows, t.patch_rows, t.lanes),
                        TGL_ARGS(p->args) };
}

static tgl_status cpu(const void *p) { return ((const problem *)p)->cpu(p); }
static int plan(const void *p, tgl_kernel *kernels) { return ((const problem *)p)->plan(p, kernels); }

const tgl_op tgl_channel_op = { cpu,
                                plan,
                                {
                                    [CHANNEL_STAGED] = { fits_staged, pays_staged, staged_shape },
                                    [CHANNEL_MANY] = { fits_many, pays_many, many_shape },
                                    [CHANNEL_WIDE] = { NULL, pays_wide, wide_shape },
                                    [CHANNEL_MIDDLE] = { NULL, pays_middle, middle_shape },
                                    [CHANNEL_NARROW] = { NULL, NULL, narrow_shape },
                                } };
