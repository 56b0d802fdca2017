/* SPDX-License-Identifier: MIT
 * per_channel_cast.c - tgl_quant_per_channel_cast: blocks of one column, of rows that a map names. */
#include <string.h>

#include "core/log.h"
#include "core/math.h"
#include "cuda/launch.h"
#include "quant/cast.h"
#include "quant/common/check.h"
#include "quant/per_channel_cast_launch.h"

typedef struct {
    int64_t num_tokens, num_rows, num_cols;     /* of x; of out */
    bool has_codes;                             /* x has codes of e4m3, else numbers */
    tgl_values values;
    tgl_codes codes;
    bool has_map;                               /* else row i is token i */
    const int32_t *pos_to_token;
    tgl_blocks blocks;
    tgl_scale_rule rule;
    tgl_sf sf;                                  /* row-major */
    uint8_t *out;
} problem;

/* ---- CPU ---- */

static const void *read_gathered(const void *context, int64_t row, int64_t col, int64_t count, float *buffer)
{
    const problem *p = context;
    const int64_t token = p->has_map ? p->pos_to_token[row] : row;
    const tgl_reader x = p->has_codes ? tgl_read_codes(&p->codes) : tgl_read_values(&p->values);
    if (token >= 0 && token < p->num_tokens) return x.read(x.context, token, col, count, buffer);
    return memset(buffer, 0, (size_t)count * sizeof *buffer);       /* counts for nothing, becomes +0 */
}

static tgl_status run_on_cpu(const problem *p)
{
    const tgl_cast cast = {
        .from = { read_gathered, p, !p->has_codes && p->values.is_bf16, p->has_codes,
                  p->has_codes || p->has_map ? 0 : p->values.row_bytes },
        .num_rows = p->num_rows, .num_cols = p->num_cols, .format = TGL_FORMAT_E4M3, .rule = p->rule,
        .block_rows = p->blocks.rows, .block_cols = 1, .sf = p->sf, .num_sf = p->num_cols,
        .out = p->out, .out_stride = p->num_cols
    };
    return tgl_run_cast(&cast);
}

/* ---- checks ---- */

static tgl_status check(const DLTensor *x, const DLTensor *x_sf, const DLTensor *pos_to_token,
                        const DLTensor *out, const DLTensor *out_sf, const tgl_quant_params *params,
                        problem *p)
{
    TGL_TRY(tgl_expect_params(params));
    TGL_TRY(tgl_expect_block("num_per_tokens", params->num_per_tokens));
    p->has_codes = x_sf;
    TGL_TRY(x_sf ? tgl_expect_codes("x", x, TGL_FORMAT_E4M3) : tgl_expect_values("x", x));
    p->num_tokens = x->shape[0];
    p->num_cols = x->shape[1];
    if (x_sf) {
        TGL_TRY(tgl_expect_block("x_num_per_channels", params->x_num_per_channels));
        const tgl_blocks blocks = tgl_blocks_of(p->num_tokens, p->num_cols, 1, params->x_num_per_channels);
        tgl_sf sf;
        TGL_TRY(tgl_expect_sf("x_sf", x_sf, blocks.num_rows, blocks.num_cols, &sf));
        p->codes = tgl_codes_of(x, TGL_FORMAT_E4M3, sf, blocks);
    } else {
        p->values = tgl_values_of(x);
    }
    p->has_map = pos_to_token;
    p->num_rows = p->num_tokens;
    if (pos_to_token) {
        TGL_TRY(tgl_expect("pos_to_token", pos_to_token, TGL_I32, 1, TGL_PACKED));
        p->num_rows = pos_to_token->shape[0];
        p->pos_to_token = tgl_data(pos_to_token);
    }
    p->blocks = tgl_blocks_of(p->num_rows, p->num_cols, params->num_per_tokens, 1);
    p->rule = tgl_scale_rule_of(TGL_FORMAT_E4M3, params->round_sf);
    TGL_TRY(tgl_expect_out_codes("out", out, TGL_FORMAT_E4M3, p->num_rows, p->num_cols));
    TGL_TRY(tgl_expect_matrix("out_sf", out_sf, TGL_F32, p->blocks.num_rows, p->num_cols));
    p->sf = (tgl_sf){ tgl_data(out_sf), p->num_cols, TGL_SF_ROWS };
    p->out = tgl_data(out);
    const tgl_named tensors[] = {
        { "x", x }, { "x_sf", x_sf }, { "pos_to_token", pos_to_token }, { "out", out }, { "out_sf", out_sf }
    };
    return tgl_expect_apart(tensors, 3, 5);
}

/* ---- launch ---- */

int64_t tgl_channel_block_rows(int64_t block_rows)
{
    return block_rows == 32 || block_rows == 64 || block_rows == 128 ? block_rows : 0;
}

static void find_alignment(tgl_channel_cast *c, int x, bool is_swiglu, bool is_transposed)
{
    const int64_t half_bytes = is_swiglu ? c->num_cols * CHANNEL_VECTOR_BYTES(x) / CHANNEL_VALUES(x) : 0;
    const int64_t x_bits = (int64_t)(uintptr_t)c->x | c->x_row_bytes | half_bytes;
    const int64_t out_bits = (int64_t)(uintptr_t)c->out |
                             (is_transposed ? c->num_rows | c->block_rows % CHANNEL_TILE_ROWS : c->num_cols);
    c->is_x_aligned = x_bits % CHANNEL_VECTOR_BYTES(x) == 0;
    c->is_out_aligned = out_bits % (is_transposed ? 16 : CHANNEL_VALUES(x)) == 0;
}

/* Tiles side by side in a band. Transposed tiles follow each other down the rows, so that what is in flight
 * writes whole rows of out. Those of a map do so in bands whose part of x stays in L2, so that a row which
 * the map names several times is fetched once. */
static int64_t find_band(const tgl_channel_cast *c, int64_t strips, int64_t strip_bytes, bool is_transposed)
{
    enum { BAND_BYTES = 6 << 20, AHEAD_BYTES = 256 };  /* of x: L2 has much of it twice; fetched at a time */
    if (is_transposed) return 1;
    if (!c->pos_to_token) return strips;
    const int64_t least = AHEAD_BYTES / strip_bytes;
    const int64_t fit = BAND_BYTES / strip_bytes / (c->num_tokens > 0 ? c->num_tokens : 1);
    const int64_t bands = tgl_ceil_div(strips, fit > least ? fit : least);
    const int64_t band = tgl_ceil_div(tgl_ceil_div(strips, bands), least) * least; /* all about as wide */
    return band < strips ? band : strips;
}

/* Of whole tiles the part of a map is vectors, rows and strides of 32 bits can be multiplied, and columns of
 * factors shifted. The rows of out that long ones are for are never aligned. */
static void find_whole(tgl_channel_cast *c, int64_t strip_rows, int64_t strip_cols)
{
    const bool is_long = strip_rows == CHANNEL_LONG_ROWS;
    const bool is_aligned = c->is_x_aligned && (c->is_out_aligned || is_long) &&
                            (uintptr_t)c->pos_to_token % 16 == 0;
    const bool is_small = c->num_rows < TGL_DIVIDE_LIMIT && c->num_cols < TGL_DIVIDE_LIMIT &&
                          (uint64_t)c->x_row_bytes <= UINT32_MAX && (uint64_t)c->x_sf.stride < 1 << 30;
    const bool is_shift = (c->x_block_cols & (c->x_block_cols - 1)) == 0 || c->x_block_cols >= c->num_cols;
    const bool is_whole = is_aligned && is_small && is_shift;
    c->whole_rows = is_whole ? (uint32_t)(c->num_rows / strip_rows) : 0;
    c->whole_cols = is_whole ? (uint32_t)(c->num_cols / strip_cols) : 0;
    c->x_step = (uint32_t)c->x_row_bytes;
    c->x_sf_data = c->x_sf.data;
    c->x_sf_step = (uint32_t)((c->x_sf.kind == TGL_SF_ROWS ? c->x_sf.stride : 1) * 4);
    c->x_sf_shift = 0;
    while (c->x_sf_shift < 31 && (int64_t)1 << c->x_sf_shift < c->x_block_cols) c->x_sf_shift++;
    c->out_step = (uint32_t)c->num_cols;
}

static tgl_shape set_tiles(tgl_channel_cast *c, int64_t row_tiles, int64_t strips, int64_t band, int block)
{
    enum { MOST = 65535 };                      /* of y and z of a grid */
    const int64_t bands = tgl_ceil_div(strips, band);
    if (row_tiles == 0 || (row_tiles <= MOST && bands <= MOST))    /* none: prepared, not launched */
        return (tgl_shape){ { band, row_tiles, bands }, .block = block };
    c->whole_rows = 0;
    c->slice_rows = (uint32_t)(row_tiles < MOST ? row_tiles : MOST);
    return (tgl_shape){ { strips, c->slice_rows, tgl_ceil_div(row_tiles, c->slice_rows) }, .block = block };
}

/* Lets blocks go through the tiles, if these are many and, but for their rows, whole. Bands become equally
 * wide. Of fewer tiles x and out may be in L2, where waits are short: with 4096 x 7168 there, a block for each
 * tile takes 15.1 us on H200, staged ones 16.3. */
static bool stage_tiles(const tgl_channel_cast *c, int64_t row_tiles, int64_t strips, int64_t band,
                        const tgl_target *target, tgl_channel_tiles *t, tgl_shape *shape)
{
    enum { LEAST = 6 };                         /* tiles of a block */
    const int64_t tiles = row_tiles * strips;
    const int64_t blocks = tgl_strided_grid(tiles, (int64_t)target->num_sms * CHANNEL_STAGED_BLOCKS);
    const bool is_aligned = ((uintptr_t)c->x | (uint64_t)c->x_row_bytes) % 16 == 0;
    if (target->architecture < 90 || !is_aligned || c->whole_cols != strips || tiles < LEAST * blocks ||
        tiles >= TGL_DIVIDE_LIMIT)
        return false;
    while (strips % band != 0) band--;
    *t = (tgl_channel_tiles){ (uint32_t)(tiles - 1), (uint32_t)row_tiles, (uint32_t)band,
                              tgl_divisor_of(row_tiles), tgl_divisor_of(band) };
    *shape = (tgl_shape){ { blocks, 1, 1 }, .block = shape->block };
    return true;
}

static tgl_kernel kernel_of(const tgl_kernel *kernel, int lanes, int strip_rows, int patch_rows)
{
    tgl_kernel k = *kernel;
    k.macros[0].value = lanes;
    k.macros[1].value = strip_rows;
    k.macros[2].value = patch_rows;
    return k;
}

tgl_status tgl_launch_channel_cast(tgl_channel_cast *c, const tgl_kernel *kernel, int x, bool is_swiglu,
                                   bool is_transposed, bool may_stage, const DLTensor *on, tgl_stream stream)
{
    enum { WIDTHS = 3, FEW_TILES = 100, MANY_TILES = 1000 };
    const bool has_any_rows = tgl_channel_block_rows(c->block_rows) == 0;
    const bool is_tall = x == X_BF16 && !is_transposed && !is_swiglu && !has_any_rows;
    int64_t row_tiles = tgl_ceil_div(c->num_rows, has_any_rows ? c->block_rows : CHANNEL_TILE_ROWS);
    const int widths[WIDTHS] = { CHANNEL_LANES(x), CHANNEL_MIDDLE_LANES, CHANNEL_NARROW_LANES };
    tgl_kernel plan[WIDTHS + 1];
    int num_kernels = 0, which = 0, lanes = 0, strip_rows = CHANNEL_TILE_ROWS, patch_rows = 0;
    int64_t strips = 0;
    for (int i = 0; i < WIDTHS; i++) {
        if (i > 0 && widths[i] == widths[i - 1]) continue;
        const int64_t count = tgl_ceil_div(c->num_cols, widths[i] * CHANNEL_VALUES(x));
        const int rows = i > 0   ? CHANNEL_FEW_ROWS(x, is_swiglu)
                       : is_tall ? CHANNEL_TALL_ROWS
                                 : CHANNEL_ROWS(x);
        plan[num_kernels] = kernel_of(kernel, widths[i], strip_rows, rows);
        if (row_tiles * strips < FEW_TILES) {   /* of the wider ones */
            which = num_kernels;
            lanes = widths[i];
            patch_rows = rows;
            strips = count;
        }
        num_kernels++;
        if (count >= FEW_TILES) break;          /* few rows do not make them few */
    }
    find_alignment(c, x, is_swiglu, is_transposed);
    if (is_tall || (x == X_BF16 && is_transposed && !has_any_rows)) {   /* one for many tiles */
        const int width = is_tall ? CHANNEL_WIDE_LANES : widths[0];
        const int height = is_tall ? CHANNEL_TILE_ROWS : CHANNEL_LONG_ROWS;
        const int wide_cols = CHANNEL_WIDE_LANES * CHANNEL_VALUES(x);
        const bool fills_wide = c->num_cols % wide_cols == 0 || c->num_cols >= 16 * wide_cols;
        plan[num_kernels] = kernel_of(kernel, width, height, CHANNEL_TALL_ROWS);
        if (row_tiles * strips >= MANY_TILES && (is_tall ? fills_wide : !c->is_out_aligned)) {
            which = num_kernels;
            lanes = width;
            strip_rows = height;
            patch_rows = CHANNEL_TALL_ROWS;
            strips = tgl_ceil_div(c->num_cols, lanes * CHANNEL_VALUES(x));
            row_tiles = tgl_ceil_div(c->num_rows, strip_rows);
        }
        num_kernels++;
    }
    find_whole(c, strip_rows, lanes * CHANNEL_VALUES(x));
    const int64_t strip_bytes = lanes * CHANNEL_VECTOR_BYTES(x);
    const int64_t band = find_band(c, strips, strip_bytes, is_transposed && !has_any_rows);
    const int threads = CHANNEL_THREADS(strip_rows, patch_rows, lanes);
    tgl_shape shape = set_tiles(c, row_tiles, strips, band, threads);
    tgl_channel_tiles tiles;
    if (may_stage) {
        tgl_target target;
        TGL_TRY(tgl_target_of(on, &target));
        plan[num_kernels] = plan[0];
        plan[num_kernels].name = "quant/per_channel_cast_staged";
        if (which == 0 && stage_tiles(c, row_tiles, strips, band, &target, &tiles, &shape))
            which = num_kernels;
        num_kernels++;
    }
    void *args[] = { c, &tiles };               /* the second is taken by the staged kernel only */
    return tgl_launch(plan, num_kernels, which, on, &shape, stream, args);
}

/* Codes of whole strips, in each of which a row has one factor. Without a map they wait for nothing, and a
 * block for each tile is faster: 33.5 us for 8001 x 7168 on H200, staged 36.6; with a map 35.1 and 32.5. */
static bool can_be_staged(const problem *p)
{
    const int64_t strip_cols = CHANNEL_LANES(X_E4M3) * CHANNEL_VALUES(X_E4M3), x_cols = p->codes.block_cols;
    return p->has_codes && p->has_map && tgl_channel_block_rows(p->blocks.rows) != 0 &&
           p->num_cols % strip_cols == 0 && (x_cols % strip_cols == 0 || x_cols >= p->num_cols);
}

static tgl_status run_on_cuda(const problem *p, const DLTensor *on, tgl_stream stream)
{
    const int x = p->has_codes ? X_E4M3 : p->values.is_bf16 ? X_BF16 : X_F32;
    const int64_t most = (int64_t)1 << 31;
    tgl_channel_cast c = { .num_tokens = (uint32_t)(p->num_tokens < most ? p->num_tokens : most),
                           .num_rows = p->num_rows, .num_cols = p->num_cols,
                           .out = (char *)p->out, .sf = p->sf.data, .block_rows = p->blocks.rows,
                           .pos_to_token = p->pos_to_token };
    bool is_wide = false;
    if (p->has_codes) {
        c.x = (const char *)p->codes.data;
        c.x_row_bytes = p->codes.row_bytes;
        c.x_sf = p->codes.sf;
        c.x_block_cols = p->codes.block_cols;
        c.by_x_block_cols = tgl_divisor_of(c.x_block_cols);
        is_wide = c.x_block_cols < c.num_cols && c.x_block_cols % CHANNEL_VALUES(X_E4M3) != 0;
    } else {
        c.x = p->values.data;
        c.x_row_bytes = p->values.row_bytes;
    }
    const tgl_kernel kernel = { "quant/per_channel_cast",
                                { { "STRIP_LANES", 0 },
                                  { "STRIP_ROWS", 0 },
                                  { "PATCH_ROWS", 0 },
                                  { "X", x },
                                  { "X_SF_KIND", p->has_codes ? c.x_sf.kind : 0 },
                                  { "IS_WIDE", is_wide },
                                  { "HAS_MAP", p->has_map },
                                  { "BLOCK_ROWS", tgl_channel_block_rows(c.block_rows) },
                                  { "IS_ROUNDED", p->rule.is_rounded } } };
    return tgl_launch_channel_cast(&c, &kernel, x, false, false, can_be_staged(p), on, stream);
}

tgl_status tgl_quant_per_channel_cast(const DLTensor *x, const DLTensor *x_sf, const DLTensor *pos_to_token,
                                      DLTensor *out, DLTensor *out_sf, const tgl_quant_params *params,
                                      tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_quant_per_channel_cast", "x", x, "x_sf", x_sf, "pos_to_token", pos_to_token,
                     "out", out, "out_sf", out_sf, NULL);
    problem p = { 0 };
    TGL_TRY(check(x, x_sf, pos_to_token, out, out_sf, params, &p));
    if (p.num_cols == 0) return TGL_OK;                             /* no kernel has no columns */
    if (p.num_rows == 0 && !tgl_preparing()) return TGL_OK;         /* data may be NULL */
    return tgl_on_cpu(x) ? run_on_cpu(&p) : run_on_cuda(&p, x, stream);
}
